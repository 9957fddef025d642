"""What a task's driver costs: graphs of steps that do nothing, on a runner in its own process.

Each step is on disk before the next one builds on it, so that the floor is the bare sync: a block
appended to a file of the same file system, and fdatasync. LangGraph with its SQLite saver, if there
is one, runs the same chain as a peer.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from tenuto.bench.place import Place
from tenuto.bench.startup import seconds, tenuto_words
from tenuto.bench.table import Row, at_most, median, none_of, times_at_most
from tenuto.core.plan import Plan, Step
from tenuto.core.ports import Nursery
from tenuto.core.runs import Capabilities, Finished, Probe, RunEvent, RunRequest
from tenuto.engine.engine import Engine
from tenuto.engine.settings import load_settings
from tenuto.stores.layout import Project
from tenuto.stores.tape import TapeReader

_BLOCK = bytes(4096)
_PEER = "TENUTO_BENCH_LANGGRAPH"
_SETTINGS = """
[runtime]
preferred = "noop"
order = ["noop"]
[runners]
noop = "tenuto.bench.tasks:NoopRunner"
echo = "tenuto.testing.agents:EchoRunner"
"""

_LANGGRAPH = """
import json, sqlite3, sys, time
from typing import TypedDict
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
class State(TypedDict):
    count: int
count, path = int(sys.argv[1]), sys.argv[2]
graph = StateGraph(State)
for n in range(count):
    graph.add_node(f"s{n}", lambda state: {"count": state["count"] + 1})
    graph.add_edge(f"s{n - 1}" if n else START, f"s{n}")
graph.add_edge(f"s{count - 1}", END)
connection = sqlite3.connect(path, check_same_thread=False)
app = graph.compile(checkpointer=SqliteSaver(connection))
took = []
for run in range(3):
    config = {"configurable": {"thread_id": str(run)}, "recursion_limit": count + 5}
    begin = time.perf_counter()
    state = app.invoke({"count": 0}, config, durability="sync")
    took.append((time.perf_counter() - begin) * 1000 / count)
    assert state["count"] == count
