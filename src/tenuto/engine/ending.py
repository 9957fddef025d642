"""Ending executions: kill (verified), interrupt (asked, then insisted on), clear."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from tenuto.core import events as ev
from tenuto.core.errors import (
    InvalidInput,
    KeeperUnreachable,
    NotFinished,
    NotRunning,
    StateDamaged,
    UnknownExecution,
)
from tenuto.core.execution import Execution
from tenuto.core.ids import short
from tenuto.core.ports import Store
from tenuto.core.states import LIVE, RESUMABLE, State
from tenuto.dispatch import control
from tenuto.engine import recover
from tenuto.engine.inside import living
from tenuto.engine.watch import Watch
from tenuto.keeper import procfs
from tenuto.keeper.sweep import sweep
from tenuto.stores.layout import Project
from tenuto.stores.pen import Pen

_KILL_PATIENCE_S = 10.0
_PAUSE_S = 0.005


def signal_name(name: str) -> str:
    """Return a signal's canonical name, or raise InvalidInput with the known ones."""
    text = name.strip().upper()
    if text.isdecimal():
        try:
            return signal.Signals(int(text)).name
        except ValueError:
            text = ""
    text = text if text.startswith("SIG") else f"SIG{text}"
    if text not in signal.Signals.__members__:
        raise InvalidInput(f"{name!r} is not a signal", "such as KILL, TERM, INT, HUP, USR1")
    return text


def kill(project: Project, index: Store, execution_id: str, name: str = "KILL") -> None:
    """Send a signal to the whole tree; with KILL also to what was started inside it, verified."""
    name = signal_name(name)
    folder = project.folder(execution_id)
    try:
        control.request(folder, "kill", _KILL_PATIENCE_S, signal=name)
    except (control.NoKeeper, NotRunning):
        execution = recover.settle(project, execution_id)
        if execution is None and sweep(execution_id, "", [], _KILL_PATIENCE_S):
            return  # its folder was deleted under it; its processes were still there
        lost = execution is not None and execution.state is State.LOST
        if lost and name == "SIGKILL" and living(project, index, execution_id):
            kill_children(project, index, execution_id)  # they went on without it
            return
        raise _ended_already(execution_id, execution) from None
    except KeeperUnreachable:
        if name != "SIGKILL":
            raise
        detail = "SIGKILL on request; its keeper did not answer and was ended too"
        _take_over(project, execution_id, State.KILLED, "killed", detail)
    if name == "SIGKILL":
        wait_for_end(project, execution_id)
        see_session_off(project, index, execution_id)
        kill_children(project, index, execution_id)


def see_session_off(project: Project, index: Store, cell: str) -> None:
    """Wait until the session of a cell that was killed while it ran is dead, too."""
    execution = recover.load(project, cell)
    host = execution.spec.host if execution is not None and execution.spec is not None else None
    if execution is None or host is None or execution.started_ns is None:
        return
    try:
        while True:
            status = control.request(project.folder(host), "session")
            if status["current"] != cell and not status["ending"]:
                return
            time.sleep(_PAUSE_S)
    except control.NoKeeper:
        recover.settle(project, host)
        kill_children(project, index, host)
    except KeeperUnreachable:
        with suppress(NotRunning):
            kill(project, index, host)


def kill_children(project: Project, index: Store, execution_id: str) -> None:
    """Kill every live execution that was started inside this one."""
    for row in index.children(execution_id):
        if recover.settle_row(project, row).state in LIVE:
            with suppress(NotRunning):  # it has ended meanwhile: not so what it started
                kill(project, index, row.id)
                continue
        kill_children(project, index, row.id)


def _take_over(project: Project, execution_id: str, state: State, reason: str, detail: str) -> None:
    """End a keeper that does not answer (it may be stopped) and write the exit record for it."""
    execution = recover.load(project, execution_id)
    started = execution.started if execution is not None else None
    if execution is None or started is None:
        raise KeeperUnreachable(
            f"the keeper of {short(execution_id)} does not answer and cannot be identified",
            "see: tenuto doctor",
        )
    if procfs.start_time(started.keeper_pid) == started.keeper_start:
        os.kill(started.keeper_pid, signal.SIGKILL)
    pen = None
    limit = time.monotonic() + _KILL_PATIENCE_S
    while pen is None:
        try:
            pen = Pen.take_up(project.folder(execution_id))
        except NotFinished:
            if time.monotonic() > limit:
                raise
            time.sleep(_PAUSE_S)
    try:
        execution = recover.load(project, execution_id) or execution  # its last words are read, too
        recover.sweep_after(execution, project.folder(execution_id))
        if execution.live:
            size, lines = recover.output_of(project.folder(execution_id))
            pen.append(
                ev.Ended(
                    state=state,
                    reason=reason,
                    detail=detail,
                    signal="SIGKILL",
                    size=size,
                    lines=lines,
                )
            )
    finally:
        pen.put_down()


