"""Giving up what root may do, for good: another user, or root in name without any capability."""

from __future__ import annotations

import ctypes
import os
import struct

_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_CAP_AMBIENT, _CLEAR_ALL = 47, 4
_SETPCAP = 1 << 8
# uid 0 means nothing at exec, nor at setuid; ambient ones cannot be raised
_NOROOT_LOCKED = 0b11101111
CAPSET_HEAD = struct.pack("=Ii", 0x20080522, 0)
CAPSET_NONE = bytes(24)
# setgroups, setresgid, setresuid. The C library's own would do it for all threads that it remembers:
# those of the process we were forked from too, and wait for them for ever.
_CALLS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}

_libc = ctypes.CDLL(None, use_errno=True)


def drop_capabilities() -> None:
    """Have no capability from here on, nor any after an exec, whatever the user id."""
    for arguments in to_drop():
        if _libc.prctl(*arguments, 0) != 0:
            _fail()
    if _libc.capset(ctypes.c_char_p(CAPSET_HEAD), ctypes.c_char_p(CAPSET_NONE)) != 0:
        _fail()


def to_drop(privileged: bool | None = None) -> list[tuple[int, int, int, int]]:
    """Return the arguments of the prctl calls that come before capset, for whoever we are now.

    Without CAP_SETPCAP nothing can be taken from the bounding set; no_new_privs closes it then.
    """
    calls = [(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0)]
    if bool(_effective() & _SETPCAP) if privileged is None else privileged:
        calls += [(_PR_CAPBSET_DROP, number, 0, 0) for number in range(_last() + 1)]
        calls.append((_PR_SET_SECUREBITS, _NOROOT_LOCKED, 0, 0))
    return calls


def become(uid: int, gid: int) -> None:
    """Be another user, without further groups, for good. Clears the parent-death signal."""
    calls = _CALLS.get(os.uname().machine)
    if calls is None:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        return
    for number, words in zip(calls, ((0, None, 0), (gid, gid, gid), (uid, uid, uid)), strict=True):
        if _libc.syscall(number, *words) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


def _fail() -> None:
    code = ctypes.get_errno()
    raise OSError(code, f"capabilities: {os.strerror(code)}")


def _last() -> int:
    try:
        with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 40


def _effective() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith("CapEff:")), 0)
