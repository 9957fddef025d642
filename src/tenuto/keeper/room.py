"""Room ahead of a tape's end: set aside for its last words, and laid out so that a sync is short."""

from __future__ import annotations

import os

from tenuto.keeper import linux

_RESERVE = 64 * 1024
_STEP = 4 * 1024 * 1024
_BLOCK = 4096
_LAID_LEAST = 16 * 1024
_LAID = 64 * 1024  # more of it would be more for each reader to look at


class Room:
    """What the disk holds for a tape beyond its end.

    The last words of an execution must fit on a disk that is full meanwhile, so room for them is
    always set aside. Where frames are synced one by one it is also laid out, as zeros that are
    written over: a sync then moves the data alone, with no change of the file's size to record,
    which takes about half as long. Readers take zeros at a tape's end for what is not written yet.
    """

    def __init__(self) -> None:
        """Begin without a tape."""
        self.certain = True
        """Room can be set aside here; where not, any write may fail."""
        self._end = 0  # up to here there is room, and behind it for the last words
        self._laid = 0  # up to here there are zeros

    def open(self, fd: int, offset: int) -> None:
        """Begin at a tape's end: only its last block is certain."""
        self._fd = fd
        self._end = -(-offset // _BLOCK) * _BLOCK
        self._laid = offset

    def make(self, offset: int, end: int) -> None:
        """Set room aside up to a place and for the last words behind it, or raise OSError."""
        if not self.certain or end <= self._end:
            return
        step = _STEP if end > _STEP else _RESERVE if end > _RESERVE else 0
        size = linux.reserve(self._fd, offset, end - offset + _RESERVE, step)
        self.certain = bool(size)
        self._end = offset + size - _RESERVE

    def can_grow(self, offset: int) -> bool:
        """Tell whether more than before can be set aside."""
        try:
            self.make(offset, max(self._end, offset) + 1)
        except OSError:
            return False
        return True

    def cut(self, offset: int) -> None:
        """End the file here; what was set aside is free again."""
        os.ftruncate(self._fd, offset)
        self._end = self._laid = offset

    def clear(self, offset: int) -> None:
        """Take back what a failed write left behind the end; what was set aside stays, if it can."""
        if os.fstat(self._fd).st_size > max(offset, self._laid):
            self.cut(offset)
        elif self._laid > offset:
            os.pwrite(self._fd, bytes(self._laid - offset), offset)

    def lay(self, offset: int) -> None:
        """Write zeros ahead, where few are left; a disk without room for them is left alone."""
        if not self.certain or self._laid - offset >= _LAID_LEAST:
            return
        begin = max(offset, self._laid)
        try:
            self.make(offset, begin + _LAID)
            if self.certain:
                self._laid = begin + os.pwrite(self._fd, bytes(_LAID), begin)
                os.fdatasync(self._fd)
        except OSError:
            return
