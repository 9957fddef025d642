"""What a wait is for: the end, someone being waited for, or a text in the output."""

from __future__ import annotations

import codecs
import re
import warnings

from tenuto.core.errors import InvalidInput
from tenuto.core.execution import Chunk
from tenuto.core.specs import check_text
from tenuto.engine.watch import Watch, as_chunk, is_output
from tenuto.keeper.frames import Frame

_LOOK_BACK = 1024 * 1024


class Until:
    """A text, or /a regular expression/, to wait for in the output; found across chunks."""

    def __init__(self, wanted: str) -> None:
        """Take the text; slashes around it make it a regular expression."""
        if not wanted:
            raise InvalidInput("there is no text to wait for", "write a text or /a regex/")
        check_text("the text to wait for", wanted)
        self._pattern, self._look_back = _pattern(wanted)
        self._decoders: dict[int, codecs.IncrementalDecoder] = {}
        self._tails: dict[int, str] = {}

    def match(self, frame: Frame) -> str | None:
        """Return what matched once this frame is seen, else None."""
        stream = frame.stream
        if stream not in self._decoders:
            self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        text = self._tails.get(stream, "") + self._decoders[stream].decode(frame.body)
        found = self._pattern.search(text)
        if found is not None:
            return found.group()
        self._tails[stream] = text[-self._look_back :] if self._look_back else ""
        return None


def _pattern(wanted: str) -> tuple[re.Pattern[str], int]:
    """Return what to search for, and how much of what was seen may be the beginning of it."""
    if len(wanted) > 2 and wanted[0] == wanted[-1] == "/":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of what may change its meaning
                return re.compile(wanted[1:-1]), _LOOK_BACK
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise InvalidInput(f"{wanted} is not a regular expression: {error}") from None
    return re.compile(re.escape(wanted)), len(wanted) - 1


class Waiting:
    """One wait: gathers output up to a size, and knows when there is a reason to stop."""

    def __init__(
        self, watch: Watch, inline: int, until: str | None = None, early: bool = True
    ) -> None:
        """Gather at most `inline` bytes; `early` stops when someone is waited for."""
        self.watch = watch
        self.chunks: list[Chunk] = []
        self.matched: str | None = None
        self.next_seq = watch.next_seq
        self.truncated = False
        self._room = inline
        self._until = Until(until) if until is not None else None
        self._early = early

    def take(self, found: list[Frame]) -> bool:
        """Take what a look found; True when the wait is over."""
        for frame in found:
            if self._until is not None and self.matched is None and is_output(frame):
                self.matched = self._until.match(frame)
            self._gather(frame)
        if self.watch.over or self.matched is not None:
            return True
        waits = self.watch.execution.waiting_for is not None
        return self._early and waits and not self.watch.more

    def _gather(self, frame: Frame) -> None:
        if self.truncated:
            return
        if is_output(frame):
            if len(frame.body) > self._room and self.chunks:
                self.truncated = True
                self.watch.only_events = self._until is None
                return
            self._room -= len(frame.body)
            self.chunks.append(as_chunk(frame))
        self.next_seq = frame.seq + 1
