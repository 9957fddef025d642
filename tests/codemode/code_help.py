"""What the code-mode tests share: tapes, processes, and an engine's own image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tenuto import Engine, Snapshot
from tenuto.engine.recover import load
from tenuto.keeper.frames import EVENT, Frame
from tenuto.stores.layout import Project
from tenuto.stores.tape import TapeReader

FULL = "landlock+seccomp+rlimits"


def tape(project: Project, execution_id: str) -> list[Frame]:
    with TapeReader(project.folder(execution_id)) as reader:
        return list(reader.frames())


def events(project: Project, execution_id: str, kind: str) -> list[dict[str, Any]]:
    found = [msgspec.json.decode(f.body) for f in tape(project, execution_id) if f.stream == EVENT]
    return [event for event in found if event["type"] == kind]


def keeper_pid(project: Project, execution_id: str) -> int:
    execution = load(project, execution_id)
    assert execution is not None and execution.started is not None
    return execution.started.keeper_pid


def main_pid(project: Project, execution_id: str) -> int:
    execution = load(project, execution_id)
    assert execution is not None and execution.started is not None
    return execution.started.pid


def status_of(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text()
    return dict(line.split(":", 1) for line in text.splitlines())


def private_bytes(pid: int) -> int:
    """What is this process's alone."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1]) * 1024
    return total


async def js(engine: Engine, code: str, **options: Any) -> Snapshot:
    """Run JavaScript to its end."""
    snapshot = await engine.run(code, language="js", **{"wait": 60, **options})
    assert snapshot.done, (snapshot.state, snapshot.output)
    return snapshot


async def value_of(engine: Engine, code: str, **options: Any) -> Any:
    snapshot = await js(engine, code, **options)
    assert snapshot, (snapshot.reason, snapshot.detail, snapshot.output)
    return snapshot.value
