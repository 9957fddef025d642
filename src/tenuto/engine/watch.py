"""Following one execution: what is new on its tape, and a descriptor that says when to look again.

No I/O loop of its own, so that blocking and async callers share it: `look`, then sleep for `rest`, then
until `fileno` is readable or `pause` seconds have passed, then `look` again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tenuto.core import events as ev
from tenuto.core.execution import Chunk, Execution
from tenuto.core.ports import Connection
from tenuto.dispatch import control
from tenuto.engine.recover import settle
from tenuto.keeper.frames import EVENT, LEVELS, OUT, Frame
from tenuto.stores.layout import Project
from tenuto.stores.tape import TapeReader

_RETRY_S = 0.02
_ONE_LOOK = 4 * 1024 * 1024
_AT_ONCE = 16  # looks in a row
_APART_S = 0.002  # then


class Watch:
    """Reads a tape as it grows and folds its events."""

    def __init__(
        self, project: Project, execution_id: str, after: int = -1, sock: Connection | None = None
    ) -> None:
        """Begin after a sequence number; `sock` is a connection that already watches."""
        self.id = execution_id
        # told before the descriptor goes, for a loop that has `fileno` registered
        self.before_close: Callable[[], None] = lambda: None
        self.more = False  # the last look did not show everything
        self.only_events = False  # set by whoever has seen enough of the output
        self._project = project
        self._folder = project.folder(execution_id)
        self._sock = sock
        if sock is not None:
            sock.setblocking(False)
        self._reader = TapeReader(self._folder)
        self._folded = -1
        self.execution = Execution(execution_id)
        if after >= 0:
            for frame in self._reader.events():  # what comes meanwhile is folded with the news
                self.execution.apply(frame.time_ns, ev.decode_event(frame.body))
                self._folded = frame.seq
            self._reader.skip_to(after)
        self.next_seq = after + 1
        self._looks = self._looked = 0.0  # how many of late; when

    @property
    def damaged(self) -> int:
        """Bytes that had to be skipped."""
        return self._reader.damaged

    def look(self) -> list[Frame]:
        """Return the frames that came since the last look; settles a dead keeper's execution."""
        found = self.news()
        if self.adrift:
            self.anchor()
            found += self.news()
        return found

    def news(self) -> list[Frame]:
        """Return the frames that came, some megabytes at the most, without ever blocking."""
        now = time.monotonic()
        since = (now - self._looked) / _APART_S
        self._looks = min(_AT_ONCE, max(0.0, self._looks - since)) + 1
        self._looked = now
        gone = not self._drain()
        found: list[Frame] = []
        room = _ONE_LOOK
        self.more = False
        for frame in self._reader.new_events() if self.only_events else self._reader.new():
            if frame.stream == EVENT and frame.seq > self._folded:
                self.execution.apply(frame.time_ns, ev.decode_event(frame.body))
            self.next_seq = frame.seq + 1
            found.append(frame)
            room -= len(frame.body)
            if room <= 0:
                self.more = True
                break
        if gone:
            self._disconnect()
        return found

    @property
    def adrift(self) -> bool:
        """It is live as far as we know, but no keeper is there to tell us more."""
        return self.execution.live and self._sock is None and not self.more

    @property
    def over(self) -> bool:
        """It has ended, and everything up to here was looked at."""
        return not self.execution.live and not self.more

    def anchor(self) -> None:
        """Find the keeper, or settle what became of the execution. This may block."""
        try:
            self._sock = control.watch(self._folder)
            self._sock.setblocking(False)
        except control.NoKeeper:
            settle(self._project, self.id)

    def _drain(self) -> bool:
        """Take the wake-up bytes; False once the keeper is gone."""
        if self._sock is None:
            return True
        try:
            while True:
                if not self._sock.recv(65536):
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _disconnect(self) -> None:
        if self._sock is not None:
            self.before_close()
            self._sock.close()
            self._sock = None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable with news, or -1 while there is none."""
        return self._sock.fileno() if self._sock is not None else -1

    @property
    def rest(self) -> float:
        """How long to let news gather, where they come so fast that looking at each holds others up."""
        crowded = self._looks >= _AT_ONCE and self._sock is not None and not self.more
        return _APART_S if crowded else 0.0

    @property
    def pause(self) -> float | None:
        """How long to sleep at most before the next look; None as long as `fileno` tells."""
        if self.more:
            return 0.0
        return None if self._sock is not None else _RETRY_S

    def close(self) -> None:
        """Stop following."""
        self._disconnect()
        self._reader.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def as_chunk(frame: Frame) -> Chunk:
    """Return an output frame as callers see it."""
    stream = "out" if frame.stream == OUT else "err"
    level = LEVELS[frame.flags] if frame.flags < len(LEVELS) else ""
    return Chunk(seq=frame.seq, time_ns=frame.time_ns, stream=stream, data=frame.body, level=level)


def is_output(frame: Frame) -> bool:
    """Tell output from events."""
    return frame.stream != EVENT
