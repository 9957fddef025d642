"""The writer's thread at a driver's line, so that no other thread is between its words and the disk."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from functools import partial


class Ear:
    """A line that is lent to the thread: it waits there, and for what is queued meanwhile.

    The loop calls `lend`, `ring` and `close`; everything else is the thread's. A line goes back to
    the loop when `hear` says so, or when the loop has the thread call `give_back`.
    """

    def __init__(self, pass_on: Callable[[Callable[[], None]], None]) -> None:
        """Take how the thread has the loop call something."""
        self._pass_on = pass_on
        self._lent = False  # as the loop knows it
        self.listening = False  # as the thread does
        self._hear: Callable[[], bool]
        self._back: Callable[[], None]
        self._bell = -1
        self._poll = select.poll()

    def lend(
        self, fd: int, hear: Callable[[], bool], back: Callable[[], None]
    ) -> Callable[[], None]:
        """Lend a line; return what the thread has to call to begin.

        `hear` is called in the thread when there is something to read, and returns False where the
        loop is to read on; `back` is called in the loop once it may.
        """
        if self._bell < 0:
            self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._poll.register(self._bell, select.POLLIN)
        self._poll.register(fd, select.POLLIN)
        self._lent = True

        def returned() -> None:
            self._lent = False
            self._poll.unregister(fd)
            back()

        def begin() -> None:
            self._hear, self._back, self.listening = hear, returned, True

        return begin

    def ring(self) -> None:
        """Have the thread look at its queue: it may wait for the line."""
        if self._lent:
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Let go of the bell."""
        if self._bell >= 0:
            os.close(self._bell)

    def listen(self) -> None:
        """Wait for words on the line, or for the bell."""
        for fd, _ in self._poll.poll():
            if fd == self._bell:
                os.eventfd_read(fd)
            elif not self._heard():
                self.give_back()

    def _heard(self) -> bool:
        try:
            return self._hear()
        except Exception as error:  # a defect ends neither the thread nor the line: the loop tells
            self._pass_on(partial(_raise, error))
            return False

    def give_back(self) -> None:
        """Let the loop read the line again."""
        if self.listening:
            self.listening = False
            self._pass_on(self._back)


def _raise(error: Exception) -> None:
    raise error
