"""A project of its own for a benchmark: nothing of it is left afterwards, and that is checked.

Every process that is started here, zygotes and keepers too, inherits a variable that names this
place and nothing else: by it they are found, whatever became of their parents.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence

from tenuto.core.ports import Dispatcher
from tenuto.dispatch.launch import FreshLauncher
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.engine import Engine
from tenuto.engine.settings import Settings
from tenuto.stores.layout import Project, find_project

_MARK = "TENUTO_KEEPER_LOG"  # one of the few variables that a keeper is given
_UNSET = ("TENUTO_HOME", "TENUTO_EXECUTION", "TENUTO_FAULT")
_PATIENCE_S = 20.0


class LeftOver(Exception):
    """Something that a benchmark started is still there, or a keeper of it failed."""


class Place:
    """A temporary folder with a project in it and the environment that leads there."""

    def __init__(self) -> None:
        """Make the folders."""
        self.base = os.path.realpath(tempfile.mkdtemp(prefix="tenuto-bench-"))
        self.folder = os.path.join(self.base, "project")
        self.log = os.path.join(self.base, "keeper.log")
        os.mkdir(self.folder)
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> Place:
        wanted = {"XDG_STATE_HOME": os.path.join(self.base, "state"), _MARK: self.log}
        for name in (*wanted, *_UNSET):
            self._before[name] = os.environ.pop(name, None)
        os.environ.update(wanted)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        try:
            self.sweep()
            faults = self.faults()
        finally:
            shutil.rmtree(self.base, ignore_errors=True)
        if os.path.exists(self.base):
            raise LeftOver(f"{self.base} could not be removed")
        if faults and kind is None:
            raise LeftOver(f"a keeper failed: {faults[-2000:]}")

    def engine(self, settings: Settings | None = None) -> Engine:
        """Return the async engine of this project, closed still."""
        return Engine(self.folder, settings=settings or Settings())

    def blocking(self, launcher: Dispatcher | None = None) -> BlockingEngine:
        """Return the blocking engine of this project."""
        return BlockingEngine(self.project, Settings(), launcher or FreshLauncher())

    @property
    def project(self) -> Project:
        """The project itself."""
        return find_project(self.folder, os.environ)

    def faults(self) -> str:
        """Return what keepers wrote about their own failures."""
        try:
            with open(self.log, encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def processes(self, name: str = "") -> list[int]:
        """Return every live process that was started here, or those of one name."""
        found = carriers(_MARK, self.log)
        return [pid for pid in found if name_of(pid) == name] if name else found

    def sweep(self) -> int:
        """End whatever still runs, one by one, and return how many there were."""
        ended: set[int] = set()
        limit = time.monotonic() + _PATIENCE_S
        while alive := self.processes():
            if time.monotonic() > limit:
                raise LeftOver(f"still alive after SIGKILL: {alive}")
            end_all(alive)
            ended.update(alive)
            time.sleep(0.005)
        return len(ended)


def carriers(variable: str, value: str) -> list[int]:
    """Return the live processes, but for ourselves, that were started with a variable set so."""
    wanted = f"{variable}={value}".encode()
    own = os.getpid()
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) != own:
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                continue
    return found


def name_of(pid: int) -> str:
    """Return a process's short name."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def end_all(pids: Sequence[int]) -> None:
    """Send SIGKILL to each of them."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def memory(pid: int, file_name: str, field: str) -> int:
    """Return a field of /proc/PID/status or smaps_rollup in bytes, or 0 once it is gone."""
    try:
        with open(f"/proc/{pid}/{file_name}", encoding="ascii", errors="replace") as file:
            for text in file:
                if text.startswith(f"{field}:"):
                    return int(text.split()[1]) * 1024
    except OSError:
        pass
    return 0
