"""The driver's line to its keeper: events for the tape, and what clients say to the task."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from tenuto.core.errors import EngineFault
from tenuto.core.progress import Progress
from tenuto.core.task_events import TaskEvent
from tenuto.core.texts import sound

_LINE_MOST = 16 * 1024 * 1024  # a keeper takes no longer ones
_VALUE_TEXT = 1024 * 1024


class _Line(asyncio.Protocol):
    """The lines of a socket as they come, each passed on at once."""

    def __init__(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._take = take
        self._ended = ended
        self._parts = b""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        *lines, self._parts = (self._parts + data).split(b"\n")
        for line in lines:
            self._take(line)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._ended()
        if not self.closed.done():
            self.closed.set_result(None)


class Teller:
    """Tells events in order and folds them as it does, so that the driver sees what the tape has."""

    def __init__(self, sock: socket.socket, progress: Progress) -> None:
        """Take the line, still blocking, and the fold of what is on the tape already."""
        self._sock = sock
        self.progress = progress
        self.heard: Callable[[dict[str, Any]], None] = lambda _: None
        self.told: Callable[[int], None] = lambda _: None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._number = 0
        self._transport: asyncio.Transport | None = None
        self._line: _Line | None = None

    @classmethod
    def inherited(cls) -> tuple[Teller, bytes]:
        """Return the line that this process was started with, and what it was given over it."""
        sock = socket.socket(fileno=int(os.environ.pop("TENUTO_CHANNEL")))
        (size,) = struct.unpack("<I", _exactly(sock, 4))
        return cls(sock, Progress()), _exactly(sock, size)

    async def open(self) -> None:
        """Begin to listen."""
        self._sock.setblocking(False)
        loop = asyncio.get_running_loop()
        self._transport, self._line = await loop.create_unix_connection(
            lambda: _Line(self._hear, self._hung_up), sock=self._sock
        )

    def _hear(self, line: bytes) -> None:
        message: dict[str, Any] = msgspec.json.decode(line)
        if message.get("type") != "told":
            self.heard(message)
            return
        waiting = self._waiting.pop(message["n"], None)
        if waiting is None or waiting.done():
            return
        if "error" in message:
            why = f"a checkpoint is not safe on disk: {message['error']}"
            waiting.set_exception(EngineFault(why))
        else:
            waiting.set_result(None)

    def _hung_up(self) -> None:
        for waiting in self._waiting.values():  # the keeper is gone, and we go with it
            if not waiting.done():
                waiting.set_exception(EngineFault("the task's keeper closed its line"))

    def _send(self, message: dict[str, Any]) -> None:
        try:
            line = msgspec.json.encode(message)
        except UnicodeEncodeError:
            line = msgspec.json.encode(sound(msgspec.to_builtins(message)))
        self._write(line)

    def _write(self, line: bytes) -> None:
        assert self._transport is not None
        if len(line) > _LINE_MOST:  # it would close the line, and end the task without a word
            raise EngineFault(
                f"{len(line)} bytes for one record, {_LINE_MOST} are the most", "split the plan"
            )
        self._transport.write(line + b"\n")

    def tell(self, *events: TaskEvent) -> None:
        """Put events on the tape; safe against the end of this process, not of the machine."""
        self._put(events, {})

    def safe(self, *events: TaskEvent) -> asyncio.Future[None]:
        """Put events on the tape; what is returned is done once they are on disk: a checkpoint."""
        self._number += 1
        self._put(events, {"n": self._number})
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = waiting
        return waiting

    def _put(self, events: tuple[TaskEvent, ...], more: dict[str, Any]) -> None:
        """Send events and fold them; half a character, which no tape can hold, is replaced."""
        try:
            line = msgspec.json.encode({"type": "tell", "events": events, **more})
        except UnicodeEncodeError:
            events = tuple(
                msgspec.convert(sound(msgspec.to_builtins(one)), type(one)) for one in events
            )
            line = msgspec.json.encode({"type": "tell", "events": events, **more})
        self._write(line)
        for event in events:  # after: what cannot be told did not happen
            self.progress.apply(event)
        self.told(len(events))

    def wait_for(self, on: str, detail: str) -> None:
        """Say that the task waits for somebody."""
        self._send({"type": "waiting", "on": on, "detail": detail})

    def go_on(self) -> None:
        """Say that it waits no more."""
        self._send({"type": "continuing"})

    def value(self, document: Callable[[int | None], object]) -> None:
        """Say what came of it all: a document, or its outputs cut to so many characters together."""
        line = msgspec.json.encode({"type": "value", "json": document(None)})
        if len(line) > _LINE_MOST:
            line = msgspec.json.encode({"type": "value", "json": document(_VALUE_TEXT)})
        self._write(line)

    def outcome(self, state: str, reason: str = "", detail: str = "") -> None:
        """Say how it ends, before this process does."""
        self._send({"type": "outcome", "state": state, "reason": reason, "detail": detail})

    async def close(self) -> None:
        """Let everything go out, and stop."""
        if self._transport is not None and self._line is not None:
            self._transport.close()
            await self._line.closed  # closing alone leaves the end in our memory


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EngineFault("the driver was told nothing", "start tasks with: tenuto task")
        data += part
    return data
