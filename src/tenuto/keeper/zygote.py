"""Where keepers come from: a warm image that forks them, or a fresh interpreter that becomes one.

Both take jobs the same way: a datagram on a socket pair, carrying four descriptors (the job as JSON
in memory, the locked tape, the folder, the starter's connection). Both have left their starter's tree
before this file is loaded (BOOT forks and lets the parent go), so that nobody who walks that tree
finds them. A zygote ends with its starter: when the far end closes, nobody is left to ask for keepers.
A few keepers are forked ahead and wait on the same socket, so that a job goes straight to one of them;
one that has kept its execution to the end waits there again for a while, since forking and touching
memory for the first time is most of what a keeper costs.
"""

from __future__ import annotations

import array
import gc
import json
import os
import select
import signal
import socket

from tenuto.keeper import cgroup, faults, linux, procfs
from tenuto.keeper.child import load_image
from tenuto.keeper.keeper import Keeper
from tenuto.keeper.loop import catch_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

TAKEN = b"t"
_FDS = 4
_LINGER_S = 2.0
_JOBS_MOST = 100
_BREATH_MS = 1.0
_LONG_BREATH_MS = 50.0  # before what takes long to begin
_REHEARSALS = 12
_REHEARSAL_S = 10.0  # a hundred times what it takes
_LEAVE_ON = (signal.SIGALRM, signal.SIGTERM)  # while it waits: the next execution is not meant


def main(arguments: list[str]) -> NoReturn:
    """Run as `zygote FD AHEAD [MODULE PATH... [-- WORD...]]`: AHEAD keepers are kept forked.

    With 0 it becomes the one keeper. MODULE makes machines of stems; what it needs is loaded once,
    here, for all of them. With WORDs, it is told them, and each keeper is for one job of such a
    machine only, which it has begun before the job comes.
    """
    descriptor, ahead = int(arguments[0]), int(arguments[1])
    os.closerange(descriptor + 1, 1 << 16)  # whatever else our starter had open is not ours to hold
    os.setsid()
    os.chdir("/")
    catch_signals()
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    jobs = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    base = cgroup.find_base()
    boot = procfs.boot_id()
    if base:
        cgroup.join(base)
        cgroup.tidy(base)
    if ahead:
        __import__("tenuto.keeper.held")  # shared by the keepers that need it
    begun = bool(ahead and arguments[2:]) and _load(arguments[2:])
    if ahead and not faults.WANTED:
        _rehearse(base, boot)
    told = _fork_keepers(jobs, ahead) if ahead else -1
    _keep(_Post(jobs, told), base, boot, begun)


def _load(words: list[str]) -> bool:
    """Load the image; tell whether its machines are to be begun before there is a job."""
    end = words.index("--") if "--" in words else len(words)
    try:
        image = load_image(words[0], words[1:end])
        image.warm(rehearse=True)
        if words[end:]:
            image.expect(*words[end + 1 :])
    except Exception:
        return False  # the execution that needs it will say why it cannot be loaded
    return end < len(words)


def _rehearse(base: str, boot: str) -> None:
    """Keep a few executions of `true` to their end, before anybody is forked.

    Python writes into the code of a function for its first calls, to make the later ones faster. What
    is written here is shared by all keepers; what each would write for itself is a page of its own.
    """
    folder = f"/tmp/tenuto-{os.getpid()}-{os.urandom(8).hex()}"

    def give_up(_number: int, _frame: object) -> None:
        _remove(folder)
        os._exit(1)  # whoever waits for us starts another; nobody would ever end this one

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, _REHEARSAL_S)
    for _ in range(_REHEARSALS):
        try:
            os.mkdir(folder, 0o700)
            dir_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            tape_fd = os.memfd_create("tape", os.MFD_CLOEXEC)
            near, far = socket.socketpair()
            with near, far:
                job = {
                    "id": "rehearsal", "magic": "00" * 8, "next_seq": 1, "last_ns": 0,
                    "argv": ["/bin/true"], "cwd": "/", "env": dict(os.environ), "code": None,
                    "limits": {}, "pty": False, "deadline": None, "idle": None,
                }  # fmt: skip
                keeper = Keeper(base, boot)
                keeper.take(json.dumps(job).encode(), tape_fd, dir_fd, far)
                keeper.run()
                keeper.close()
            os.rmdir(folder)
        except Exception:
            _remove(folder)
            break  # it is only an exercise
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    linux.adopt_orphans(False)


def _remove(folder: str) -> None:
    """Remove a folder that was made for an exercise, with what may be in it."""
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        return


def _fork_keepers(jobs: socket.socket, ahead: int) -> int:
    """Stay here as the zygote; return only in a forked keeper, with where it tells how it stands."""
    linux.set_name(procfs.ZYGOTE_NAME)
    signal_read, signal_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(signal_write, warn_on_full_buffer=False)
    taken_read, taken_write = os.pipe2(os.O_CLOEXEC)
    gc.collect()
    gc.freeze()
    idle: set[int] = set()
    poller = select.poll()
    poller.register(taken_read, select.POLLIN)
    poller.register(signal_read, select.POLLIN)
    poller.register(jobs.fileno(), 0)  # only to learn that the starter is gone
    while True:
        while len(idle) < ahead:
            pid = os.fork()
            if pid == 0:
                os.close(taken_read)
                os.close(signal_read)
                os.close(signal_write)
                return taken_write
            idle.add(pid)
        for fd, _ in poller.poll():
            if fd == taken_read:
                _count(idle, array.array("i", os.read(taken_read, 4096)))
            elif fd != signal_read or signal.SIGTERM in os.read(signal_read, 4096):
                os._exit(0)
            else:
                idle.difference_update(_bury())


