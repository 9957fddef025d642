"""The saved state of tasks: read, written and checked against the tape, which stays the truth."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import (
    DiskFull,
    EngineFault,
    KeeperUnreachable,
    NotFinished,
    StateDamaged,
)
from tenuto.core.execution import Execution
from tenuto.core.ids import new_id, short
from tenuto.core.state import (
    CheckpointInfo,
    ExecutionState,
    StateFold,
    checkpoints,
    mend,
)
from tenuto.core.states import LIVE
from tenuto.core.task_events import Checkpointed, TaskEvent, decode_task_event
from tenuto.dispatch import control
from tenuto.engine.tasks import task_of
from tenuto.keeper.frames import EVENT
from tenuto.stores.layout import Project, as_error
from tenuto.stores.states import clear_unfinished, read_state, sync_names, sync_tape, write_state
from tenuto.stores.tape import TapeReader

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

_PATIENCE_S = 30.0
_KEEPER_S = 5.0
_PAUSE_S = 0.005


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was asked for: everything up to it is on disk."""

    id: str
    seq: int
    """Where the task can be forked from; -1 where it has not come so far yet."""
    path: str
    """The state as a file."""
    state: ExecutionState
    problems: tuple[str, ...] = ()
    """What was wrong with the state files that were there before."""


class SavedState(msgspec.Struct, frozen=True):
    """What is known of a task, and what was wrong with what was read."""

    state: ExecutionState
    problems: tuple[str, ...] = ()


def folded(folder: str, execution_id: str) -> tuple[StateFold, int]:
    """Return the fold of a task's whole tape, and how many bytes of it could not be read."""
    fold = StateFold(execution_id)
    with TapeReader(folder) as reader:
        for frame in reader.frames():
            if frame.stream == EVENT:
                fold.apply(frame.seq, frame.time_ns, frame.body)
        return fold, reader.damaged


def task_events(folder: str) -> list[tuple[int, int, TaskEvent]]:
    """Return a task's own events, each with its number and its time."""
    found: list[tuple[int, int, TaskEvent]] = []
    with TapeReader(folder) as reader:
        for frame in reader.events():
            event = decode_task_event(frame.body)
            if event is not None:
                found.append((frame.seq, frame.time_ns, event))
    return found


def _task(engine: BlockingEngine, execution_id: str) -> Execution:
    """Return an execution that is a task, or raise InvalidInput; StateDamaged if nobody can tell."""
    execution = engine.execution(execution_id)
    if execution.spec is None:
        name = short(execution.id)
        raise StateDamaged(
            f"the spec of {name} cannot be read", f"what is saved of it: tenuto show {name} --state"
        )
    task_of(execution.spec)
    return execution


def checkpoints_of(engine: BlockingEngine, execution_id: str) -> list[CheckpointInfo]:
    """Return the places from which a task can be forked, oldest first."""
    execution = _task(engine, execution_id)
    return checkpoints(task_events(engine.project.folder(execution.id)))


def state_of(engine: BlockingEngine, execution_id: str) -> SavedState:
    """Return a task's state, from its tape; where that is damaged, completed by its state file."""
    whole = engine.resolve(execution_id)
    folder = engine.project.folder(whole)
    engine.execution(whole)  # one whose keeper died is settled first
    read = read_state(folder, whole, engine.project.quarantine)
    problems = list(read.problems)
    try:
        fold, damaged = folded(folder, whole)
    except FileNotFoundError:
        fold, damaged = StateFold(whole), 0
        problems.append("its tape is gone")
    if damaged:
        problems.append(f"{damaged} bytes of its tape cannot be read")
    if fold.execution.spec is None:
        if read.state is None:
            raise StateDamaged(
                f"neither the tape nor a state file of {short(whole)} can be read",
                "start the task anew",
            )
        return SavedState(read.state, (*problems, f"this is its {read.name}: its spec is damaged"))
    task_of(fold.execution.spec)
    if damaged and read.state is not None:
        mend(fold.progress, read.state)
    return SavedState(fold.state(), tuple(problems))


