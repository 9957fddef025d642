"""One month's file of the ledger: a tape that many processes append to, one at a time."""

from __future__ import annotations

import os
import zlib
from contextlib import suppress

import msgspec

from tenuto.core.errors import NewerTape
from tenuto.core.layouts import lay_out
from tenuto.keeper import frames
from tenuto.metering.fold import Fold
from tenuto.metering.records import AnyRecord, Mended, decode, encode

_KEEP_EVERY = 4 * 1024 * 1024
_AHEAD = 64 * 1024
_MODE = 0o600


class _Kept(msgspec.Struct):
    """What had been folded when this was written: readers begin there."""

    magic: str
    offset: int
    seq: int
    last_ns: int
    fold: Fold


lay_out(_Kept)


class Month:
    """A file, what was read of it so far, and what that comes to.

    Whoever calls holds the ledger's lock: for `look` shared is enough, for `append` it must be alone.
    """

    def __init__(self, folder: str, name: str) -> None:
        """Take the place; nothing is opened yet."""
        self.name = name
        self.path = os.path.join(folder, name)
        self._folder = folder
        self._fd = -1
        self._inode = 0
        self._magic = b""
        self._offset = 0
        self._seq = -1
        self._kept_at = 0
        self.last_ns: int = 0
        self.fold = Fold()

    def look(self) -> Fold:
        """Read what is new and return what all of it comes to; a missing file has nothing."""
        size = self._same_file()
        if self._fd < 0 and not self._open(os.O_RDONLY):
            return self.fold
        if size > self._offset or size < 0:
            self._read()
        return self.fold

    def append(self, record: AnyRecord, time_ns: int) -> None:
        """Write a record behind all others; what is torn there is cut off first."""
        self._ready()
        self._write(record, time_ns)
        if self._offset - self._kept_at > _KEEP_EVERY:
            self._keep()

    def sync(self) -> None:
        """Bring what was written to the disk."""
        if self._fd >= 0:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _same_file(self) -> int:
        """Return the file's size; close it if another stands in its place, or it was cut below us."""
        if self._fd < 0:
            return -1
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            status = None
        if status is None or status.st_ino != self._inode or status.st_size < self._offset:
            self.close()
            self._magic = b""  # all of it is read anew
            self.fold = Fold()
            return -1
        return status.st_size

    def _open(self, flags: int) -> bool:
        """Open the file and find its magic; False where there is nothing to read."""
        try:
            fd = os.open(self.path, flags | os.O_CLOEXEC, _MODE)
        except FileNotFoundError:
            return False
        found = frames.find_magic(fd)
        if found is None:
            os.close(fd)
            return False
        if found[1] > frames.FORMAT:
            os.close(fd)
            raise NewerTape(
                f"the ledger {self.path} was written by a newer Tenuto", "use that one here"
            )
        self._fd = fd
        self._inode = os.fstat(fd).st_ino
        if self._magic != found[0]:
            self._magic = found[0]
            self._begin_at_kept()
        return True

    def _begin_at_kept(self) -> None:
        self._offset, self._seq, self.last_ns, self.fold = frames.PREAMBLE_SIZE, -1, 0, Fold()
        self._kept_at = 0
        try:
            with open(f"{self.path}.fold", "rb") as file:
                data = file.read()
            if zlib.crc32(data[8:]) != int(data[:8], 16):
                return
            kept = msgspec.json.decode(data[8:], type=_Kept)
        except (OSError, ValueError, msgspec.MsgspecError):
            return  # only time is lost
        if kept.magic == self._magic.hex() and kept.offset <= os.fstat(self._fd).st_size:
            self._offset, self._seq, self.last_ns = kept.offset, kept.seq, kept.last_ns
            self._kept_at, self.fold = kept.offset, kept.fold

    def _keep(self) -> None:
        """Write down what was folded, so that others need not read it all again."""
        self._kept_at = self._offset
        kept = _Kept(self._magic.hex(), self._offset, self._seq, self.last_ns, self.fold)
        body = msgspec.json.encode(kept)
        fresh = f"{self.path}.fold.new"
        with suppress(OSError):  # it only saves time
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
            with open(fd, "wb") as file:
                file.write(b"%08x" % zlib.crc32(body) + body)
            os.rename(fresh, f"{self.path}.fold")

    def _read(self) -> None:
        self._read_ahead()
        if os.fstat(self._fd).st_size == self._offset:
            return
        for frame in frames.read_frames(self._fd, self._magic, self._offset, self._seq):
            if isinstance(frame, frames.Gap):
                continue  # the sequence numbers tell how many are lost
            self.fold.lost += frame.seq - self._seq - 1
            self._take(frame.end, frame.seq, frame.time_ns, frame.body)

    def _read_ahead(self) -> None:
        """Read what others just added, mostly a record or two; whatever is odd is left to _read."""
        data = os.pread(self._fd, _AHEAD, self._offset)
        at, begin = 0, self._offset
        while len(data) - at >= frames.OVERHEAD:
            magic, _, _, _, length, seq, time_ns = frames.HEADER.unpack_from(data, at)
            end = at + frames.OVERHEAD + length
            if magic != self._magic or seq != self._seq + 1 or end > len(data):
                return
            checked = end - frames.TRAILER.size
            (checksum,) = frames.TRAILER.unpack_from(data, checked)
            if zlib.crc32(data[at:checked]) != checksum:
                return
            self._take(begin + end, seq, time_ns, data[at + frames.HEADER.size : checked])
            at = end

    def _take(self, end: int, seq: int, time_ns: int, body: bytes) -> None:
        record = decode(body)
        if record is None:
            self.fold.unknown += 1
        else:
            self.fold.take(record, time_ns)
        self._offset, self._seq, self.last_ns = end, seq, time_ns

    def _ready(self) -> None:
        """Have the file open for writing, read to its end, and whole."""
        self._same_file()
        if self._fd >= 0 and not _writable(self._fd):
            self.close()
        if self._fd < 0 and not self._open(os.O_RDWR):
            self._create()
            return
        size = os.fstat(self._fd).st_size
        if size > self._offset:
            self._read()
        if size > self._offset:
            os.ftruncate(self._fd, self._offset)
            self._write(Mended(size - self._offset), self.last_ns)

    def _create(self) -> None:
        """Begin the file; what stands there and cannot be read is put aside, never deleted."""
        aside, size = "", 0
        with suppress(FileNotFoundError):
            size = os.stat(self.path).st_size
        if size > frames.PREAMBLE_SIZE:
            aside = _free_name(self._folder, self.name)
            os.rename(self.path, os.path.join(self._folder, aside))
        magic = frames.new_magic()
        fresh = f"{self.path}.new"
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        try:
            os.fchmod(fd, _MODE)
            _write_all(fd, frames.preamble(magic), 0)
            os.rename(fresh, self.path)  # nobody finds half a preamble
        except OSError:
            os.close(fd)
            with suppress(OSError):
                os.unlink(fresh)
            raise
        self._fd, self._inode, self._magic = fd, os.fstat(fd).st_ino, magic
        self._begin_at_kept()
        if size:
            self._write(Mended(size, aside), 0)

    def _write(self, record: AnyRecord, time_ns: int) -> None:
        body = encode(record)
        time_ns = max(time_ns, self.last_ns)
        header, trailer = frames.pack(self._magic, frames.EVENT, self._seq + 1, time_ns, body)
        data = header + body + trailer
        try:
            _write_all(self._fd, data, self._offset)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self._offset)
            raise
        self._offset += len(data)
        self._seq += 1
        self.last_ns = time_ns
        self.fold.take(record, time_ns)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        wrote = os.pwrite(fd, view, offset)
        view, offset = view[wrote:], offset + wrote


def _writable(fd: int) -> bool:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR


def _free_name(folder: str, name: str) -> str:
    number = 1
    while os.path.lexists(os.path.join(folder, f"{name}.damaged-{number}")):
        number += 1
    return f"{name}.damaged-{number}"
