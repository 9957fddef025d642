"""The driver's line to its keeper: events for the tape, and what clients say to the task."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from tenuto.core.errors import EngineFault
from tenuto.core.event import Event
from tenuto.core.progress import Progress
from tenuto.core.task_events import TaskEvent

_MOST = 64 * 1024 * 1024
_LINE_MOST = 16 * 1024 * 1024  # a keeper takes no longer ones
_VALUE_TEXT = 1024 * 1024


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
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    def inherited(cls) -> tuple[Teller, bytes]:
        """Return the line that this process was started with, and what it was given over it."""
        sock = socket.socket(fileno=int(os.environ.pop("TENUTO_CHANNEL")))
        (size,) = struct.unpack("<I", _exactly(sock, 4))
        return cls(sock, Progress()), _exactly(sock, size)

    async def open(self) -> None:
        """Begin to listen."""
        self._sock.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._sock, limit=_MOST)
        self._reading = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message: dict[str, Any] = msgspec.json.decode(line)
            if message.get("type") == "told":
                waiting = self._waiting.pop(message["n"], None)
                if waiting is not None and not waiting.done():
                    if "error" in message:
                        waiting.set_exception(
                            EngineFault(f"a checkpoint is not safe on disk: {message['error']}")
                        )
                    else:
                        waiting.set_result(None)
            else:
                self.heard(message)
        for waiting in self._waiting.values():  # the keeper is gone, and we go with it
            if not waiting.done():
                waiting.set_exception(EngineFault("the task's keeper closed its line"))

    def _send(self, message: dict[str, Any]) -> None:
        self._write(msgspec.json.encode(message))

    def _write(self, line: bytes) -> None:
        assert self._writer is not None
        if len(line) > _LINE_MOST:  # it would close the line, and end the task without a word
            raise EngineFault(
                f"{len(line)} bytes for one record, {_LINE_MOST} are the most", "split the plan"
            )
        self._writer.write(line + b"\n")

    def tell(self, *events: TaskEvent) -> None:
        """Put events on the tape; safe against the end of this process, not of the machine."""
        self._send({"type": "tell", "events": events})
        self._fold(events)  # after: what cannot be told did not happen

    async def safe(self, *events: TaskEvent) -> None:
        """Put events on the tape and return once they are on disk: a checkpoint."""
        self._number += 1
        self._send({"type": "tell", "events": events, "n": self._number})
        self._fold(events)
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = waiting
        await waiting

    def _fold(self, events: tuple[Event, ...]) -> None:
        for event in events:
            self.progress.apply(event)  # pyright: ignore[reportArgumentType]
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

    async def outcome(self, state: str, reason: str = "", detail: str = "") -> None:
        """Say how it ends, before this process does."""
        self._send({"type": "outcome", "state": state, "reason": reason, "detail": detail})
        assert self._writer is not None
        await self._writer.drain()

    async def close(self) -> None:
        """Let everything go out, and stop."""
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):  # the keeper is gone
                await self._writer.wait_closed()  # draining alone leaves the end in our memory
        if self._reading is not None:
            self._reading.cancel()


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EngineFault("the driver was told nothing", "start tasks with: tenuto task")
        data += part
    return data
