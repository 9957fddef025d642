"""What the engine tests share: reading tapes and /proc, and saying what is missing here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenuto import Chunk, Engine, NotRunning, Settings, Snapshot
from tenuto.core.execution import Execution
from tenuto.dispatch.fresh import FreshLauncher
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.recover import load
from tenuto.keeper import procfs
from tenuto.keeper.frames import EVENT, Frame
from tenuto.stores.layout import Project, find_project
from tenuto.stores.tape import TapeReader

PATIENCE = 60.0  # far more than anything here takes; a test that needs it has failed
DEATH_S = 20.0


def require(there: bool, what: str) -> None:
    """Skip a test for want of something, unless the run must have everything."""
    if there:
        return
    if os.environ.get("TENUTO_TEST_REQUIRE_ALL"):
        pytest.fail(f"missing here: {what}")
    pytest.skip(f"missing here: {what}")


def require_program(name: str) -> None:
    require(shutil.which(name) is not None, name)


def require_root() -> None:
    require(os.geteuid() == 0, "root")


# What is on disk


def project_of(folder: Path) -> Project:
    return find_project(str(folder), os.environ)


def tape_frames(project: Project, execution_id: str) -> list[Frame]:
    with TapeReader(project.folder(execution_id)) as reader:
        return list(reader.frames())


def tape_events(project: Project, execution_id: str) -> list[dict[str, Any]]:
    frames = tape_frames(project, execution_id)
    return [msgspec.json.decode(frame.body) for frame in frames if frame.stream == EVENT]


def events_of(project: Project, execution_id: str, kind: str) -> list[dict[str, Any]]:
    return [event for event in tape_events(project, execution_id) if event["type"] == kind]


def keeper_pid(project: Project, execution_id: str) -> int:
    started = folded(project, execution_id).started
    assert started is not None
    return started.keeper_pid


def main_pid(project: Project, execution_id: str) -> int:
    started = folded(project, execution_id).started
    assert started is not None
    return started.pid


def folded(project: Project, execution_id: str) -> Execution:
    execution = load(project, execution_id)
    assert execution is not None
    return execution


# What callers are given


def cursor(snapshot: Snapshot) -> int:
    """Where to read on from: `after` is the last sequence number that was seen."""
    return snapshot.next_seq


def joined(chunks: list[Chunk] | tuple[Chunk, ...], stream: str = "") -> bytes:
    return b"".join(chunk.data for chunk in chunks if not stream or chunk.stream == stream)


async def output(engine: Engine, execution_id: str, stream: str = "") -> bytes:
    return joined(await engine.logs(execution_id), stream)


async def ended(engine: Engine, execution_id: str) -> Snapshot:
    """Wait for the end, whatever else is waited for on the way."""
    while True:
        snapshot = await engine.wait(execution_id, PATIENCE)
        if snapshot.done:
            return snapshot
        assert snapshot.waiting_for is not None, f"still {snapshot.state}"
        async for _ in engine.follow(execution_id):
            pass


async def begun(engine: Engine, execution_id: str) -> None:
    """Wait until its process exists."""
    async with asyncio.timeout(PATIENCE):
        while (await engine.wait(execution_id, 0.02)).started_ns is None:
            pass


async def word(engine: Engine, execution_id: str, pattern: str) -> str:
    """Follow until the program has said something (a text or /regex/); return what matched."""
    plain = pattern.strip("/") if pattern.startswith("/") else re.escape(pattern)
    said = b""
    async with (
        asyncio.timeout(PATIENCE),
        contextlib.aclosing(engine.follow(execution_id)) as chunks,  # type: ignore[type-var]
    ):
        async for chunk in chunks:
            said += chunk.data
            found = re.search(plain.encode(), said)
            if found is not None:
                return found.group().decode()
    raise AssertionError(f"it ended without {pattern!r}: {said[-2000:]!r}")


async def number_after(engine: Engine, execution_id: str, name: str) -> int:
    """Return the number that the program printed as `name=NUMBER;`."""
    return int((await word(engine, execution_id, f"/{name}=[0-9]+;/")).split("=")[1][:-1])


# Processes


def alive(pid: int) -> bool:
    return procfs.start_time(pid) != 0


def await_death(pid: int, seconds: float = DEATH_S) -> bool:
    """Wait until a process (anybody's) has ended; False if it did not in time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def open_files(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")


def keepers_of(project: Project) -> list[int]:
    """Return the keepers that hold something of this project open."""
    home = os.path.realpath(project.home) + os.sep
    return [
        pid
        for pid in procfs.all_pids()
        if alive(pid)
        and procfs.name(pid) == procfs.KEEPER_NAME
        and any(path.startswith(home) for path in open_files(pid))
    ]


def marked_processes(execution_ids: list[str]) -> list[tuple[int, str]]:
    """Return the live processes that were started under one of these executions."""
    wanted = {f"{procfs.MARK}={one}".encode() for one in execution_ids}
    found: list[tuple[int, str]] = []
    for pid in procfs.all_pids():
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if alive(pid) and wanted.intersection(words):
            found.append((pid, procfs.command(pid)))
    return found


def keeper_of(project: Project, execution_id: str) -> int:
    started = folded(project, execution_id).started
    assert started is not None
    return started.keeper_pid


def end(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def assert_nothing_left(project: Project) -> None:
    """Every process of the project is gone and every tape is whole."""
    ids = list(project.all_ids())
    late = [pid for pid in keepers_of(project) if not await_death(pid)]
    assert not late, f"keepers left: {[(pid, procfs.command(pid)) for pid in late]}"
    assert not marked_processes(ids)
    for one in ids:
        with TapeReader(project.folder(one)) as reader:
            frames = list(reader.frames())
            assert reader.damaged == 0, f"{one}: {reader.damaged} damaged bytes"
            assert frames, f"{one}: an empty tape"
            # zeros were laid ahead: a keeper that is killed right behind its last word leaves them
            left = Path(project.folder(one), "tape").read_bytes()[frames[-1].end :]
            assert not left.strip(b"\0"), f"{one}: a torn tail"
            faults = [f.body for f in frames if f.stream == EVENT and b'"faulted"' in f.body]
            assert not faults, f"{one}: its keeper met a defect: {faults[0].decode()}"
        started = folded(project, one).started
        if started is not None:
            alive = procfs.start_time(started.pid)
            assert not alive or alive != started.pid_start, f"{one}: {started.pid} lives"


def end_everything(project: Project) -> None:
    """Kill what runs, and what executions that have ended left behind."""
    if not os.path.isdir(project.home):
        return
    engine = BlockingEngine(project, Settings(), FreshLauncher())
    try:
        for execution_id in project.all_ids():
            snapshot = engine.show(execution_id)
            if snapshot.running or snapshot.left_behind:
                try:
                    engine.kill(execution_id)
                except NotRunning:
                    continue
    finally:
        engine.close()
