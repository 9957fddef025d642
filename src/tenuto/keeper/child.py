"""Starts the main process: descriptors, terminal, limits, group, and death with its keeper."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import struct
import termios
from typing import Any

from tenuto.keeper import cgroup, frames, linux, procfs
from tenuto.keeper.stdin import Stdin

_PIPE_SIZE = 1024 * 1024
_CHANNEL_FD = 3
_RESET = (
    signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ
)  # fmt: skip


class Child:
    """The main process and our ends of what it was given."""

    def __init__(self, job: dict[str, Any], group: str, keep_out: tuple[int, ...]) -> None:
        """Fork and exec; `keep_out` are descriptors that the fork must drop before anything else."""
        self.outputs: dict[int, int] = {}
        self.channel: socket.socket | None = None
        self.group = group
        theirs, slave = self._descriptors(job)
        code: str | None = job.get("code")
        far: socket.socket | None = None
        if code is not None:
            self.channel, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.error_fd, error_far = os.pipe2(os.O_CLOEXEC)
        keeper = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            for fd in keep_out:
                os.close(fd)
            _become(job, theirs, slave, far, group, keeper, error_far)
        os.close(error_far)
        for fd in set(theirs):
            os.close(fd)
        if far is not None:
            far.close()
        self.start = procfs.start_time(self.pid)

    def _descriptors(self, job: dict[str, Any]) -> tuple[tuple[int, int, int], int]:
        """Return the child's stdin, stdout, stderr and, with a terminal, its slave side."""
        if job.get("pty"):
            master, slave = os.openpty()
            size = struct.pack("HHHH", int(job.get("rows") or 24), int(job.get("cols") or 80), 0, 0)
            fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
            modes = termios.tcgetattr(slave)
            modes[1] &= ~termios.OPOST  # output as written, no carriage returns added
            modes[3] &= ~termios.ECHO  # what is sent is not output
            termios.tcsetattr(slave, termios.TCSANOW, modes)
            self.stdin = Stdin(master, os.fstat(slave), terminal=True)
            self.outputs[master] = frames.OUT
            return (slave, slave, slave), slave
        in_read, in_write = os.pipe2(os.O_CLOEXEC)
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        for fd in (out_read, err_read):
            os.set_blocking(fd, False)
        self.stdin = Stdin(in_write, os.fstat(in_read), terminal=False)
        self.outputs[out_read] = frames.OUT
        self.outputs[err_read] = frames.ERR
        return (in_read, out_write, err_write), -1

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


def _become(
    job: dict[str, Any],
    stdio: tuple[int, int, int],
    slave: int,
    channel: socket.socket | None,
    group: str,
    keeper: int,
    error_fd: int,
) -> None:
    """Turn the forked process into the program; never returns."""
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in _RESET:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if group:
            cgroup.join(group)
        if slave >= 0:
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        environment = dict(job["env"])
        kept = [os.dup(fd) for fd in stdio]
        if channel is not None:
            environment["TENUTO_CHANNEL"] = str(_CHANNEL_FD)
            kept.append(os.dup(channel.fileno()))
        high = max(*kept, error_fd) + 10
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, high) for fd in kept]
        error_fd = fcntl.fcntl(error_fd, fcntl.F_DUPFD_CLOEXEC, high)
        for target, fd in enumerate(moved):
            os.dup2(fd, target)
        os.chdir(job["cwd"])
        _limit(job.get("limits") or {})
        os.execve(job["argv"][0], job["argv"], environment)
    except BaseException as error:
        code = error.errno if isinstance(error, OSError) else 0
        os.write(error_fd, f"{code or 0} {error}".encode()[:4096])
    finally:
        os._exit(127)


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
