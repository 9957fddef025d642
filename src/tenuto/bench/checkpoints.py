"""Checkpoints beside the disk's own sync, many tasks at once, and orphans after a restart.

The checkpoint is the keeper's own: an event over the driver's line, on the tape, synced, answered. A
driver that does nothing else stands in for the task's, so that no agent's time is counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator

import msgspec

from tenuto.bench.place import Place
from tenuto.bench.table import Row, at_most, median, none_of, times_at_most
from tenuto.core import events as ev
from tenuto.core.ids import new_id
from tenuto.core.listing import Row as Entry
from tenuto.core.specs import Spec
from tenuto.core.state import StateFold
from tenuto.core.states import State
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.tasks import TELLS
from tenuto.engine.work import Options
from tenuto.stores.layout import make_home
from tenuto.stores.pen import Pen
from tenuto.stores.states import write_state

_PRODUCERS = 16
_BODY = "x" * 1024
_DRIVER = """
import json, os, socket, struct, sys, time
from tenuto.keeper import frames
line = socket.socket(fileno=int(os.environ["TENUTO_CHANNEL"]))
head = line.recv(4, socket.MSG_WAITALL)
line.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)
file = line.makefile("rb")
rounds, ahead, go, tape = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[5]
event = {"type": "step_finished", "step": "s", "status": "completed", "output": sys.argv[4]}
def tell(n):
    line.sendall(json.dumps({"type": "tell", "events": [event], "n": n}).encode() + b"\\n")
tell(0)
file.readline()
while go and not os.path.exists(go):
    time.sleep(0.001)
begin, took, seen = time.time(), [], []
if tape:
    fd = os.open(tape, os.O_RDONLY)
    magic, _ = frames.find_magic(fd)
    end = [frame.end for frame in frames.read_frames(fd, magic)][-1]
for n in range(rounds if tape else 0):  # on the tape, and so with the kernel: not synced
    started = time.perf_counter()
    line.sendall(json.dumps({"type": "tell", "events": [event]}).encode() + b"\\n")
    while (frame := frames.read_one(fd, magic, end)) is None:
        pass
    seen.append(time.perf_counter() - started)
    end = frame.end
for n in range(1, ahead):
    tell(n)
for n in range(max(1, ahead), rounds + 1):
    started = time.perf_counter()
    tell(n)
    file.readline()
    took.append(time.perf_counter() - started)
for n in range(1, ahead):
    file.readline()
