"""A keeper from a fresh interpreter. Light to import: `tenuto run` starts it before all else."""

from __future__ import annotations

import os
import socket
import sys

from tenuto.keeper.boot import BOOT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_JOBS_FD = 3
# Buffers of output stay in the heap between their uses: giving them back to the system and faulting
# them in again would cost more than everything else that is done with them.
_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "67108864",
    "MALLOC_TRIM_THRESHOLD_": "67108864",
    "MALLOC_ARENA_MAX": "1",  # the writer thread shares the heap: pages that every keeper would have
}
_PASSED_ON = ("PATH", "TENUTO_FAULT", "TENUTO_KEEPER_LOG", "TENUTO_KEEPER_FORKS")


def spawn(ahead: int, source: str, image: Sequence[str] = ()) -> tuple[socket.socket, int]:
    """Start an interpreter that takes jobs; return our end and the process to wait for."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", BOOT, source, str(_JOBS_FD), str(ahead), *image],
            {**_MEMORY, **{key: os.environ[key] for key in _PASSED_ON if key in os.environ}},
            file_actions=[(os.POSIX_SPAWN_DUP2, far.fileno(), _JOBS_FD)],
            setpgroup=0,  # a signal to our own group, such as an interrupt, is not for a keeper
            setsigmask=[],  # a keeper that inherits a blocked SIGCHLD never learns of an end
            setsigdef=list(range(1, 32)),
        )
    return near, pid


def hand_over(jobs: socket.socket, job: bytes, tape_fd: int, dir_fd: int) -> socket.socket:
    """Pass a job and its descriptors on; return our connection to whoever takes it."""
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

    def __init__(self, source: str = PACKAGES) -> None:
        """Take the folder that holds the keeper's package; tests pass an older one."""
        self._source = source
        self._ready: tuple[socket.socket, int] | None = None

    def prepare(self) -> None:
        """Start the interpreter already, while the caller still makes up its job."""
        if self._ready is None:
            self._ready = spawn(0, self._source)

    def launch(self, job: bytes, tape_fd: int, dir_fd: int) -> socket.socket:
        """Hand the job to the prepared interpreter, or to a new one."""
        self.prepare()
        assert self._ready is not None
        (jobs, pid), self._ready = self._ready, None
        with jobs:
            os.waitpid(pid, 0)
            return hand_over(jobs, job, tape_fd, dir_fd)

    def close(self) -> None:
        """Let a prepared interpreter go unused."""
        if self._ready is not None:
            (jobs, pid), self._ready = self._ready, None
            jobs.close()
            os.waitpid(pid, 0)
