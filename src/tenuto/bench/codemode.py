"""Code-mode: how a VM compares to a plain program of ours, alone, many at once, and waiting."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator

import msgspec

from tenuto.bench.place import Place, memory
from tenuto.bench.table import (
    Row,
    at_most,
    median,
    none_of,
    percentile,
    times_at_least,
    times_at_most,
)
from tenuto.codemode.job import image_words
from tenuto.dispatch.launch import ZygoteLauncher
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.engine import Engine
from tenuto.engine.recover import load
from tenuto.engine.settings import Settings
from tenuto.engine.work import Options, Work

_IN_A_ROW = 8
_APART_S = 0.02  # in which a keeper forks the next VM
_AT_ONCE = 32
_MB = 1 << 20


def vm(quick: bool) -> Iterator[Row]:
    """Measure `1+1` in a VM from start to end beside /bin/true, both whole executions."""
    rounds = 1 if quick else 40
    times: dict[tuple[str, float], list[float]] = {}
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(Place())
        launcher = ZygoteLauncher(Settings().keepers_ahead, image=image_words())
        engine = place.blocking(launcher)
        stack.callback(engine.close)
        sum_up = engine.code("1+1", "js", Options())
        assert sum_up.vm is not None
        works = {
            "plain": engine.command(["/bin/true"], Options()),
            "fresh": msgspec.structs.replace(sum_up, vm={**sum_up.vm, "fresh": True}),
            "ahead": sum_up,
        }
        wrong = sum(_timed(engine, work, []) for work in works.values())
        for _, pause, (name, work) in itertools.product(
            range(rounds), (0, _APART_S), works.items()
        ):
            for _ in range(2):  # the first ones pay for what others left to do
                wrong += _timed(engine, work, [], pause)
            for _ in range(_IN_A_ROW):
                wrong += _timed(engine, work, times.setdefault((name, pause), []), pause)
    bounds: dict[tuple[str, float], tuple[str, float | None]] = {
        ("fresh", 0): ("VM, forked for it: 1+1, p50", 1.5),
        ("ahead", _APART_S): ("VM, forked ahead, 20 ms apart: 1+1, p50", 1),
        ("ahead", 0): ("VM, forked ahead, one upon the other: 1+1, p50", None),
    }
    for (name, pause), (what, bound) in bounds.items():
        ours, plain = times[name, pause], times["plain", pause]
        if bound is None:
            yield Row(what=what, ours=median(ours), floor=median(plain))
        else:
            yield times_at_most(what, median(ours), median(plain), bound)
        yield Row(what="  p99", ours=percentile(ours, 99), floor=percentile(plain, 99))
    yield none_of("  wrong answers", wrong, "runs")


def _timed(engine: BlockingEngine, work: Work, samples: list[float], pause: float = 0) -> int:
    if pause:
        time.sleep(pause)
    begin = time.perf_counter()
    execution_id, sock = engine.start(work)
    snapshot = engine.wait(execution_id, sock=sock)
    samples.append((time.perf_counter() - begin) * 1000)
    return not (snapshot and (work.vm is None or snapshot.value == 2))


def vms(quick: bool) -> Iterator[Row]:
    """Measure VMs per second beside plain programs, 32 at once, each printing its own number."""
    yield from asyncio.run(_throughput(1 if quick else 20, 50 if quick else 500))


async def _throughput(rounds: int, each: int) -> list[Row]:
    plain: list[float] = []
    rates: list[float] = []
    wrong = 0
    async with contextlib.AsyncExitStack() as stack:
        place = stack.enter_context(Place())
        engine = await stack.enter_async_context(place.engine())
        for number in range(-1, rounds):
            numbers = range(number * each, (number + 1) * each)
            for in_vm, found in ((False, plain), (True, rates)):
                begin = time.perf_counter()
                wrong += await _all_of(engine, numbers, in_vm)
                if number >= 0:
                    found.append(each / (time.perf_counter() - begin))
    return [
        times_at_least("VMs, 32 at once", median(rates), median(plain), 0.6, unit="/s"),
        none_of("  output lost or mixed", wrong, "runs", f"of {2 * (rounds + 1) * each}"),
    ]


async def _all_of(engine: Engine, numbers: range, in_vm: bool) -> int:
    """Run all of them, 32 at once, and return how many did not print just their number."""
    ahead = iter(numbers)
    wrong = 0

    async def work() -> None:
        nonlocal wrong
        for number in ahead:
            if in_vm:
                snapshot = await engine.run(f"console.log({number})", language="js")
            else:
                snapshot = await engine.run(command=["/bin/echo", str(number)])
            wrong += not (snapshot and snapshot.output == f"{number}\n")

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return wrong


def vm_crowd(quick: bool) -> Iterator[Row]:
    """Measure the memory of VMs that wait, and many that live at once."""
    yield from asyncio.run(_crowd(20 if quick else 100, 100 if quick else 500))


async def _crowd(waiting: int, crowd: int) -> list[Row]:
    async with contextlib.AsyncExitStack() as stack:
        place = stack.enter_context(Place())
        engine = await stack.enter_async_context(place.engine())
        ids = [await engine.start("await readStdin()", language="js") for _ in range(waiting)]
        for one in ids:
            await engine.wait(one, 60)
        started = [load(place.project, one) for one in ids]
        pids = [one.started.pid for one in started if one is not None and one.started is not None]
        private = [_private(pid) for pid in pids]
        for one in ids:
            await engine.send(one, "x")
        ended = [await engine.wait(one, 60) for one in ids]
        wrong = sum(one.value != "x" for one in ended)
        begin = time.perf_counter()
        waits = await asyncio.gather(*(_together(engine, number) for number in range(crowd)))
        took = time.perf_counter() - begin
    return [
        at_most("VM that waits: private memory", sum(private) / len(private) / _MB, 3, "MB"),
        Row(what=f"{crowd} VMs live at once: all done after", ours=took, unit="s"),
        none_of("  wrong or starved", wrong + sum(not one for one in waits), "runs"),
    ]


async def _together(engine: Engine, number: int) -> bool:
    """Have one of many that are all alive at the same time; tell whether its answer was right."""
    code = (
        f"const n = await readStdin(); await new Promise(r => setTimeout(r, 10)); n * 2 + {number}"
    )
    one = await engine.start(code, language="js")
    await engine.send(one, str(number))
    snapshot = await engine.wait(one, 120)
    return bool(snapshot) and snapshot.value == number * 3


def _private(pid: int) -> int:
    return sum(memory(pid, "smaps_rollup", f"Private_{kind}") for kind in ("Clean", "Dirty"))
