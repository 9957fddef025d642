"""How fast the end of a large tape and one of a million executions are found."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator

from tenuto.bench.place import Place
from tenuto.bench.table import Row, at_most, median, none_of
from tenuto.core import events as ev
from tenuto.core.execution import Chunk
from tenuto.core.ids import new_id
from tenuto.core.listing import Query
from tenuto.core.listing import Row as Entry
from tenuto.core.specs import Spec
from tenuto.core.states import State
from tenuto.engine.blocking import BlockingEngine
from tenuto.stores.index import Index
from tenuto.stores.layout import Project, make_home
from tenuto.stores.pen import Pen

_LINE = "x" * 135
_TAIL = 10


def _milliseconds(rounds: int, work: Callable[[int], object]) -> float:
    """Return the median time of some calls."""
    times: list[float] = []
    for number in range(rounds):
        begin = time.perf_counter()
        work(number)
        times.append((time.perf_counter() - begin) * 1000)
    return median(times)


# Tapes


def tape(quick: bool) -> Iterator[Row]:
    """Measure reading from the end and from the middle of a large tape, against a small one."""
    with Place() as place:
        small = asyncio.run(_make_tape(place, 2 if quick else 10))
        large = asyncio.run(_make_tape(place, 50 if quick else 1000))
        engine = place.blocking()
        try:
            yield from _tape_rows(engine, small, large, 20 if quick else 200)
        finally:
            engine.close()


async def _make_tape(place: Place, megabytes: int) -> str:
    """Return an execution that printed so much in lines of 136 bytes, and a last line."""
    lines = f"yes {_LINE} | head -n {megabytes * 1_000_000 // 136}; sleep 0.05; echo the end"
    async with place.engine() as engine:
        execution_id = await engine.start(command=["sh", "-c", lines])
        while not (snapshot := await engine.show(execution_id)).done:
            await asyncio.sleep(0.05)
        snapshot.raise_for_state()
    return execution_id


def _tape_rows(engine: BlockingEngine, small: str, large: str, rounds: int) -> Iterator[Row]:
    wrong = 0
    ends = {one: list(engine.logs(one, tail=1))[-1] for one in (small, large)}
    middles = {one: _middle(engine, one, ends[one]) for one in (small, large)}

    def tail(one: str) -> bool:
        text = b"".join(chunk.data for chunk in engine.logs(one, tail=_TAIL))
        return text == f"{_LINE}\n".encode() * (_TAIL - 1) + b"the end\n"

    def since(one: str) -> bool:
        last = list(engine.logs(one, since_ns=ends[one].time_ns - 1))
        return [chunk.data for chunk in last] == [b"the end\n"]

    def in_the_middle(one: str) -> bool:
        return next(engine.logs(one, since_ns=middles[one].time_ns - 1)).seq <= middles[one].seq

    def after(one: str) -> bool:
        return next(engine.logs(one, after=middles[one].seq - 1)).seq == middles[one].seq

    verbs = {
        f"tail {_TAIL}": tail,
        "since near its end": since,
        "since its middle": in_the_middle,
        "after its middle": after,
    }
    for name, read in verbs.items():
        wrong += not (read(small) and read(large))
        floor = _milliseconds(rounds, lambda _, read=read: read(small))
        ours = _milliseconds(rounds, lambda _, read=read: read(large))
        yield at_most(f"large beside small tape: {name}", ours, 2, floor=floor)
    size = os.stat(os.path.join(engine.project.folder(large), "tape")).st_size
    yield none_of("  wrong answers", wrong, "reads", f"the large tape has {size / 1e6:.0f} MB")


def _middle(engine: BlockingEngine, one: str, end: Chunk) -> Chunk:
    return next(engine.logs(one, after=end.seq // 2))


# The index


def index(quick: bool) -> Iterator[Row]:
    """Measure an index of a million executions that exist nowhere else."""
    number = 10_000 if quick else 1_000_000
    with Place() as place:
        yield from _index_rows(place.project, number, 20 if quick else 200)


def _entries(number: int) -> Iterator[Entry]:
    """Yield rows; every hundredth is about whales, one in ten thousand about a unicorn."""
    begin = time.time_ns() - number * 1_000_000
    for one in range(number):
        animal = "unicorn" if one % 10_000 == 5000 else "whale" if one % 100 == 0 else "mouse"
        yield Entry(
            id=new_id(), kind="command", state=State.SUCCEEDED if one % 7 else State.FAILED,
            title=f"make target-{one} for the {animal}", exit_code=0 if one % 7 else 1,
            created_ns=begin + one * 1_000_000, started_ns=begin + one * 1_000_000,
            ended_ns=begin + one * 1_000_000 + 500_000,
        )  # fmt: skip


def _index_rows(project: Project, number: int, rounds: int) -> Iterator[Row]:
    make_home(project)
    store = Index(project, lambda: _entries(number))
    try:
        begin = time.perf_counter()
        made = store.rebuild()
        filled = time.perf_counter() - begin
        begin = time.perf_counter()
        store.latest(Query(most=1, text="unicorn"))
        words = time.perf_counter() - begin
        ids = [row.id for row in store.latest(Query(most=min(number, 50_000)))][
            :: max(1, number // 5000)
        ]

        def by_id(one: int) -> object:
            return store.get(ids[one % len(ids)])

        size = f"{number:,}"
        yield at_most(f"index of {size}: by id", _milliseconds(rounds * 10, by_id), 0.1)
        yield at_most(
            "  by a prefix",
            _milliseconds(rounds, lambda one: store.by_prefix(ids[one % len(ids)][:18])),
            0.1,
        )
        yield at_most(
            "  latest 50", _milliseconds(rounds, lambda _: store.latest(Query(most=50))), 2
        )
        for what, text in (
            ("1 in 10,000", "unicorn"), ("1 in 100", "whale"), ("every one", "make"),
            ("one only", f"target-{number // 2}"),
        ):  # fmt: skip
            took = _milliseconds(
                rounds // 10, lambda _, text=text: store.latest(Query(most=50, text=text))
            )
            yield at_most(f"  latest 50 by text, in {what}", took, 10)
        wrong = int(made != number) + sum(store.get(one) is None for one in ids)
        wrong += len(store.latest(Query(most=50, text="whale"))) != min(50, number // 100)
        yield none_of(
            "  wrong answers", wrong, "reads", f"filled in {filled:.1f} s, words in {words:.1f} s"
        )
    finally:
        store.close()


def rebuild(quick: bool) -> Iterator[Row]:
    """Measure making the index anew from the folders."""
    number = 200 if quick else 10_000
    with Place() as place:
        make_home(place.project)
        for one in range(number):
            _ended(place.project, one)
        engine = place.blocking()
        try:
            begin = time.perf_counter()
            bare = _bare_read(place.project)
            floor = time.perf_counter() - begin
            begin = time.perf_counter()
            made = engine.index.rebuild()
            took = time.perf_counter() - begin
        finally:
            engine.close()
    note = f"{took / number * 1e6:.0f} µs each"
    yield Row(what=f"rebuild from {number:,} folders", ours=took, floor=floor, unit="s", note=note)
    yield none_of("  executions missing", 2 * number - made - bare, "rows")


def _ended(project: Project, number: int) -> None:
    execution_id = new_id()
    spec = Spec(kind="command", argv=("/bin/echo", str(number)), cwd="/")
    pen = Pen.create(project.folder(execution_id), ev.Created(id=execution_id, spec=spec))
    pen.append(ev.Started(pid=1, pid_start=1, keeper_pid=1, keeper_start=1, boot=""))
    pen.append(ev.Ended(state=State.SUCCEEDED, exit_code=0))
    pen.put_down()


def _bare_read(project: Project) -> int:
    """Read every tape's bytes and nothing more."""
    found = 0
    for execution_id in project.all_ids():
        with open(os.path.join(project.folder(execution_id), "tape"), "rb") as file:
            found += bool(file.read())
    return found
