"""What the tests of the deno engine share."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine_help import events_of

from tenuto import Engine, Snapshot
from tenuto.keeper import procfs
from tenuto.stores.layout import Project

FULL = "permissions+landlock+seccomp+rlimits"

OWN_MEMORY = (100 + os.getpid() % 400) << 20
"""By this the processes of an engine are told from those of other tests on the machine."""


async def deno(engine: Engine, code: str, language: str = "js", **options: Any) -> Snapshot:
    """Run code to its end."""
    snapshot = await engine.run(code, language=language, engine="deno", **{"wait": 60, **options})
    assert snapshot.done, (snapshot.state, snapshot.output)
    return snapshot


async def value_of(engine: Engine, code: str, language: str = "js", **options: Any) -> Any:
    snapshot = await deno(engine, code, language, **options)
    assert snapshot, (snapshot.reason, snapshot.detail, snapshot.output)
    return snapshot.value


def command_line(
    folder: Path, *words: str, text: str = "", python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "tenuto.cli.main", "run", "--engine", "deno", *words],
        cwd=folder, env={**os.environ, **environment}, input=text,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def raised(project: Project, execution_id: str) -> dict[str, Any]:
    """Return the one event that tells what the code threw."""
    (found,) = events_of(project, execution_id, "raised")
    return found


async def ready_process() -> int:
    """Return a deno process of an engine with OWN_MEMORY that waits for a job, once there is one."""
    flag = f"--max-old-space-size={OWN_MEMORY >> 20} "
    while True:
        for pid in procfs.all_pids():
            command = procfs.command(pid) + " "
            if command.startswith("deno run") and flag in command and _reads(pid):
                return pid
        await asyncio.sleep(0.02)


def _reads(pid: int) -> bool:
    """Tell whether its main thread waits in a read of its stdin."""
    try:
        return Path(f"/proc/{pid}/syscall").read_text().startswith("0 0x0 ")
    except OSError:
        return False
