from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fake_api import Api
from loop_help import InlineNursery, Stand


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    place.mkdir()
    (place / "a.txt").write_text("one\ntwo\nthree\n")
    return place


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    await api.start()
    yield api
    await api.close()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """What a loop is given: no key, no address, sessions of its own, nothing tried twice."""
    names = ("PATH", "HOME", "LANG")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "TENUTO_LOOP_HOME": str(tmp_path / "loop"), "TENUTO_LOOP_RETRIES": "0"}


@pytest_asyncio.fixture
async def stand(workspace: Path, api: Api, environ: dict[str, str]) -> AsyncIterator[Stand]:
    nursery = InlineNursery(environ)
    stand = Stand(workspace, api, nursery)
    yield stand
    await stand.close()
    assert nursery.left() == []
