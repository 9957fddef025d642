"""The benchmark of interrupts, with the runtimes that are tested here."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from npm_help import program
from runtimes import PROGRAMS

from tenuto.bench import main as bench


@pytest.mark.full
@pytest.mark.timeout(300)
def test_interrupts_are_measured_with_every_runtime_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, scratch = tmp_path / "project", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    lines = [f"{json.dumps(name)} = {json.dumps(program(*at))}" for name, at in PROGRAMS.items()]
    (folder / "tenuto.toml").write_text("\n".join(["[programs]", *lines]) + "\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert bench.main(["interrupts", "--quick", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    for name in (*PROGRAMS, "cli"):
        found = {row["what"]: row["target"] for row in rows if f" {name} " in row["what"]}
        soon = "≤ 1500 ms" if name == "open-code" else "≤ 100 ms"
        assert found == {
            f"interrupt: {name} acknowledges": soon,
            f"interrupt: {name} ended by force": "≤ 1000 ms",
        }
    assert not list(scratch.iterdir())
