"""The main process: forked ahead of its job, given it over a line, and dead with its keeper.

Forking is the slow part of starting a program, and it does not depend on the program: a *stem* (our
fork, in its own session and group, its descriptors in place) waits for the words to exec.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import termios

from tenuto.keeper import cgroup, frames, linux, procfs
from tenuto.keeper.stdin import Stdin

TYPE_CHECKING = False  # as type checkers know it: importing typing would cost each keeper 10 ms
if TYPE_CHECKING:
    from typing import Any, NoReturn

_PIPE_SIZE = 1024 * 1024
_CHANNEL_FD = 3
_CAUGHT = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Child:
    """The main process, before and after it has its program, and our ends of its descriptors.

    `channel` is its line to us: the words to exec come over it, then, for code, the runner's messages.
    """

    def __init__(self, base: str, terminal: tuple[int, int, bool] | None = None) -> None:
        """Fork the stem; `base` is where its control group can be made, `terminal` rows, cols, echo."""
        self.outputs: dict[int, int] = {}
        self.terminal = terminal is not None
        self.group = cgroup.create(base) if base else ""
        stdio = self._terminal(*terminal) if terminal else self._pipes()
        self.channel, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        group_fd = -1
        if self.group:
            group_fd = os.open(self.group, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        keeper = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _CAUGHT)  # what comes early is for the program
        self.pid, inside = linux.fork(group_fd)
        if self.pid == 0:
            join = "" if inside else self.group
            _be_stem([*stdio, far.fileno()], terminal is not None, join, keeper)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _CAUGHT)
        for fd in {group_fd, *stdio}:
            if fd >= 0:
                os.close(fd)
        far.close()
        self.start = procfs.start_time(self.pid)

    def _pipes(self) -> list[int]:
        in_read, in_write = os.pipe2(os.O_CLOEXEC)
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        for fd in (out_read, err_read):
            os.set_blocking(fd, False)
        self.stdin = Stdin(in_write, os.fstat(in_read), terminal=False)
        self.outputs[out_read] = frames.OUT
        self.outputs[err_read] = frames.ERR
        return [in_read, out_write, err_write]

    def _terminal(self, rows: int, cols: int, echo: bool) -> list[int]:
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        modes = termios.tcgetattr(slave)
        modes[1] &= ~termios.OPOST  # output as written, no carriage returns added
        if not echo:
            modes[3] &= ~termios.ECHO  # what is sent is not output, unless somebody types it
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        self.stdin = Stdin(master, os.fstat(slave), terminal=True)
        self.outputs[master] = frames.OUT
        return [slave, slave, slave]

    def waits(self) -> bool:
        """Tell whether the stem still waits for its words; somebody may have killed it."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def discard(self) -> None:
        """End a stem that is not needed after all."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.channel.close()
        self.stdin.close()
        for fd in self.outputs:
            os.close(fd)
        if self.group:
            cgroup.remove(self.group)

    def unread(self, fd: int) -> int:
        """Return how many bytes of output are in a pipe."""
        count = array.array("i", [0])
        fcntl.ioctl(fd, termios.FIONREAD, count)
        return count[0]

    def widen(self, fd: int) -> None:
        """Give a pipe that carries a lot more room; the system may refuse."""
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        except OSError:
            return

    def resize(self, rows: int, cols: int) -> None:
        """Tell the terminal its size."""
        for fd in self.outputs:
            fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def _be_stem(theirs: list[int], terminal: bool, join: str, keeper: int) -> NoReturn:
    """Put the descriptors in place, wait for the words, exec. Never returns."""
    try:
        linux.set_name(procfs.STEM_NAME)
        signal.set_wakeup_fd(-1)
        high = max(theirs) + 10
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, high) for fd in theirs]
        for target, fd in enumerate(moved):
            os.dup2(fd, target, inheritable=target < _CHANNEL_FD)
        os.closerange(
            _CHANNEL_FD + 1, 1 << 16
        )  # the tape's lock and the zygote's socket among them
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(127)
        os.setsid()
        if join:
            cgroup.join(join)
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        _exec(json.loads(_words()))
    except BaseException as error:
        code = error.errno if isinstance(error, OSError) else 0
        message = {"type": "exec_failed", "errno": code or 0, "text": str(error)[:1000]}
        os.write(_CHANNEL_FD, json.dumps(message).encode() + b"\n")
    finally:
        os._exit(127)


def _words() -> bytes:
    """Read what to become, or end quietly if nobody will ever say."""
    (size,) = struct.unpack("<I", _exactly(4))
    return _exactly(size)


def _exactly(size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.read(_CHANNEL_FD, min(size, 1 << 20))
        if not part:
            os._exit(127)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _exec(words: dict[str, Any]) -> None:
    environment: dict[str, str] = words["env"]
    environment[procfs.MARK] = words["id"]
    if words["code"] is not None:
        environment["TENUTO_CHANNEL"] = str(_CHANNEL_FD)
        os.set_inheritable(_CHANNEL_FD, True)
    os.chdir(words["cwd"])
    _limit(words["limits"] or {})
    for number in _CAUGHT:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _CAUGHT)
    os.execve(words["argv"][0], words["argv"], environment)


def _limit(limits: dict[str, Any]) -> None:
    """Set what plain resource limits can hold."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if limits.get("memory"):
        _cap(resource.RLIMIT_DATA, int(limits["memory"]))
    if limits.get("cpu"):
        soft = max(1, int(-(-float(limits["cpu"]) // 1)))
        _cap(resource.RLIMIT_CPU, soft, soft + 1)
    if limits.get("file_size"):
        _cap(resource.RLIMIT_FSIZE, int(limits["file_size"]))
    if limits.get("open_files"):
        _cap(resource.RLIMIT_NOFILE, int(limits["open_files"]))


def _cap(which: int, soft: int, hard: int | None = None) -> None:
    _, ceiling = resource.getrlimit(which)
    top = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        top = min(top, ceiling)
    resource.setrlimit(which, (min(soft, top), top))
