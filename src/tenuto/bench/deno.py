"""The deno engine: from start to result, with a process that was ready and with one that was not.

A whole execution is measured: its id, index row, tape, the value, and that every process is gone; and,
by the times on its tape, how long it took until the value was recorded. The
floor is what deno itself takes for it: a process with our surface that was ready, without a keeper and
unconfined, from the line that brings the code until it is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator

from tenuto.bench.place import Place
from tenuto.bench.table import Row, at_most, median, percentile
from tenuto.codemode import deno_process
from tenuto.codemode.job import DEFAULT_MEMORY
from tenuto.core import events as ev
from tenuto.core.errors import InterpreterMissing
from tenuto.engine.engine import Engine
from tenuto.engine.settings import Settings
from tenuto.interpreters import interpreter
from tenuto.stores.layout import Project
from tenuto.stores.tape import TapeReader

_TARGET_MS = 5.0
_REFILL_S = 0.25
_HEAVY = "let s = 0; for (let i = 0; i < 5e6; i++) s += i % 7; s"


def deno(quick: bool) -> Iterator[Row]:
    """Measure `1+1` with deno, beside the default engine and /bin/true in the same run."""
    yield from asyncio.run(_deno(3 if quick else 40))


async def _deno(rounds: int) -> list[Row]:
    names = ("bare", "ready", "fresh", "quickjs", "true", "heavy deno", "heavy quickjs")
    times: dict[str, list[float]] = {name: [] for name in (*names, "value")}
    async with contextlib.AsyncExitStack() as stack:
        place = stack.enter_context(Place())
        warm = await stack.enter_async_context(place.engine())
        bare = await stack.enter_async_context(place.engine(Settings(deno_ahead=0)))
        try:
            await _run(warm, "deno")  # from now on one is held ready
        except InterpreterMissing as error:
            return [Row(what="deno, 1+1", ours=0, note=error.message)]
        await _run(bare, "deno")
        surface = deno_process.read_surface()
        for _ in range(rounds):
            times["bare"].append(await _bare(surface))
            await asyncio.sleep(_REFILL_S)
            times["ready"].append(await _run(warm, "deno", value=times["value"]))
            await asyncio.sleep(_REFILL_S)  # what is begun ahead is no part of the others
            times["fresh"].append(await _run(bare, "deno"))
            times["quickjs"].append(await _run(warm, "quickjs"))
            begin = time.perf_counter()
            await warm.run(command=["/bin/true"])
            times["true"].append((time.perf_counter() - begin) * 1000)
        for _ in range(max(1, rounds // 10)):
            await asyncio.sleep(_REFILL_S)
            times["heavy deno"].append(await _run(warm, "deno", _HEAVY))
            times["heavy quickjs"].append(await _run(warm, "quickjs", _HEAVY))
    ready = times["ready"]
    base = median(times["true"])
    own = median(times["bare"])
    return [
        at_most("deno held ready, 1+1, until its value, p50", median(times["value"]), _TARGET_MS),
        Row(what="  until all is gone, p50", ours=median(ready), floor=own),
        Row(what="  p50 beside /bin/true", ours=median(ready), floor=base),
        Row(what="  p50, what it adds to /bin/true", ours=median(ready) - base, floor=own),
        Row(what="  p99", ours=percentile(ready, 99)),
        Row(what="  p50, not held ready", ours=median(times["fresh"]), floor=base),
        Row(what="  p50, default engine", ours=median(times["quickjs"]), floor=base),
        Row(
            what="  5 million loops, beside the default engine",
            ours=median(times["heavy deno"]),
            floor=median(times["heavy quickjs"]),
        ),
    ]


async def _bare(surface: bytes) -> float:
    """Return how long a bare deno process that was ready takes for the code, and to be gone."""
    words = deno_process.arguments(DEFAULT_MEMORY)
    program = interpreter("deno", os.environ, {})
    job: dict[str, object] = {"inputs": "{}", "functions": "[]", "text": "1+1", "source": None}
    line = json.dumps(job | {"tools": [], "moves": [], "rows": 1}).encode() + b"\n"
    with subprocess.Popen(
        [program, *words[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=deno_process.ENVIRONMENT,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(surface)
        process.stdin.flush()
        await asyncio.sleep(_REFILL_S)
        begin = time.perf_counter()
        process.stdin.write(line)
        process.stdin.flush()
        os.read(process.stderr.fileno(), 1)  # it says that all is done
        process.kill()
        process.wait()
        took = (time.perf_counter() - begin) * 1000
        if b'"value"' not in process.stdout.read():
            raise RuntimeError("a bare deno gave no value")
    return took


async def _run(
    engine: Engine, name: str, code: str = "1+1", value: list[float] | None = None
) -> float:
    begin = time.perf_counter()
    snapshot = await engine.run(code, language="js", engine=name)
    took = (time.perf_counter() - begin) * 1000
    if not snapshot.has_value:
        raise RuntimeError(f"{name} gave no value: {snapshot.reason} {snapshot.detail}")
    if value is not None:
        value.append(_until_value(engine, snapshot.id))
    return took


def _until_value(engine: Engine, execution_id: str) -> float:
    """Return how long after the record of an execution its value was recorded, by its tape."""
    begun = 0
    with TapeReader(Project(root="", home=engine.home).folder(execution_id)) as reader:
        for frame in reader.events():
            begun = begun or frame.time_ns
            if isinstance(ev.decode_event(frame.body), ev.ValueReturned):
                return (frame.time_ns - begun) / 1e6
    raise RuntimeError("there is no value on the tape")
