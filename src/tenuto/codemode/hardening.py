"""Giving up, for good, all that a VM does not need: done by the VM itself, before code is parsed.

The ladder: Landlock (no file, no TCP), seccomp (any call but those of a running interpreter ends the
process), and always resource limits, no new privileges and no root. What cannot be had is told.
"""

from __future__ import annotations

import os
import resource
import signal

from tenuto.keeper import landlock, linux, privileges, seccomp

_NOBODY = 65534
_SLACK = 16 * 1024 * 1024  # for copies of what goes to the keeper, and the interpreter itself
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROT_EXEC, _PRIVATE_ANONYMOUS = 0x4, 0x22
_LADDER = ("landlock", "seccomp")

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
    seccomp.rule("sysinfo", seccomp.fail()),  # a C library may ask how much memory there is
)


def make_filter(more: tuple[str, ...] = ()) -> bytes:
    """Return the filter for a VM; empty where none can be made. Made once, in the image."""
    if not seccomp.available():
        return b""
    return seccomp.allow_only((*_CALLS, *more), _RULES)


def harden(
    program: bytes, memory: int, cpu: float | None, off: tuple[str, ...] = (), files: int = 4
) -> tuple[str, list[str]]:
    """Give all up that can be given up; return what holds now, and what is missing in words.

    `off` names mechanisms to leave out, as if the system had none: tests take them away in turn.
    """
    held: list[str] = []
    missing: list[str] = []
    parent = os.getppid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    _bound_memory(memory)
    _bound(resource.RLIMIT_CORE, 0)
    _bound(resource.RLIMIT_FSIZE, 0)
    _bound(resource.RLIMIT_NPROC, 0)
    if cpu:
        seconds = max(1, int(-(-cpu // 1)))
        _bound(resource.RLIMIT_CPU, seconds, seconds + 1)
    landlock.no_new_privs()
    missing += _drop_root(off)
    linux.die_with_parent(signal.SIGKILL)  # another user's process has forgotten it
    if os.getppid() != parent:
        os._exit(127)
    try:
        if "landlock" in off:
            raise OSError("turned off")
        landlock.restrict()
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


def _drop_root(off: tuple[str, ...]) -> list[str]:
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


def _bound_memory(memory: int) -> None:
    """Bound what is ours alone, beyond what the image brought along."""
    with open("/proc/self/statm", "rb") as file:
        fields = file.read().split()
    size, data = int(fields[0]) * _PAGE, int(fields[5]) * _PAGE
    _bound(resource.RLIMIT_DATA, data + memory + _SLACK)
    _bound(resource.RLIMIT_AS, size + memory + 2 * _SLACK)


def _bound(which: int, soft: int, hard: int | None = None) -> None:
    ceiling = resource.getrlimit(which)[1]
    top = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        top = min(top, ceiling)
    resource.setrlimit(which, (min(soft, top), top))
