from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_help import CommandLine
from state_help import blocking, prepared

from tenuto.engine.blocking import BlockingEngine
from tenuto.stores.layout import Project


@pytest.fixture
def agents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose agents need no model."""
    prepared(folder, monkeypatch)
    return folder


@pytest.fixture
def tasks(agents: Path, project: Project) -> Iterator[BlockingEngine]:
    with blocking(project) as engine:
        yield engine


@pytest.fixture
def cli(agents: Path) -> Iterator[CommandLine]:
    """The command line in that project, with the state where the engine has it."""
    line = CommandLine(agents)
    kept = ("TENUTO_", "XDG_")
    line.env |= {name: value for name, value in os.environ.items() if name.startswith(kept)}
    line.env.pop("TENUTO_HOME", None)
    line.env["PYTHONPATH"] = os.environ["PYTHONPATH"]
    yield line
    for process in line.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
