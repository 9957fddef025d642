"""Writing to a tape as its one writer: the starter before the keeper, the finder after it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress

from tenuto.core.errors import NotFinished
from tenuto.core.event import Event
from tenuto.core.events import Repaired, encode_event
from tenuto.keeper import frames, rewrite
from tenuto.stores.layout import make_private
from tenuto.stores.tape import NAME

_PAUSE_S = 0.0005
_PIECE = 1024 * 1024


def _unseen(_: frames.Frame) -> None:
    """Look at none of them."""


class Pen:
    """A tape that is open, locked and whole: a torn tail was cut when the pen was taken up."""

    def __init__(self, folder: str, fd: int, dir_fd: int, magic: bytes, next_seq: int) -> None:
        """Take the parts; use `create` or `take_up`."""
        self.folder = folder
        self.fd = fd
        self.dir_fd = dir_fd
        self.magic = magic
        self.next_seq = next_seq
        self.last_ns = 0

    @classmethod
    def create(cls, folder: str, first: Event, *more: Event) -> Pen:
        """Make the execution's folder and its tape with frame 0; the lock is ours from the start."""
        try:
            make_private(folder)
        except FileNotFoundError:
            with suppress(FileExistsError):
                make_private(os.path.dirname(folder))
            make_private(folder)
        dir_fd = -1
        try:
            dir_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            fd = os.open(NAME, flags, 0o600, dir_fd=dir_fd)
            os.fchmod(fd, 0o600)
        except BaseException:
            if dir_fd >= 0:
                os.close(dir_fd)
            os.rmdir(folder)
            raise
        fcntl.flock(fd, fcntl.LOCK_EX)
        pen = cls(folder, fd, dir_fd, frames.new_magic(), 0)
        try:
            packed = b"".join(pen._pack(event) for event in (first, *more))
            pen._write(frames.preamble(pen.magic) + packed)
        except BaseException:
            os.unlink(NAME, dir_fd=dir_fd)
            pen.put_down()
            os.rmdir(folder)
            raise
        return pen

    @classmethod
    def take_up(cls, folder: str, seen: Callable[[frames.Frame], None] = _unseen) -> Pen | None:
        """Become the writer of a tape whose keeper is gone; `seen` is called with each frame.

        None where it cannot be read, or only by a newer Tenuto: it is left as it is then.
        Raises NotFinished while another process is its writer.
        """
        dir_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = _locked(dir_fd)
        except BaseException:
            os.close(dir_fd)
            raise
        found = frames.find_magic(fd)
        if found is None or found[1] > frames.FORMAT:
            os.close(fd)
            os.close(dir_fd)
            return None
        pen = cls(folder, fd, dir_fd, found[0], 0)
        try:
            pen._repair(seen)
        except BaseException:
            pen.put_down()
            raise
        return pen

    def _repair(self, seen: Callable[[frames.Frame], None]) -> None:
        end = frames.PREAMBLE_SIZE
        for frame in frames.read_frames(self.fd, self.magic):
            if isinstance(frame, frames.Frame):
                end, self.next_seq, self.last_ns = frame.end, frame.seq + 1, frame.time_ns
                seen(frame)
        size = os.fstat(self.fd).st_size
        if size > end:
            torn = _written(self.fd, end, size)
            os.ftruncate(self.fd, end)
            if torn:
                self.append(Repaired(size=torn), seen)

    def _pack(self, event: Event) -> bytes:
        body = encode_event(event)
        self.last_ns = max(self.last_ns, time.time_ns())
        header, trailer = frames.pack(self.magic, frames.EVENT, self.next_seq, self.last_ns, body)
        self.next_seq += 1
        return header + body + trailer

    def _write(self, data: bytes) -> int:
        """Write at the end, all or nothing, and return where that was."""
        view = memoryview(data)
        end = os.lseek(self.fd, 0, os.SEEK_END)
        try:
            while view:
                view = view[os.write(self.fd, view) :]
        except OSError:
            os.ftruncate(self.fd, end)
            raise
        return end

    def append(self, event: Event, seen: Callable[[frames.Frame], None] = _unseen) -> None:
        """Append one event; readers find it behind what the sparse index covers."""
        packed = self._pack(event)
        end = self._write(packed)
        body = packed[frames.HEADER.size : -frames.TRAILER.size]
        seen(frames.Frame(end, frames.EVENT, self.next_seq - 1, self.last_ns, body))

    def clear(self) -> None:
        """Drop the output, keep the events; see keeper.rewrite."""
        self.last_ns = now = max(self.last_ns, time.time_ns())
        self.fd = rewrite.without_output(self.dir_fd, self.fd, self.magic, self.next_seq, now)
        self.next_seq += 1

    def put_down(self) -> None:
        """Close the tape, and so free its lock unless a keeper holds it by now."""
        os.close(self.fd)
        os.close(self.dir_fd)


def _locked(dir_fd: int) -> int:
    """Return the tape's descriptor with its lock, and be sure that it is still the tape."""
    while True:
        fd = os.open(NAME, os.O_RDWR | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            held = _lock(fd)
            if held and os.stat(NAME, dir_fd=dir_fd).st_ino == os.fstat(fd).st_ino:
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if not held:
            time.sleep(_PAUSE_S)


def _lock(fd: int) -> bool:
    """Lock the tape; False if somebody only looks whether it is locked, NotFinished if it is."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        pass
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        raise NotFinished("the execution has a live writer", "wait for its end") from None


def _written(fd: int, begin: int, end: int) -> int:
    """Return how much between two places is written: zeros at a tape's end were laid out ahead."""
    while begin < end:
        first = max(begin, end - _PIECE)
        piece = os.pread(fd, end - first, first).rstrip(b"\0")
        if piece:
            return first + len(piece) - begin
        end = first
    return 0
