"""A client in a terminal of its own, with someone who reads the screen and types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Callable

_CONTROL = re.compile(r"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>78()B]")
PATIENCE = 60.0


class Terminal:
    """A program in a pty; what it draws is kept as text, without its control sequences."""

    def __init__(self, words: list[str], folder: str, env: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(folder)
                os.execve(words[0], words, {**env, "TERM": "xterm-256color"})
            finally:
                os._exit(127)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        self._drawn = b""
        self._read_to = 0
        self._bell = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._fd, 65536)
            except OSError:
                piece = b""
            with self._bell:
                self._drawn += piece
                self._bell.notify_all()
            if not piece:
                return

    def _text(self) -> str:
        return _CONTROL.sub("", self._drawn[self._read_to :].decode("utf-8", "replace"))

    def wait_for(self, text: str) -> None:
        """Wait until a text was drawn after what was waited for before."""
        with self._bell:
            there = self._bell.wait_for(lambda: text in self._text(), PATIENCE)
            assert there, f"{text!r} was not drawn: {self._text()[-2000:]}"
            self._read_to = len(self._drawn)

    def type(self, text: str) -> None:
        """Type a word, and wait until it is there."""
        os.write(self._fd, text.encode())
        self.wait_for(text)

    def enter(self, until: Callable[[], bool] | None = None) -> None:
        """Press the key; again and again if need be, for a form takes no notice while it opens."""
        os.write(self._fd, b"\r")
        limit = time.monotonic() + PATIENCE
        with self._bell:
            while until is not None and not self._bell.wait_for(until, 1.0):
                assert time.monotonic() < limit, f"it does not go on: {self._text()[-2000:]}"
                os.write(self._fd, b"\r")

    def close(self) -> None:
        """Close the terminal, as its user does with the window."""
        os.kill(self.pid, signal.SIGHUP)
        waiting = os.pidfd_open(self.pid)
        try:
            if not select.select([waiting], [], [], 20)[0]:
                os.kill(self.pid, signal.SIGKILL)
        finally:
            os.close(waiting)
        os.waitpid(self.pid, 0)
        self._thread.join(PATIENCE)
        os.close(self._fd)
