"""What agents keep in their homes, and what they must not do to each other there."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acp_help import COMMAND

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import Child
from tenuto.core.runs import Capabilities, Endpoint, Probe, RunRequest
from tenuto.runners.acp import AcpRunner, Launch
from tenuto.runners.agents_known import gemini, open_code, open_code_config
from tenuto.runners.first import in_turn
from tenuto.testing.nursery import PlainNursery

pytestmark = pytest.mark.asyncio(loop_scope="module")
HERE = Path(__file__).parent
SESSION = "0123abcd-0000-4000-8000-000000000000"


async def test_geminis_history_is_moved_out_of_its_way_and_never_lost(
    tmp_path: Path, nursery: PlainNursery
) -> None:
    program = tmp_path / "gemini"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    chats = tmp_path / "gemini-home" / "gemini" / ".gemini" / "tmp" / "project" / "chats"
    chats.mkdir(parents=True)
    runner = gemini(str(tmp_path / "gemini-home"), str(program))
    endpoint = Endpoint("http://127.0.0.1:1", "token")
    request = RunRequest(cwd=str(tmp_path), session=SESSION, endpoint=endpoint)
    for text in ("the first life", "the second life"):
        (chats / "session-2026-11-16T10-15-0123abcd.jsonl").write_text(text)
        with pytest.raises(RunnerFailed):
            await runner.open(request, nursery)
    found = sorted(path.read_text() for path in chats.glob("session-*.jsonl"))
    assert found == ["the first life", "the second life"]
    # what ends like a new file of the session is deleted with it, when Gemini cleans up
    assert not list(chats.glob("*-0123abcd.jsonl"))
    settings = json.loads((chats.parents[2] / "settings.json").read_text())
    assert settings["general"]["sessionRetention"] == {"enabled": False}
    assert settings["general"]["maxAttempts"] <= 4


async def test_an_agent_that_makes_its_home_is_started_once_first(tmp_path: Path) -> None:
    opened: list[object] = []
    before: list[int] = []

    class Noting(PlainNursery):
        async def spawn(self, *words: Any, **given: Any) -> Child:
            before.append(len(opened))
            return await super().spawn(*words, **given)

    async def look(environ: object) -> Probe:
        return Probe(True)

    async def one() -> None:
        session = await runner.open(RunRequest(cwd=str(tmp_path)), nursery)
        opened.append(session)

    runner = AcpRunner(
        "scripted", family="scripted", look=look, capabilities=Capabilities(),
        launch=lambda _: Launch(argv=COMMAND, env={"SCRIPTED_HOME": str(tmp_path)}),
        data=lambda _: str(tmp_path / "data"), fresh=lambda _: not opened,
    )  # fmt: skip
    nursery = Noting()
    try:
        await asyncio.gather(*(one() for _ in range(3)))
        assert before[0] == 0 and all(before[1:]), before
    finally:
        await nursery.close()


def driver(tmp_path: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start another process that opens a session, as the driver of another task does."""
    words = [sys.executable, str(HERE / "first_start.py"), str(tmp_path / "notes")]
    return subprocess.Popen([*words, str(tmp_path / "data"), *more], cwd=HERE)


async def noted(tmp_path: Path, check: Callable[[list[str]], bool]) -> list[str]:
    async with asyncio.timeout(60):
        while not (tmp_path / "notes").exists() or not check(read(tmp_path)):
            await asyncio.sleep(0.01)
    return read(tmp_path)


def read(tmp_path: Path) -> list[str]:
    return (tmp_path / "notes").read_text().split()


async def test_drivers_of_their_own_start_it_once_first_too(tmp_path: Path) -> None:
    drivers = [driver(tmp_path) for _ in range(3)]
    assert [await asyncio.to_thread(one.wait, 60) for one in drivers] == [0] * 3
    told = [one for one in read(tmp_path) if one != "waits"]
    assert told[:2] == ["begins", "answered"], told
    assert sorted(told) == ["answered"] * 3 + ["begins"] * 3
    assert sorted(path.name for path in (tmp_path / "data").glob("*lock*")) == []


async def test_a_first_start_that_dies_leaves_its_turn_to_the_next(tmp_path: Path) -> None:
    first = driver(tmp_path, "hang")
    second = None
    try:
        await noted(tmp_path, lambda told: "begins" in told)
        second = driver(tmp_path)
        await noted(tmp_path, lambda told: told.count("waits") == 2)
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(0.5)  # its database is there, and is not whole
        assert read(tmp_path).count("begins") == 1
        first.kill()
        assert await asyncio.to_thread(second.wait, 60) == 0
        assert read(tmp_path)[-2:] == ["begins", "answered"]
    finally:
        for one in (first, second):
            if one is not None:
                one.kill()
                one.wait()


async def test_a_wait_for_the_first_start_can_be_given_up(tmp_path: Path) -> None:
    lock = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with asyncio.timeout(60):
            entering = asyncio.ensure_future(in_turn(str(tmp_path), lambda: False).__aenter__())
            await asyncio.sleep(0)
            entering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await entering
    finally:
        os.close(lock)
    async with asyncio.timeout(60), in_turn(str(tmp_path), lambda: True):
        pass
    async with in_turn(str(tmp_path / "no" / "such"), lambda: False):
        pass
    assert not (tmp_path / "no").exists()


async def test_open_code_is_new_where_it_has_no_database(tmp_path: Path) -> None:
    fresh = open_code()._fresh
    assert fresh({"HOME": str(tmp_path)})
    (tmp_path / ".local/share/opencode").mkdir(parents=True)
    (tmp_path / ".local/share/opencode/opencode.db").touch()
    assert not fresh({"HOME": str(tmp_path)})
    assert fresh({"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)})


async def test_open_code_tells_its_model_of_a_refusal() -> None:
    config = open_code_config(RunRequest(cwd="/"))
    assert config["experimental"] == {"continue_loop_on_deny": True}
