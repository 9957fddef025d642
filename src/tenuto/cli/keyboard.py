"""Our stdin on its way to an execution: lines, keys, files, the window's size, and the way out.

With a terminal on both sides the keys go through as they are pressed, Ctrl-C included: it is the
program's own terminal that makes a signal of it. Where the program has pipes, our terminal keeps
its line editing, and Ctrl-C only takes us away. Ctrl-P Ctrl-Q detaches in both.
"""

from __future__ import annotations

import os
import signal
import termios
from typing import TYPE_CHECKING, Any

from tenuto.core.errors import NotRunning

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

DETACH = b"\x10\x11"  # Ctrl-P Ctrl-Q, as docker has it

_STDIN = 0
_READ = 256 * 1024


class Detached(Exception):
    """The person at the keyboard asked to leave; the execution goes on."""


class Keyboard:
    """Forwards stdin while it is entered; the terminal is given back as it was found."""

    def __init__(self, engine: BlockingEngine, execution_id: str, pty: bool) -> None:
        """Forward to an execution; `pty` tells whether it has a terminal of its own."""
        self._engine = engine
        self._id = execution_id
        self._terminal = os.isatty(_STDIN)
        self.raw = pty and self._terminal
        self._fd = _STDIN
        self._held = b""
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._wake: tuple[int, int] | None = None

    def __enter__(self) -> Keyboard:
        if self._terminal:
            self._modes = termios.tcgetattr(_STDIN)
            if self.raw:
                self._go_raw()
            else:
                termios.tcsetattr(_STDIN, termios.TCSANOW, _with_way_out(self._modes))
        return self

    def __exit__(self, *_: object) -> None:
        if self._modes is not None:
            termios.tcsetattr(_STDIN, termios.TCSANOW, self._modes)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._wake is not None:
            signal.set_wakeup_fd(-1)
            for fd in self._wake:
                os.close(fd)

    def _go_raw(self) -> None:
        import tty

        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, _only_wake)
        for number in (signal.SIGTERM, signal.SIGHUP):  # or the terminal would stay raw
            self._handlers[number] = signal.signal(number, _leave)
        tty.setraw(_STDIN, termios.TCSANOW)
        modes = termios.tcgetattr(_STDIN)
        modes[1] |= termios.OPOST  # its terminal adds no carriage returns, so ours has to
        termios.tcsetattr(_STDIN, termios.TCSANOW, modes)
        self._resize()

    def _resize(self) -> None:
        columns, rows = os.get_terminal_size(_STDIN)
        self._engine.resize(self._id, rows, columns)

    def descriptors(self) -> list[int]:
        """Return what to wait on."""
        return [self._fd, self._wake[0] if self._wake else -1]

    def react(self, ready: set[int]) -> None:
        """Forward what came; raises Detached if that is what the keys say."""
        if self._wake is not None and self._wake[0] in ready:
            os.read(self._wake[0], 512)
            self._resize()
        if self._fd in ready:
            self._forward()

    def _forward(self) -> None:
        """Take what is there and send it on; the end of our input is the end of its input."""
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return
        except OSError:  # no stdin at all, or a terminal that went away
            data = b""
        ended = not data
        data = self._held + data
        self._held = b""
        leaving = False
        if self._terminal and not ended:
            data, keys, _ = data.partition(DETACH)
            leaving = bool(keys)
            if data.endswith(DETACH[:1]) and not leaving:
                data, self._held = data[:-1], DETACH[:1]  # it may become the way out
        if data or ended:
            self._send(data, ended)
        if leaving:
            raise Detached

    def _send(self, data: bytes, eof: bool) -> None:
        try:
            fate = self._engine.send(self._id, data, eof=eof)
        except NotRunning:
            fate = "closed"
        if eof or fate == "closed":
            self._fd = -1


def _only_wake(*_: object) -> None:
    """Do nothing: the descriptor that wakes us tells the loop."""


def _leave(*_: object) -> None:
    raise Detached


def _with_way_out(modes: list[Any]) -> list[Any]:
    """Return the modes with Ctrl-Q ending a line, so that the keys to detach arrive at once."""
    characters = list(modes[6])
    characters[termios.VEOL] = DETACH[1:]
    # without IXON, which would eat Ctrl-Q as "go on"
    return [modes[0] & ~termios.IXON, *modes[1:6], characters]
