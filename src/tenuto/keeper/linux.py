"""The few system calls that the standard library of Python 3.11 does not wrap."""

from __future__ import annotations

import ctypes
import errno
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_FALLOC_FL_KEEP_SIZE = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def _prctl(option: int, argument: int | bytes) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int) -> None:
    """Be sent a signal when the process that forked us ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def set_name(name: str) -> None:
    """Show as this name (at most 15 bytes) in /proc/PID/comm."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def reserve(fd: int, offset: int, length: int) -> bool:
    """Set room aside on disk beyond the end of a file; False where the file system cannot."""
    if _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE, offset, length) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR, errno.EINVAL):
        return False
    raise OSError(code, os.strerror(code))
