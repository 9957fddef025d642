"""The main process and our ends of its descriptors: given its program, and dead with its keeper.

A plain program is spawned without a copy of us (spawn.py). Whatever needs Python between fork and
exec is a *stem* first: our fork, in its own session and group, its descriptors in place, which is
told over the channel what to become.
"""

from __future__ import annotations

import array
import fcntl
import json
import marshal
import os
import resource
import signal
import socket
import struct
import sys
import termios
from collections.abc import Callable

from tenuto.keeper import cell, cgroup, frames, linux, procfs, spawn
from tenuto.keeper.stdin import Stdin

TYPE_CHECKING = False  # as type checkers know it: importing typing would cost each keeper 10 ms
if TYPE_CHECKING:
    from typing import Any, NoReturn

_PIPE_SIZE = 1024 * 1024
_CHANNEL_FD = 3
_MACHINE = b"machine"  # before words that are no JSON
_MACHINE_FIELDS = ("vm", "limits", "functions", "tools")
_CAUGHT = (1, 2, 15)  # SIGHUP, SIGINT, SIGTERM
# The module behind `signal`, which makes enums of all it returns and so touches many pages.
_signal: Any = sys.modules["_signal"]
_mask = _signal.pthread_sigmask


class Child:
    """The main process, before and after it has its program, and our ends of its descriptors.

    `channel` is its line to us, if it has one: a stem is told over it what to become, and a
    language's runner takes the code and sends its messages.
    """

    image = ""  # the module that makes machines of stems, once it is loaded here

    def __init__(self, base: str) -> None:
        """Make what does not depend on the program; `base` is where its control group can be made."""
        self.outputs: dict[int, int] = {}
        self.terminal = False
        self.channel: socket.socket | None = None
        self.exec_error: tuple[int, str] | None = None
        self.pid = self.start = 0
        self._ahead = False
        self.group = cgroup.create(base) if base else ""
        self._group_fd = -1
        if self.group:
            self._group_fd = os.open(self.group, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._theirs = self._pipes()

    def begin(self, job: dict[str, Any], alone: Callable[[], None]) -> bool:
        """Start the program, or a stem that waits to be told of it: then return True.

        `alone` returns once no other thread of ours can hold a lock that the stem's copy would need.
        """
        # a cell and a machine need a stem, and so do some confinements
        plain = not job.get("cell") and not job.get("vm") and not job.get("stem")
        spawned = True
        try:
            if job.get("pty"):
                self._on_terminal(job)
            if self._suits(job):
                spawned = False
            else:
                spawned = plain and spawn.AVAILABLE and self._spawn(job)
                if not spawned:
                    alone()
                    self._fork()
        except OSError as error:  # too many processes, no terminal left, no memory: there is no pid
            text = f"no process could be made for it: {error.strerror}"
            self.exec_error = (error.errno or 0, text)
        for fd in {self._group_fd, *self._theirs}:
            if fd >= 0:
                os.close(fd)
        self._theirs, self._group_fd = [], -1
        self.start = procfs.start_time(self.pid) if self.pid else 0
        return not spawned and self.pid != 0

    def machine_ahead(self) -> None:
        """Fork a stem that is a machine already but for its code; nobody else may run here now."""
        if self.image:
            self._ahead = True
            self._fork(machine=True)

    def _suits(self, job: dict[str, Any]) -> bool:
        """Tell whether the job is for the stem that was forked ahead; if it is not, end that one."""
        if not self._ahead:
            return False
        self._ahead = False
        wish: dict[str, Any] = job.get("vm") or {}
        alive = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        ours = bool(wish) and wish["module"] == self.image
        if alive and ours and not wish.get("off") and not wish.get("fresh"):
            return True
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        assert self.channel is not None
        self.channel.close()
        self.channel, self.pid = None, 0
        os.close(self._theirs.pop())
        return False

    def move(self, group: str) -> None:
        """Have it begin in another control group than the one that was made for it."""
        self._suits({})  # one that was forked ahead is in there
        if self._group_fd >= 0:
            os.close(self._group_fd)
        if self.group:
            cgroup.remove(self.group)
        self.group = group
        self._group_fd = os.open(group, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _spawn(self, job: dict[str, Any]) -> bool:
        if job["code"] is not None or job.get("confine"):
            self._open_channel()
        places = self._theirs if job["code"] is not None else self._theirs[:_CHANNEL_FD]
        inside = None
        if job.get("confine"):
            from tenuto.keeper.confine import Entry  # few need it

            try:
                inside = Entry(job, self._theirs[-1], len(places))
            except OSError:
                return False  # a stem meets the same, and tells
        steps = spawn.Steps()
        steps.place([*places, *inside.descriptors] if inside else places)
        if self.terminal:
            steps.control_terminal(termios.TIOCSCTTY)
        steps.enter(job["cwd"])
        for which, soft, hard in _bounds(job.get("rlimits") or job["limits"] or {}):
            steps.limit(which, soft, hard)
        if inside:
            inside.add(steps)
        steps.execute(inside.argv if inside else job["argv"], _environment(job))
        try:
            self.pid, code, about = steps.run(self._group_fd)
        except OSError:  # a system that does not know the call, or forbids it
            return False
        finally:
            if inside:
                inside.close()
        if code:
            self.exec_error = (code, f"{os.strerror(code)}: {(about or job['argv'][0])!r}")
        return True

    def _fork(self, machine: bool = False) -> None:
        self._open_channel()
        keeper = os.getpid()
        _mask(_signal.SIG_BLOCK, _CAUGHT)  # what comes early is for the program
        try:
            self.pid, inside = linux.fork(self._group_fd)
            if self.pid == 0:
                join = "" if inside else self.group
                _be_stem(self._theirs, self.terminal, join, keeper, self.image if machine else "")
        finally:
            _mask(_signal.SIG_UNBLOCK, _CAUGHT)

    def _open_channel(self) -> None:
        if self.channel is None:
            self.channel, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            self._theirs.append(far.detach())

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

    def _on_terminal(self, job: dict[str, Any]) -> None:
        """Give it a terminal instead of pipes."""
        master, slave = os.openpty()
        self._close_ends()
        self.outputs.clear()
        rows, cols = int(job.get("rows") or 24), int(job.get("cols") or 80)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        modes = termios.tcgetattr(slave)
        modes[1] &= ~termios.OPOST  # output as written, no carriage returns added
        if not job.get("echo"):
            modes[3] &= ~termios.ECHO  # what is sent is not output, unless somebody types it
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        self.stdin = Stdin(master, os.fstat(slave), terminal=True)
        self.outputs[master] = frames.OUT
        self.terminal = True
        self._theirs = [slave, slave, slave]

    def dead(self) -> bool:
        """Tell whether it has ended; it may not be reaped yet."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def discard(self) -> None:
        """Let go of what was made for a program that never came."""
        self._suits({})
        self._close_ends()
        if self._group_fd >= 0:
            os.close(self._group_fd)
        if self.group:
            cgroup.remove(self.group)

    def _close_ends(self) -> None:
        self.stdin.close()
        for fd in {*self.outputs, *self._theirs}:
            os.close(fd)

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


def _be_stem(theirs: list[int], terminal: bool, join: str, keeper: int, image: str) -> NoReturn:
    """Put the descriptors in place, wait for the words, exec. Never returns.

    With an image, it is a machine before it waits.
    """
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
        if image:
            _mask(_signal.SIG_UNBLOCK, _CAUGHT)
            sys.modules[image].harden()
            sys.modules[image].rest()
        words = _words()
        if words.startswith(_MACHINE):
            _be_machine(marshal.loads(words[len(_MACHINE) :]))
        _exec(json.loads(words))
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


def machine_words(job: dict[str, Any]) -> bytes:
    """Return what a machine is told: no more of the job than it needs, and quick to read."""
    return _MACHINE + marshal.dumps({name: job.get(name) for name in _MACHINE_FIELDS})


def load_image(module: str, paths: list[str]) -> Any:
    """Return the module that makes machines of stems, which is not the keeper's own."""
    sys.path += [path for path in paths if path not in sys.path]
    __import__(module)
    Child.image = module
    return sys.modules[module]


def _be_machine(words: dict[str, Any]) -> None:
    """Become a machine that runs code in this very process, instead of a program."""
    _mask(_signal.SIG_UNBLOCK, _CAUGHT)
    load_image(words["vm"]["module"], words["vm"]["paths"]).run(words)


def _exec(words: dict[str, Any]) -> None:
    if words.get("cell"):
        cell.run(words)
    environment = _environment(words)
    if words["code"] is not None:
        os.set_inheritable(_CHANNEL_FD, True)
    os.chdir(words["cwd"])
    for which, soft, hard in _bounds(words.get("rlimits") or words["limits"] or {}):
        resource.setrlimit(which, (soft, hard))
    for number in _CAUGHT:
        signal.signal(number, signal.SIG_DFL)
    if words.get("confine"):
        from tenuto.keeper import confine

        confine.enter(words["confine"], _CHANNEL_FD)
        words["argv"] = confine.argv(words, _CHANNEL_FD + 1)
    _mask(_signal.SIG_UNBLOCK, _CAUGHT)
    os.execve(words["argv"][0], words["argv"], environment)


def _environment(words: dict[str, Any]) -> dict[str, str]:
    environment: dict[str, str] = words["env"]
    environment[procfs.MARK] = words["id"]
    if words["code"] is not None:
        environment["TENUTO_CHANNEL"] = str(_CHANNEL_FD)
    return environment


def _bounds(limits: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Return what plain resource limits can hold, as (which, soft, hard)."""
    found = [(resource.RLIMIT_CORE, 0, resource.getrlimit(resource.RLIMIT_CORE)[1])]
    if limits.get("memory"):
        found.append(_bound(resource.RLIMIT_DATA, int(limits["memory"])))
    if limits.get("cpu"):
        soft = max(1, int(-(-float(limits["cpu"]) // 1)))
        found.append(_bound(resource.RLIMIT_CPU, soft, soft + 1))
    if limits.get("file_size"):
        found.append(_bound(resource.RLIMIT_FSIZE, int(limits["file_size"])))
    if limits.get("open_files"):
        found.append(_bound(resource.RLIMIT_NOFILE, int(limits["open_files"])))
    return found


def _bound(which: int, soft: int, hard: int | None = None) -> tuple[int, int, int]:
    _, ceiling = resource.getrlimit(which)
    top = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        top = min(top, ceiling)
    return which, min(soft, top), top