print(json.dumps(took))
"""


class NoopRunner:
    """A runner whose agent is done at once."""

    name = family = "noop"
    capabilities = Capabilities()

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        """Be there."""
        del environ
        return Probe(available=True, version="1")

    async def open(self, request: RunRequest, nursery: Nursery) -> NoopSession:
        """Open a session that needs nothing."""
        del request, nursery
        return NoopSession()


class NoopSession:
    """Answers without a thought."""

    session = ""

    async def prompt(self, text: str) -> AsyncIterator[RunEvent]:
        """Be done."""
        del text
        yield Finished(ok=True, text="done")

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None:
        """Nothing was asked."""

    async def interrupt(self) -> None:
        """There is nothing to stop."""

    async def close(self) -> None:
        """There is nothing to end."""


def tasks(quick: bool) -> Iterator[Row]:
    """Measure graphs of steps that do nothing, many at once, and how long a task takes to start."""
    with Place() as place:
        _write_settings(place)
        yield from asyncio.run(_graphs(place, quick))
        yield from asyncio.run(_at_once(place, quick))
        yield from _peer(place, quick)
        yield from _starting(place, quick)


def _write_settings(place: Place) -> None:
    with open(os.path.join(place.folder, "tenuto.toml"), "w", encoding="utf-8") as file:
        file.write(_SETTINGS)


def _engine(place: Place) -> Engine:
    settings, _ = load_settings(place.folder, os.environ)
    return place.engine(settings)


def _chain(count: int) -> Plan:
    return Plan(tuple(Step(f"s{n}", "nothing", (f"s{n - 1}",) if n else ()) for n in range(count)))


def _wide(count: int) -> Plan:
    return Plan(tuple(Step(f"s{n}", "nothing") for n in range(count)))


# Graphs


async def _graphs(place: Place, quick: bool) -> list[Row]:
    rounds, count, many = (1, 20, 60) if quick else (7, 100, 1000)
    syncs: list[float] = []
    chains: list[float] = []
    wides: list[float] = []
    long_chains: list[float] = []
    wrong = 0
    async with _engine(place) as engine:
        plans = (
            (chains, _chain(count)), (wides, _wide(count)), (long_chains, _chain(many)),
        )  # fmt: skip
        for _ in range(rounds):
            for times, plan in plans:
                syncs.append(_sync_ms(place, count))
                took, good = await _per_step(engine, place.project, plan)
                times.append(took)
                wrong += not good
    sync, chain = median(syncs), median(chains)
    return [
        times_at_most(f"chain of {count} steps, each safe: one step", chain, sync, 2),
        times_at_most(f"{count} steps at once (4 by default): one step", median(wides), sync, 2),
        times_at_most(f"chain of {many} steps beside {count}", median(long_chains), chain, 1.3),
        none_of("  tasks that did not end well", wrong, "tasks", f"{rounds} rounds"),
    ]


def _sync_ms(place: Place, count: int) -> float:
    """Return what a block takes on average to be appended and safe."""
    path = os.path.join(place.base, "floor")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        begin = time.perf_counter()
        for _ in range(count):
            os.write(fd, _BLOCK)
            os.fdatasync(fd)
        return (time.perf_counter() - begin) * 1000 / count
    finally:
        os.close(fd)
        os.unlink(path)


async def _per_step(engine: Engine, project: Project, plan: Plan) -> tuple[float, bool]:
    """Return what one step took by the tape's own times, and whether all went well.

    From the first step's start to the end of the task: what comes before is measured as its start.
    """
    snapshot = await engine.task(plan=plan, strategy="parallel", wait=600)
    began = ended = done = 0
    with TapeReader(project.folder(snapshot.id)) as reader:
        for frame in reader.events():
            event: dict[str, Any] = json.loads(frame.body)
            if event["type"] == "step_started":
                began = began or frame.time_ns
            elif event["type"] == "step_finished":
                done += event["status"] == "completed"
            elif event["type"] == "task_finished":
                ended = frame.time_ns
    return (ended - began) / 1e6 / len(plan.steps), bool(snapshot) and done == len(plan.steps)


# Many at once


async def _at_once(place: Place, quick: bool) -> list[Row]:
    """Measure independent steps of a fixed duration, all at the same time."""
    count, seconds_each = (4, 0.2) if quick else (16, 0.5)
    work = f"[[delay:{seconds_each}]]"
    steps = tuple(Step(f"s{n}", work, runtime="echo") for n in range(count))
    async with _engine(place) as engine:
        took, good = await _per_step(engine, place.project, Plan(steps, concurrency=count))
    whole = took * count / 1000
    what = f"{count} steps of {seconds_each} s at once"
    return [
        at_most(what, whole, seconds_each * 1.5, unit="s", floor=seconds_each),
        none_of("  tasks that did not end well", int(not good), "tasks"),
    ]


# A peer


def _peer(place: Place, quick: bool) -> Iterator[Row]:
    count = 20 if quick else 100
    python = os.environ.get(_PEER, sys.executable)
    script = [python, "-c", _LANGGRAPH, str(count), os.path.join(place.base, "langgraph.db")]
    sync = _sync_ms(place, count)
    done = subprocess.run(script, capture_output=True, check=False, cwd=place.base)
    what = f"  peer: LangGraph, SQLite saver, chain of {count}"
    if done.returncode:
        missing = b"No module named 'langgraph" in done.stderr
        why = "" if missing else f"; it failed: {done.stderr.decode(errors='replace')[-200:]}"
        note = f"not measured: set {_PEER} to a Python with langgraph-checkpoint-sqlite{why}"
        yield Row(what=what, ours=0, note=note)
        return
    yield Row(what=what, ours=median(json.loads(done.stdout)), floor=sync)


# Start


def _starting(place: Place, quick: bool) -> Iterator[Row]:
    bare: list[float] = []
    ours: list[float] = []
    failed = 0
    argv = tenuto_words("task", "nothing")
    for _ in range(2 if quick else 11):
        bare.append(seconds([sys.executable, "-c", "pass"], place.folder)[0] * 1000)
        took, good = seconds(argv, place.folder)
        ours.append(took * 1000)
        failed += not good
    yield Row(what="tenuto task, one step that does nothing", ours=median(ours), floor=median(bare))
    yield none_of("  tasks that failed", failed, "tasks")
