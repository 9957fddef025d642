"""Tapes made by hand, and what the simplest possible reader would say about them."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import strategies as st

from tenuto.core.events import Created
from tenuto.core.specs import Spec
from tenuto.keeper import frames
from tenuto.keeper.frames import ERR, EVENT, OUT
from tenuto.keeper.writer import TapeWriter
from tenuto.stores.pen import Pen
from tenuto.stores.tape import TapeReader

MAGIC = bytes(range(0xA0, 0xA8))
CREATED = Created(id="a", spec=Spec(kind="command", argv=("true",), cwd="/"))


class Written(NamedTuple):
    """A frame as it was written."""

    seq: int
    time_ns: int
    stream: int
    body: bytes


def as_written(frame: frames.Frame) -> Written:
    return Written(frame.seq, frame.time_ns, frame.stream, frame.body)


def raw(one: Written, magic: bytes = MAGIC) -> bytes:
    header, trailer = frames.pack(magic, one.stream, one.seq, one.time_ns, one.body)
    return header + one.body + trailer


def tape_bytes(written: list[Written], magic: bytes = MAGIC) -> bytes:
    return frames.preamble(magic) + b"".join(raw(one, magic) for one in written)


def index_bytes(written: list[Written], every: int) -> bytes:
    """A sparse index as the writer makes it, with any spacing."""
    data, offset, indexed = b"", frames.PREAMBLE_SIZE, 0
    for one in written:
        if one.stream == EVENT or offset - indexed >= every:
            data += frames.pack_entry(one.seq, one.time_ns, offset, one.stream)
            indexed = offset
        offset += frames.OVERHEAD + len(one.body)
    return data


BODIES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\n", b"one\n", b"a\nb\n", b"no newline", MAGIC, MAGIC * 2 + b"\n"]),
)


@st.composite
def histories(draw: st.DrawFn, min_size: int = 0, max_size: int = 12) -> list[Written]:
    """Frames with growing numbers (with holes, as after a clear) and times that never decrease."""
    seq, time_ns, written = -1, 1000, []
    for number in range(draw(st.integers(min_size, max_size))):
        seq += 1 if number == 0 else draw(st.sampled_from([1, 1, 1, 2, 7]))
        time_ns += draw(st.sampled_from([0, 0, 1, 1000]))
        stream = EVENT if number == 0 else draw(st.sampled_from([EVENT, OUT, OUT, ERR]))
        written.append(Written(seq, time_ns, stream, draw(BODIES)))
    return written


@contextmanager
def folder_with(tape: bytes, index: bytes | None = None) -> Iterator[str]:
    """A folder in memory (fast) with a tape, and perhaps an index."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="tenuto-test-") as folder:
        Path(folder, "tape").write_bytes(tape)
        if index is not None:
            Path(folder, "tape.idx").write_bytes(index)
        yield folder


@contextmanager
def reading(tape: bytes, index: bytes | None = None) -> Iterator[TapeReader]:
    with folder_with(tape, index) as folder, TapeReader(folder) as reader:
        yield reader


def last_lines(written: list[Written], lines: int) -> bytes:
    data = b"".join(one.body for one in written if one.stream != EVENT)
    found = data.split(b"\n")
    pieces = [one + b"\n" for one in found[:-1]] + ([found[-1]] if found[-1] else [])
    return b"".join(pieces[len(pieces) - min(lines, len(pieces)) :])


class Running:
    """A real writer on a real, locked tape."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pen = Pen.create(str(folder), CREATED)
        self.woken = threading.Event()
        self.writer = TapeWriter(self.woken.set)
        job = {
            "magic": self.pen.magic.hex(),
            "next_seq": self.pen.next_seq,
            "last_ns": self.pen.last_ns,
        }
        self.writer.open(self.pen.fd, self.pen.dir_fd, job)

    def until(self, true: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait for something the thread does; it wakes us after most things."""
        for _ in range(int(seconds / 0.01)):
            if true():
                return
            self.woken.wait(0.01)
            self.woken.clear()
        pytest.fail("the writer did not get there")

    def settle(self) -> None:
        """Wait until everything given so far was handled."""
        done = threading.Event()
        self.writer._queue.put(done.set)
        assert done.wait(20)

    def finish(self) -> list[Written]:
        self.writer.finish()
        self.until(lambda: self.writer.finished)
        return self.read()

    def read(self) -> list[Written]:
        with TapeReader(str(self.folder)) as reader:
            found = [as_written(frame) for frame in reader.frames()]
            assert reader.damaged == 0
        return found

    def is_locked(self) -> bool:
        with open(self.folder / "tape", "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False
