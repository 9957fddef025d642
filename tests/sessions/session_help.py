"""What the session tests share: the command line, and finding the processes of a session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine_help import PATIENCE, alive, folded

from tenuto import Engine, Snapshot
from tenuto.stores.layout import Project


class Line:
    """Runs `tenuto` as a real process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.argv = [sys.executable, "-m", "tenuto.cli.main"]

    def __call__(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.argv, *words],
            cwd=self.folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def popen(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.argv, *words],
            cwd=self.folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def json(self, *words: str) -> Any:
        return json.loads(self("--json", *words).stdout)


class Python:
    """Runs Python cells in one session."""

    def __init__(self, engine: Engine, name: str = "s1") -> None:
        self.engine = engine
        self.name = name

    async def run(self, code: str, **options: Any) -> Snapshot:
        options = {"language": "python", "session": self.name, "wait": PATIENCE, **options}
        return await self.engine.run(code, **options)

    async def value(self, code: str, **options: Any) -> Any:
        snapshot = await self.run(code, **options)
        assert snapshot, (snapshot.state, snapshot.reason, snapshot.detail, snapshot.output)
        return snapshot.value

    async def start(self, code: str, **options: Any) -> str:
        options = {"language": "python", "session": self.name, **options}
        return await self.engine.start(code, **options)


def processes(project: Project, execution_id: str) -> tuple[int, int]:
    """Return the keeper and the main process of an execution."""
    started = folded(project, execution_id).started
    assert started is not None
    return started.keeper_pid, started.pid


def all_dead(*pids: int) -> bool:
    return not any(alive(pid) for pid in pids)
