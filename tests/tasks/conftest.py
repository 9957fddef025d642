from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from cli_help import CommandLine
from task_help import prepared

from tenuto import Engine


@pytest.fixture
def agents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose agents need no model."""
    prepared(folder, monkeypatch)
    return folder


@pytest_asyncio.fixture
async def tasks(agents: Path) -> AsyncIterator[Engine]:
    async with Engine(str(agents)) as engine:
        yield engine


@pytest.fixture
def cli(agents: Path) -> Iterator[CommandLine]:
    """The command line in that project, with the state where the engine has it."""
    line = CommandLine(agents)
    import os

    line.env |= {
        name: value for name, value in os.environ.items() if name.startswith(("TENUTO_", "XDG_"))
    }
    line.env.pop("TENUTO_HOME")
    line.env["PYTHONPATH"] = os.environ["PYTHONPATH"]
    yield line
    for process in line.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
