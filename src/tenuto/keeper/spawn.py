"""Starting a program without copying ourselves: the child shares our memory until it execs.

A fork of an interpreter costs far more than the program it is for: every page that keeper or child
touches afterwards is copied, and exec throws the child's copies away. A child that borrows our memory
instead (CLONE_VM, and we wait until it execs: CLONE_VFORK) must not run Python in it. So it runs a
list of system calls, prepared beforehand, with the few instructions below, and tells in the list
itself which call failed. Where this is not possible `AVAILABLE` is false, and the keeper forks.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable

_VM, _VFORK, _CLEAR_SIGHAND, _INTO_CGROUP = 0x100, 0x4000, 0x100000000, 0x200000000
_SIGCHLD = 17
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9

# System calls of x86_64.
_DUP2, _IOCTL, _EXECVE, _FCNTL, _CHDIR = 33, 16, 59, 72, 80
_GETPPID, _SETSID, _PRCTL, _PRLIMIT, _CLOSE_RANGE = 110, 112, 157, 302, 436
_WRITE, _OPEN, _CLOSE, _CAPSET = 1, 2, 3, 126
_SETGROUPS, _SETRESUID, _SETRESGID = 116, 117, 119
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_F_SETFD = 2

# int spawn(struct clone_args *how, size_t size, struct step *steps), in x86_64. A step is six words:
# the call's number, four arguments, and the result that is wanted (0: any that is no error).
_CODE = bytes.fromhex(
    "4989d0"  #        mov  r8, rdx            the steps
    "b8b3010000"  #    mov  eax, 435           clone3(how, size)
    "0f05"  #          syscall
    "4885c0"  #        test rax, rax
    "7401"  #          jz   +1                 the child goes on after the return
    "c3"  #            ret                     we return its pid, or an error
    "4d89c6"  #        mov  r14, r8            not among the arguments of a call
    "4531c0"  #        xor  r8d, r8d           the fifth argument is always 0
    "498b06"  #  step: mov  rax, [r14]
    "498b7e08"  #      mov  rdi, [r14+8]
    "498b7610"  #      mov  rsi, [r14+16]
    "498b5618"  #      mov  rdx, [r14+24]
    "4d8b5620"  #      mov  r10, [r14+32]
    "0f05"  #          syscall
    "4885c0"  #        test rax, rax
    "7813"  #          js   fail
    "49837e2800"  #    cmp  qword [r14+40], 0
    "7406"  #          je   next
    "493b4628"  #      cmp  rax, [r14+40]
    "7506"  #          jne  fail
    "4983c630"  # next: add r14, 48
    "ebd3"  #          jmp  step
    "49894628"  # fail: mov [r14+40], rax      for us to read: the memory is ours
    "bf7f000000"  #    mov  edi, 127
    "b8e7000000"  #    mov  eax, 231           exit_group(127)
    "0f05"  #          syscall
)
_STEP = struct.Struct("<5Qq")
_HOW = struct.Struct("<11Q")


def _load() -> Callable[[bytes, int, object], int] | None:
    """Return the code as a function, or None where memory may not be made executable."""
    if os.uname().machine != "x86_64":
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        page.write(_CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
            return None
    except OSError:
        return None
    # PYFUNCTYPE keeps the interpreter's lock: no other thread of ours needs to run meanwhile.
    function = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p)
    call = function(address)
    return lambda how, size, steps, _page=page: call(how, size, steps)  # the page stays with it


_spawn = _load()
AVAILABLE = _spawn is not None and not os.environ.get("TENUTO_KEEPER_FORKS")


class Steps:
    """The system calls of one child, and the memory that their arguments point to."""

    def __init__(self) -> None:
        """Begin with the child's own life: it leaves our session and dies with us."""
        self._steps: list[tuple[int, int, int, int, int, int]] = []
        self._about: dict[int, str] = {}  # what a step is about, for whoever is told that it failed
        self._kept: list[object] = []
        self._add(_PRCTL, _PR_SET_PDEATHSIG, _SIGKILL)
        self._add(_GETPPID, wanted=os.getpid())  # or we died before the line above
        self._add(_SETSID)

    def _add(
        self, number: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, wanted: int = 0
    ) -> None:
        self._steps.append((number, a, b, c, d, wanted))

    def _text(self, data: bytes) -> int:
        buffer = ctypes.create_string_buffer(data)
        self._kept.append(buffer)
        return ctypes.addressof(buffer)

    def _texts(self, items: list[bytes]) -> int:
        pointers = (ctypes.c_char_p * (len(items) + 1))(*items)
        self._kept.append(pointers)
        return ctypes.addressof(pointers)

    def place(self, descriptors: list[int]) -> None:
        """Have these as 0, 1, 2, … and no others; none of them is one of the first three."""
        for target, fd in enumerate(descriptors):
            if fd == target:
                self._add(_FCNTL, fd, _F_SETFD, 0)
            else:
                self._add(_DUP2, fd, target)
        self._add(_CLOSE_RANGE, len(descriptors), 0xFFFFFFFF)

    def control_terminal(self, request: int) -> None:
        """Make descriptor 0 the terminal of its session."""
        self._add(_IOCTL, 0, request, 0)

    def enter(self, folder: str) -> None:
        """Change to a working directory."""
        self._about[len(self._steps)] = folder
        self._add(_CHDIR, self._text(os.fsencode(folder)))

    def limit(self, which: int, soft: int, hard: int) -> None:
        """Set a resource limit; negative means none."""
        pair = struct.pack("<QQ", soft & (2**64 - 1), hard & (2**64 - 1))
        self._add(_PRLIMIT, 0, which, self._text(pair))

    # Into a confinement; see confine.py

    def join(self, group: str, free: int) -> None:
        """Join a control group; `free` is the lowest descriptor that is not open."""
        path = self._text(os.fsencode(os.path.join(group, "cgroup.procs")))
        self._add(_OPEN, path, os.O_WRONLY | os.O_CLOEXEC, wanted=free)
        self._add(_WRITE, free, self._text(b"0"), 1)
        self._add(_CLOSE, free)

    def become(self, uid: int, gid: int) -> None:
        """Be another user for good, and die with us all the same."""
        self._add(_SETGROUPS)
        self._add(_SETRESGID, gid, gid, gid)
        self._add(_SETRESUID, uid, uid, uid)
        self._add(_PRCTL, _PR_SET_PDEATHSIG, _SIGKILL)
        self._add(_GETPPID, wanted=os.getpid())

    def drop_capabilities(self, calls: list[tuple[int, int, int, int]]) -> None:
        """Give up every capability, by these calls and a last one."""
        from tenuto.keeper import privileges

        for arguments in calls:
            self._add(_PRCTL, *arguments)
        self._add(_CAPSET, self._text(privileges.CAPSET_HEAD), self._text(privileges.CAPSET_NONE))

    def restrict(self, rules: int, free: int) -> None:
        """Go under Landlock's rules, open as `rules`, with its own folder in /proc to read."""
        from tenuto.keeper import landlock

        self._add(_OPEN, self._text(b"/proc/self"), os.O_PATH | os.O_CLOEXEC, wanted=free)
        rule = self._text(landlock.beneath(free))
        self._add(landlock.ADD_RULE, rules, landlock.PATH_BENEATH, rule)
        self._add(_CLOSE, free)
        self._add(_PRCTL, _PR_SET_NO_NEW_PRIVS, 1)
        self._add(landlock.RESTRICT_SELF, rules)
        self._add(_CLOSE, rules)

    def filter(self, program: bytes) -> None:
        """Go under a seccomp filter; nothing but the exec may follow."""
        from tenuto.keeper import seccomp

        head = seccomp.header(program, self._text(program))
        self._add(_PRCTL, _PR_SET_NO_NEW_PRIVS, 1)
        self._add(_PRCTL, _PR_SET_SECCOMP, 2, self._text(head))

    def execute(self, argv: list[str], environment: dict[str, str]) -> None:
        """Become the program."""
        self._about[len(self._steps)] = argv[0]
        words = [os.fsencode(word) for word in argv]
        pairs = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
        self._add(_EXECVE, self._text(words[0]), self._texts(words), self._texts(pairs))

    def run(self, group_fd: int) -> tuple[int, int, str]:
        """Start the child, in a control group unless that is -1; return its pid.

        With it come the errno that it met (0: none), and at what.
        """
        assert _spawn is not None
        steps = ctypes.create_string_buffer(b"".join(_STEP.pack(*step) for step in self._steps))
        flags = _VM | _VFORK | _CLEAR_SIGHAND | (_INTO_CGROUP if group_fd >= 0 else 0)
        how = _HOW.pack(flags, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, max(group_fd, 0))
        pid = _spawn(how, len(how), steps)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        for index, step in enumerate(self._steps):
            result = _STEP.unpack_from(steps, index * _STEP.size)[5]
            if result != step[5]:
                return pid, max(0, -result), self._about.get(index, "")
        return pid, 0, ""
