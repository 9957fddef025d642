"""Giving up, for good, all that a VM does not need: done by the VM itself, before code is parsed.

The ladder: Landlock (no file, no TCP), seccomp (any call but those of a running interpreter ends the
process), and always resource limits, no new privileges and no root. What cannot be had is told.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Callable, Iterable

from tenuto.keeper import landlock, privileges, seccomp, syscalls

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
_SET_PDEATHSIG, _SET_SECCOMP, _FILTER, _SET_NO_NEW_PRIVS = 1, 22, 2, 38

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


class Plan:
    """The calls that give everything up, prepared once in the image: a VM only makes them.

    They are made one like the other, for each page of code and data that a VM is the first to touch
    after its fork costs more than the call itself.
    """

    def __init__(
        self,
        more: tuple[str, ...] = (),
        files: int = 4,
        rules: Iterable[seccomp.Rule] = (),
        scope: bool = True,
    ) -> None:
        """Prepare for a VM that may make `more` calls than others, and have so many descriptors.

        Without `scope`, Landlock leaves it those processes that it could signal before.
        """
        self.files = files
        self._numbers = syscalls.numbers()
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.argtypes = [ctypes.c_long] * 6
        self._call.restype = ctypes.c_long
        version = landlock.abi()
        kept = landlock.attributes(version, scope=scope) if version else b""
        self._rules = ctypes.create_string_buffer(kept, len(kept)) if kept else None
        program = b""
        if seccomp.available():
            program = seccomp.allow_only((*_CALLS, *more), (*_RULES, *rules))
        self._program = ctypes.create_string_buffer(program, len(program))
        head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(self._program))
        self._head = ctypes.create_string_buffer(head, len(head)) if program else None

    def call(self, name: str, a: int = 0, b: int = 0, c: int = 0) -> int:
        """Make a system call."""
        if name not in self._numbers:
            raise OSError("not on this machine")
        result = int(self._call(self._numbers[name], a, b, c, 0, 0))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def become_nobody(self) -> None:
        """Be another user, without further groups, for good."""
        self.call("setgroups")
        self.call("setresgid", _NOBODY, _NOBODY, _NOBODY)
        self.call("setresuid", _NOBODY, _NOBODY, _NOBODY)

    def lock_files(self) -> None:
        """Reach no file and no TCP port any more."""
        if self._rules is None:
            raise OSError("not on this system")
        fd = self.call(
            "landlock_create_ruleset", ctypes.addressof(self._rules), len(self._rules), 0
        )
        try:
            self.call("landlock_restrict_self", fd)
        finally:
            os.close(fd)

    def lock_calls(self) -> None:
        """Make no other system calls any more."""
        if self._head is None:
            raise OSError("not on this system")
        self.call("prctl", _SET_SECCOMP, _FILTER, ctypes.addressof(self._head))


def harden(plan: Plan, off: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """Give all up that can be given up; return what holds now, and what is missing in words.

    `off` names mechanisms to leave out, as if the system had none: tests take them away in turn.
    """
    held: list[str] = []
    parent = os.getppid()
    for number in _CAUGHT:
        _signal.signal(number, _signal.SIG_DFL)
    for which in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        resource.setrlimit(which, (0, 0))
    missing = drop_root(off, plan.become_nobody)
    plan.call("prctl", _SET_NO_NEW_PRIVS, 1)
    plan.call("prctl", _SET_PDEATHSIG, _SIGKILL)  # another user's process has forgotten it
    if os.getppid() != parent:
        os._exit(127)
    if _try("landlock", plan.lock_files, off, missing):
        held.append("landlock")
    _bound(resource.RLIMIT_NOFILE, plan.files)
    if _try("seccomp", plan.lock_calls, off, missing):
        held.append("seccomp")
    return "+".join((*held, "rlimits")), missing


def become_nobody() -> None:
    """Be another user, without further groups, for good: where no plan was made."""
    privileges.become(_NOBODY, _NOBODY)


def drop_root(off: tuple[str, ...], become: Callable[[], None] = become_nobody) -> list[str]:
    """Be nobody if we are root, and have no capabilities in any case; return what is missing."""
    missing: list[str] = []
    if os.geteuid() != 0 or "user" in off:
        _drop_capabilities("user" in off, missing)
    else:
        _try("user", become, off, missing)
        if missing:
            _drop_capabilities(False, missing)
    return missing


def _try(name: str, give_up: Callable[[], None], off: tuple[str, ...], missing: list[str]) -> bool:
    try:
        if name in off:
            raise OSError("turned off")
        give_up()
    except OSError as error:
        missing.append(f"{name} ({error.strerror or error})")
        return False
    return True


def _drop_capabilities(as_root: bool, missing: list[str]) -> None:
    """Have no capability at least, where it is not another user."""
    if as_root:
        missing.append("user (turned off)")
    try:
        privileges.drop_capabilities()
    except OSError as error:
        missing.append(f"capabilities ({error.strerror})")


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
