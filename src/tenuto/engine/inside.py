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

INSIDE = "on inside of it"
"""By this the hint about leftovers is known among others."""
_NAMED = 6


def living(project: Project, index: Store, execution_id: str) -> list[Row]:
    """Return what still runs of all that was started inside an execution, at any depth."""
    below = index.children(execution_id)
    found: list[Row] = []
    for row in below:
        if row.state in LIVE:  # the index may not know of its end yet
            settled = recover.settle_row(project, row)
            found += [settled] if settled.state in LIVE else []
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
    where, one = short(execution_id), len(rows) == 1
    runs, them = f"{'runs' if one else 'run'} {INSIDE}", "it" if one else "them"
    until = f"until tenuto kill {where} or a resume ends {them}"
    return f"{named(rows)} {runs} (see: tenuto tree {where}), {until}"
