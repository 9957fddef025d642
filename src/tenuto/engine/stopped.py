"""What an interrupt stopped, or a failure, and what of the task is saved."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core.errors import DiskFull, EngineFault
from tenuto.core.execution import Snapshot
from tenuto.core.ids import short
from tenuto.core.progress import Progress
from tenuto.core.state import before_failure, checkpoints
from tenuto.core.states import State
from tenuto.core.task_events import StepFinished
from tenuto.engine.saved import save, task_events
from tenuto.engine.tasks import progress_of

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

_NAMED = 6


def told(engine: BlockingEngine, snapshot: Snapshot, now: bool) -> Snapshot:
    """Return an interrupted task with a hint that says what was stopped and is saved.

    A driver that was ended by force could not write its state: it is written here, from the tape.
    """
    with suppress(DiskFull, EngineFault):  # the tape has everything
        save(engine.project, snapshot.id)
    progress = progress_of(engine.project.folder(snapshot.id))
    if snapshot.state is not State.INTERRUPTED:
        return snapshot
    return msgspec.structs.replace(snapshot, hint=_sentence(progress, snapshot.id, now))


def again(folder: str, execution_id: str) -> str:
    """Return how what failed in a task is done again; empty if no step of it failed."""
    events = task_events(folder)
    found = before_failure(checkpoints(events))
    if found is None:
        return ""
    step, seq = found
    redo = f"to do {step} again in a new task"
    if any(number <= seq and isinstance(one, StepFinished) for number, _, one in events):
        redo += ", with all that was done before it"
    return f"{redo}: tenuto resume {short(execution_id)} --from {seq}"


def document(progress: Progress) -> dict[str, Any]:
    """Return for programs which steps an interrupt stopped, and which are done or still to do."""
    steps = progress.steps.values()
    return {
        "stopped": [one.step.id for one in steps if one.status in ("interrupted", "running")],
        "completed": [one.step.id for one in steps if one.status == "completed"],
        "failed": [
            one.step.id for one in steps if one.status in ("failed", "skipped_dependency_failed")
        ],
        "pending": [one.step.id for one in steps if one.status == "pending"],
    }


def _sentence(progress: Progress, execution_id: str, now: bool) -> str:
    found = document(progress)
    total = len(progress.steps)
    if not total:
        said = "it had no plan yet"
    else:
        cut = _names(found["stopped"])
        stopped = f"stopped in {cut}" if cut else "stopped between steps"
        done = _names(found["completed"])
        said = f"{stopped}; {len(found['completed'])} of {total} steps completed and saved"
        said += f" ({done})" if done else ""
    before = "" if now else "it was interrupted before: "
    return f"{before}{said}; to go on: tenuto resume {short(execution_id)}"


def _names(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
