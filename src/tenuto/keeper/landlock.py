"""Landlock: what a process and all its descendants may still reach, given up by itself for ever.

Three system calls, no dependency. A kernel knows more rights the newer it is (its ABI); every right it
knows is taken away, then given back for the paths named. What an older kernel cannot take away is told.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
_VERSION = 1 << 0
PATH_BENEATH = 1

EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
_REMOVE_DIR = 1 << 4
_REMOVE_FILE = 1 << 5
_MAKE_CHAR = 1 << 6
_MAKE_DIR = 1 << 7
_MAKE_REG = 1 << 8
_MAKE_SOCK = 1 << 9
_MAKE_FIFO = 1 << 10
_MAKE_BLOCK = 1 << 11
_MAKE_SYM = 1 << 12
_REFER = 1 << 13  # ABI 2: renaming and linking from one folder to another
_TRUNCATE = 1 << 14  # ABI 3
_IOCTL_DEV = 1 << 15  # ABI 5: ioctl on devices opened from here on
_RESOLVE_UNIX = 1 << 16  # ABI 9: connecting to sockets in the file system

_READ = READ_FILE | READ_DIR
_WRITE = (
    _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO
    | _MAKE_SYM | _REFER | _TRUNCATE | _IOCTL_DEV
)  # fmt: skip
_ON_FILES = EXECUTE | _WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV | _RESOLVE_UNIX

_TCP = 0b11  # bind and connect, ABI 4
_SCOPES = 0b11  # abstract sockets and signals of processes outside, ABI 6

_SINCE = (
    (2, "renaming across folders"),
    (3, "truncating files"),
    (4, "TCP"),
    (5, "device ioctls"),
    (6, "signals and abstract sockets outside"),
)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _call(number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return int(result)


def abi() -> int:
    """Return the version that the running kernel has, or 0 where there is none to use."""
    try:
        return _call(CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def left_out(version: int, tcp: bool = False, scope: bool = True) -> list[str]:
    """Return what a kernel of this version cannot take away, of what `restrict` is asked to."""
    unasked = {4: tcp, 6: not scope}
    return [what for since, what in _SINCE if version < since and not unasked.get(since)]


def restrict(
    read: Iterable[str] = (),
    write: Iterable[str] = (),
    execute: Iterable[str] = (),
    *,
    tcp: bool = False,
    scope: bool = True,
) -> list[str]:
    """Leave this process nothing but these paths; return what the kernel is too old to take away.

    `execute` may be read and run, `write` read, run and changed in every way. Without `tcp` no TCP
    port can be bound or connected to. With `scope` no process outside can be signalled and no
    abstract socket of theirs be reached. Paths that do not exist are passed over. Only this thread
    is restricted, and what it starts: call it before others are started. Raises OSError, having
    changed nothing, where there is no Landlock at all. Sets no_new_privs.
    """
    fd = rules(read, write, execute, tcp=tcp, scope=scope)
    try:
        no_new_privs()
        _call(RESTRICT_SELF, fd, 0)
    finally:
        os.close(fd)
    return left_out(abi(), tcp, scope)


def attributes(version: int, *, tcp: bool = False, scope: bool = True) -> bytes:
    """Return what a set of rules begins with: all that a kernel of this version can take away."""
    fields = [_filesystem(version)]
    if version >= 4:
        fields.append(0 if tcp else _TCP)
    if version >= 6:
        fields.append(_SCOPES if scope else 0)
    return struct.pack(f"={len(fields)}Q", *fields)


def rules(
    read: Iterable[str] = (),
    write: Iterable[str] = (),
    execute: Iterable[str] = (),
    *,
    tcp: bool = False,
    scope: bool = True,
) -> int:
    """Return a descriptor of the rules that `restrict` would set, for `enforce` or a child."""
    version = abi()
    if not version:
        raise OSError(errno.ENOSYS, "landlock: this kernel has none, or it is turned off")
    handled = _filesystem(version)
    head = attributes(version, tcp=tcp, scope=scope)
    fd = _call(CREATE_RULESET, head, len(head), 0)
    try:
        for paths, rights in (
            (read, _READ),
            (execute, _READ | EXECUTE),
            (write, _READ | EXECUTE | _WRITE | _RESOLVE_UNIX),
        ):
            for path in paths:
                _allow(fd, path, rights & handled)
    except OSError:
        os.close(fd)
        raise
    return fd


def enforce(fd: int) -> None:
    """Put this process under rules, with its own folder in /proc to read on top.

    Those of other processes tell what they run. A program that is executed keeps this one.
    """
    own = os.open("/proc/self", os.O_PATH | os.O_CLOEXEC)
    _call(ADD_RULE, fd, PATH_BENEATH, beneath(own), 0)
    os.close(own)
    no_new_privs()
    _call(RESTRICT_SELF, fd, 0)
    os.close(fd)


def beneath(fd: int, rights: int = _READ) -> bytes:
    """Return the rule that gives rights on what is beneath an open folder: to read, by default."""
    return struct.pack("=Qi", rights, fd)


def _filesystem(version: int) -> int:
    """Return every right on files that a kernel of this version can take away."""
    rights = (1 << 13) - 1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV), (9, _RESOLVE_UNIX)):
        if version >= since:
            rights |= right
    return rights


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # what cannot be found needs no permission
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _ON_FILES
        _call(ADD_RULE, ruleset, PATH_BENEATH, beneath(fd, rights), 0)
    finally:
        os.close(fd)


def no_new_privs() -> None:
    """Give up for ever what setuid programs and file capabilities would add."""
    if _libc.prctl(38, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"no_new_privs: {os.strerror(code)}")
