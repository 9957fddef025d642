"""Before a task is resumed: is what was saved whole, and is what it works with still as it was?

Each thing that is not has its own error and its own way on. With force, what can be passed is passed.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import (
    EnvironmentChanged,
    NewerState,
    RuntimeGone,
    StateDamaged,
    TenutoError,
)
from tenuto.core.execution import Execution
from tenuto.core.ids import short
from tenuto.core.progress import Progress
from tenuto.core.specs import Spec
from tenuto.core.state import mend
from tenuto.core.task_events import TaskEvent, Warned
from tenuto.core.tasks import TaskSpec
from tenuto.engine.moving import check_checkout, check_folder, lost_branches, mend_worktrees, words
from tenuto.engine.saved import checkpoints_of, folded
from tenuto.engine.surroundings import moved_on, other_machine, seen_here
from tenuto.engine.tasks import task_of
from tenuto.stores.states import read_state

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine
    from tenuto.engine.runtimes import RuntimeInfo

_NAMED = 3
_NUMBERS = re.compile(r"\d+(?:\.\d+)+")


class Passed(msgspec.Struct, frozen=True):
    """What a resume found."""

    events: tuple[TaskEvent, ...] = ()
    """What is to be put on the tape first: what it lost and a state file still has, and warnings."""
    forced: bool = False
    """Not all was as it had been."""


class _Check:
    """What all checks of one resume know."""

    def __init__(self, execution: Execution, spec: Spec, force: bool) -> None:
        """Take the spec as it is to go on: its folder may be another than before."""
        self.id, self.name, self.cwd = execution.id, short(execution.id), spec.cwd
        self.moved = execution.spec is not None and execution.spec.cwd != spec.cwd
        self.forced = words(execution.id, spec.cwd if self.moved else None, "--force")
        self._force = force
        self.passed: list[str] = []

    def obstacle(self, error: TenutoError) -> None:
        """Raise, unless it is to be passed."""
        if not self._force:
            raise error
        self.passed.append(error.message)


def check_resume(engine: BlockingEngine, execution: Execution, spec: Spec, force: bool) -> Passed:
    """Return if a task can go on as it was, or be forced to; else raise the first obstacle."""
    task = task_of(spec)
    check = _Check(execution, spec, force)
    events, progress, problems = _integrity(engine, check)
    check_folder(spec.cwd, execution.id, progress.environment)
    trees = os.path.join(engine.project.home, "worktrees", execution.id)
    if task.worktree is not None:  # no force helps there
        places = checkpoints_of(engine, execution.id)
        last = places[-1].seq if places else None
        check_checkout(spec.cwd, trees, execution.id, engine.environ, last)
    _check_place(check, progress, task)
    _check_runtimes(engine, check, task, progress)
    if check.moved and task.worktree is not None:
        mend_worktrees(spec.cwd, trees)
    warned = [*problems, *(f"resumed by force, although {one}" for one in check.passed)]
    events += [Warned(text=one, about="state") for one in warned]
    return Passed(tuple(events), bool(check.passed))


def _integrity(
    engine: BlockingEngine, check: _Check
) -> tuple[list[TaskEvent], Progress, list[str]]:
    """Return what is to be put on the tape again, how far the task is, and what was wrong."""
    name, folder = check.name, engine.project.folder(check.id)
    fold, damaged = folded(folder, check.id)
    read = read_state(folder, check.id, engine.project.quarantine)
    if read.newer is not None:
        check.obstacle(
            NewerState(
                f"{name} was saved by a newer Tenuto: {read.newer.message}",
                "resume it with that one; by its tape alone, as far as this one understands it: "
                f"{check.forced}; a fork (--from SEQ) leaves it as it is",
            )
        )
    problems = [one for one in read.problems if read.newer is None or one != read.newer.message]
    events: list[TaskEvent] = []
    if damaged:
        if read.state is not None:
            events = mend(fold.progress, read.state)
        back = f"; {len(events)} of its events are known from {read.name}" if events else ""
        check.obstacle(
            StateDamaged(
                f"{damaged} bytes of the tape of {name} cannot be read{back}",
                f"go on with what is left of it: {check.forced}; or from an earlier "
                f"checkpoint: tenuto show {name} --checkpoints",
            )
        )
    return events, fold.progress, problems


def _check_place(check: _Check, progress: Progress, task: TaskSpec) -> None:
    before, cwd, name = progress.environment, check.cwd, check.name
    if before is None:
        return
    now = seen_here(cwd)
    forced = f"to go on all the same: {check.forced}"
    if other_machine(before, now):
        check.obstacle(
            EnvironmentChanged(
                f"{name} last ran on another machine ({before.host or before.machine}): sessions of "
                "its runtimes are there, not here",
                forced if check.moved else f"{forced}; in another folder, add --cwd DIR",
            )
        )
    grew = bool(now.commit) and moved_on(cwd, before.commit, now.commit)  # agents commit
    if before.commit and not grew:
        check.obstacle(
            EnvironmentChanged(
                f"{cwd} is at commit {now.commit[:10] or 'none'}, and {name} last began at "
                f"{before.commit[:10]}, which is not in its history",
                f"go back with: git checkout {before.commit[:10]}; {forced}; or fork it: "
                f"tenuto show {name} --checkpoints",
            )
        )
    lost = lost_branches(progress, cwd) if task.worktree is not None else []
    if lost:
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        check.obstacle(
            EnvironmentChanged(
                f"{cwd} has no branch {', '.join(lost[:_NAMED])}{more}, where the work of finished "
                f"steps of {name} is",
                f"fetch it from where it ran, or name that checkout: {words(check.id, None)} --cwd "
                f"DIR; {forced}",
            )
        )


def _check_runtimes(
    engine: BlockingEngine, check: _Check, task: TaskSpec, progress: Progress
) -> None:
    """Look at the runtimes of the steps that are open: of those that began, of those that name one,
    and for those that name none, whether there is any: else they would fail, which nothing undoes.
    """
    name = check.name
    left = [one for one in progress.steps.values() if one.open]
    anew = check.moved and task.worktree is None  # sessions belong to the folder they began in
    begun = {one.runtime for one in left if one.session and not anew}
    named = {one.step.runtime or task.runtime for one in left}
    wanted = {str(one) for one in begun | named if one}
    found = asyncio.run(_probed(engine, wanted)) if wanted else {}
    for runtime in sorted(wanted):
        info = found.get(runtime)
        if info is None or info.available is not True:
            why = info.why if info is not None else "nothing of that name is known any more"
            hint = info.hint if info is not None else "put it back into the settings"
            check.obstacle(
                RuntimeGone(
                    f"{name} is to go on with {runtime}, which cannot be used here: {why}",
                    f"{hint or 'make it work again'}; with another of its family if there is one: "
                    f"{check.forced}",
                )
            )
            continue
        before, now = progress.versions.get(runtime, ""), info.version
        if runtime in begun and before and now and _numbers(before) != _numbers(now):
            check.obstacle(
                EnvironmentChanged(
                    f"{runtime} is of version {now}, and {name} began a session with {before}",
                    f"install {before} again, or go on with this one: {check.forced}",
                )
            )
    free = [one.step.id for one in left if not (one.step.runtime or task.runtime)]
    if free:
        _check_any(engine, check, free, found)


def _check_any(
    engine: BlockingEngine, check: _Check, left: list[str], found: dict[str, RuntimeInfo]
) -> None:
    """Look for a runtime that works, in the order in which the driver will."""
    preferred, order = engine.settings.runtime_preferred, engine.settings.runtime_order
    names = list(dict.fromkeys([preferred, *order] if preferred else order))
    if any(name in found and found[name].available for name in names):
        return
    for name in names:
        found |= asyncio.run(_probed(engine, {name})) if name not in found else {}
        if name in found and found[name].available:
            return
    lacking = [found[name] for name in names if name in found]
    why = "; ".join(
        f"{one.name}: {one.why} ({one.hint})" if one.hint else f"{one.name}: {one.why}"
        for one in lacking
    )
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    check.obstacle(
        RuntimeGone(
            f"{check.name} has {', '.join(left[:_NAMED])}{more} left to do, and no runtime works "
            f"here: {why}",
            "make one of these work (tenuto doctor shows them), then resume it; to go on and have "
            f"what cannot run fail: {check.forced}",
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
