"""Recovery at start: tasks that were lost with their machine and say so are taken up again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core import events as ev
from tenuto.core.errors import NotFinished, TenutoError
from tenuto.core.event import Event
from tenuto.core.ids import short
from tenuto.core.listing import Query, Row
from tenuto.core.states import State
from tenuto.core.task_events import StepFinished, decode_task_event
from tenuto.stores.tape import TapeReader

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

TRIES = 3
"""How often a task is taken up by itself without any step coming to its end meanwhile."""


class Recovered(msgspec.Struct, frozen=True):
    """A lost task, and whether it was taken up again."""

    id: str
    title: str
    resumed: bool
    why: str


def recover_tasks(engine: BlockingEngine) -> list[Recovered]:
    """Resume the lost tasks that are to be resumed by themselves; tell of each."""
    engine.settle_live()
    rows = engine.index.latest(Query(states=(State.LOST,), kind="task"))
    return [found for row in rows if (found := _recover(engine, row)) is not None]


def _recover(engine: BlockingEngine, row: Row) -> Recovered | None:
    try:
        with TapeReader(engine.project.folder(row.id)) as reader:
            if not _wants(reader):
                return None
            tries = _tries(reader)
    except (OSError, TenutoError):
        return None  # without a tape that can be read there is nothing to go on from
    if tries >= TRIES:
        why = f"it was taken up {tries} times and got no step done; to try again: tenuto resume"
        return Recovered(row.id, row.title, False, f"{why} {short(row.id)}")
    try:
        _, sock = engine.resume(row.id, False, by="auto")
    except NotFinished:
        return None  # another engine was quicker
    except TenutoError as error:
        if engine.execution(row.id).state is not State.LOST:
            return None  # likewise
        return Recovered(row.id, row.title, False, str(error))
    sock.close()
    return Recovered(row.id, row.title, True, row.reason)


def _wants(reader: TapeReader) -> bool:
    """Tell by its first event whether a task is to be resumed by itself."""
    for frame in reader.frames():
        event = ev.decode_event(frame.body)
        task: dict[str, Any] | None = event.spec.task if isinstance(event, ev.Created) else None
        return task is not None and task.get("resume") == "auto"
    return False


def _tries(reader: TapeReader) -> int:
    """Count how often it was taken up by itself since a step last came to its end."""
    count = 0
    for frame in reader.events():
        event: Event = ev.decode_event(frame.body)
        if isinstance(event, ev.Resumed):
            count = count + 1 if event.by == "auto" else 0
        elif isinstance(event, ev.Unknown):
            told = decode_task_event(frame.body)
            if isinstance(told, StepFinished) and told.status != "interrupted":
                count = 0
    return count
