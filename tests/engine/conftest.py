"""A real engine on a project of its own; whatever it started is gone, and whole, afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine_help import assert_nothing_left, project_of
from tenuto import Engine, NotRunning
from tenuto.stores.layout import Project


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder as the current one, with state and settings under tmp_path."""
    place = tmp_path / "project"
    place.mkdir()
    for name in [name for name in os.environ if name.startswith("TENUTO_")]:
        if not name.startswith("TENUTO_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # the python that has tenuto, for executions that use it themselves
    beside = os.path.dirname(sys.executable)
    monkeypatch.setenv("PATH", beside + os.pathsep + os.environ.get("PATH", os.defpath))
    monkeypatch.chdir(place)
    return place


async def end_everything(engine: Engine) -> None:
    """Kill what runs, and what executions that have ended left behind."""
    for snapshot in await engine.list(most=None):
        if snapshot.running or (await engine.show(snapshot.id)).left_behind:
            try:
                await engine.kill(snapshot.id)
            except NotRunning:
                continue


@pytest_asyncio.fixture
async def engine(folder: Path) -> AsyncIterator[Engine]:
    async with Engine(str(folder)) as engine:
        yield engine
        await end_everything(engine)
    assert_nothing_left(project_of(folder))


@pytest.fixture
def project(folder: Path) -> Project:
    return project_of(folder)
