"""How fast a running execution is handed over, answers its input, and is ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator

from tenuto.bench.place import Place, carriers, end_all
from tenuto.bench.table import Row, at_most, median, none_of, percentile
from tenuto.engine.engine import Engine

_PYTHON_LOOP = [sys.executable, "-c", "while True: pass"]
_PROGRAMS = {
    "sleeps": ["sleep", "600"],
    "loops": _PYTHON_LOOP,
    "floods": ["yes"],
    "floods by single bytes": ["sh", "-c", "while :; do echo; done"],
    "ignores signals": ["sh", "-c", "trap '' INT TERM HUP QUIT; while :; do sleep 600; done"],
    "has stopped itself": ["sh", "-c", "kill -STOP $$; sleep 600"],
}
_WAIT_S = 0.2

# A shell with a child, a grandchild with a child, one that ignores SIGTERM, and a daemon.
_TREE = """
sleep 600 &
sh -c 'sleep 600; :' &
(trap '' TERM INT HUP; exec sleep 600) &
(setsid sleep 600 >/dev/null 2>&1 </dev/null &)
wait
"""
_TREE_SIZE = 6


def handover(quick: bool) -> Iterator[Row]:
    """Measure by how much a call that hands over passes its `wait`."""
    yield from asyncio.run(_handover(1 if quick else 5))


async def _handover(rounds: int) -> list[Row]:
    late: dict[str, list[float]] = {name: [] for name in _PROGRAMS}
    bare: dict[str, list[float]] = {name: [] for name in _PROGRAMS}
    not_handed_over = 0
    with Place() as place:
        async with place.engine() as engine:
            await engine.run(command=["/bin/true"])
            for _ in range(rounds):
                for name, argv in _PROGRAMS.items():
                    bare[name].append(await _bare_wait(argv))
                    begin = time.perf_counter()
                    snapshot = await engine.run(command=argv, wait=_WAIT_S)
                    late[name].append((time.perf_counter() - begin - _WAIT_S) * 1000)
                    not_handed_over += not snapshot.handed_over
                    await engine.kill(snapshot.id)
    rows = [
        at_most(f"handover, program {name}", max(late[name]), 100, floor=max(bare[name]))
        for name in _PROGRAMS
    ]
    return [*rows, none_of("  not handed over", not_handed_over, "runs")]


async def _bare_wait(argv: list[str]) -> float:
    """Wait for a plain subprocess as long, and return by how much that was passed, in ms."""
    begin = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.DEVNULL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _WAIT_S - (time.perf_counter() - begin))
    passed = (time.perf_counter() - begin - _WAIT_S) * 1000
    process.kill()
    await process.wait()
    return passed


# Input


def stdin(quick: bool) -> Iterator[Row]:
    """Measure a line sent to `cat` until a follower has it back."""
    yield from asyncio.run(_stdin(40 if quick else 400))


async def _stdin(rounds: int) -> list[Row]:
    floor: list[float] = []
    ours: list[float] = []
    with Place() as place:
        async with place.engine() as engine, _bare_cat() as cat:
            execution_id = await engine.start(command=["cat"])
            lines = _lines(engine, execution_id)
            wrong = 0
            for number in range(rounds):
                text = f"line {number}\n".encode()
                begin = time.perf_counter()
                wrong += await cat(text) != text
                floor.append((time.perf_counter() - begin) * 1000)
                begin = time.perf_counter()
                await engine.send(execution_id, text)
                wrong += await anext(lines) != text
                ours.append((time.perf_counter() - begin) * 1000)
            await engine.kill(execution_id)
            assert [text async for text in lines] == []  # and the follower has seen the end
    return [
        at_most("stdin round trip, p50", median(ours), 3, floor=median(floor)),
        Row(what="  p99", ours=percentile(ours, 99), floor=percentile(floor, 99)),
        none_of("  lines that came back wrong", wrong, "lines", f"of {2 * rounds}"),
    ]


async def _lines(engine: Engine, execution_id: str) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for chunk in engine.follow(execution_id):
        *whole, rest = (rest + chunk.data).split(b"\n")
        for text in whole:
            yield text + b"\n"


@contextlib.asynccontextmanager
async def _bare_cat() -> AsyncGenerator[_Cat, None]:
    cat = _Cat(
        await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    )
    try:
        yield cat
    finally:
        await cat.end()


class _Cat:
    """A plain `cat` over two pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def __call__(self, text: bytes) -> bytes:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(text)
        return await self._process.stdout.readline()

    async def end(self) -> None:
        self._process.kill()
        await self._process.wait()


# Kill


def kill(quick: bool) -> Iterator[Row]:
    """Measure a kill until the whole tree is verified dead, a daemon in it."""
    yield from asyncio.run(_kill(4 if quick else 100))


async def _kill(rounds: int) -> list[Row]:
    floor: list[float] = []
    ours: list[float] = []
    alive = 0
    with Place() as place:
        async with place.engine() as engine:
            for _ in range(rounds):
                floor.append(await _bare_kill(place))
                execution_id = await engine.start(command=["sh", "-c", _TREE])
                await _grown("TENUTO_EXECUTION", execution_id)
                begin = time.perf_counter()
                snapshot = await engine.kill(execution_id)
                ours.append((time.perf_counter() - begin) * 1000)
                alive += len(carriers("TENUTO_EXECUTION", execution_id))
                alive += not snapshot.done
    return [
        at_most(
            "kill → whole tree dead, p99", percentile(ours, 99), 50, floor=percentile(floor, 99)
        ),
        Row(what="  p50", ours=median(ours), floor=median(floor)),
        none_of("  alive afterwards", alive, "left", f"of {rounds * _TREE_SIZE}"),
    ]


async def _bare_kill(place: Place) -> float:
    """Start the same tree plainly, send SIGKILL to pids known beforehand, see that they are dead."""
    token = os.urandom(8).hex()
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", _TREE, env={**os.environ, "TENUTO_BENCH_TREE": token}, cwd=place.folder
    )
    pids = await _grown("TENUTO_BENCH_TREE", token)
    begin = time.perf_counter()
    while pids:
        end_all(pids)
        pids = carriers("TENUTO_BENCH_TREE", token)
    took = (time.perf_counter() - begin) * 1000
    await process.wait()
    return took


async def _grown(variable: str, value: str) -> list[int]:
    """Wait until the whole tree is there and changes no more, and return it."""
    limit = time.monotonic() + 30
    before: list[int] = []
    while len(found := carriers(variable, value)) != _TREE_SIZE or found != before:
        if time.monotonic() > limit:
            raise TimeoutError(f"the tree has {len(found)} processes, not {_TREE_SIZE}")
        before = found
        await asyncio.sleep(0.01)
    return found
