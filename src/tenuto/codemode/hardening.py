"""Giving up, for good, all that a VM does not need: done by the VM itself, before code is parsed.

The ladder: Landlock (no file, no TCP), seccomp (any call but those of a running interpreter ends the
process), and always resource limits, no new privileges and no root. What cannot be had is told.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable

from tenuto.keeper import landlock, linux, privileges, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NOBODY = 65534
_SLACK = 16 * 1024 * 1024  # for copies of what goes to the keeper, and the interpreter itself
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROT_EXEC, _PRIVATE_ANONYMOUS = 0x4, 0x22
# The module behind `signal`, which makes enums of everything and so touches many pages.
_signal: Any = sys.modules["_signal"]
_CAUGHT = (1, 2, 13, 15, 25)  # HUP, INT, PIPE, TERM, XFSZ
_SIGKILL = 9

_CALLS = (
    "read", "write", "poll", "ppoll", "brk", "munmap", "mremap", "madvise", "futex",
    "clock_gettime", "clock_nanosleep", "gettimeofday", "time", "restart_syscall",
    "rt_sigreturn", "rt_sigprocmask", "sched_yield", "getpid", "gettid", "getrandom",
    "exit", "exit_group",
)  # fmt: skip
_RULES = (
    seccomp.rule(
        "mmap",
        seccomp.ALLOW,
        seccomp.when(2, 0, _PROT_EXEC),
        seccomp.when(3, _PRIVATE_ANONYMOUS, _PRIVATE_ANONYMOUS),
    ),
    seccomp.rule("mprotect", seccomp.ALLOW, seccomp.when(2, 0, _PROT_EXEC)),
    seccomp.rule("prlimit64", seccomp.ALLOW, seccomp.when(0, 0)),  # our own, and only downwards
    seccomp.rule("sysinfo", seccomp.fail()),  # a C library may ask how much memory there is
)


def make_filter(more: tuple[str, ...] = (), rules: Iterable[seccomp.Rule] = ()) -> bytes:
    """Return the filter for a VM; empty where none can be made. Made once, in the image."""
    if not seccomp.available():
        return b""
    return seccomp.allow_only((*_CALLS, *more), (*_RULES, *rules))


def harden(
    program: bytes, off: tuple[str, ...] = (), files: int = 4, scope: bool = True
) -> tuple[str, list[str]]:
    """Give all up that can be given up; return what holds now, and what is missing in words.

    `off` names mechanisms to leave out, as if the system had none: tests take them away in turn.
    Without `scope`, those can still be signalled that could be before.
    """
    held: list[str] = []
    missing: list[str] = []
    parent = os.getppid()
    for number in _CAUGHT:
        _signal.signal(number, _signal.SIG_DFL)
    _bound(resource.RLIMIT_CORE, 0)
    _bound(resource.RLIMIT_FSIZE, 0)
    _bound(resource.RLIMIT_NPROC, 0)
    landlock.no_new_privs()
    missing += drop_root(off)
    linux.die_with_parent(_SIGKILL)  # another user's process has forgotten it
    if os.getppid() != parent:
        os._exit(127)
    try:
        if "landlock" in off:
            raise OSError("turned off")
        landlock.restrict(scope=scope)
        held.append("landlock")
    except OSError as error:
        missing.append(f"landlock ({error.strerror or error})")
    _bound(resource.RLIMIT_NOFILE, files)
    try:
        if "seccomp" in off or not program:
            raise OSError("turned off" if program else "not on this system")
        seccomp.install(program)
        held.append("seccomp")
    except OSError as error:
        missing.append(f"seccomp ({error.strerror or error})")
    return "+".join((*held, "rlimits")), missing


def drop_root(off: tuple[str, ...]) -> list[str]:
    """Be nobody if we are root, and have no capabilities in any case."""
    try:
        if os.geteuid() == 0 and "user" not in off:
            privileges.become(_NOBODY, _NOBODY)
            return []
    except OSError as error:
        reason = error.strerror
    else:
        reason = "turned off" if "user" in off else ""
    try:
        privileges.drop_capabilities()
    except OSError as error:
        reason = error.strerror
    return [f"another user ({reason})"] if reason else []


def own_size() -> tuple[int, int]:
    """Return how much address space, and how much data, the image brought along."""
    fd = os.open("/proc/self/statm", os.O_RDONLY)
    fields = os.read(fd, 200).split()
    os.close(fd)
    return int(fields[0]) * _PAGE, int(fields[5]) * _PAGE


def bound(memory: int, cpu: float | None, own: tuple[int, int]) -> None:
    """Bound memory, beyond what the image brought along, and processor time; for good too."""
    size, data = own
    _bound(resource.RLIMIT_DATA, data + memory + _SLACK)
    _bound(resource.RLIMIT_AS, size + memory + 2 * _SLACK)
    if cpu:
        seconds = max(1, int(-(-cpu // 1)))
        _bound(resource.RLIMIT_CPU, seconds, seconds + 1)


def _bound(which: int, soft: int, hard: int | None = None) -> None:
    ceiling = resource.getrlimit(which)[1]
    top = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        top = min(top, ceiling)
    resource.setrlimit(which, (min(soft, top), top))
