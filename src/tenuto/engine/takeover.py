"""Taking a task over from a driver or a keeper that does not answer.

Its processes and its runtimes are killed and verified dead first. Only then is its lock free, and only
who holds that writes: what was frozen can never write again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tenuto.core.errors import KeeperUnreachable, NotFinished, NotRunning
from tenuto.core.execution import Execution
from tenuto.core.ids import new_id, short
from tenuto.dispatch import control
from tenuto.engine import ending
from tenuto.engine.saved import wait_for_checkpoint
from tenuto.keeper import procfs

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

_PATIENCE_S = 5.0


def take_over(engine: BlockingEngine, execution: Execution) -> None:
    """End a task that does not answer, so that it can be resumed; refuse to end one that does."""
    if not _is_frozen(engine, execution):
        raise NotFinished(
            f"{short(execution.id)} is {execution.state} and its driver answers: nobody takes it over",
            f"stop it first: tenuto interrupt {short(execution.id)}",
        )
    with suppress(NotRunning):  # it came to its end meanwhile, or somebody else has ended it
        ending.interrupt(engine.project, engine.index, execution.id, 0.0)


def _is_frozen(engine: BlockingEngine, execution: Execution) -> bool:
    """Tell whether the driver, or its keeper, is stopped or does not answer."""
    started = execution.started
    if started is not None:
        for pid, start in (
            (started.keeper_pid, started.keeper_start),
            (started.pid, started.pid_start),
        ):
            if procfs.start_time(pid) == start and procfs.is_stopped(pid):
                return True
    try:
        told, _ = wait_for_checkpoint(engine, execution.id, new_id(), _PATIENCE_S)
    except (KeeperUnreachable, control.NoKeeper):
        return True
    return told is None  # it has ended meanwhile
