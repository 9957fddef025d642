"""The stdio server's front: it owns the wire, and answers a client's first questions at once.

The SDK takes a second or more to load, and some clients send their first turn without the tools of a
server that is not there yet. So a thread reads the client's lines from the start. As long as the SDK
loads, the questions that clients open with (initialize, server/discover, tools/list, resources/list,
subscriptions/listen, ping) are answered here, from what the SDK would say; the lines are kept, the SDK
sees all of them later, in order, and what it says a second time is dropped. Anything unusual waits for
the SDK.

stdout carries JSON-RPC only, whatever happens: the client's descriptors are moved away, 0 leads to
/dev/null then and 1 to stderr, for us and for every child.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tenuto.core.errors import TenutoError
from tenuto.mcp.greeting import Greeter

_PIECE = 1 << 16
_AHEAD = 256  # lines that may wait for the SDK
Deliver = Callable[[bytes | None], None]


class Wire:
    """The client's two ends."""

    def __init__(self) -> None:
        """Take descriptors 0 and 1 away from everyone else."""
        self.read_fd = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
        self.write_fd = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # there is no stderr
            os.dup2(nothing, 1)
        os.close(nothing)

    def write(self, data: bytes) -> None:
        """Write everything, however long the client takes."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.write_fd, view) :]


class Front:
    """Reads the client's lines, answers the first ones, and passes all of them on."""

    def __init__(self, wire: Wire) -> None:
        """Take the wire; `start` begins to read."""
        self.wire = wire
        self._lock = threading.Lock()
        self._kept: deque[bytes | None] = deque()
        self._deliver: Deliver | None = None
        self._room = threading.Semaphore(_AHEAD)
        self._answered: set[str] = set()
        self._acknowledged: set[str] = set()
        self._greeter = Greeter()

    def start(self) -> None:
        """Read from now on, in a thread that ends with the process."""
        threading.Thread(target=self._read, name="tenuto-stdin", daemon=True).start()

    def _read(self) -> None:
        rest: list[bytes] = []
        while True:
            try:
                piece = os.read(self.wire.read_fd, _PIECE)
            except OSError:
                piece = b""
            if not piece:
                break
            *whole, last = piece.split(b"\n")
            for line in whole:
                rest.append(line)
                self._take(b"".join(rest))
                rest.clear()
            if last:
                rest.append(last)
        if rest:
            self._take(b"".join(rest))
        self._pass(None)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        with self._lock:
            if self._deliver is None:
                self._answer(line)
        self._room.acquire()
        self._pass(line)

    def _answer(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            result = self._greeter.answer(message)
            reply = self._greeter.acknowledge(message)
        except (ValueError, RecursionError, TenutoError):
            return  # the SDK will say what is wrong; bad settings end the server
        number: Any = message["id"] if result is not None or reply is not None else None
        if result is not None:
            reply = {"jsonrpc": "2.0", "id": number, "result": result}
            self._answered.add(repr(number))
        elif reply is not None:
            self._acknowledged.add(repr(number))
        else:
            return
        try:
            self.wire.write(json.dumps(reply, ensure_ascii=False).encode() + b"\n")
        except OSError:
            return  # nobody reads; the end of its stdin will follow

    def _pass(self, line: bytes | None) -> None:
        with self._lock:
            if self._deliver is None:
                self._kept.append(line)
                return
            deliver = self._deliver
        deliver(line)

    def attach(self, deliver: Deliver) -> None:
        """Give everything so far, and all that comes, to whoever serves; None is the end."""
        with self._lock:
            while self._kept:
                deliver(self._kept.popleft())
            self._deliver = deliver

    def taken(self) -> None:
        """Tell that a line was worked on: there is room for another."""
        self._room.release()

    def was_answered(self, number: object) -> bool:
        """Tell, once, whether a request was answered here; its second answer is to be dropped."""
        return _once(self._answered, number)

    def was_acknowledged(self, number: object) -> bool:
        """Tell, once, whether a stream was opened here; its second acknowledgement is to be dropped."""
        return _once(self._acknowledged, number)


def _once(known: set[str], number: object) -> bool:
    if not known or repr(number) not in known:
        return False
    known.discard(repr(number))
    return True
