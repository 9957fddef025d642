"""Where keepers come from: a warm image that forks them, or a fresh interpreter that becomes one.

Both take jobs the same way: a datagram on a socket pair, carrying four descriptors (the job as JSON
in memory, the locked tape, the folder, the starter's connection). Both have left their starter's tree
before this file is loaded (BOOT forks and lets the parent go), so that nobody who walks that tree finds
them. A zygote ends with its starter: when the far end closes, nobody is left to ask for keepers. A few
keepers are forked ahead and wait on the same socket, so that a job goes straight to one of them.
"""

from __future__ import annotations

import array
import gc
import os
import select
import signal
import socket

from tenuto.keeper import cgroup, linux, procfs
from tenuto.keeper.keeper import Keeper
from tenuto.keeper.loop import catch_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

TAKEN = b"t"
_FDS = 4


def main(arguments: list[str]) -> NoReturn:
    """Run as `zygote FD AHEAD`: AHEAD keepers are kept forked; 0 means to become the one keeper."""
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
        _fork_keepers(jobs, ahead)
    _keep(jobs, base, boot)


def _fork_keepers(jobs: socket.socket, ahead: int) -> None:
    """Stay here as the zygote, and return only in a forked keeper-to-be."""
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
                linux.set_name(procfs.IDLE_NAME)
                _Taken.fd = taken_write
                return
            idle.add(pid)
        for fd, _ in poller.poll():
            if fd == taken_read:
                idle.difference_update(array.array("i", os.read(taken_read, 4096)))
            elif fd != signal_read or signal.SIGTERM in os.read(signal_read, 4096):
                os._exit(0)
            else:
                idle.difference_update(_bury())


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


class _Taken:
    """Where a forked keeper says that it took a job."""

    fd = -1


def _keep(jobs: socket.socket, base: str, boot: str) -> NoReturn:
    """Wait for one job and keep it to its end."""
    keeper = Keeper(base, boot)
    size = array.array("i").itemsize * _FDS
    try:
        data, ancillary, _, _ = jobs.recvmsg(1, socket.CMSG_SPACE(size), socket.MSG_CMSG_CLOEXEC)
    except OSError:
        os._exit(1)
    if not data or not ancillary:
        keeper.child.discard()
        os._exit(0)
    if _Taken.fd >= 0:
        try:
            os.write(_Taken.fd, array.array("i", [os.getpid()]).tobytes())
        except BrokenPipeError:
            pass  # the zygote is gone; the job is taken all the same
        os.close(_Taken.fd)
    jobs.close()
    if os.getpid() != os.getsid(0):
        os.setsid()
    fds = array.array("i")
    fds.frombytes(ancillary[0][2][:size])
    job_fd, tape_fd, dir_fd, starter_fd = fds
    starter = socket.socket(fileno=starter_fd)
    linux.set_name(procfs.KEEPER_NAME)
    starter.send(TAKEN, socket.MSG_NOSIGNAL)  # from here on nobody may hand the job to another
    data = _contents(job_fd)
    status = 1
    try:
        keeper.take(data, tape_fd, dir_fd, starter)
        keeper.run()
        status = 0
    except BaseException:
        if path := os.environ.get("TENUTO_KEEPER_LOG"):
            _log(path)
    finally:
        os._exit(status)


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
