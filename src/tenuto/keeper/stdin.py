"""The child's standard input: writes queue in order, and a program blocked on it is noticed."""

from __future__ import annotations

import array
import fcntl
import os
import termios
from collections import deque

from tenuto.keeper.blocked import reads_from

_CHUNK = 64 * 1024
_MOST = 8 * 1024 * 1024
_END_KEY = b"\x04"


class Stdin:
    """The writing end of a pipe or the master of a terminal, with a queue before it."""

    def __init__(self, fd: int, seen_as: os.stat_result, terminal: bool) -> None:
        """Take the descriptor and the identity under which the child has its end open."""
        self.fd = fd
        self.interactive = False
        self.closing = False
        self._terminal = terminal
        self._inode, self._device = seen_as.st_ino, seen_as.st_dev
        self._queue: deque[bytes] = deque()
        os.set_blocking(fd, False)

    @property
    def closed(self) -> bool:
        """No more input can be sent."""
        return self.fd < 0 or self.closing

    @property
    def pending(self) -> int:
        """Bytes that the program has not taken."""
        queued = sum(map(len, self._queue))
        if self.fd < 0 or self._terminal:
            return queued
        count = array.array("i", [0])
        try:
            fcntl.ioctl(self.fd, termios.FIONREAD, count)
        except OSError:
            return queued
        return queued + count[0]

    @property
    def full(self) -> bool:
        """So much is queued already that more should wait at its sender."""
        return sum(map(len, self._queue)) >= _MOST

    @property
    def blocked(self) -> bool:
        """Some bytes wait for room in the pipe."""
        return self.fd >= 0 and bool(self._queue)

    def send(self, data: bytes, eof: bool) -> None:
        """Queue a write, then the end of input if asked."""
        if data:
            self._queue.append(data)
        if eof and self._terminal:
            self._queue.append(_END_KEY)  # a terminal has no end: it is typed, and stays open
        elif eof:
            self.closing = True
        self.flush()

    def flush(self) -> None:
        """Write as much as there is room for."""
        while self._queue and self.fd >= 0:
            data = self._queue[0]
            try:
                done = os.write(self.fd, data[:_CHUNK])
            except BlockingIOError:
                return
            except OSError:  # the program closed its end
                self._queue.clear()
                self.close()
                return
            self._queue[0] = data[done:]
            if not self._queue[0]:
                self._queue.popleft()
        if self.closing:
            self.close()

    def close(self) -> None:
        """Close our end; a terminal's master is closed with its output."""
        if self.fd >= 0 and not self._terminal:
            os.close(self.fd)
        self.fd = -1

    def awaited_by(self, pids: list[int]) -> bool:
        """Tell whether the program is blocked reading and there is nothing left for it to read."""
        if self.fd < 0 or self.pending:
            return False
        return reads_from(pids, self._inode, self._device)
