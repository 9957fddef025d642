"""What README, docs and examples show is run here, as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python_blocks(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run_python(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TENUTO_HOME", str(folder / "state"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_example(name: str) -> str:
    """Run one of the examples and return what it printed."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.promise("P1")
def test_the_readme_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = python_blocks("README.md")
    imports, body = block.split("\n\n", 1)
    indented = textwrap.indent(body, "    ")
    code = f"import asyncio\n{imports}\nasync def main():\n{indented}\nasyncio.run(main())"
    assert "45" in run_python(code, tmp_path, monkeypatch)


@pytest.mark.promise("P1")
def test_the_python_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = python_blocks("docs/python.md")
    assert "Ada" in run_python(block, tmp_path, monkeypatch)


@pytest.mark.promise("X11")
def test_the_demo_plays_to_its_end() -> None:
    printed = run_example("demo.py")
    assert "Hello, Ada" in printed
    assert "verified dead" in printed
    assert "A SCRIPTED MODEL" in printed
    assert "[reviewer.2]" in printed  # the first build was sent back


@pytest.mark.promise("C3", "C8", "P1")
def test_the_functions_example_runs() -> None:
    printed = run_example("functions.py")
    first, second, third = printed.splitlines()
    assert "Valid parameters: name: string" in first
    assert (second, third) == ("apple and plum", "ONE AND TWO 2")


@pytest.mark.promise("D2", "D3", "P1")
def test_the_durable_example_runs() -> None:
    printed = run_example("durable.py")
    first, second, _, ran = printed.splitlines()
    assert first == "first: lost (its driver died: SIGKILL)" and second == "then: succeeded"
    assert ran == "ran: design build build test"  # what was finished was not run again


@pytest.mark.promise("C3", "P1")
def test_the_functions_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = python_blocks("docs/functions.md")[0]
    assert run_python(block, tmp_path, monkeypatch) == "['apple']\n"


ECHO = '[runners]\necho = "tenuto.testing.agents:EchoRunner"\n'


@pytest.mark.promise("G1", "P1")
def test_the_tasks_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tenuto.toml").write_text(ECHO)
    (block,) = python_blocks("docs/tasks.md")
    imports, body = block.split("\n\n", 1)
    indented = textwrap.indent(body, "    ")
    code = f"import asyncio\n{imports}\nasync def main():\n{indented}\nasyncio.run(main())"
    printed = run_python(code, tmp_path, monkeypatch)
    assert printed.startswith("completed ")
    assert printed.endswith("['completed', 'completed']\n")


@pytest.mark.promise("R1", "U1")
def test_the_runner_of_ones_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = python_blocks("docs/runners.md")
    (tmp_path / "shouting.py").write_text(block)
    (tmp_path / "tenuto.toml").write_text('[runners]\nshout = "shouting:Shout"\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TENUTO_HOME", str(tmp_path / "state"))
    words = ["task", "--runtime", "shout", "--wait", "60s", "whisper this"]
    done = subprocess.run(
        [sys.executable, "-m", "tenuto.cli.main", *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WHISPER THIS" in done.stdout


@pytest.mark.promise("R4")
def test_the_settings_of_the_runners_page_are_read(tmp_path: Path) -> None:
    from tenuto.engine.agent_settings import load_agent_settings
    from tenuto.engine.settings import load_settings

    text = (ROOT / "docs" / "runners.md").read_text(encoding="utf-8")
    (tmp_path / "tenuto.toml").write_text(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "none")}
    assert load_settings(str(tmp_path), environ)[0].runtime_preferred == "cli"
    agents, _ = load_agent_settings(str(tmp_path), environ)
    assert agents.agents["goose"] == ("goose", "acp")
    assert agents.tiers["cli"].fast == "ollama:qwen3"
