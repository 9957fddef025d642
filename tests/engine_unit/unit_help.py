"""An engine that starts nothing, and executions made by hand."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from tenuto.core import events as ev
from tenuto.core.event import Event
from tenuto.core.execution import Execution
from tenuto.core.ids import new_id
from tenuto.core.listing import Row
from tenuto.core.specs import Spec
from tenuto.core.states import State
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.settings import Settings
from tenuto.keeper import frames, procfs
from tenuto.stores.layout import Project, make_home
from tenuto.stores.pen import Pen
from tenuto.testing.dummies import IdleDispatcher

SPEC = Spec(kind="command", argv=("make", "all"), cwd="/", title="a build")


def project_in(folder: Path) -> Project:
    project = Project(root=str(folder), home=str(folder / "state"))
    make_home(project)
    return project


def engine_in(folder: Path, settings: Settings, environ: Mapping[str, str]) -> BlockingEngine:
    return BlockingEngine(project_in(folder), settings, IdleDispatcher(), environ)


def begun(
    project: Project, spec: Spec = SPEC, pid: int = 0, execution_id: str = ""
) -> tuple[str, Pen]:
    """An execution with frame 0, locked by us; started if a pid is given."""
    execution_id = execution_id or new_id()
    created = ev.Created(id=execution_id, spec=spec)
    pen = Pen.create(project.folder(execution_id), created)
    if pid:
        boot, start = procfs.boot_id(), procfs.start_time(pid)
        pen.append(ev.Started(pid=pid, pid_start=start, keeper_pid=0, keeper_start=0, boot=boot))
    return execution_id, pen


def write_output(pen: Pen, data: bytes) -> None:
    header, trailer = frames.pack(pen.magic, frames.OUT, pen.next_seq, pen.last_ns, data)
    os.write(pen.fd, header + data + trailer)
    pen.next_seq += 1


def ended(
    engine: BlockingEngine, size: int = 100, age_s: float = 0.0, state: State = State.SUCCEEDED
) -> str:
    """An ended execution of about so many bytes, known to the index."""
    moment = time.time_ns() - int(age_s * 1e9)
    execution_id = new_id()
    engine.index.add(
        Row(execution_id, "command", state, title="t", created_ns=moment, ended_ns=moment)
    )
    _, pen = begun(engine.project, execution_id=execution_id)
    write_output(pen, b"x" * size)
    pen.append(ev.Ended(state=state, exit_code=0))
    pen.put_down()
    return execution_id


def folded(*events: Event, spec: Spec = SPEC) -> Execution:
    execution = Execution("0193a5f2-1111-7222-8333-444455556666")
    created = ev.Created(id=execution.id, spec=spec)
    for number, event in enumerate((created, *events)):
        execution.apply(number + 1, event)
    return execution
