"""Runtimes as child executions: each under a keeper of its own, and gone when the driver is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from tenuto.core.errors import NotRunning, TenutoError
from tenuto.core.execution import Execution
from tenuto.core.runs import ChildEnd
from tenuto.dispatch import control
from tenuto.engine.bell import Bell
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.watch import Watch
from tenuto.engine.work import Options
from tenuto.keeper import procfs
from tenuto.keeper.frames import ERR, OUT

_T = TypeVar("_T")
_LAST = 4096
_THREADS = 8
_LINE_MOST = 64 * 1024 * 1024
_KEPT_MOST = 16 * 1024 * 1024


class _Line:
    """The line that is being printed; what is longer than any message comes in pieces."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # put together once, not for each piece
        self.size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole now."""
        first, *more = data.split(b"\n")
        self._add(first)
        found: list[bytes] = []
        for part in more:
            found.append(self.take())
            self._add(part)
        if self.size > _LINE_MOST:
            found.append(self.take())
        return found

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self.size += len(part)

    def take(self) -> bytes:
        """Return what there is, and begin anew."""
        line, self._parts, self.size = b"".join(self._parts), [], 0
        return line


class ExecutionChild:
    """One runtime's process, seen through its tape and its control socket."""

    def __init__(self, nursery: ExecutionNursery, execution_id: str, watch: Watch) -> None:
        """Take an execution that has just been started."""
        self.id = execution_id
        self._nursery = nursery
        self._watch = watch
        self._errors = b""
        self._ended = asyncio.Event()
        self._execution: Execution = watch.execution
        self._sending = asyncio.Lock()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._kept = 0
        self._room = asyncio.Event()
        self._unheard = False
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        """Read the tape as it grows, whoever asks for the lines and when.

        What nobody takes is left on the tape for a while: a runtime that prints faster than it is heard
        fills the disk, as every execution does, and not this process.
        """
        rest = _Line()
        try:
            with self._watch as watch, Bell(watch) as bell:
                while True:
                    found = watch.news()
                    if watch.adrift:
                        await self._nursery.call(watch.anchor)
                        found += watch.news()
                    for frame in found:
                        if frame.stream == OUT and not self._unheard:
                            for line in rest.feed(frame.body):
                                self._put(line)
                        elif frame.stream == ERR:
                            self._errors = (self._errors + frame.body)[-_LAST:]
                    if watch.over:
                        return
                    if self._kept > _KEPT_MOST and not self._unheard:
                        self._room.clear()
                        await self._room.wait()
                    else:
                        await bell.sleep(None)
        finally:
            if rest.size and not self._unheard:
                self._put(rest.take())
            self._lines.put_nowait(None)
            self._ended.set()

    def _put(self, line: bytes) -> None:
        self._kept += len(line)
        self._lines.put_nowait(line)

    def _drop(self) -> None:
        """Hear nothing more of it: it is read to its end all the same."""
        self._unheard = True
        self._room.set()

    async def send(self, data: bytes) -> None:
        """Write to its stdin, one write after the other."""
        folder = self._nursery.engine.project.folder(self.id)
        async with self._sending:
            with suppress(TenutoError, control.NoKeeper):
                await self._nursery.call(control.send, folder, data, False)

    async def close_input(self) -> None:
        """Close its stdin."""
        folder = self._nursery.engine.project.folder(self.id)
        async with self._sending:
            with suppress(TenutoError, control.NoKeeper):
                await self._nursery.call(control.send, folder, b"", True)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield its lines; whoever comes back goes on where it left."""
        while (line := await self._lines.get()) is not None:
            self._kept -= len(line)
            if self._kept <= _KEPT_MOST:
                self._room.set()
            yield line
        self._lines.put_nowait(None)

    async def last_words(self) -> str:
        """Return the end of its stderr."""
        return self._errors.decode("utf-8", "replace")

    async def signal(self, name: str) -> None:
        """Signal its tree."""
        with suppress(NotRunning):
            await self._nursery.call(self._nursery.engine.kill, self.id, name)

    async def kill(self) -> None:
        """Kill its tree, verified."""
        await self.signal("KILL")
        self._drop()
        await self._ended.wait()

    async def wait(self) -> ChildEnd:
        """Wait for its end."""
        await self._ended.wait()
        ended = self._execution.ended
        detail = "its keeper died" if ended is None else ended.detail
        return ChildEnd(str(self._execution.state), ended.exit_code if ended else None, detail)


class ExecutionNursery:
    """Starts runtimes as executions of kind step, inside the task's."""

    def __init__(
        self,
        engine: BlockingEngine,
        started: Callable[[str], None],
        withheld: Sequence[str] = (),
    ) -> None:
        """Start with this engine; `started` is told of each execution's id before it runs on.

        Variables that are `withheld` are passed on to nobody, unless the runner sets them itself.
        """
        self.engine = engine
        self._started = started
        self._withheld = withheld
        self._threads: ThreadPoolExecutor | None = None
        self.children: list[ExecutionChild] = []
        self._starting: set[asyncio.Task[ExecutionChild]] = set()

    async def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run what may block in a thread."""
        if self._threads is None:  # many runners never need one
            self._threads = ThreadPoolExecutor(_THREADS, "nursery")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*arguments))

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str] = {},
        unset: Sequence[str] = (),
        title: str = "",
    ) -> ExecutionChild:
        """Start a runtime's process; whoever gives it up meanwhile leaves it to `end`."""
        starting = asyncio.create_task(self._spawn(argv, cwd, env, unset, title))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        return await asyncio.shield(starting)

    async def _spawn(
        self,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        unset: Sequence[str],
        title: str,
    ) -> ExecutionChild:
        options = Options(cwd=cwd, env=dict(env), title=title, detached=True, sandbox="none")
        work = await self.call(self.engine.command, argv, options)
        left_out = {*unset, *(name for name in self._withheld if name not in env)}
        environ = {name: value for name, value in work.environ.items() if name not in left_out}
        spec = msgspec.structs.replace(work.spec, kind="step")
        own = os.getpid()
        tether = (own, procfs.start_time(own))
        work = msgspec.structs.replace(work, spec=spec, environ=environ, tether=tether)
        execution_id, sock = await self.call(self.engine.start, work)
        self._started(execution_id)
        child = ExecutionChild(self, execution_id, self.engine.watch(execution_id, -1, sock))
        self.children.append(child)
        return child

    async def end(self) -> None:
        """End every process that is left, those that are only being started too."""
        await asyncio.gather(*self._starting, return_exceptions=True)
        for child in self.children:
            await child.kill()

    async def close(self) -> None:
        """End every process that is left, and the threads."""
        await self.end()
        if self._threads is not None:
            self._threads.shutdown()
