"""Where answers wait: for a test to let them through, or for their client to go."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress


class Gone(Exception):
    """The client has closed its connection."""


class Gate:
    """Lets pieces through, one for each `let`, or all once it is open."""

    def __init__(self) -> None:
        """Begin shut."""
        self._lock = threading.Lock()
        self._permits = 0
        self._open = False
        self._bells: set[socket.socket] = set()

    def let(self, pieces: int = 1) -> None:
        """Let so many more through."""
        with self._lock:
            self._permits += pieces
            self._ring()

    def open(self) -> None:
        """Let everything through from now on."""
        with self._lock:
            self._open = True
            self._ring()

    def _ring(self) -> None:
        for bell in self._bells:
            with suppress(BlockingIOError):  # it has rung often enough
                bell.send(b"!")

    def _take(self) -> bool:
        with self._lock:
            if self._open:
                return True
            if not self._permits:
                return False
            self._permits -= 1
            return True

    def wait(self, client: socket.socket) -> None:
        """Return once something is let through; raises Gone if the client goes before that."""
        ours, bell = socket.socketpair()
        with ours, bell:
            bell.setblocking(False)
            with self._lock:
                self._bells.add(bell)
            watched = [client, ours]
            try:
                while not self._take():
                    ready, _, _ = select.select(watched, [], [])
                    if client in ready and present(client):
                        watched = [ours]  # its next request is here already: that stays so
                    if ours in ready:
                        ours.recv(4096)
            finally:
                with self._lock:
                    self._bells.discard(bell)


def present(client: socket.socket) -> bool:
    """Return whether the client has sent more; raises Gone if it has closed its connection."""
    try:
        if client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
            raise Gone
        return True
    except BlockingIOError:
        return False
    except OSError:
        raise Gone from None
