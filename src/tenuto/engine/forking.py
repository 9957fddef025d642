"""Forking a task: a new one that begins with what the first had done at a checkpoint."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import EnvironmentChanged, UnknownCheckpoint
from tenuto.core.execution import Execution
from tenuto.core.ids import new_id, short
from tenuto.core.ports import Connection
from tenuto.core.quantities import iso
from tenuto.core.specs import Spec
from tenuto.core.state import CheckpointInfo, checkpoints, forked_events
from tenuto.core.task_events import Checkpointed, StepFinished, TaskEvent
from tenuto.core.tasks import ForkedFrom, TaskSpec
from tenuto.engine.moving import check_checkout, check_folder, words
from tenuto.engine.saved import task_events
from tenuto.engine.tasks import resumed_work, task_of

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine
    from tenuto.engine.worktrees import Worktrees

_NAMED = 12


def fork(
    engine: BlockingEngine, execution: Execution, spec: Spec, seq: int, fork_id: str = ""
) -> tuple[str, Connection]:
    """Start a task that goes on from a checkpoint of another, in any state; that one stays as it is.

    Its id is a new one, unless it is given.
    """
    task = task_of(spec)
    events = task_events(engine.project.folder(execution.id))
    places = checkpoints(events)
    seq = _meant(events, seq)
    if seq not in {one.seq for one in places}:
        raise UnknownCheckpoint(
            f"{short(execution.id)} has no checkpoint {seq}: {_told(places)}",
            f"list them: tenuto show {short(execution.id)} --checkpoints",
        )
    check_folder(spec.cwd, execution.id, None, f"--from {seq}")
    whole = fork_id or new_id()
    kept = forked_events(events, seq)
    if task.worktree is not None:
        base = os.path.join(engine.project.home, "worktrees", whole)
        check_checkout(spec.cwd, base, execution.id, engine.environ, None, f"--from {seq}")
        from tenuto.engine.worktrees import Worktrees

        trees = Worktrees(spec.cwd, base, whole, engine.environ)
        kept = _with_branches(trees, execution, spec.cwd, kept, _before(events, places))
    origin = ForkedFrom(execution.id, seq)
    forked: TaskSpec = msgspec.structs.replace(task, forked_from=origin)
    work = resumed_work(engine, msgspec.structs.replace(spec, task=msgspec.to_builtins(forked)))
    work = msgspec.structs.replace(work, execution_id=whole, events=tuple(kept))
    return engine.start(work)


def _meant(events: list[tuple[int, int, TaskEvent]], seq: int) -> int:
    """Return the checkpoint for the number in a state file's name: the last event that it covers."""
    for number, _, event in events:
        if isinstance(event, Checkpointed) and event.seq == seq >= 0:
            return number
    return seq


def _told(places: list[CheckpointInfo]) -> str:
    if not places:
        return "it has none yet"
    shown = [f"{one.seq} ({one.what}, {iso(one.time_ns)})" for one in places[-_NAMED:]]
    more = "…, " if len(places) > _NAMED else ""
    return f"there are {more}{', '.join(shown)}"


def _before(
    events: list[tuple[int, int, TaskEvent]], places: list[CheckpointInfo]
) -> dict[str, int]:
    """Return the checkpoint before each step's branch came to be."""
    found: dict[str, int] = {}
    for number, _, event in events:
        if isinstance(event, StepFinished) and event.branch:
            earlier = [one.seq for one in places if one.seq < number]
            found.setdefault(event.branch, max(earlier, default=-1))
    return found


def _with_branches(
    trees: Worktrees,
    before: Execution,
    cwd: str,
    events: list[TaskEvent],
    earlier: dict[str, int],
) -> list[TaskEvent]:
    """Give the fork branches and worktrees of its own for the steps that it begins with."""
    elsewhere = cwd if before.spec is not None and before.spec.cwd != cwd else None
    moved: list[TaskEvent] = []
    for event in events:
        if isinstance(event, StepFinished) and event.branch:
            branch = trees.branch_of(event.step)
            made = subprocess.run(
                ["git", "-C", cwd, "branch", "--quiet", branch, event.branch],
                stdin=subprocess.DEVNULL, capture_output=True, check=False,
            )  # fmt: skip
            if made.returncode:
                raise EnvironmentChanged(
                    f"the branch {event.branch} of step {event.step} of {short(before.id)} is gone: "
                    f"{made.stderr.decode('utf-8', 'replace').strip()}",
                    "what that step changed is not to be had any more; to do it again in a new task: "
                    f"{words(before.id, elsewhere, f'--from {earlier[event.branch]}')}",
                )
            trees.add(event.step)
            event = msgspec.structs.replace(event, branch=branch)  # noqa: PLW2901
        moved.append(event)
    return moved
