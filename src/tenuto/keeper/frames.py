"""The tape's format: a preamble, then frames, each checked and none of them forgeable.

preamble  twice: signature 8, magic 8, format u32, crc32 u32          (24 bytes each)
frame     magic 8, version u8, stream u8, flags u16, length u32, seq u64, time_ns u64,
          body, crc32 u32 over header and body                        (little endian)
index     seq u64, time_ns u64, offset u64, stream u32, crc32 u32     (tape.idx, 32 bytes each)

The magic is random for each tape, and resynchronisation after damage accepts only that magic with a
higher sequence number and a right checksum: a program that prints a frame forges nothing.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator

FORMAT = 1
EVENT, OUT, ERR = 0, 1, 2
LEVELS = ("", "debug", "log", "info", "warn", "error")  # by the flags of output
MAX_BODY = 32 * 1024 * 1024
INDEX_EVERY = 64 * 1024
INDEX_FROM = 2 * INDEX_EVERY

HEADER = struct.Struct("<8sBBHIQQ")
TRAILER = struct.Struct("<I")
INDEX_ENTRY = struct.Struct("<QQQII")
OVERHEAD = HEADER.size + TRAILER.size
_INDEX_BODY = struct.Struct("<QQQI")
_PREAMBLE = struct.Struct("<8s8sI")
_SIGNATURE = b"\x89TENUTO\n"
_BLOCK = _PREAMBLE.size + TRAILER.size
PREAMBLE_SIZE = 2 * _BLOCK
_READ = 1024 * 1024


class Frame:
    """One good frame, with where it stands in the file."""

    __slots__ = ("body", "flags", "offset", "seq", "stream", "time_ns")

    def __init__(
        self, offset: int, stream: int, seq: int, time_ns: int, body: bytes, flags: int = 0
    ) -> None:
        """Take the parts as read; the flags of output are the level it was logged at, if it was."""
        self.offset = offset
        self.stream = stream
        self.seq = seq
        self.time_ns = time_ns
        self.body = body
        self.flags = flags

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.offset + OVERHEAD + len(self.body)


class Gap:
    """Bytes that are no frame, between two good ones."""

    __slots__ = ("end", "offset")

    def __init__(self, offset: int, end: int) -> None:
        """Take the first bad byte and the first good one after it."""
        self.offset = offset
        self.end = end


def new_magic() -> bytes:
    """Return eight bytes that no program can guess."""
    return os.urandom(8)


def preamble(magic: bytes) -> bytes:
    """Return the head of a tape: the magic twice, each copy with a checksum."""
    block = _PREAMBLE.pack(_SIGNATURE, magic, FORMAT)
    block += TRAILER.pack(zlib.crc32(block))
    return block + block


def read_magic(head: bytes) -> tuple[bytes, int] | None:
    """Return magic and format from the first bytes of a tape, or None if both copies are bad."""
    for start in (0, _BLOCK):
        block = head[start : start + _BLOCK]
        if len(block) < _BLOCK:
            continue
        (checksum,) = TRAILER.unpack_from(block, _PREAMBLE.size)
        signature, magic, version = _PREAMBLE.unpack_from(block)
        if signature == _SIGNATURE and checksum == zlib.crc32(block[: _PREAMBLE.size]):
            return magic, version
    return None


def pack(
    magic: bytes, stream: int, seq: int, time_ns: int, body: bytes, flags: int = 0
) -> tuple[bytes, bytes]:
    """Return the bytes before and after the body of a frame."""
    header = HEADER.pack(magic, FORMAT, stream, flags, len(body), seq, time_ns)
    return header, TRAILER.pack(zlib.crc32(body, zlib.crc32(header)))


def pack_entry(seq: int, time_ns: int, offset: int, stream: int) -> bytes:
    """Return one entry of the sparse index."""
    body = _INDEX_BODY.pack(seq, time_ns, offset, stream)
    return body + TRAILER.pack(zlib.crc32(body))


def read_entry(data: bytes, start: int = 0) -> tuple[int, int, int, int] | None:
    """Return (seq, time_ns, offset, stream) of an index entry, or None if it is bad."""
    if len(data) < start + INDEX_ENTRY.size:
        return None
    seq, time_ns, offset, stream, checksum = INDEX_ENTRY.unpack_from(data, start)
    if zlib.crc32(data[start : start + _INDEX_BODY.size]) != checksum:
        return None
    return seq, time_ns, offset, stream


def read_one(fd: int, magic: bytes, offset: int) -> Frame | None:
    """Return the good frame at an offset, if there is one, reading nothing else."""
    head = os.pread(fd, HEADER.size, offset)
    if len(head) < HEADER.size:
        return None
    found, _, stream, flags, length, seq, time_ns = HEADER.unpack(head)
    if found != magic or length > MAX_BODY:
        return None
    rest = os.pread(fd, length + TRAILER.size, offset + HEADER.size)
    if len(rest) < length + TRAILER.size:
        return None
    body = rest[:length]
    if TRAILER.pack(zlib.crc32(body, zlib.crc32(head))) != rest[length:]:
        return None
    return Frame(offset, stream, seq, time_ns, body, flags)


def find_magic(fd: int) -> tuple[bytes, int] | None:
    """Return magic and format of an open tape; where the preamble is lost, frame 0 tells."""
    head = os.pread(fd, PREAMBLE_SIZE + HEADER.size, 0)
    found = read_magic(head)
    if found is None and len(head) == PREAMBLE_SIZE + HEADER.size:
        magic = head[PREAMBLE_SIZE : PREAMBLE_SIZE + 8]
        first = read_one(fd, magic, PREAMBLE_SIZE)
        if first is not None and first.seq == 0:
            found = magic, FORMAT
    return found


def header_at(fd: int, magic: bytes, offset: int) -> tuple[int, int] | None:
    """Return (seq, time_ns) of what claims to be a frame at an offset, without reading its body."""
    head = os.pread(fd, HEADER.size, offset)
    if len(head) < HEADER.size:
        return None
    found, _, _, _, _, seq, time_ns = HEADER.unpack(head)
    return (seq, time_ns) if found == magic else None


def read_frames(
    fd: int, magic: bytes, offset: int = PREAMBLE_SIZE, after: int = -1
) -> Iterator[Frame | Gap]:
    """Yield the good frames from an offset on, and a Gap wherever bytes had to be skipped.

    Stops at the end of the file or at a frame that is not complete yet. `after` is the last sequence
    number known: lower or equal ones are never accepted.
    """
    window = _Window(fd, offset)
    last = after
    while True:
        frame = window.frame_at(offset, magic, last)
        if frame is None:
            if window.next_good(offset, magic, last) is None:
                return
            # What was unfinished a moment ago may be whole by now: a second look tells damage.
            window = _Window(fd, offset)
            frame = window.frame_at(offset, magic, last) or window.next_good(offset, magic, last)
            if frame is None:
                return
            if frame.offset > offset:
                yield Gap(offset, frame.offset)
        last = frame.seq
        offset = frame.end
        yield frame


class _Window:
    """A buffered view of the file that moves forward."""

    def __init__(self, fd: int, start: int) -> None:
        self._fd = fd
        self._start = start
        self._data = b""

    def _have(self, offset: int, size: int) -> bool:
        """Load until `size` bytes from `offset` are in the buffer; False at the end of the file."""
        begin = offset - self._start
        if begin >= 0 and begin + size <= len(self._data):
            return True
        if begin < 0 or begin > len(self._data):
            self._data, self._start = b"", offset
        elif begin:
            self._data, self._start = self._data[begin:], offset
        parts = [self._data]
        total = len(self._data)
        while total < size:
            part = os.pread(self._fd, max(_READ, size - total), self._start + total)
            if not part:
                break
            parts.append(part)
            total += len(part)
        self._data = b"".join(parts) if len(parts) > 1 else parts[0]
        return total >= size

    def frame_at(self, offset: int, magic: bytes, after: int) -> Frame | None:
        """Return the good frame that begins here, if one does."""
        if not self._have(offset, OVERHEAD):
            return None
        begin = offset - self._start
        head = HEADER.unpack_from(self._data, begin)
        if head[0] != magic or head[4] > MAX_BODY or head[5] <= after:
            return None
        size = OVERHEAD + head[4]
        if not self._have(offset, size):
            return None
        begin = offset - self._start
        body_at = begin + HEADER.size
        body = self._data[body_at : body_at + head[4]]
        (checksum,) = TRAILER.unpack_from(self._data, begin + size - TRAILER.size)
        if zlib.crc32(body, zlib.crc32(self._data[begin:body_at])) != checksum:
            return None
        return Frame(offset, head[2], head[5], head[6], body, head[3])

    def next_good(self, offset: int, magic: bytes, after: int) -> Frame | None:
        """Return the first good frame after a bad place."""
        position = offset + 1
        while self._have(position, OVERHEAD):
            begin = position - self._start
            found = self._data.find(magic, begin)
            if found < 0:
                position = self._start + max(begin + 1, len(self._data) - len(magic) + 1)
                continue
            position = self._start + found
            frame = self.frame_at(position, magic, after)
            if frame is not None:
                return frame
            position += 1
        return None
