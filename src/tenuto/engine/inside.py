"""What was started inside an execution, under keepers of its own, and may run when that is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenuto.core.ids import short
from tenuto.core.states import LIVE
from tenuto.engine import recover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenuto.core.listing import Row
    from tenuto.core.ports import Store
    from tenuto.stores.layout import Project

_NAMED = 6


def living(project: Project, index: Store, execution_id: str) -> list[Row]:
    """Return what still runs of all that was started inside an execution, at any depth."""
    below = index.children(execution_id)
    found: list[Row] = []
    for row in below:
        settled = recover.settle_row(project, row)
        if settled.state in LIVE:
            found.append(settled)
        below += index.children(row.id)
    return found


def of_agents(project: Project, index: Store, task: str) -> list[Row]:
    """Return what agents of a task started and still runs; they themselves go with their driver."""
    return [row for row in living(project, index, task) if row.kind != "step"]


def named(rows: Sequence[Row]) -> str:
    """Return the ids for a sentence."""
    return ", ".join(short(row.id) for row in rows[:_NAMED]) + (", …" if len(rows) > _NAMED else "")


def hint(project: Project, index: Store, execution_id: str) -> str:
    """Return what to do about what a lost execution left running inside of it, or an empty text."""
    rows = of_agents(project, index, execution_id)
    if not rows:
        return ""
    where, them = short(execution_id), "it" if len(rows) == 1 else "them"
    runs = f"{named(rows)} {'runs' if len(rows) == 1 else 'run'} on inside of it"
    return f"{runs} (see: tenuto tree {where}); to end {them}: tenuto kill {where}"