def save(project: Project, execution_id: str) -> ExecutionState | None:
    """Write the state file of a task that has ended, from its tape, unless it says so already.

    Returns None where it is live (its driver writes it) or is no task.
    """
    folder = project.folder(execution_id)
    fold, _ = folded(folder, execution_id)
    spec = fold.execution.spec
    if fold.execution.live or spec is None or spec.kind != "task":
        return None
    state = fold.state()
    read = read_state(folder, execution_id, project.quarantine)
    try:
        sync_tape(folder)  # its keeper may be gone without having done so, or be about to
        sync_names(folder)
        clear_unfinished(folder)
        if read.newer is None and (read.state is None or read.state.sha256 != state.sha256):
            write_state(folder, state, True)
    except OSError as error:
        raise as_error(error, f"the state of {short(execution_id)} is not saved") from error
    return state


def close_state(project: Project, execution_id: str) -> None:
    """Write the state of a task whose driver could not: its file must not say that it still runs."""
    read = read_state(project.folder(execution_id), execution_id)
    if read.state is not None and read.state.status in LIVE:
        with suppress(DiskFull, EngineFault):  # the tape has everything
            save(project, execution_id)


# On request


def checkpoint(engine: BlockingEngine, execution_id: str) -> Checkpoint:
    """Have a task's state saved, and return once it is on disk."""
    limit = time.monotonic() + _PATIENCE_S
    problems: tuple[str, ...] = ()
    while True:
        execution = _task(engine, execution_id)
        found = _ask(engine, execution.id) if execution.live else None
        if found is not None:
            return found
        folder = engine.project.folder(execution.id)
        read = read_state(folder, execution.id, engine.project.quarantine)
        problems = tuple(dict.fromkeys((*problems, *read.problems)))
        state = save(engine.project, execution.id)
        if state is not None:
            break
        if time.monotonic() > limit:
            raise NotFinished(
                f"{short(execution.id)} is between two of its lives", "ask for the checkpoint again"
            )
        time.sleep(_PAUSE_S)  # it was resumed just now, or its end is about to be written
    places = checkpoints_of(engine, execution.id)
    seq = places[-1].seq if places else -1
    return Checkpoint(execution.id, seq, f"{folder}/state.json", state, problems)


def _ask(engine: BlockingEngine, execution_id: str) -> Checkpoint | None:
    """Ask the driver; None if it ended meanwhile."""
    key = new_id()
    told, seq = wait_for_checkpoint(engine, execution_id, key, _PATIENCE_S)
    if told is None:
        return None
    if told.error:
        raise DiskFull(
            f"what {short(execution_id)} has done is safe on its tape, but no state file could be"
            f" written: {told.error}",
            "make room with: tenuto clean --older 7d",
        )
    folder = engine.project.folder(execution_id)
    try:
        sync_tape(folder)  # its record can be read before it is safe, and one can fork from there
    except OSError as error:
        raise as_error(error, f"the checkpoint of {short(execution_id)} is not safe") from error
    read = read_state(folder, execution_id)
    state = read.state
    if state is None:  # another process has put it aside since
        state = folded(folder, execution_id)[0].state()
    return Checkpoint(execution_id, seq, told.path, state)


def wait_for_checkpoint(
    engine: BlockingEngine, execution_id: str, key: str, patience_s: float
) -> tuple[Checkpointed | None, int]:
    """Ask a driver for a checkpoint and return its answer; None if it ended before.

    Raises KeeperUnreachable where its keeper or the driver itself does not answer in time.
    """
    from tenuto.core.errors import NotRunning
    from tenuto.engine.blocking import sleep

    def frozen(who: str, seconds: float) -> KeeperUnreachable:
        name = short(execution_id)
        return KeeperUnreachable(
            f"the {who} of {name} did not answer within {seconds:g} s",
            "it may be stopped, or its disk full (tenuto doctor);"
            f" to take it over: tenuto resume --force {name}",
        )

    limit = time.monotonic() + patience_s
    with engine.watch(execution_id) as watch:
        watch.only_events = True
        message = {"type": "checkpoint", "key": key}
        try:
            folder = engine.project.folder(execution_id)
            control.request(folder, "tell", min(patience_s, _KEEPER_S), message=message)
        except (control.NoKeeper, NotRunning):
            return None, -1
        except KeeperUnreachable:
            raise frozen("keeper", min(patience_s, _KEEPER_S)) from None
        while True:
            for frame in watch.look():
                event = decode_task_event(frame.body) if frame.stream == EVENT else None
                if isinstance(event, Checkpointed) and event.key == key:
                    return event, frame.seq
            if watch.over:
                return None, -1
            left = limit - time.monotonic()
            if left <= 0:
                raise frozen("driver", patience_s)
            sleep(watch, left)
