"""Staying with an execution: its output to our descriptors, our input to it, until there is reason
to leave.

One loop for run, resume, attach and logs -f: look at the tape, write what is new, sleep until the
keeper, the keyboard or the clock has something.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tenuto.cli.console import ERR, OUT, Console
from tenuto.core.ids import short
from tenuto.core.states import WaitingFor
from tenuto.engine.watch import as_chunk, is_output

if TYPE_CHECKING:
    from tenuto.cli.keyboard import Keyboard
    from tenuto.core.execution import Chunk, Execution
    from tenuto.engine.goals import Waiting


_DAY_S = 86400.0  # the system counts milliseconds in 32 bits


class Ticker:
    """Calls something at intervals while a wait lasts."""

    def __init__(self, every: float, call: Callable[[], None]) -> None:
        """Call first after one interval; an interval of 0 means never."""
        self._every = every
        self._call = call
        self._next = time.monotonic() + every

    def left(self) -> float | None:
        """Call if it is time; return the seconds until the next time."""
        if not self._every:
            return None
        left = self._next - time.monotonic()
        if left <= 0:
            self._call()
            self._next = time.monotonic() + self._every
            left = self._every
        return left


def stay(
    waiting: Waiting,
    write: Callable[[Chunk], None] | None,
    limit: float | None = None,
    ticker: Ticker | None = None,
    keyboard: Keyboard | None = None,
    tell: Callable[[int, bytes], None] | None = None,
) -> None:
    """Pass output on until the wait is over or the clock reaches `limit` (monotonic seconds).

    What is written here is not gathered by the wait too; without `write` it gathers. `tell` is
    given the time and body of what is no output, in the same order.
    """
    watch = waiting.watch
    while True:
        found = watch.look()
        if write is not None:
            for frame in found:
                if is_output(frame):
                    write(as_chunk(frame))
                elif tell is not None:
                    tell(frame.time_ns, frame.body)
            found = [frame for frame in found if not is_output(frame)]
        if waiting.take(found):
            return
        now = time.monotonic()
        if limit is not None and now >= limit:
            return
        bounds = [watch.pause, None if limit is None else limit - now]
        if ticker is not None:
            bounds.append(ticker.left())
        descriptors = [watch.fileno()]
        if keyboard is not None:
            descriptors += keyboard.descriptors()
        ready = rest(descriptors, bounds)
        if keyboard is not None:
            keyboard.react(ready)


def rest(descriptors: list[int], bounds: list[float | None]) -> set[int]:
    """Sleep until a descriptor has something or the shortest time is over; return which ones do."""
    poller = select.poll()
    for fd in descriptors:
        if fd >= 0:
            poller.register(fd, select.POLLIN)
    times = [bound for bound in bounds if bound is not None]
    # rounded up: poll counts whole milliseconds, and too short a sleep would spin
    timeout = int(min(*times, _DAY_S) * 1000) + 1 if times else None
    return {fd for fd, _ in poller.poll(timeout)}


def writer(console: Console) -> Callable[[Chunk], None]:
    """Return what writes chunks to our stdout and stderr, byte for byte; or as NDJSON."""
    if console.json:
        from tenuto.engine.documents import chunk_document

        return lambda chunk: console.line(chunk_document(chunk))
    return lambda chunk: console.write(OUT if chunk.stream == "out" else ERR, chunk.data)


@contextmanager
def uninterrupted() -> Generator[list[int]]:
    """Hold Ctrl-C back while an execution starts: there is no id yet to name. Yields what came."""
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)


def next_commands(execution_id: str, next_seq: int = 0, task: bool = False) -> list[str]:
    """Return the commands to go on with, ready to be copied; a task reads no stdin."""
    where = short(execution_id)
    after = f" --after {next_seq - 1}" if next_seq else ""
    return [
        f"  tenuto logs -f{after} {where}",
        f"  tenuto interrupt {where}" if task else f"  tenuto send {where} TEXT",
        f"  tenuto wait {where}",
        f"  tenuto kill {where}",
    ]


def say_still_running(console: Console, execution: Execution, next_seq: int = 0) -> None:
    """Tell someone who leaves that the work goes on, and how to come back."""
    if not execution.live:
        return
    console.fresh_line()
    console.message(f"still running: {execution.id}")
    task = execution.spec is not None and execution.spec.kind == "task"
    for line in next_commands(execution.id, next_seq, task):
        console.note(line)
    if task and execution.waiting_for in (WaitingFor.APPROVAL, WaitingFor.BUDGET):
        console.note(decisions(execution.id))


def decisions(execution_id: str) -> str:
    """Return the commands that decide what a task asks."""
    return f"  tenuto approve {short(execution_id)}\n  tenuto deny {short(execution_id)}"
