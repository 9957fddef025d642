"""Starting keepers: from a fresh interpreter, or from a warm zygote that belongs to this process."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
from typing import Protocol

from tenuto.core.errors import EngineFault
from tenuto.keeper.zygote import BOOT

_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_JOBS_FD = 3


class Launcher(Protocol):
    """Hands a job to a keeper that did not exist before."""

    def launch(self, job: bytes, tape_fd: int, dir_fd: int) -> socket.socket:
        """Return our connection to the keeper that took the job, watching from the first frame."""
        ...

    def close(self) -> None:
        """Let go; keepers go on."""
        ...


def _spawn(ahead: int, source: str) -> tuple[socket.socket, int]:
    """Start an interpreter that takes jobs; return our end and the process to wait for."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", BOOT, source, str(_JOBS_FD), str(ahead)],
            {key: os.environ[key] for key in ("PATH", "TENUTO_FAULT", "TENUTO_KEEPER_LOG") if key in os.environ},
            file_actions=[(os.POSIX_SPAWN_DUP2, far.fileno(), _JOBS_FD)],
            setsigdef=list(range(1, 32)),
        )
    return near, pid


def _hand_over(jobs: socket.socket, job: bytes, tape_fd: int, dir_fd: int) -> socket.socket:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    memory = os.memfd_create("tenuto-job", os.MFD_CLOEXEC)
    try:
        view = memoryview(job)
        while view:
            view = view[os.write(memory, view) :]
        with far:
            socket.send_fds(jobs, [b"j"], [memory, tape_fd, dir_fd, far.fileno()])
    except BaseException:
        near.close()
        raise
    finally:
        os.close(memory)
    return near


class FreshLauncher:
    """One new interpreter per keeper: nothing to keep warm, for short-lived callers."""

    def __init__(self, source: str = _PACKAGES) -> None:
        """Take the folder that holds the keeper's package; tests pass an older one."""
        self._source = source
        self._ready: tuple[socket.socket, int] | None = None

    def prepare(self) -> None:
        """Start the interpreter already, while the caller still makes up its job."""
        if self._ready is None:
            self._ready = _spawn(0, self._source)

    def launch(self, job: bytes, tape_fd: int, dir_fd: int) -> socket.socket:
        """Hand the job to the prepared interpreter, or to a new one."""
        self.prepare()
        assert self._ready is not None
        (jobs, pid), self._ready = self._ready, None
        with jobs:
            os.waitpid(pid, 0)
            return _hand_over(jobs, job, tape_fd, dir_fd)

    def close(self) -> None:
        """Let a prepared interpreter go unused."""
        if self._ready is not None:
            (jobs, pid), self._ready = self._ready, None
            jobs.close()
            os.waitpid(pid, 0)


class ZygoteLauncher:
    """A warm image that forks keepers, a few of them ahead; replaced if it dies."""

    def __init__(self, ahead: int = 2, source: str = _PACKAGES) -> None:
        """Start the zygote now, so that the first job finds it warm."""
        self._ahead = ahead
        self._source = source
        self._jobs: socket.socket | None = None
        self._lock = threading.Lock()
        self.restarts = -1
        self._start()

    def _start(self) -> None:
        if self._jobs is not None:
            self._jobs.close()
        self._jobs, pid = _spawn(self._ahead, self._source)
        os.waitpid(pid, 0)
        self.restarts += 1

    @property
    def alive(self) -> bool:
        """Somebody is there to take a job."""
        if self._jobs is None:
            return False
        poller = select.poll()
        poller.register(self._jobs, 0)  # only a hang-up is reported
        return not poller.poll(0)

    def renew(self) -> None:
        """Start a new zygote in place of a dead one."""
        with self._lock:
            if not self.alive:
                self._start()

    def launch(self, job: bytes, tape_fd: int, dir_fd: int) -> socket.socket:
        """Hand the job over; only a zygote that never took it is replaced and asked again."""
        for _ in range(2):
            if self._jobs is None:
                break
            try:
                return _hand_over(self._jobs, job, tape_fd, dir_fd)
            except ConnectionError:
                self.renew()
        raise EngineFault("no keeper can be started", "see what is wrong with: tenuto doctor")

    def close(self) -> None:
        """End the zygote; its keepers go on."""
        if self._jobs is not None:
            self._jobs.close()
            self._jobs = None
