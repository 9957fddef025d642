"""A keeper in the test's own process, as far as a task's driver sees it."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tenuto.engine.tasks import TELLS
from tenuto.keeper.channel import Channel
from tenuto.keeper.driven import Driven
from tenuto.keeper.writer import TapeWriter
from tenuto.stores.pen import Pen


class Keeping:
    """A keeper in this process: the real writer and the real other end of the driver's line."""

    def __init__(self, pen: Pen, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.waiting, self.held, self.held_back = "", None, False
        self.job: dict[str, Any] = {}
        self.ended = self.exited = False
        self.clock = self.host = self.loop = self
        self.child = SimpleNamespace(channel=sock, exec_error=None)
        self._loop = loop
        self.finished, self.returned, self.awake = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.closed = asyncio.Event()
        self.lent = 0
        self.writer = TapeWriter(lambda: loop.call_soon_threadsafe(self._calls) and None)
        job = {"magic": pen.magic.hex(), "next_seq": pen.next_seq, "last_ns": pen.last_ns}
        self.writer.open(pen.fd, pen.dir_fd, job)
        self.driven = Driven(self, list(TELLS))  # type: ignore[arg-type]
        self.channel = Channel(self, b"", None)  # type: ignore[arg-type]

    def _calls(self) -> None:
        self.awake.set()
        while self.writer.calls:
            self.writer.calls.popleft()()
        if self.writer.finished:
            self.finished.set()

    def moved(self) -> None: ...

    def hold_back(self) -> None: ...

    def child_took(self) -> None: ...

    def continued(self) -> None:
        self.waiting = ""
        self.writer.event("continued")

    def went_on(self) -> None:
        self.returned.set()

    def on(self, fd: int, mask: int, handler: Callable[[int], object]) -> None:
        self._forget(fd)
        for wanted, add in (
            (select.EPOLLIN, self._loop.add_reader), (select.EPOLLOUT, self._loop.add_writer)
        ):  # fmt: skip
            if mask & wanted:
                add(fd, handler, wanted)

    def off(self, fd: int) -> None:
        self.lent += self.channel.lent
        self._forget(fd)
        if not self.channel.lent:
            self.closed.set()

    def _forget(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for something that the line's return brings about."""
        while not true():
            self.returned.clear()
            await self.returned.wait()

    async def end(self) -> None:
        """Take what the driver said last, as a keeper does whose program is gone."""
        self.exited = True
        self.channel.recall()
        await self.until(lambda: not self.channel.lent)
        self.channel.drain()
        self.channel.close()
        self.writer.finish()
        await self.finished.wait()