print(json.dumps({"begin": begin, "end": time.time(), "took": took, "seen": seen}))
"""


def checkpoints(quick: bool) -> Iterator[Row]:
    """Measure checkpoints and recovery."""
    rounds = 100 if quick else 2000
    with Place() as place:
        make_home(place.project)
        engine = place.blocking()
        try:
            yield from _alone(engine, rounds)
            yield from _crowd(engine, rounds)
            yield _state_file(place.project.home, 20 if quick else 300)
        finally:
            engine.close()
    yield from _orphans(100 if quick else 1000)


def _alone(engine: BlockingEngine, rounds: int) -> Iterator[Row]:
    """Measure one checkpoint after the other, between two measurements of the bare sync."""
    before = _bare(engine.project.home, rounds)
    told = _told(engine, _started(engine, rounds, 0, "", watch=True))
    floor = median([*before, *_bare(engine.project.home, rounds)]) * 1000
    ours = median(told["took"]) * 1000
    yield times_at_most("checkpoint, power-safe", ours, floor, 2)
    yield at_most("checkpoint, process-safe", median(told["seen"]) * 1000, 0.2)


def _bare(home: str, rounds: int) -> list[float]:
    """Append as much to a file beside the tapes, and sync it, each time."""
    taken: list[float] = []
    with tempfile.NamedTemporaryFile(dir=home, buffering=0) as file:
        for _ in range(rounds):
            begin = time.perf_counter()
            file.write(_BODY.encode())
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - begin)
    return taken


def _started(engine: BlockingEngine, rounds: int, ahead: int, go: str, watch: bool = False) -> str:
    execution_id = new_id()
    tape = os.path.join(engine.project.folder(execution_id), "tape") if watch else ""
    argv = (sys.executable, "-c", _DRIVER, str(rounds), str(ahead), go, _BODY, tape)
    work = engine.command(argv, Options(detached=True, title="checkpoints"))
    work = msgspec.structs.replace(
        work, channel=True, body="{}", tells=TELLS, execution_id=execution_id
    )
    engine.start(work)[1].close()
    return execution_id


def _told(engine: BlockingEngine, execution_id: str) -> dict[str, list[float]]:
    snapshot = engine.wait(execution_id, 600)
    return msgspec.json.decode(snapshot.stdout)


def _crowd(engine: BlockingEngine, rounds: int) -> Iterator[Row]:
    """Measure all tasks at once, each with some checkpoints under way, as parallel steps have them."""
    go = os.path.join(engine.project.home, "go")
    ids = [_started(engine, rounds, 8, go) for _ in range(_PRODUCERS)]
    for one in ids:
        while engine.execution(one).started_ns is None:
            time.sleep(0.01)
    time.sleep(0.5)  # all are at the gate
    with open(go, "w", encoding="ascii"):
        pass
    told = [_told(engine, one) for one in ids]
    began = min(float(str(one["begin"])) for one in told)
    ended = max(float(str(one["end"])) for one in told)
    rate = _PRODUCERS * rounds / (ended - began)
    yield Row(
        what=f"checkpoints from {_PRODUCERS} executions at once", ours=rate, unit="/s",
        target="≥ 3000 /s", met=rate >= 3000,
    )  # fmt: skip
    missing = sum(rounds + 1 - _count(engine, one) for one in ids)
    yield none_of("  not on their tapes", missing, "events")


def _count(engine: BlockingEngine, execution_id: str) -> int:
    from tenuto.engine.saved import task_events

    return len(task_events(engine.project.folder(execution_id)))


def _state_file(home: str, rounds: int) -> Row:
    """Measure what a driver's thread does once a second: the state as a file, not synced."""
    fold = StateFold(new_id())
    fold.apply(0, 1, msgspec.json.encode(_created(fold.execution.id)))
    taken: list[float] = []
    for _ in range(rounds):
        begin = time.perf_counter()
        write_state(home, fold.state(), False)
        taken.append(time.perf_counter() - begin)
    return Row(what="state file, off the steps' path", ours=median(taken) * 1000)


# Orphans


def _created(execution_id: str) -> ev.Created:
    spec = Spec(kind="task", argv=("python",), cwd="/", task={"text": "x"})
    return ev.Created(id=execution_id, spec=spec)


def _orphans(number: int) -> Iterator[Row]:
    """Measure a new process that lists what a machine left: all were running when it died."""
    with Place() as place:
        make_home(place.project)
        engine = place.blocking()
        rows: list[Entry] = []
        for _ in range(number):
            execution_id = new_id()
            row = Entry(
                id=execution_id, kind="task", state=State.RUNNING, title="x",
                created_ns=time.time_ns(), started_ns=time.time_ns(),
            )  # fmt: skip
            engine.index.add(row, "x")
            rows.append(row)
            pen = Pen.create(place.project.folder(execution_id), _created(execution_id))
            pen.append(ev.Started(pid=1, pid_start=1, keeper_pid=1, keeper_start=1, boot="gone"))
            pen.put_down()
        engine.close()
        engine = place.blocking()
        begin = time.perf_counter()
        engine.settle_live()
        took = time.perf_counter() - begin
        found = sum(engine.show(row.id).state is State.LOST for row in rows)
        engine.close()
    yield at_most(f"restart: {number:,} orphans known", took, 0.5, "s")
    yield none_of("  not known to be lost", number - found, "executions")
