"""Seccomp filters as the keeper uses them: real children go under one, then try."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import socket
import struct
from pathlib import Path

import pytest
from forked import Died, forked, outcome

from tenuto.keeper import privileges, seccomp, syscalls

pytestmark = pytest.mark.skipif(not seccomp.available(), reason="no seccomp filters here")

_NEEDED = [
    "read",
    "write",
    "close",
    "exit_group",
    "exit",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "brk",
    "mmap",
    "munmap",
    "mremap",
    "madvise",
    "futex",
    "getrandom",
    "gettid",
    "fstat",
    "newfstatat",
    "lseek",
    "ioctl",
    "fcntl",
]


def test_another_call_ends_the_process() -> None:
    def child() -> str:
        seccomp.install(seccomp.allow_only(_NEEDED))
        return outcome(lambda: os.open("/", os.O_RDONLY))

    with pytest.raises(Died) as died:
        forked(child)
    assert died.value.signal == signal.SIGSYS


def test_what_is_allowed_goes_on() -> None:
    def child() -> str:
        seccomp.install(seccomp.allow_only([*_NEEDED, "getpid"]))
        os.getpid()
        return "alive"

    assert forked(child) == "alive"


def test_otherwise_can_be_an_error() -> None:
    def child() -> str:
        seccomp.install(seccomp.allow_only(_NEEDED, otherwise=seccomp.fail(errno.ENOSYS)))
        return outcome(lambda: os.open("/", os.O_RDONLY))

    assert forked(child) == "ENOSYS"


def test_denied_calls_fail_and_others_pass() -> None:
    def child() -> list[str]:
        seccomp.install(seccomp.deny(["mkdir", "mkdirat"], errno.EROFS))
        return [outcome(lambda: os.mkdir("/tmp/never")), outcome(lambda: os.stat("/"))]

    assert forked(child) == ["EROFS", "ok"]


def test_calls_newer_than_the_list_do_not_exist() -> None:
    def child() -> list[int]:
        libc = ctypes.CDLL(None, use_errno=True)
        seccomp.install(seccomp.deny(["ptrace"]))
        return [int(libc.syscall(number)) == -1 and ctypes.get_errno() for number in (470, 100000)]

    assert forked(child) == [errno.ENOSYS, errno.ENOSYS]


def test_only_some_families_of_sockets() -> None:
    def child() -> list[str]:
        seccomp.install(seccomp.deny(rules=seccomp.sockets([socket.AF_INET, socket.AF_UNIX])))
        families = (socket.AF_INET, socket.AF_UNIX, socket.AF_INET6, socket.AF_NETLINK)
        found = [
            outcome(lambda f=family: socket.socket(f, socket.SOCK_DGRAM)) for family in families
        ]
        return [*found, outcome(socket.socketpair)]

    assert forked(child) == ["ok", "ok", "EACCES", "EACCES", "ok"]


def test_the_upper_half_of_an_argument_does_not_get_by() -> None:
    """The kernel takes a family as an int: bits above it must not make another family of it."""

    def child() -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        number = syscalls.numbers()["socket"]
        seccomp.install(seccomp.deny(rules=seccomp.sockets([])))
        family = ctypes.c_long(socket.AF_INET | 1 << 32)
        assert libc.syscall(number, family, socket.SOCK_STREAM, 0) == -1
        return ctypes.get_errno()

    assert forked(child) == errno.EACCES


def test_rules_look_at_several_arguments_and_bits() -> None:
    kill = [
        seccomp.rule("kill", seccomp.ALLOW, seccomp.unless(0, os.getpid()), seccomp.when(1, 0)),
        seccomp.rule("kill", seccomp.fail(errno.EXDEV)),
        seccomp.rule("mmap", seccomp.fail(errno.EPERM), seccomp.when(2, 4, mask=4)),
    ]
    parent = os.getpid()

    def child() -> list[str]:
        import mmap

        seccomp.install(seccomp.deny(rules=kill))
        return [
            outcome(lambda: os.kill(os.getpid(), 0)),
            outcome(lambda: os.kill(os.getpid(), signal.SIGCONT)),
            outcome(lambda: os.kill(parent, 0)),
            outcome(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE).close()),
            outcome(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()),
        ]

    assert forked(child) == ["ok", "EXDEV", "EXDEV", "ok", "EPERM"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32 is a thing of x86_64")
def test_x32_calls_end_the_process() -> None:
    def child() -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        seccomp.install(seccomp.deny(["ptrace"]))
        return int(libc.syscall(0x40000000 + 39))

    with pytest.raises(Died) as died:
        forked(child)
    assert died.value.signal == signal.SIGSYS


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="made of x86 machine code")
def test_32_bit_calls_end_the_process() -> None:
    def child() -> int:
        import mmap

        code = bytes.fromhex("b814000000cd80c3")  # mov eax, 20 (getpid); int 0x80; ret
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        seccomp.install(seccomp.deny(["ptrace"]))
        return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())

    with pytest.raises(Died) as died:
        forked(child)
    assert died.value.signal == signal.SIGSYS


def test_programs_are_made_for_both_machines_and_no_other() -> None:
    ours = {seccomp.deny(["ptrace"], machine=machine) for machine in ("x86_64", "aarch64")}
    assert len(ours) == 2
    # `open` exists on one of them only: on the other it cannot be called, so it needs no step
    arm = seccomp.allow_only(["open"], machine="aarch64")
    assert len(arm) < len(seccomp.allow_only(["open"], machine="x86_64"))
    with pytest.raises(OSError, match="riscv64"):
        seccomp.deny(["ptrace"], machine="riscv64")
    with pytest.raises(ValueError, match="no such system calls: frobnicate"):
        seccomp.deny(["frobnicate"])


def test_jumps_stay_inside_the_program() -> None:
    program = seccomp.deny(["ptrace"], rules=seccomp.sockets(range(20)))
    steps = [struct.unpack("=HBBI", program[at : at + 8]) for at in range(0, len(program), 8)]
    for place, (code, if_true, if_false, _) in enumerate(steps):
        if code & 7 == 5:
            assert place + 1 + max(if_true, if_false) < len(steps)


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")],
)
def test_numbers_are_those_of_the_kernels_headers(machine: str, header: str) -> None:
    path = Path("/usr/include") / header
    if not path.exists():
        pytest.skip(f"{path} is not installed")
    numbers = syscalls.numbers(machine)
    told = dict(re.findall(r"^#define __NR_(\w+)\s+(\d+)", path.read_text(), re.MULTILINE))
    assert len(told) > 200
    shared = {name: int(number) for name, number in told.items() if name in numbers}
    assert shared == {name: numbers[name] for name in shared}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to give up")
def test_root_without_capabilities_stays_without() -> None:
    def child() -> list[str]:
        privileges.drop_capabilities()
        shell = "grep -E '^Cap(Eff|Prm|Bnd)' /proc/self/status; mount -t tmpfs x /mnt && echo in"
        with os.popen(f"({shell}) 2>&1") as pipe:
            text = pipe.read()
        return [line.split()[-1] for line in text.splitlines()]

    found = forked(child)
    assert found[:3] == ["0" * 16] * 3
    assert "in" not in found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_root_becomes_another_user_for_good() -> None:
    def child() -> list[object]:
        privileges.become(65534, 65534)
        return [os.getresuid(), os.getgroups(), outcome(lambda: os.setuid(0))]

    assert forked(child) == [[65534] * 3, [], "EPERM"]
