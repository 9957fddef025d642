"""Recovery at start: tasks that were lost with their machine and say so are taken up again.

Of tasks inside of each other only the outermost is. Its agent goes on with the step in which it had
started the inner one, and decides about that; if both went on, the same work could be done twice.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core import events as ev
from tenuto.core.errors import NotFinished, TenutoError
from tenuto.core.event import Event
from tenuto.core.ids import short
from tenuto.core.listing import Query, Row
from tenuto.core.states import State
from tenuto.core.task_events import StepFinished, decode_task_event
from tenuto.engine.tasks import task_around
from tenuto.keeper import procfs
from tenuto.stores.tape import TapeReader

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

TRIES = 3
"""How often a task is taken up by itself without any step coming to its end meanwhile."""
_PATIENCE_S = 10.0
_PAUSE_S = 0.005


class Recovered(msgspec.Struct, frozen=True):
    """A lost task, and whether it was taken up again."""

    id: str
    title: str
    resumed: bool
    why: str


def recover_tasks(engine: BlockingEngine) -> list[Recovered]:
    """Resume the lost tasks that are to be resumed by themselves; tell of each, oldest first."""
    engine.settle_live()
    rows = engine.index.latest(Query(states=(State.LOST,), kind="task"))
    recovery = Recovery(engine)
    for row in sorted(rows, key=lambda row: row.id):  # who is around is older than who is inside
        recovery.take_up(row)
    return recovery.told


class Recovery:
    """Takes lost tasks up, each once, while other engines may do the same."""

    def __init__(self, engine: BlockingEngine) -> None:
        """Take the engine that resumes."""
        self.told: list[Recovered] = []
        self._engine = engine
        self._seen: set[str] = set()
        self._taken: set[str] = set()
        """Those that were taken up just now, by us or by another."""

    def take_up(self, row: Row) -> None:
        """Take a lost task up if it is to be, and note what became of it."""
        if row.id in self._seen:
            return
        self._seen.add(row.id)
        try:
            with TapeReader(self._engine.project.folder(row.id)) as reader:
                if not _wants(reader):
                    return
                tries, began_ns = _tries(reader), _last_began(reader)
        except (OSError, TenutoError):
            return  # without a tape that can be read there is nothing to go on from
        name = short(row.id)
        if tries >= TRIES:
            self._leave(
                row, f"it was taken up {tries} times and got no step done; to try again", name
            )
        elif around := self._goes_on_around(row.id, began_ns):
            why = f"{short(around)}, in which it was started, went on since, and decides about it"
            self._leave(row, f"{why}; to go on with it", name)
        else:
            self._resume(row)

    def _leave(self, row: Row, why: str, name: str) -> None:
        self.told.append(Recovered(row.id, row.title, False, f"{why}: tenuto resume {name}"))

    def _resume(self, row: Row) -> None:
        try:
            _, sock = self._engine.resume(row.id, False, by="auto")
        except TenutoError as error:
            lost = self._engine.execution(row.id).state is State.LOST
            if lost and not isinstance(error, NotFinished):
                self.told.append(Recovered(row.id, row.title, False, str(error)))
            else:
                self._taken.add(row.id)  # another engine was quicker
            return
        sock.close()
        self._taken.add(row.id)
        self.told.append(Recovered(row.id, row.title, True, row.reason))

    def _goes_on_around(self, execution_id: str, began_ns: int) -> str:
        """Return the task around it that was taken up after it had begun; nothing if none was."""
        around = task_around(self._engine, execution_id)
        while around:
            self._see_to(around)
            if around in self._taken or _last_resumed(self._engine, around) > began_ns:
                return around
            around = task_around(self._engine, around)
        return ""

    def _see_to(self, execution_id: str) -> None:
        """See that a task around has been taken up, if it was lost as well.

        It may not have been among the lost ones, because another engine was just finding that out.
        """
        limit = time.monotonic() + _PATIENCE_S
        while time.monotonic() < limit:
            execution = self._engine.execution(execution_id)
            started = execution.started
            if not execution.live or started is None or _has_keeper(started):
                break
            time.sleep(_PAUSE_S)
        row = self._engine.index.get(execution_id)
        if row is not None and row.state is State.LOST:
            self.take_up(row)


def _has_keeper(started: ev.Started) -> bool:
    same_boot = not started.boot or started.boot == procfs.boot_id()
    return same_boot and procfs.start_time(started.keeper_pid) == started.keeper_start


def _last_resumed(engine: BlockingEngine, execution_id: str) -> int:
    try:
        with TapeReader(engine.project.folder(execution_id)) as reader:
            return _last_began(reader, only_again=True)
    except (OSError, TenutoError):
        return 0  # it was cleaned away, and goes on no more


def _last_began(reader: TapeReader, only_again: bool = False) -> int:
    """Return when its last life began; with `only_again`, zero if that is its first."""
    found = 0
    for frame in reader.events():
        event = ev.decode_event(frame.body)
        if isinstance(event, ev.Resumed) or (isinstance(event, ev.Created) and not only_again):
            found = frame.time_ns
    return found


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
