"""Starting keepers: from a fresh interpreter, or from a warm zygote that is this process's own."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Sequence

from tenuto.core.errors import EngineFault
from tenuto.dispatch.fresh import PACKAGES, FreshLauncher, hand_over, spawn

__all__ = ["FreshLauncher", "ZygoteLauncher"]


class ZygoteLauncher:
    """A warm image that forks keepers, a few of them ahead; replaced if it dies."""

    def __init__(self, ahead: int = 2, source: str = PACKAGES, image: Sequence[str] = ()) -> None:
        """Start the zygote now, so that the first job finds it warm; `image` is loaded in it."""
        self._image = image
        self._ahead = ahead
        self._source = source
        self._jobs: socket.socket | None = None
        self._lock = threading.Lock()
        self.restarts = -1
        self._start()

    def _start(self) -> None:
        if self._jobs is not None:
            self._jobs.close()
        self._jobs, pid = spawn(self._ahead, self._source, self._image)
        os.waitpid(pid, 0)
        self.restarts += 1

    @property
    def alive(self) -> bool:
        """Somebody is there to take a job."""
        jobs = self._jobs
        poller = select.poll()
        try:
            if jobs is None:
                return False
            poller.register(jobs, 0)  # only a hang-up is reported
        except ValueError:  # closed just now, by a start that replaces it
            return False
        return not poller.poll(0)

    def renew(self) -> None:
        """Start a new zygote in place of a dead one."""
        with self._lock:
            if not self.alive:
                self._start()

    def launch(self, job: bytes, tape_fd: int, dir_fd: int) -> socket.socket:
        """Hand the job over; only a zygote that never took it is replaced and asked again."""
        with self._lock:  # nobody may renew the socket while it is in use
            for _ in range(2):
                if self._jobs is None:
                    break
                try:
                    return hand_over(self._jobs, job, tape_fd, dir_fd)
                except ConnectionError:
                    self._start()
        raise EngineFault("no keeper can be started", "see what is wrong with: tenuto doctor")

    def close(self) -> None:
        """End the zygote; its keepers go on."""
        with self._lock:
            if self._jobs is not None:
                self._jobs.close()
                self._jobs = None