def _count(idle: set[int], told: array.array[int]) -> None:
    """Take what keepers told: their pid when they take a job, its negative when they wait again."""
    for pid in told:
        if pid > 0:
            idle.discard(pid)
        elif os.path.exists(f"/proc/{-pid}"):  # it may have died since, and be buried already
            idle.add(-pid)


def _bury() -> list[int]:
    """Reap and return the keepers that ended."""
    ended: list[int] = []
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append(pid)


class _LeftError(Exception):
    """No further job came while a keeper waited for one, or it was told to stop."""


class _Post:
    """Where a keeper gets its jobs, and tells the zygote (if it has one) how it stands."""

    def __init__(self, jobs: socket.socket, told: int) -> None:
        self._jobs = jobs
        self._told = told
        self._open = 0  # descriptors after the first execution; more after another would be a leak

    def next_job(self, linger: float) -> list[int] | None:
        """Return the descriptors of a job, or None once no more will come; 0 waits for ever."""
        linux.set_name(procfs.IDLE_NAME)
        size = array.array("i").itemsize * _FDS
        space = socket.CMSG_SPACE(size)
        try:
            before = [signal.signal(number, _leave) for number in _LEAVE_ON]
            if linger:
                signal.setitimer(signal.ITIMER_REAL, linger)
            data, ancillary, _, _ = self._jobs.recvmsg(1, space, socket.MSG_CMSG_CLOEXEC)
            if linger:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in zip(_LEAVE_ON, before, strict=True):
                signal.signal(number, handler)
        except (OSError, _LeftError):
            return None  # a job that came in this very moment ends with us, untaken: it is offered again
        if not data or not ancillary:
            return None
        self._tell(os.getpid())
        fds = array.array("i")
        fds.frombytes(ancillary[0][2][:size])
        return list(fds)

    def quiet(self, breath_ms: float) -> bool:
        """Wait a moment, and tell whether no job came: whoever waits for the last one goes first."""
        poller = select.poll()
        poller.register(self._jobs, select.POLLIN)
        return not poller.poll(breath_ms)

    def watch(self, keeper: Keeper) -> None:
        """Give the post up when the zygote dies: a job must not wait there for a busy keeper."""
        if self._told >= 0:
            keeper.loop.on(self._told, 0, lambda _: self._leave(keeper))
        else:
            self._jobs.close()

    def _leave(self, keeper: Keeper) -> None:
        keeper.loop.off(self._told)
        os.close(self._told)
        self._told = -1
        self._jobs.close()

    def again(self) -> bool:
        """Tell whether this process may take another job: with a zygote, and with nothing left open."""
        now = len(os.listdir("/proc/self/fd"))
        self._open = self._open or now
        return now == self._open and self._told >= 0 and self._tell(-os.getpid())

    def _tell(self, number: int) -> bool:
        if self._told < 0:
            return False
        try:
            os.write(self._told, array.array("i", [number]).tobytes())
        except BrokenPipeError:
            return False  # the zygote is gone; a job that is taken is taken all the same
        return True


def _keep(post: _Post, base: str, boot: str, begun: bool) -> NoReturn:
    """Keep one execution after the other to its end."""
    machine = begun
    for number in range(_JOBS_MOST):
        keeper = Keeper(base, boot)
        if machine and post.quiet(_LONG_BREATH_MS if begun else _BREATH_MS):
            keeper.fork_machine()
        fds = post.next_job(_LINGER_S if number else 0)
        if fds is None:
            keeper.child.discard()
            os._exit(0)
        try:
            _serve(keeper, post, fds)
        except BaseException:
            if path := os.environ.get("TENUTO_KEEPER_LOG"):
                _log(path)
            os._exit(1)
        wish = keeper.job.get("vm")  # those who run code go on with it
        machine = wish is not None and not wish.get("fresh")
        if begun or not post.again():
            break
    os._exit(0)


def _leave(_number: int, _frame: object) -> None:
    raise _LeftError


def _serve(keeper: Keeper, post: _Post, fds: list[int]) -> None:
    if os.getpid() != os.getsid(0):
        os.setsid()
    job_fd, tape_fd, dir_fd, starter_fd = fds
    starter = socket.socket(fileno=starter_fd)
    linux.set_name(procfs.KEEPER_NAME)
    try:
        starter.send(TAKEN, socket.MSG_NOSIGNAL)  # from here on nobody may hand the job to another
    except OSError:  # the starter died or gave up: nobody asks for this any more
        keeper.child.discard()
        os._exit(0)
    post.watch(keeper)
    keeper.take(_contents(job_fd), tape_fd, dir_fd, starter)
    keeper.run()
    keeper.close()


def _contents(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    data = b""
    while len(data) < size:
        data += os.pread(fd, size - len(data), len(data))
    os.close(fd)
    return data


def _log(path: str) -> None:
    import traceback  # only for whoever debugs a keeper

    with open(path, "a", encoding="utf-8") as file:
        traceback.print_exc(file=file)
