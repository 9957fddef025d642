"""Deno processes held ready: made at the first use of that engine, so that nobody else pays for them."""

from __future__ import annotations

import threading

from tenuto.codemode.job import DENO_MODULE, deno_image
from tenuto.dispatch.launch import ZygoteLauncher
from tenuto.engine.settings import Settings
from tenuto.engine.work import Work


class DenoPool:
    """A zygote of its own, whose keepers begin their deno process before they have a job."""

    def __init__(self, settings: Settings) -> None:
        """Make nothing yet."""
        self._settings = settings
        self._lock = threading.Lock()
        self._launcher: ZygoteLauncher | None = None
        self._words: list[str] = []

    def launcher(self, work: Work) -> ZygoteLauncher | None:
        """Return who starts this work with a process that is ready; None if it is not for us.

        The first work of this kind is not served from here: to wait until the first process is ready
        would take longer than to start one for it.
        """
        if work.vm is None or work.vm["module"] != DENO_MODULE or not self._settings.deno_ahead:
            return None
        if work.vm["memory"] != self._settings.code_memory or work.vm["off"]:
            return None  # made to another measure
        words = deno_image(work.vm)
        with self._lock:
            if self._launcher is None or self._words != words:
                if self._launcher is not None:
                    self._launcher.close()
                self._launcher = ZygoteLauncher(self._settings.deno_ahead, image=words)
                self._words = words
                return None
            return self._launcher

    def close(self) -> None:
        """Let the processes go that nobody used."""
        with self._lock:
            if self._launcher is not None:
                self._launcher.close()
                self._launcher = None