def wait_for_end(project: Project, execution_id: str) -> None:
    """Wait until the exit record is on the tape."""
    with Watch(project, execution_id) as watch:
        watch.only_events = True
        watch.look()
        while watch.execution.live:
            time.sleep(_PAUSE_S)
            watch.look()


def interrupt(project: Project, index: Store, execution_id: str, grace: float) -> bool:
    """Interrupt and return once the execution has ended; False if it was a task interrupted before.

    What does not stop by itself is killed; so is a keeper that does not answer.
    """
    try:
        _ask_to_stop(project, execution_id, grace)
    except (control.NoKeeper, NotRunning):
        execution = recover.settle(project, execution_id)
        state = execution.state if execution is not None else State.LOST
        if state is State.INTERRUPTED and _is_task(execution):
            return False
        hint = ""
        if state in RESUMABLE and _is_task(execution):
            name = short(execution_id)
            hint = f"what it had done is saved; to go on: tenuto resume {name}"
        raise _ended_already(execution_id, execution, hint) from None
    except KeeperUnreachable:
        detail = "on request; its keeper did not answer and was ended too"
        _take_over(project, execution_id, State.INTERRUPTED, "interrupted", detail)
    wait_for_end(project, execution_id)
    kill_runtimes(project, index, execution_id)
    return True


def _ask_to_stop(project: Project, execution_id: str, grace: float) -> None:
    """Ask its keeper; one that is about to write its end, because another asked, is waited for."""
    limit = time.monotonic() + _KILL_PATIENCE_S
    while True:
        try:
            control.request(project.folder(execution_id), "interrupt", grace=grace)
            return
        except NotRunning:
            execution = recover.settle(project, execution_id)
            if execution is None or not execution.live or time.monotonic() > limit:
                raise
        time.sleep(_PAUSE_S)


def _ended_already(execution_id: str, execution: Execution | None, hint: str = "") -> NotRunning:
    """Say how it ended; its keeper may still be there, or may have said so before the record is."""
    state = execution.state if execution is not None else State.LOST
    how = "is ending" if state in LIVE else f"has ended already: {state}"
    name = short(execution_id)
    return NotRunning(f"{name} {how}", hint or f"see: tenuto show {name}")


def _is_task(execution: Execution | None) -> bool:
    return execution is not None and execution.spec is not None and execution.spec.kind == "task"


def kill_runtimes(project: Project, index: Store, execution_id: str) -> None:
    """See that no agent's process of a task that has ended is left, verified."""
    for row in index.children(execution_id):
        if row.kind == "step" and recover.settle_row(project, row).state in LIVE:
            with suppress(NotRunning):
                kill(project, index, row.id)


def interrupt_children(project: Project, index: Store, execution_id: str, grace: float) -> None:
    """Interrupt what was started inside an execution and still runs, all at once."""
    below = [row.id for row in index.children(execution_id)]
    for one in below:
        below += [row.id for row in index.children(one)]
    asked: list[str] = []
    for one in below:
        with suppress(control.NoKeeper, KeeperUnreachable, NotRunning):  # some end meanwhile
            control.request(project.folder(one), "interrupt", grace=grace)
            asked.append(one)
    for one in asked:
        wait_for_end(project, one)


def clear(project: Project, execution_id: str) -> None:
    """Drop the output of a live execution through its keeper, of an ended one by ourselves."""
    try:
        control.request(project.folder(execution_id), "clear")
    except control.NoKeeper:
        if recover.settle(project, execution_id) is None:
            raise UnknownExecution(
                f"{short(execution_id)} has no tape", "there is nothing to clear"
            ) from None
        pen = Pen.take_up(project.folder(execution_id))
        if pen is None:
            raise StateDamaged(
                f"the tape of {short(execution_id)} cannot be read, so nothing of it is dropped",
                "to remove it as a whole once it is old enough: tenuto clean",
            ) from None
        try:
            pen.clear()
        finally:
            pen.put_down()
