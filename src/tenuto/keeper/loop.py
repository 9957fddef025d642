"""A small event loop: descriptors, timers, and the signals that matter to a keeper."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

_NAP_S = 86400.0  # the system counts milliseconds in 32 bits: 24 days at the most


def catch_signals() -> None:
    """Catch what would end or disturb us; done once, in the image that keepers are forked from.

    Caught, not ignored: an ignored signal would stay ignored in the program that is executed later.
    """
    for number in (
        signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ,
        signal.SIGALRM,
    ):  # fmt: skip
        signal.signal(number, _noted)


def _noted(_number: int, _frame: object) -> None:
    """Do nothing: the wake-up descriptor has told the loop."""


class Loop:
    """Calls handlers when their descriptor is ready or their time has come; one at a time."""

    def __init__(self) -> None:
        """Make everything that does not depend on a job, so that it can be made ahead of one."""
        self.on_child: Callable[[], None] = lambda: None
        self.on_terminate: Callable[[], None] = lambda: None
        self.on_wake: Callable[[], None] = lambda: None
        self.on_fault: Callable[[], None] = lambda: None
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], object]] = {}
        self._due: dict[Callable[[], None], float] = {}
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._signal_fd, self._signal_far = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._signal_far, warn_on_full_buffer=False)
        self.on(self._signal_fd, select.EPOLLIN, lambda _: self._signalled())
        self.on(self._wake_fd, select.EPOLLIN, lambda _: self._woken())

    def run(self, done: Callable[[], bool]) -> None:
        """Serve until `done`; a defect in a handler never stops the others."""
        while not done():
            timeout = None
            if self._due:
                timeout = min(_NAP_S, max(0.0, min(self._due.values()) - time.monotonic()))
            for fd, mask in self._epoll.poll(timeout):
                handler = self._handlers.get(fd)
                if handler is not None:
                    self._guarded(handler, mask)
            if self._due:
                now = time.monotonic()
                for call in [call for call, at in self._due.items() if at <= now]:
                    if self._due.pop(call, None) is not None:
                        self._guarded(lambda _, call=call: call(), 0)

    def _guarded(self, handler: Callable[[int], object], mask: int) -> None:
        try:
            handler(mask)
        except Exception:
            self.on_fault()

    def on(self, fd: int, mask: int, handler: Callable[[int], object]) -> None:
        """Call a handler whenever a descriptor is ready."""
        if fd in self._handlers:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)
        self._handlers[fd] = handler

    def mask(self, fd: int, mask: int) -> None:
        """Change what a descriptor is watched for; 0 pauses it."""
        self._epoll.modify(fd, mask)

    def off(self, fd: int) -> None:
        """Forget a descriptor (before it is closed)."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def watches(self, fd: int) -> bool:
        """Tell whether a descriptor is watched."""
        return fd in self._handlers

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call once, later; asking again moves the time."""
        self._due[call] = time.monotonic() + seconds

    def never(self, *calls: Callable[[], None]) -> None:
        """Take back what `after` promised."""
        for call in calls:
            self._due.pop(call, None)

    def wake(self) -> None:
        """Have `on_wake` called in the loop; for other threads."""
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Let go of our own descriptors; nobody may wake us any more."""
        signal.set_wakeup_fd(-1)
        self._epoll.close()
        for fd in (self._wake_fd, self._signal_fd, self._signal_far):
            os.close(fd)

    def _woken(self) -> None:
        os.eventfd_read(self._wake_fd)
        self.on_wake()

    def _signalled(self) -> None:
        numbers = os.read(self._signal_fd, 4096)
        if signal.SIGTERM in numbers:
            self.on_terminate()
        self.on_child()
