"""Seccomp: which system calls a process and its descendants may still make, given up for ever.

A filter is a small program that the kernel runs before each call. `allow_only` makes one that ends
the process at any other call (for code of which we know every call), `deny` one that makes some calls
fail (for programs of which we know nothing). Both refuse the calls of other architectures, which would
mean something else under the same number. Filters are plain bytes: made in one place, used in another.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from tenuto.keeper import landlock, syscalls

ALLOW = 0x7FFF0000
KILL = 0x80000000  # the whole process, by SIGSYS
_ERRNO = 0x00050000

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # x86_64 only: the same architecture, other numbers

_NR, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_LOAD, _AND, _JEQ, _JGT, _JGE, _RET = 0x20, 0x54, 0x15, 0x25, 0x35, 0x06
_MOST = 4096
_UNIX, _CONNECTED = 1, (1, 5)  # SOCK_STREAM and SOCK_SEQPACKET

Condition = tuple[int, int, int, bool]
Rule = tuple[str, int, tuple[Condition, ...]]


def fail(code: int = errno.EPERM) -> int:
    """Return the action that makes a call fail with this error."""
    return _ERRNO | (code & 0xFFFF)


def when(argument: int, value: int, mask: int = 0xFFFFFFFF) -> Condition:
    """Hold if an argument, of which only the bits of `mask` count, has this value.

    32 bits are compared: the kernel itself looks at no more of the flags, families, options and
    pids that can be told from a number. A pointer cannot be judged here at all.
    """
    return (argument, mask & 0xFFFFFFFF, value & 0xFFFFFFFF, True)


def unless(argument: int, value: int, mask: int = 0xFFFFFFFF) -> Condition:
    """Hold if `when` would not."""
    return (argument, mask & 0xFFFFFFFF, value & 0xFFFFFFFF, False)


def rule(name: str, action: int, *conditions: Condition) -> Rule:
    """Return what happens to a call if all the conditions hold; else the next rule for it counts."""
    return (name, action, conditions)


def allow_only(
    names: Iterable[str], rules: Iterable[Rule] = (), otherwise: int = KILL, machine: str = ""
) -> bytes:
    """Return a filter that lets these calls pass, and others only as the rules say."""
    everything = [*rules, *(rule(name, ALLOW) for name in names)]
    return _program(everything, otherwise, otherwise, machine)


def deny(
    names: Iterable[str] = (),
    code: int = errno.EPERM,
    rules: Iterable[Rule] = (),
    machine: str = "",
) -> bytes:
    """Return a filter that lets all calls pass but these, and those that the rules name.

    Calls newer than our list do not exist for whoever is under it: they could be a way around it.
    """
    everything = [*rules, *(rule(name, fail(code)) for name in names)]
    return _program(everything, ALLOW, fail(errno.ENOSYS), machine)


def sockets(families: Iterable[int], code: int = errno.EACCES) -> list[Rule]:
    """Return rules under which only sockets of these families can be made, and pairs that stay so."""
    known = tuple(families)
    passing = [rule("socket", ALLOW, when(0, family)) for family in known]
    return [*passing, rule("socket", fail(code)), *(() if _UNIX in known else pairs(code))]


def pairs(code: int = errno.EACCES) -> list[Rule]:
    """Return rules under which only pairs can be made whose ends cannot reach anybody else.

    An end of a pair for datagrams could send to any socket in the file system that it can name.
    """
    unix = when(0, _UNIX)
    passing = [rule("socketpair", ALLOW, unix, when(1, kind, mask=0xF)) for kind in _CONNECTED]
    return [*passing, rule("socketpair", fail(code))]


def available() -> bool:
    """Tell whether filters can be made for this machine and its kernel takes them."""
    if os.uname().machine not in _ARCHITECTURE:
        return False
    try:
        with open("/proc/sys/kernel/seccomp/actions_avail", encoding="ascii") as file:
            return "errno" in file.read()
    except OSError:
        return False


def install(program: bytes) -> None:
    """Put this thread, and what it starts from here on, under a filter. Sets no_new_privs."""
    landlock.no_new_privs()
    buffer = ctypes.create_string_buffer(program, len(program))
    head = header(program, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(22, 2, ctypes.c_char_p(head), 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")


def header(program: bytes, address: int) -> bytes:
    """Return what the kernel is pointed to: how long a filter is, and where it stands in memory."""
    return struct.pack("HxxxxxxP", len(program) // 8, address)


def _program(rules: list[Rule], otherwise: int, newer: int, machine: str) -> bytes:
    machine = machine or os.uname().machine
    numbers = syscalls.numbers(machine)
    if not numbers:
        raise OSError(errno.ENOSYS, f"no seccomp filters can be made for {machine}")
    unknown = {name for name, _, _ in rules} - syscalls.known()
    if unknown:
        raise ValueError(f"no such system calls: {', '.join(sorted(unknown))}")
    out = [
        _step(_LOAD, _ARCH),
        _step(_JEQ, _ARCHITECTURE[machine], 1, 0),
        _step(_RET, KILL),
        _step(_LOAD, _NR),
    ]
    if machine == "x86_64":
        out += [_step(_JGE, _X32, 0, 1), _step(_RET, KILL)]
    by_number: dict[int, list[Rule]] = {}
    for one in rules:
        if one[0] in numbers:  # a call that this machine lacks cannot be made on it
            by_number.setdefault(numbers[one[0]], []).append(one)
    for number, ones in by_number.items():
        block = _block(ones, otherwise)
        out += [_step(_JEQ, number, 0, len(block)), *block]
    if newer != otherwise:
        out += [_step(_JGT, syscalls.LAST, 0, 1), _step(_RET, newer)]
    out.append(_step(_RET, otherwise))
    if len(out) > _MOST:
        raise ValueError(f"the filter has {len(out)} steps, the kernel takes {_MOST}")
    return b"".join(out)


def _block(rules: list[Rule], otherwise: int) -> list[bytes]:
    """Return the steps for one call: the first rule whose conditions hold decides."""
    out: list[bytes] = []
    for _, action, conditions in rules:
        body: list[bytes] = []
        for place, (argument, mask, value, equal) in enumerate(conditions):
            left = sum(2 + (m != 0xFFFFFFFF) for _, m, _, _ in conditions[place + 1 :])
            body.append(_step(_LOAD, _ARGUMENTS + 8 * argument))  # its lower half
            if mask != 0xFFFFFFFF:
                body.append(_step(_AND, mask))
            away = left + 1  # past the other conditions and the return
            body.append(_step(_JEQ, value, 0, away) if equal else _step(_JEQ, value, away, 0))
        out += [*body, _step(_RET, action)]
        if not conditions:
            return out
    return [*out, _step(_RET, otherwise)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
