"""How fast output gets to the tape and to those who follow it, and what memory that takes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from tenuto.bench.place import Place, memory
from tenuto.bench.table import Row, at_most, median, none_of, percentile, times_at_least
from tenuto.engine.engine import Engine

_LINE = "the quick brown fox jumps over the lazy dog, again and again, until somebody stops it"
_ROOM = 60
_STAMPS = (
    "import sys, time\n"
    "for _ in range(int(sys.argv[1])):\n"
    "    sys.stdout.write(f'{time.time_ns()}\\n'); sys.stdout.flush(); time.sleep(0.004)\n"
)


def volume(quick: bool) -> Iterator[Row]:
    """Measure a large output against the same through `cat` into a file."""
    yield from asyncio.run(_volume(20 if quick else 500, 1 if quick else 3))


async def _volume(megabytes: int, rounds: int) -> list[Row]:
    producer = f"yes '{_LINE}' | head -c {megabytes * 1_000_000}"
    floor: list[float] = []
    ours: list[float] = []
    keeper_peak = 0
    readings: dict[str, dict[str, Any]] = {}
    with Place() as place:
        async with place.engine() as engine:
            await engine.run(command=["/bin/true"])
            for number in range(rounds):
                floor.append(megabytes / _bare(producer, place.folder))
                execution_id = await engine.start(command=["sh", "-c", producer])
                took, peak = await _to_its_end(place, engine, execution_id)
                ours.append(megabytes / took)
                keeper_peak = max(keeper_peak, peak)
                if number == rounds - 1:
                    readings["logs"] = await _read(place, execution_id, "logs")
                    readings["follow"] = await _read(place, execution_id, "follow")
                await engine.clean(keep=0)
            begin = time.perf_counter()
            await engine.run(command=["sh", "-c", producer], wait=600)
            waited = megabytes / (time.perf_counter() - begin)
            await engine.clean(keep=0)
            execution_id = await engine.start(command=["sh", "-c", producer])
            readings["live follow"] = await _read(place, execution_id, "follow")
    expected = _digest(megabytes * 1_000_000)
    rows = [
        times_at_least(f"{megabytes} MB of output", median(ours), median(floor), 0.7, unit="MB/s"),
        Row(what="  the same, waited for with run", ours=waited, floor=median(floor), unit="MB/s"),
        at_most("  keeper, peak memory", keeper_peak / 1e6, _ROOM, unit="MB"),
    ]
    for how, reading in readings.items():
        rate = megabytes / float(reading["seconds"])
        rows += [
            at_most(
                f"  client with {how}, peak memory", reading["peak"] / 1e6, _ROOM, unit="MB",
                note=f"{rate:.0f} MB/s",
            ),
            none_of(f"  {how}: not every byte back", int(reading["sha256"] != expected), "runs"),
        ]  # fmt: skip
    return rows


def _bare(producer: str, folder: str) -> float:
    path = os.path.join(folder, "floor")
    begin = time.perf_counter()
    subprocess.run(["sh", "-c", f"{producer} | cat > {path}"], check=True)
    took = time.perf_counter() - begin
    os.unlink(path)
    return took


async def _to_its_end(place: Place, engine: Engine, execution_id: str) -> tuple[float, int]:
    """Return its seconds by the tape (nobody needs to read along) and its keeper's most memory."""
    peak = 0
    while not (snapshot := await engine.show(execution_id)).done:
        for pid in place.processes("tenuto-keeper"):
            peak = max(peak, memory(pid, "status", "VmHWM"))
        await asyncio.sleep(0.3)  # seldom: looking takes time from those who are measured
    return ((snapshot.ended_ns or 0) - snapshot.created_ns) / 1e9, peak


async def _read(place: Place, execution_id: str, how: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "tenuto.bench.reading", place.folder, execution_id, how]
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    text, _ = await process.communicate()
    return json.loads(text)


def _digest(size: int) -> str:
    """Return the checksum of what the producer writes."""
    block = f"{_LINE}\n".encode() * 10_000
    digest = hashlib.sha256()
    whole, rest = divmod(size, len(block))
    for _ in range(whole):
        digest.update(block)
    digest.update(block[:rest])
    return digest.hexdigest()


# Followers


def follower(quick: bool) -> Iterator[Row]:
    """Measure how long after its printing a follower has a line."""
    yield from asyncio.run(_follower(2 if quick else 6, 50 if quick else 300))


async def _follower(rounds: int, each: int) -> list[Row]:
    floor: list[float] = []
    ours: list[float] = []
    command = [sys.executable, "-u", "-c", _STAMPS, str(each)]
    with Place() as place:
        async with place.engine() as engine:
            for _ in range(rounds):
                await _ages(_bare_output(command), floor)
                execution_id = await engine.start(command=command)
                await _ages(_output(engine, execution_id), ours)
    missing = rounds * each - len(ours)
    return [
        at_most("follower sees a line, p50", median(ours), 5, floor=median(floor)),
        at_most("  p99", percentile(ours, 99), 50, floor=percentile(floor, 99)),
        none_of("  lines that never came", missing, "lines", f"of {rounds * each}"),
    ]


async def _ages(chunks: AsyncIterator[bytes], ages: list[float]) -> None:
    """Note how old each line is when it arrives; each holds the time of its printing."""
    rest = b""
    async for data in chunks:
        now = time.time_ns()
        *whole, rest = (rest + data).split(b"\n")
        ages += [(now - int(text)) / 1e6 for text in whole]


async def _output(engine: Engine, execution_id: str) -> AsyncIterator[bytes]:
    async for chunk in engine.follow(execution_id):
        yield chunk.data


async def _bare_output(command: list[str]) -> AsyncIterator[bytes]:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with contextlib.suppress(ProcessLookupError):
        while data := await process.stdout.read(65536):
            yield data
        await process.wait()
