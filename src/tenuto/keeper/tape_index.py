"""The sparse index beside a large tape: where its events are, and a place every so often."""

from __future__ import annotations

import os

from tenuto.keeper import frames, rewrite

_NAME = "tape.idx"
_LATER_MOST = 64
_NONE, _GIVEN_UP = -1, -2


class TapeIndex:
    """Written by the tape's thread. Small tapes have none, and a failing one is dropped whole.

    It may lag behind the tape: what it lacks at its end is read in order.
    """

    def __init__(self) -> None:
        """Begin without one."""
        self.last = 0  # the offset of the last frame that has an entry
        self._fd = _NONE
        self._later: list[bytes] = []

    def open(self, dir_fd: int) -> None:
        """Take the folder where it will be, if it will."""
        self._dir_fd = dir_fd

    def add(self, tape: int, magic: bytes, size: int, entries: list[bytes], later: bool) -> None:
        """Append entries, `later` together with some more; begin it once the tape is large."""
        if self._fd == _NONE and size >= frames.INDEX_FROM:
            entries = self._all_entries(tape, magic)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            try:
                self._fd = os.open(_NAME, flags, 0o600, dir_fd=self._dir_fd)
            except OSError:
                self._fd = _GIVEN_UP
        if self._fd < 0:
            return
        self._later += entries
        if not later or len(self._later) >= _LATER_MOST:
            self.flush()

    def flush(self) -> None:
        """Write the entries that waited for more."""
        if self._fd < 0 or not self._later:
            return
        data = b"".join(self._later)
        self._later.clear()
        try:
            if os.write(self._fd, data) == len(data):
                return
        except OSError:
            pass
        self._drop(_GIVEN_UP)

    def restart(self) -> None:
        """Drop it: the tape is another one now."""
        self._drop(_NONE)

    def _drop(self, then: int) -> None:
        self.close()
        self._fd = then
        self.last = 0
        self._later.clear()
        rewrite.unlink_quietly(_NAME, self._dir_fd)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)

    def _all_entries(self, tape: int, magic: bytes) -> list[bytes]:
        """Return the index of what is on the tape already."""
        entries: list[bytes] = []
        self.last = 0
        for frame in frames.read_frames(tape, magic):
            if isinstance(frame, frames.Gap):
                continue
            if frame.stream == frames.EVENT or frame.offset - self.last >= frames.INDEX_EVERY:
                entry = frames.pack_entry(frame.seq, frame.time_ns, frame.offset, frame.stream)
                entries.append(entry)
                self.last = frame.offset
        return entries
