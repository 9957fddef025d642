"""Tapes as readers see them: they need nobody alive, never write, and never invent output."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from tenuto.core.errors import NewerTape
from tenuto.keeper import frames
from tenuto.keeper.frames import EVENT, Frame, Gap

NAME = "tape"
INDEX_NAME = "tape.idx"


class TapeReader:
    """Reads one execution's tape from any place in it; survives damage and replacement."""

    def __init__(self, folder: str) -> None:
        """Open the tape in a folder.

        Raises FileNotFoundError where there is none, NewerTape where it is not to be read.
        """
        self.folder = folder
        self._path = os.path.join(folder, NAME)
        self._fd = -1
        self._gaps: dict[int, int] = {}
        self._offset = 0  # where `new` goes on, behind the frame with the number _read
        self._read: int = -1
        self._last = -1
        self._open()

    def _open(self) -> None:
        fd = _open_tape(self._path)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._inode = os.fstat(fd).st_ino
        self._magic = b""
        self._offset = 0
        self._hopped = 0
        self._gaps.clear()
        try:
            self._find_magic()
        except NewerTape:
            self.close()
            raise

    def _find_magic(self) -> bool:
        if not self._magic:
            found = frames.find_magic(self._fd)
            if found is not None:
                self._magic = found[0]
                if found[1] > frames.FORMAT:
                    raise NewerTape(
                        f"the tape in {self.folder} is of format {found[1]}, and this Tenuto reads "
                        f"up to {frames.FORMAT}",
                        "read it with the newer Tenuto that wrote it",
                    )
            self._check_head()
        return bool(self._magic)

    def _check_head(self) -> None:
        self._gaps.pop(0, None)
        size = self.size
        if size < frames.PREAMBLE_SIZE:
            return  # being made
        head = os.pread(self._fd, frames.PREAMBLE_SIZE, 0)
        if not self._magic:
            self._gaps[0] = size
        elif head != frames.preamble(self._magic):
            self._gaps[0] = frames.PREAMBLE_SIZE

    @property
    def damaged(self) -> int:
        """Bytes that had to be skipped so far."""
        return sum(end - start for start, end in self._gaps.items())

    def close(self) -> None:
        """Close the tape."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> TapeReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._fd).st_size

    def refresh(self) -> None:
        """Go on with the new file if the tape was replaced (its history was cleared)."""
        try:
            if os.stat(self._path).st_ino != self._inode:
                self._open()
        except FileNotFoundError:
            return

    # Reading

    def new(self) -> Iterator[Frame]:
        """Yield the frames that came since the last call, each once."""
        self.refresh()
        if not self._find_magic():
            return
        if not self._offset:
            self._offset, self._read = self._place(self._last + 1)
        for frame in self._scan(self._offset, self._read):
            self._offset, self._read = frame.end, frame.seq
            if frame.seq > self._last:
                self._last = frame.seq
                yield frame

    def new_events(self) -> Iterator[Frame]:
        """Yield only the events that came, hopping over the output by the index where there is one."""
        self.refresh()
        if not self._find_magic():
            return
        if not self._offset:
            self._offset, self._read = self._place(self._last + 1)
        for seq, time_ns, at, stream in self._entries(self._hopped):
            self._hopped += 1
            if at <= self._offset:
                continue
            if frames.header_at(self._fd, self._magic, at) != (seq, time_ns):
                break
            if stream == EVENT:
                break  # what comes now is read in order
            self._offset, self._read = at, seq - 1
        for frame in self._scan(self._offset, self._read):
            self._offset, self._read = frame.end, frame.seq
            if frame.seq > self._last:
                self._last = frame.seq
                if frame.stream == EVENT:
                    yield frame

    def skip_to(self, after: int) -> None:
        """Make `new` begin after a sequence number."""
        self._last, self._offset = after, 0

    def frames(self, after: int = -1) -> Iterator[Frame]:
        """Yield the frames after a sequence number."""
        if self._find_magic():
            for frame in self._scan(*self._place(after + 1)):
                if frame.seq > after:
                    yield frame

    def since(self, time_ns: int) -> Iterator[Frame]:
        """Yield the frames later than a moment."""
        if not self._find_magic():
            return
        for frame in self._scan(*self._bisect(time_ns, by_time=True)):
            if frame.time_ns > time_ns:
                yield frame

    def events(self) -> Iterator[Frame]:
        """Yield the events only, by the index where a large tape has one."""
        if not self._find_magic():
            return
        offset, last = frames.PREAMBLE_SIZE, -1
        since: list[tuple[int, int, int]] = []
        for seq, time_ns, at, stream in self._entries():
            if stream != EVENT:
                since.append((seq, time_ns, at))
                continue
            frame = frames.read_one(self._fd, self._magic, at)
            if frame is None or (frame.seq, frame.time_ns) != (seq, time_ns) or at < offset:
                break  # the index is wrong from here on; the tape itself decides
            offset, last = frame.end, seq
            since.clear()
            yield frame
        for seq, time_ns, at in reversed(since):
            if at > offset and frames.header_at(self._fd, self._magic, at) == (seq, time_ns):
                offset, last = at, seq - 1
                break
        for frame in self._scan(offset, last):
            if frame.stream == EVENT:
                yield frame

    def tail(self, lines: int, most: int | None = None) -> list[Frame]:
        """Return the frames that hold the last lines of output, the first one cut to fit.

        With `most` no more than so many bytes of them: a line can be as long as the whole output.
        """
        if not self._find_magic() or lines <= 0:
            return []
        total = self._entry_count()
        back = 2
        while True:
            entry = self._entry(total - back) if back <= total else None
            found = [f for f in self._scan(*_start(entry)) if f.stream != EVENT and f.body]
            kept = _last_lines(found, lines)
            if most is not None and sum(len(frame.body) for frame in kept) >= most:
                return _last_bytes(kept, most)
            if entry is None or len(kept) < len(found):
                return kept
            back *= 2

    def last_seq(self) -> int:
        """Return the sequence number of the last good frame, or -1."""
        if not self._find_magic():
            return -1
        entry = self._entry(self._entry_count() - 1)
        last = -1
        for frame in self._scan(*_start(entry)):
            last = frame.seq
        if last < 0 and entry is not None:  # damaged from there on
            for frame in self._scan(*_start(None)):
                last = frame.seq
        return last

    def _scan(self, offset: int, after: int) -> Iterator[Frame]:
        for frame in frames.read_frames(self._fd, self._magic, offset, after):
            if isinstance(frame, Gap):
                self._gaps[frame.offset] = frame.end
            else:
                yield frame

    # The sparse index

    def _entry_count(self) -> int:
        try:
            size = os.stat(os.path.join(self.folder, INDEX_NAME)).st_size
        except OSError:
            return 0
        return size // frames.INDEX_ENTRY.size

    def _entry(self, number: int) -> tuple[int, int, int, int] | None:
        """Return one entry whose frame is really there, or None."""
        if number < 0:
            return None
        width = frames.INDEX_ENTRY.size
        try:
            fd = os.open(os.path.join(self.folder, INDEX_NAME), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            entry = frames.read_entry(os.pread(fd, width, number * width))
        except OSError:
            entry = None
        finally:
            os.close(fd)
        if entry is None:
            return None
        return entry if frames.header_at(self._fd, self._magic, entry[2]) == entry[:2] else None

    def _entries(self, first: int = 0) -> Iterator[tuple[int, int, int, int]]:
        """Yield the entries in order, from a number on, up to the first bad one."""
        try:
            with open(os.path.join(self.folder, INDEX_NAME), "rb") as file:
                file.seek(first * frames.INDEX_ENTRY.size)
                data = file.read()
        except OSError:
            return
        for start in range(0, len(data), frames.INDEX_ENTRY.size):
            entry = frames.read_entry(data, start)
            if entry is None:
                return
            yield entry

    def _place(self, seq: int) -> tuple[int, int]:
        """Return where to read for a sequence number: an offset and the number before it."""
        return self._bisect(seq, by_time=False)

    def _bisect(self, wanted: int, by_time: bool) -> tuple[int, int]:
        low, high = 0, self._entry_count()
        found = None
        while low < high:
            middle = (low + high) // 2
            entry = self._entry(middle)
            if entry is None:  # damaged: what is left of the search is not worth the risk
                return _start(None)
            if entry[1 if by_time else 0] < wanted or (not by_time and entry[0] == wanted):
                found, low = entry, middle + 1
            else:
                high = middle
        return _start(found)


def _start(entry: tuple[int, int, int, int] | None) -> tuple[int, int]:
    """Return an entry's offset and the last number before it; without one, the tape's beginning."""
    return (entry[2], entry[0] - 1) if entry else (frames.PREAMBLE_SIZE, -1)


def _last_lines(found: list[Frame], lines: int) -> list[Frame]:
    """Return the end of the output, `lines` lines of it; a last line may lack its newline."""
    kept: list[Frame] = []
    wanted = lines + 1 if found and found[-1].body.endswith(b"\n") else lines
    for frame in reversed(found):
        count = frame.body.count(b"\n")
        if count < wanted:
            kept.append(frame)
            wanted -= count
            continue
        cut = len(frame.body)
        for _ in range(wanted):
            cut = frame.body.rindex(b"\n", 0, cut)
        rest = frame.body[cut + 1 :]
        if rest:
            kept.append(_cut(frame, rest))
        break
    return kept[::-1]


def _last_bytes(found: list[Frame], most: int) -> list[Frame]:
    """Return the end of the output, so many bytes of it."""
    kept: list[Frame] = []
    for frame in reversed(found):
        if most <= 0:
            break
        kept.append(_cut(frame, frame.body[-most:]))
        most -= len(frame.body)
    return kept[::-1]


def _cut(frame: Frame, body: bytes) -> Frame:
    return Frame(frame.offset, frame.stream, frame.seq, frame.time_ns, body, frame.flags)


def _open_tape(path: str) -> int:
    """Open a tape to read; what is no file stands in its place, and there is no tape then."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise FileNotFoundError(errno.ENOENT, "no file", path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "no file", path)
    return fd


def is_kept(folder: str) -> bool:
    """Tell whether some process holds the tape's lock: its writer is alive."""
    try:
        fd = _open_tape(os.path.join(folder, NAME))
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
