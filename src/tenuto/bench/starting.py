"""How long a trivial program takes from start to exit: alone, many at once, beside a busy one."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

from tenuto.bench.floors import FloorZygote
from tenuto.bench.place import Place, memory
from tenuto.bench.table import (
    Row,
    at_most,
    busy,
    median,
    none_of,
    percentile,
    times_at_least,
    times_at_most,
)
from tenuto.dispatch.launch import ZygoteLauncher
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.engine import Engine
from tenuto.engine.settings import Settings
from tenuto.engine.work import Options

_TRUE = ["/bin/true"]
_AT_ONCE = 32
_PAUSE_S = 0.02
_IN_A_ROW = 8
_QUIET = 0.1


async def _timed(samples: list[float], work: Callable[[], Awaitable[object] | object]) -> None:
    begin = time.perf_counter()
    result = work()
    if isinstance(result, Awaitable):
        await result
    samples.append((time.perf_counter() - begin) * 1000)


def _blocking_run(engine: BlockingEngine) -> None:
    execution_id, sock = engine.start(engine.command(_TRUE, Options()))
    engine.wait(execution_id, sock=sock)


def start(quick: bool) -> Iterator[Row]:
    """Measure start to exit of /bin/true with a warm engine."""
    yield from asyncio.run(_start(3 if quick else 40))


async def _start(rounds: int) -> list[Row]:
    names = (
        "floor",
        "subprocess",
        "run",
        "ahead 1",
        "ahead 4",
        "blocking",
        "paced floor",
        "paced run",
    )
    times: dict[str, list[float]] = {name: [] for name in names}
    async with contextlib.AsyncExitStack() as stack:
        place = stack.enter_context(Place())
        floor = stack.enter_context(FloorZygote(place.base))
        engine = await stack.enter_async_context(place.engine())
        one = await stack.enter_async_context(place.engine(Settings(keepers_ahead=1)))
        four = await stack.enter_async_context(place.engine(Settings(keepers_ahead=4)))
        blocking = place.blocking(ZygoteLauncher(Settings().keepers_ahead))
        stack.callback(blocking.close)
        works: dict[str, Callable[[], Awaitable[object] | object]] = {
            "floor": lambda: floor.run(_TRUE),
            "subprocess": lambda: subprocess.run(_TRUE, check=True),
            "run": lambda: engine.run(command=_TRUE),
            "ahead 1": lambda: one.run(command=_TRUE),
            "ahead 4": lambda: four.run(command=_TRUE),
            "blocking": lambda: _blocking_run(blocking),
        }
        for work in works.values():
            await _timed([], work)
        for _ in range(rounds):
            for name, work in works.items():
                await _timed([], work)  # the first one pays for what the one before left to do
                for _ in range(_IN_A_ROW):
                    await _timed(times[name], work)
        for _ in range(rounds * 4):
            for name in ("floor", "run"):
                await asyncio.sleep(_PAUSE_S)
                await _timed(times[f"paced {name}"], works[name])
    base = median(times["floor"])
    run = times["run"]
    return [
        times_at_most("start → exit of true, p50", median(run), base, 1.5),
        Row(what="  p99", ours=percentile(run, 99), floor=percentile(times["floor"], 99)),
        times_at_most(
            "  p50, 20 ms apart", median(times["paced run"]), median(times["paced floor"]), 1.5
        ),
        Row(what="  p50, 1 keeper ahead", ours=median(times["ahead 1"]), floor=base),
        Row(what="  p50, 4 keepers ahead", ours=median(times["ahead 4"]), floor=base),
        Row(what="  p50, blocking engine", ours=median(times["blocking"]), floor=base),
        Row(
            what="  p50, beside subprocess.run", ours=median(run), floor=median(times["subprocess"])
        ),
    ]


# Many at once


def throughput(quick: bool) -> Iterator[Row]:
    """Measure executions per second, 32 at once, each printing its own number."""
    yield from asyncio.run(_throughput(3 if quick else 20, 100 if quick else 500))


async def _throughput(rounds: int, each: int) -> list[Row]:
    floor_rates: list[float] = []
    rates: list[float] = []
    wrong = 0
    others = busy()
    async with contextlib.AsyncExitStack() as stack:
        place = stack.enter_context(Place())
        floor = stack.enter_context(FloorZygote(place.base))
        engine = await stack.enter_async_context(place.engine())
        await _all_of(engine, range(_AT_ONCE))
        for number in range(rounds):
            numbers = range(number * each, (number + 1) * each)
            begin = time.perf_counter()
            printed = floor.run_all([_prints(one) for one in numbers], _AT_ONCE)
            floor_rates.append(each / (time.perf_counter() - begin))
            wrong += sum(
                text != f"{one}\n".encode() for one, text in zip(numbers, printed, strict=True)
            )
            begin = time.perf_counter()
            wrong += await _all_of(engine, numbers)
            rates.append(each / (time.perf_counter() - begin))
    floor_rate, rate = median(floor_rates), median(rates)
    return [
        times_at_least("throughput, 32 at once", rate, floor_rate, 0.8, unit="/s"),
        Row(
            what="  on a quiet machine", ours=rate, unit="/s", target="≥ 250 /s",
            met=rate >= 250 if others < _QUIET else None,
            note="" if others < _QUIET else f"not judged: others took {others:.0%} of the processors",
        ),
        none_of("  output lost or mixed", wrong, "runs", f"of {rounds * each}"),
    ]  # fmt: skip


def _prints(number: int) -> list[str]:
    return ["/bin/echo", str(number)]


async def _all_of(engine: Engine, numbers: range) -> int:
    """Run all of them, 32 at once, and return how many did not print just their number."""
    ahead = iter(numbers)
    wrong = 0

    async def work() -> None:
        nonlocal wrong
        for number in ahead:
            snapshot = await engine.run(command=_prints(number))
            wrong += not (snapshot and snapshot.output == f"{number}\n")

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return wrong


# Beside a busy one


def neighbour(quick: bool) -> Iterator[Row]:
    """Measure a trivial run while another execution writes flat out."""
    yield from asyncio.run(_neighbour(2 if quick else 6, 15 if quick else 60))


async def _neighbour(rounds: int, each: int) -> list[Row]:
    alone: list[float] = []
    beside: list[float] = []
    with Place() as place:
        async with place.engine() as engine:
            for _ in range(rounds):
                for samples in (alone, beside):
                    async with _flood(engine) if samples is beside else contextlib.nullcontext():
                        await engine.run(command=_TRUE)
                        for _ in range(each):
                            await _timed(samples, lambda: engine.run(command=_TRUE))
    floor, ours = percentile(alone, 99), percentile(beside, 99)
    note = f"over its floor by {ours - floor:.1f} ms"
    return [
        Row(
            what="true beside `yes`, p99", ours=ours, floor=floor, target="floor + 50 ms",
            met=ours <= floor + 50, note=note,
        ),
        Row(what="  p50", ours=median(beside), floor=median(alone)),
    ]  # fmt: skip


@contextlib.asynccontextmanager
async def _flood(engine: Engine) -> AsyncGenerator[None, None]:
    """Keep an execution writing as fast as it can."""
    execution_id = await engine.start(command=["yes"])
    try:
        await asyncio.sleep(0.1)
        yield
    finally:
        await engine.kill(execution_id)


# A crowd


def crowd(quick: bool) -> Iterator[Row]:
    """Measure what sleeping executions cost, and that a thousand are not too many."""
    yield from asyncio.run(_crowd(20 if quick else 200, 0 if quick else 1000))


async def _crowd(few: int, many: int) -> list[Row]:
    rows: list[Row] = []
    with Place() as place:
        async with place.engine() as engine:
            await _sleepers(engine, few)
            keepers = await _keepers(place, few)
            total = sum(memory(pid, "smaps_rollup", "Pss") for pid in keepers)
            note = f"{len(keepers)} keepers"
            size = total / few / 1e6
            rows.append(at_most(f"{few} sleeping: PSS per keeper", size, 2, unit="MB", note=note))
            rows.append(none_of("  executions without a keeper", abs(few - len(keepers)), "runs"))
            if many:
                begin = time.perf_counter()
                refused = await _sleepers(engine, many - few)
                took = time.perf_counter() - begin
                rows.append(none_of(f"{many} at once: refused", refused, "runs", f"{took:.1f} s"))
            begin = time.perf_counter()
            await engine.kill_all()
            rows.append(Row(what="  ending them all", ours=time.perf_counter() - begin, unit="s"))
            left = len(place.processes("sleep"))
        rows.append(none_of("  sleepers left alive", left, "left"))
    return rows


async def _keepers(place: Place, expected: int) -> list[int]:
    """Return the keepers, once as many as expected have that name.

    A keeper takes it with its job, and a program has its keeper's name until it executes.
    """
    limit = time.monotonic() + 10
    while len(found := place.processes("tenuto-keeper")) != expected:
        if time.monotonic() > limit:
            break
        await asyncio.sleep(0.02)
    return found


async def _sleepers(engine: Engine, number: int) -> int:
    """Start so many sleeping executions and return how many were refused."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one() -> bool:
        async with gate:
            try:
                await engine.start(command=["sleep", "3600"])
            except Exception:
                return False
            return True

    return (await asyncio.gather(*(one() for _ in range(number)))).count(False)
