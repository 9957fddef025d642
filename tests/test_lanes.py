"""The lanes that `make test` runs: what fails twice fails, whatever else passes."""

from pathlib import Path

import pytest

import lanes

STEADY = "def test_is_well(): pass\n"
BROKEN = "def test_is_broken(): assert False\n"
UNSTEADY = """
from pathlib import Path
def test_fails_once():
    seen = Path(__file__).with_suffix(".seen")
    was_here = seen.exists()
    seen.touch()
    assert was_here
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take their time to load
    return tmp_path


def _write(root: Path, **texts: str) -> list[list[str]]:
    for name, text in texts.items():
        (root / f"test_{name}.py").write_text(text)
    return [[f"test_{name}.py"] for name in texts]


def test_all_is_well(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert lanes.run(_write(root, one=STEADY, two=STEADY), root) == 0
    shown = capfd.readouterr().out
    assert shown.count("1 passed") == 2 and "once more" not in shown


def test_what_fails_once_only_is_named(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert lanes.run(_write(root, one=STEADY, two=UNSTEADY), root) == 0
    assert capfd.readouterr().out.endswith(
        "unsteady, failed once and passed alone:\n  test_two.py::test_fails_once\n"
    )


def test_what_fails_twice_has_failed(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert lanes.run(_write(root, one=STEADY, two=UNSTEADY, three=BROKEN), root) == 1
    assert "unsteady" not in capfd.readouterr().out


def test_many_failures_and_other_trouble_get_no_second_chance(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    many = {f"unsteady_{n}": UNSTEADY for n in range(lanes.A_FEW + 1)}
    assert lanes.run([[name for (name,) in _write(root, **many)]], root) == 1
    assert lanes.run(_write(root, none="import nothing_of_that_name\n", one=STEADY), root) == 2
    assert "once more" not in capfd.readouterr().out
