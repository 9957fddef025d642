"""The few system calls that the standard library of Python 3.11 does not wrap."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_FALLOC_FL_KEEP_SIZE = 1

_CLONE_INTO_CGROUP = 0x200000000
_CLONE3 = 435 if os.uname().machine in ("x86_64", "aarch64") else -1
_SIGCHLD = 17

_libc_with_gil = ctypes.PyDLL(None)
_libc_with_gil.syscall.restype = ctypes.c_long
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def _prctl(option: int, argument: int | bytes) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of every descendant whose own parent dies, or leave that to others again."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def die_with_parent(signal_number: int) -> None:
    """Be sent a signal when the process that forked us ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def set_name(name: str) -> None:
    """Show as this name (at most 15 bytes) in /proc/PID/comm."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def fork(group_fd: int) -> tuple[int, bool]:
    """Fork, into a control group where the kernel can; return the pid and whether it is inside.

    Joining a group after the fork would make the kernel wait for all processors, up to 20 ms. The
    call is made raw, so Python is told afterwards that it is alone: a thread of ours that wanted to
    run at that moment would be waited for in the child, where it is not.
    """
    if group_fd < 0 or _CLONE3 < 0:
        return os.fork(), False
    arguments = struct.pack("=11Q", _CLONE_INTO_CGROUP, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, group_fd)
    pid = _libc_with_gil.syscall(_CLONE3, arguments, len(arguments))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return (pid, True) if pid >= 0 else (os.fork(), False)


def reserve(fd: int, offset: int, length: int, more: int = 0) -> int:
    """Set room aside on disk beyond the end of a file, and `more` where there is so much.

    Returns how much; 0 where the file system cannot. Raises OSError where there is no room.
    """
    code = 0
    for size in (length + more, length):
        if _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE, offset, size) == 0:
            return size
        code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR, errno.EINVAL):
            return 0
    raise OSError(code, os.strerror(code))
