"""What an attack on the engine found: each was a hang, a lost end or an escape once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from engine_help import project_of, tape_events

from tenuto import Engine, Limits
from tenuto.core.events import Created
from tenuto.core.specs import Spec
from tenuto.core.states import State
from tenuto.dispatch import control
from tenuto.engine.watch import Watch
from tenuto.keeper import procfs
from tenuto.keeper.control import encode
from tenuto.stores import tape
from tenuto.stores.pen import Pen
from tenuto.stores.tape import TapeReader, is_kept

pytestmark = pytest.mark.asyncio


@pytest.mark.promise("X3")
async def test_an_end_that_comes_while_a_watch_begins_behind_a_cursor_is_seen(
    engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution_id = await engine.start(command=["sh", "-c", "echo a; read x"])
    project = project_of(folder)
    events = TapeReader.events

    def late(self: TapeReader):
        yield from list(events(self))
        control.send(project.folder(execution_id), b"go\n", eof=False)
        while is_kept(project.folder(execution_id)):
            time.sleep(0.005)

    monkeypatch.setattr(TapeReader, "events", late)
    watch = await asyncio.to_thread(Watch, project, execution_id, 0)
    monkeypatch.undo()
    with watch:
        await asyncio.to_thread(watch.look)
        assert watch.execution.state is State.SUCCEEDED


@pytest.mark.promise("X4")
async def test_a_deadline_in_months_does_not_end_the_keeper(engine: Engine) -> None:
    limits = Limits(output=10)
    snapshot = await engine.run(
        command=["echo", "more than ten bytes"], limits=limits, deadline=86400 * 60, wait=10
    )
    assert snapshot.state is State.WAITING
    await asyncio.sleep(0.3)
    assert (await engine.show(snapshot.id)).state is State.WAITING
    await engine.clear(snapshot.id)
    assert (await engine.wait(snapshot.id, 10)).state is State.SUCCEEDED


@pytest.mark.promise("X8")
async def test_a_child_that_takes_a_keepers_name_is_killed_too(engine: Engine) -> None:
    code = (
        "import ctypes, os, time\n"
        "pid = os.fork()\n"
        "if pid == 0: ctypes.CDLL(None).prctl(15, b'tenuto-keeper', 0, 0, 0)\n"
        "else: print(pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    execution_id = await engine.start(code, language="python")
    snapshot = await engine.wait(execution_id, 20, until="\n")
    pid = int(snapshot.output)
    while procfs.name(pid) != "tenuto-keeper":
        await asyncio.sleep(0.01)
    try:
        await engine.kill(execution_id)
        assert procfs.start_time(pid) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.promise("X12")
@pytest.mark.parametrize(
    "line",
    ["{}", '{"type": "exec_failed", "errno": "x"}', '{"type": "exec_failed", "errno": 1e999}'],
)
async def test_a_child_that_floods_the_channel_does_not_hold_up_the_end(
    engine: Engine, line: str
) -> None:
    code = (
        "import os, time\n"
        "fd = os.dup(3)\n"
        "if os.fork() == 0:\n"
        f"    while True: os.write(fd, {line.encode() + bytes([10])!r} * 100)\n"
        "time.sleep(0.2)\n"
        "os._exit(3)\n"
    )
    snapshot = await engine.run(code, language="python", wait=10)
    assert (snapshot.state, snapshot.exit_code) == (State.FAILED, 3)
    with contextlib.suppress(Exception):
        await engine.kill(snapshot.id)


@pytest.mark.promise("X11")
@pytest.mark.parametrize(
    "message",
    [
        {"op": "resize", "rows": -1, "cols": 80},
        {"op": "resize", "rows": 2**40, "cols": 80},
        {"op": "resize", "rows": float("inf"), "cols": 80},
        {"op": "note", "after_s": 10**400},
        {"op": "note", "after_s": float("nan")},
    ],
)
async def test_every_wrong_value_is_answered(
    engine: Engine, folder: Path, message: dict[str, object]
) -> None:
    execution_id = await engine.start(command=["sleep", "600"])
    with control.connect(project_of(folder).folder(execution_id)) as sock:
        sock.sendall(encode(message))
        assert b'"bad_input"' in sock.recv(4096)
    await engine.kill(execution_id)
    assert "faulted" not in {
        event["type"] for event in tape_events(project_of(folder), execution_id)
    }


@pytest.mark.promise("X11")
async def test_a_client_that_asks_and_never_reads_is_let_go(engine: Engine, folder: Path) -> None:
    execution_id = await engine.start(command=["sleep", "600"])
    place = project_of(folder).folder(execution_id)
    with control.connect(place) as sock, pytest.raises(ConnectionError):
        for _ in range(2000):
            sock.sendall(encode({"op": "x" * 60_000}))
    assert control.request(place, "status")["ok"]
    await engine.kill(execution_id)


@pytest.mark.promise("D5")
@pytest.mark.parametrize("kind", ["fifo", "folder", "loop", "socket"])
async def test_something_else_in_the_place_of_a_tape_blocks_nobody(
    engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    snapshot = await engine.run(command=["true"])
    path = os.path.join(project_of(folder).folder(snapshot.id), tape.NAME)
    while is_kept(os.path.dirname(path)):
        await asyncio.sleep(0.01)
    os.rename(path, f"{path}.good")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "loop":
        os.symlink("tape", path)
    else:
        with socket.socket(socket.AF_UNIX) as sock:
            monkeypatch.chdir(os.path.dirname(path))  # a socket's path must be short
            sock.bind(tape.NAME)
            monkeypatch.chdir(folder)
    shown = await asyncio.wait_for(engine.show(snapshot.id), 10)
    assert shown.state is State.SUCCEEDED
    assert await asyncio.wait_for(engine.logs(snapshot.id), 10) == []
    assert not is_kept(os.path.dirname(path))
    os.rmdir(path) if kind == "folder" else os.unlink(path)
    os.rename(f"{path}.good", path)


@pytest.mark.promise("X1")
async def test_a_tape_that_cannot_be_made_leaves_no_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, *arguments: int, **more: int) -> int:
        if path == tape.NAME:
            raise OSError(24, "Too many open files")
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", refuse)
    spec = Spec(kind="command", argv=("true",), cwd="/")
    with pytest.raises(OSError, match="Too many"):
        Pen.create(str(folder / "execution"), Created(id="x", spec=spec))
    assert not (folder / "execution").exists()
