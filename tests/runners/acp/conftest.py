"""A nursery for every test: nothing that came out of it may be left when the test ends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import pytest_asyncio
from acp_help import Agents, gone
from npm_help import QUICK, SLOW, packages

from tenuto.testing.nursery import PlainNursery


async def _close(made: PlainNursery) -> None:
    left = [child.process.pid for child in made.children if child.process.returncode is None]
    await made.close()
    assert not left, f"still running: {left}"
    for child in made.children:
        for pid in group_of(child.process.pid):
            assert await asyncio.to_thread(gone, pid), f"of its group, {pid} is left"


@pytest_asyncio.fixture(loop_scope="module")
async def nursery():
    made = PlainNursery()
    yield made
    await _close(made)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory):
    """A session that tests share which leave it as it was: an agent takes a second to start."""
    made = PlainNursery()
    session = await Agents(tmp_path_factory.mktemp("shared"), made).open()
    yield session
    await session.close()
    await _close(made)


def group_of(leader: int) -> list[int]:
    """Return the processes in a group."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(path.name)
            if os.getpgid(pid) == leader:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


@pytest.fixture
def agents(tmp_path: Path, nursery: PlainNursery) -> Agents:
    return Agents(tmp_path, nursery)


@pytest.fixture(scope="session")
def agents_installed() -> Path:
    return packages(QUICK)


@pytest.fixture(scope="session")
def clients_installed() -> Path:
    return packages(SLOW)
