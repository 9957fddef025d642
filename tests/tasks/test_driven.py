"""A keeper and the driver it keeps: what may be told, what is safe and passed on; the tether."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from engine_help import (
    await_death,
    events_of,
    folded,
    keeper_pid,
    main_pid,
    project_of,
    tape_events,
)

from tenuto.dispatch import control
from tenuto.dispatch.fresh import FreshLauncher
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.settings import Settings
from tenuto.engine.tasks import TELLS
from tenuto.engine.work import Options
from tenuto.keeper import procfs
from tenuto.stores.layout import Project

LINE = """
import json, os, socket, struct, sys
line = socket.socket(fileno=int(os.environ["TENUTO_CHANNEL"]))
size, = struct.unpack("<I", line.recv(4, socket.MSG_WAITALL))
line.recv(size, socket.MSG_WAITALL)
lines = line.makefile("rb")
def say(**message): line.sendall(json.dumps(message).encode() + b"\\n")
def hear(): return json.loads(lines.readline())
"""


@pytest.fixture
def engine(folder: Any):
    made = BlockingEngine(project_of(folder), Settings(), FreshLauncher())
    yield made
    made.close()


def drive(engine: BlockingEngine, code: str, **more: Any) -> str:
    """Start a program that speaks as a driver does."""
    work = engine.command([sys.executable, "-c", LINE + code], Options())
    work = msgspec.structs.replace(work, channel=True, body="{}", tells=TELLS, **more)
    execution_id, sock = engine.start(work)
    sock.close()
    return execution_id


@pytest.mark.promise("D2")
def test_what_is_told_is_on_the_tape_and_acknowledged_once_it_is_safe(
    engine: BlockingEngine, project: Project
) -> None:
    code = """
for n in range(1, 4):
    say(type="tell", events=[{"type": "warned", "text": str(n), "kind": "k"}], n=n)
print([hear() for _ in range(3)])
"""
    snapshot = engine.wait(drive(engine, code), 60)
    assert snapshot.output == str([{"type": "told", "n": n} for n in (1, 2, 3)]) + "\n"
    warned = events_of(project, snapshot.id, "warned")
    assert [one["text"] for one in warned] == ["1", "2", "3"]


@pytest.mark.promise("X2")
@pytest.mark.parametrize("kind", ["ended", "created", "started", "lost", "host_answered", "", None])
def test_a_driver_cannot_tell_what_is_the_keepers_to_tell(
    engine: BlockingEngine, project: Project, kind: Any
) -> None:
    code = f"""
say(type="tell", events=[{{"type": {kind!r}, "state": "succeeded"}}])
say(type="tell", events=7, n=8)
assert hear()["error"] == "'int' object is not iterable"
say(type="tell", events=[{{"type": "warned", "text": "after"}}], n=1)
hear()
say(type="outcome", state="failed", reason="told")
sys.exit(3)
"""
    snapshot = engine.wait(drive(engine, code), 60)
    assert (snapshot.state, snapshot.reason, snapshot.exit_code) == ("failed", "told", 3)
    kinds = [one["type"] for one in tape_events(project, snapshot.id)]
    assert kinds.count("ended") == 1 and kinds.count("created") == 1
    assert "warned" in kinds


@pytest.mark.promise("X2")
def test_a_plain_program_tells_nothing(engine: BlockingEngine, project: Project) -> None:
    code = """
say(type="tell", events=[{"type": "warned", "text": "no"}])
say(type="outcome", state="succeeded")
say(type="waiting", on="approval", detail="for nobody")
sys.exit(4)
"""
    work = engine.command([sys.executable, "-c", LINE + code], Options())
    execution_id, sock = engine.start(msgspec.structs.replace(work, channel=True, body="{}"))
    sock.close()
    snapshot = engine.wait(execution_id, 60)
    assert (snapshot.state, snapshot.reason, snapshot.exit_code) == ("failed", "exit", 4)
    assert not events_of(project, snapshot.id, "warned")
    assert not events_of(project, snapshot.id, "waited")


@pytest.mark.promise("X2")
def test_how_it_ends_is_what_the_driver_says(engine: BlockingEngine) -> None:
    code = 'say(type="outcome", state="failed", reason="partial", detail="2 of 3"); sys.exit(1)'
    snapshot = engine.wait(drive(engine, code), 60)
    assert (snapshot.state, snapshot.reason, snapshot.detail) == ("failed", "partial", "2 of 3")


@pytest.mark.promise("X2", "D3")
@pytest.mark.parametrize(
    ("last", "how"),
    [("sys.exit(0)", "exit code 0"), ("sys.exit(7)", "exit code 7"),
     ("os.kill(os.getpid(), 9)", "SIGKILL"), ("os.abort()", "SIGABRT")],
)  # fmt: skip
def test_a_driver_without_a_last_word_has_not_succeeded_and_can_be_taken_up(
    engine: BlockingEngine, last: str, how: str
) -> None:
    snapshot = engine.wait(drive(engine, last), 60)
    assert (snapshot.state, snapshot.reason) == ("lost", "driver")
    assert snapshot.detail.endswith(how)


@pytest.mark.promise("X2")
def test_a_driver_waits_for_approval_and_is_told_the_decision(engine: BlockingEngine) -> None:
    code = """
