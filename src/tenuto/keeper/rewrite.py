"""clear_history: the same tape without its output, put in place in one step.

Sequence numbers, times and every event stay. Whoever calls this holds the tape's lock; the new file
is locked before it takes the name, so that the lock is never free in between.
"""

from __future__ import annotations

import fcntl
import os

from tenuto.keeper import frames
from tenuto.keeper.faults import point

_NAME = "tape.new"


def unlink_quietly(name: str, dir_fd: int) -> None:
    """Remove a file that may not be there."""
    try:
        os.unlink(name, dir_fd=dir_fd)
    except OSError:
        return


def without_output(dir_fd: int, old_fd: int, magic: bytes, next_seq: int, now_ns: int) -> int:
    """Replace the tape and return the new descriptor, locked; the old one is closed on success."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    new_fd = os.open(_NAME, flags, 0o600, dir_fd=dir_fd)
    try:
        fcntl.flock(new_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write(new_fd, frames.preamble(magic))
        dropped = upto = 0
        for frame in frames.read_frames(old_fd, magic):
            if isinstance(frame, frames.Gap):
                continue
            if frame.stream != frames.EVENT:
                dropped += len(frame.body)
                upto = frame.seq
                continue
            _frame(new_fd, magic, frame.seq, frame.time_ns, frame.body)
        body = b'{"type":"cleared","upto":%d,"size":%d}' % (upto, dropped)
        _frame(new_fd, magic, next_seq, now_ns, body)
        os.fsync(new_fd)
        unlink_quietly("tape.idx", dir_fd)  # before the rename: an old index never meets a new tape
        point("rewrite-before-rename")
        os.rename(_NAME, "tape", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except OSError:
        os.close(new_fd)
        unlink_quietly(_NAME, dir_fd)
        raise
    point("rewrite-after-rename")
    os.close(old_fd)
    return new_fd


def _frame(fd: int, magic: bytes, seq: int, time_ns: int, body: bytes) -> None:
    header, trailer = frames.pack(magic, frames.EVENT, seq, time_ns, body)
    _write(fd, header + body + trailer)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
