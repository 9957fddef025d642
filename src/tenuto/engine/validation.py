"""Before a task is resumed: is what was saved whole, and is what it works with still as it was?

Each thing that is not has its own error and its own way on. With force, what can be passed is passed.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import (
    EnvironmentChanged,
    FolderGone,
    NewerState,
    RuntimeGone,
    StateDamaged,
    TenutoError,
)
from tenuto.core.execution import Execution
from tenuto.core.ids import short
from tenuto.core.progress import Progress
from tenuto.core.state import mend
from tenuto.core.task_events import TaskEvent
from tenuto.core.tasks import TaskSpec
from tenuto.engine.saved import folded
from tenuto.engine.surroundings import moved_on, other_machine, seen_here
from tenuto.engine.tasks import task_of
from tenuto.stores.states import read_state

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine
    from tenuto.engine.runtimes import RuntimeInfo

Obstacle = Callable[[TenutoError], None]
_NUMBERS = re.compile(r"\d+(?:\.\d+)+")


class Passed(msgspec.Struct, frozen=True):
    """What a resume found."""

    events: tuple[TaskEvent, ...] = ()
    """What the tape lost and a state file still has: to be put on the tape first."""
    notes: tuple[str, ...] = ()
    """What was passed by force, or does not stand in the way."""


def check_resume(engine: BlockingEngine, execution: Execution, force: bool) -> Passed:
    """Return if a task can go on as it was, or be forced to; else raise the first obstacle."""
    spec = execution.spec
    task = task_of(spec)
    assert spec is not None
    name = short(execution.id)
    notes: list[str] = []

    def obstacle(error: TenutoError) -> None:
        if not force:
            raise error
        notes.append(error.message)

    events, progress = _integrity(engine, execution, name, obstacle, notes)
    check_folder(spec.cwd, name)
    _check_place(progress, spec.cwd, name, obstacle, notes)
    _check_runtimes(engine, task, progress, name, obstacle)
    return Passed(tuple(events), tuple(notes))


def _integrity(
    engine: BlockingEngine,
    execution: Execution,
    name: str,
    obstacle: Obstacle,
    notes: list[str],
) -> tuple[list[TaskEvent], Progress]:
    folder = engine.project.folder(execution.id)
    fold, damaged = folded(folder, execution.id)
    read = read_state(folder, execution.id, engine.project.quarantine)
    if read.newer is not None:
        obstacle(
            NewerState(
                f"{name} was saved by a newer Tenuto: {read.newer.message}",
                "resume it with that one; by its tape alone, as far as this one understands it: "
                f"tenuto resume --force {name}; a fork (--from SEQ) leaves it as it is",
            )
        )
    notes += [one for one in read.problems if read.newer is None or one != read.newer.message]
    events: list[TaskEvent] = []
    if damaged:
        if read.state is not None:
            events = mend(fold.progress, read.state)
        back = f"; {len(events)} of its events are known from {read.name}" if events else ""
        obstacle(
            StateDamaged(
                f"{damaged} bytes of the tape of {name} cannot be read{back}",
                f"go on with what is left of it: tenuto resume --force {name}; or from an earlier "
                f"checkpoint: tenuto show {name} --checkpoints",
            )
        )
    return events, fold.progress


def check_folder(cwd: str, name: str) -> None:
    """Raise FolderGone where a task's working directory is not there."""
    if not os.path.isdir(cwd):
        raise FolderGone(
            f"the working directory of {name}, {cwd}, does not exist any more",
            "put it back (check it out, mount it), then resume",
        )


def _check_place(
    progress: Progress, cwd: str, name: str, obstacle: Obstacle, notes: list[str]
) -> None:
    before = progress.environment
    if before is None:
        return
    now = seen_here(cwd)
    forced = f"to go on all the same: tenuto resume --force {name}"
    if other_machine(before, now):
        obstacle(
            EnvironmentChanged(
                f"{name} last ran on another machine ({before.host or before.machine}): sessions of "
                "its runtimes are there, not here",
                forced,
            )
        )
    if before.commit and now.commit != before.commit:
        if now.commit and moved_on(cwd, before.commit, now.commit):
            notes.append(f"{cwd} has new commits since {before.commit[:10]}")
        else:
            obstacle(
                EnvironmentChanged(
                    f"{cwd} is at commit {now.commit[:10] or 'none'}, and {name} last began at "
                    f"{before.commit[:10]}, which is not in its history",
                    f"go back with: git checkout {before.commit[:10]}; {forced}; or fork it: "
                    f"tenuto show {name} --checkpoints",
                )
            )


def _check_runtimes(
    engine: BlockingEngine, task: TaskSpec, progress: Progress, name: str, obstacle: Obstacle
) -> None:
    """Look at the runtimes of the steps that are open: those that began, and those that name one."""
    left = [one for one in progress.steps.values() if one.open]
    begun = {one.runtime for one in left if one.session}
    named = {one.step.runtime or task.runtime for one in left}
    wanted = {str(one) for one in begun | named if one}
    if not wanted:
        return
    found = asyncio.run(_probed(engine, wanted))
    for runtime in sorted(wanted):
        info = found.get(runtime)
        if info is None or info.available is not True:
            why = info.why if info is not None else "nothing of that name is known any more"
            hint = info.hint if info is not None else "put it back into the settings"
            obstacle(
                RuntimeGone(
                    f"{name} is to go on with {runtime}, which cannot be used here: {why}",
                    f"{hint or 'make it work again'}; with another of its family if there is one: "
                    f"tenuto resume --force {name}",
                )
            )
            continue
        before, now = progress.versions.get(runtime, ""), info.version
        if runtime in begun and before and now and _numbers(before) != _numbers(now):
            obstacle(
                EnvironmentChanged(
                    f"{runtime} is of version {now}, and {name} began a session with {before}",
                    f"install {before} again, or go on with this one: tenuto resume --force {name}",
                )
            )


def _numbers(version: str) -> str:
    found = _NUMBERS.search(version)
    return found[0] if found else version.strip()


async def _probed(engine: BlockingEngine, wanted: set[str]) -> dict[str, RuntimeInfo]:
    from tenuto.engine.agent_settings import load_agent_settings
    from tenuto.engine.runtimes import runtimes

    agents, _ = load_agent_settings(engine.project.root, engine.environ)
    found = await runtimes(
        engine.settings, agents, engine.environ, engine.project.root, only=wanted
    )
    return {info.name: info for info in found}