say(type="waiting", on="approval", detail="may I?")
print(hear()["allow"], flush=True)
say(type="continuing")
say(type="tell", events=[{"type": "warned", "text": "went on"}], n=1)
hear()
say(type="outcome", state="succeeded")
"""
    execution_id = drive(engine, code)
    waiting = engine.wait(execution_id, 60)
    assert (waiting.state, waiting.waiting_for, waiting.detail) == ("waiting", "approval", "may I?")
    folder = engine.project.folder(execution_id)
    control.request(folder, "tell", message={"type": "decide", "allow": True})
    output = b"".join(chunk.data for chunk in engine.follow(execution_id))
    assert (engine.show(execution_id).state, output) == ("succeeded", b"True\n")
    states = [one.state for one in folded(engine.project, execution_id).transitions]
    assert states == ["queued", "running", "waiting", "running", "succeeded"]


def test_only_a_task_is_told_something(engine: BlockingEngine) -> None:
    work = engine.command(["sleep", "1000"], Options())
    execution_id, sock = engine.start(work)
    sock.close()
    with pytest.raises(Exception, match="no task"):
        control.request(engine.project.folder(execution_id), "tell", message={"type": "decide"})


@pytest.mark.promise("X8")
def test_what_runs_on_behalf_of_a_process_ends_with_it(
    engine: BlockingEngine, project: Project
) -> None:
    master = subprocess.Popen(["sleep", "1000"])
    tether = (master.pid, procfs.start_time(master.pid))
    work = engine.command(["bash", "-c", "setsid sleep 1000 & echo up; sleep 1000"], Options())
    execution_id, sock = engine.start(msgspec.structs.replace(work, tether=tether))
    sock.close()
    engine.wait(execution_id, 60, until="up")
    watch = os.pidfd_open(main_pid(project, execution_id))
    master.send_signal(signal.SIGKILL)
    master.wait()
    ended, _, _ = select.select([watch], [], [], 30)
    os.close(watch)
    assert ended
    snapshot = engine.wait(execution_id, 60)
    assert (snapshot.state, snapshot.reason) == ("killed", "orphaned")
    assert await_death(keeper_pid(project, execution_id)), "it stays until the last one is gone"
    assert not engine.show(execution_id).left_behind


@pytest.mark.promise("X8")
@pytest.mark.parametrize("start", [1, None])
def test_a_tether_to_somebody_who_is_gone_ends_it_at_once(
    engine: BlockingEngine, start: int | None
) -> None:
    pid = os.getpid() if start else 2**22 - 3  # another process with that pid, or none
    work = engine.command(["sleep", "1000"], Options())
    execution_id, sock = engine.start(msgspec.structs.replace(work, tether=(pid, start or 5)))
    sock.close()
    snapshot = engine.wait(execution_id, 60)
    assert (snapshot.state, snapshot.reason) == ("killed", "orphaned")


@pytest.mark.promise("X8")
def test_an_end_of_its_own_unties_it(engine: BlockingEngine) -> None:
    own = (os.getpid(), procfs.start_time(os.getpid()))
    work = engine.command(["true"], Options())
    execution_id, sock = engine.start(msgspec.structs.replace(work, tether=own))
    sock.close()
    assert engine.wait(execution_id, 60).state == "succeeded"


@pytest.mark.promise("X7")
def test_it_asks_nobody_but_who_started_it(engine: BlockingEngine) -> None:
    """An agent that is idle reads its next prompt from its driver: no user is waited for."""
    own = (os.getpid(), procfs.start_time(os.getpid()))
    work = engine.command(["cat"], Options())
    execution_id, sock = engine.start(msgspec.structs.replace(work, tether=own))
    sock.close()
    while (snapshot := engine.wait(execution_id, 0.7)).state == "queued":
        pass
    assert (snapshot.state, snapshot.waiting_for) == ("running", None)
    engine.kill(execution_id)
