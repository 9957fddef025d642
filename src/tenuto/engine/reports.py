"""The execution report: what runs, in one glance; each replaces the one before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.execution import Snapshot
from tenuto.core.ids import short
from tenuto.core.quantities import brief_duration, iso

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

GATEWAY = "metering gateway"
"""The title of the project's gateway, which waits for requests of agents and ends by itself."""


class ReportLine(msgspec.Struct, frozen=True):
    """One execution in a report."""

    id: str
    title: str
    state: str
    started_at: str
    duration_s: float
    output_lines: int
    is_async: bool
    done: bool


class Report(msgspec.Struct, frozen=True):
    """Everything that runs, and how many executions stand in each state."""

    at: str
    running: tuple[ReportLine, ...]
    counts: dict[str, int]

    def text(self) -> str:
        """Return the report as people read it."""
        if not self.running:
            return "Nothing is running."
        lines = [f"Running: {len(self.running)}"]
        wide = max(15, *(len(one.state) for one in self.running))
        for one in self.running:
            mark = " async" if one.is_async else ""
            lines.append(
                f"  {short(one.id)}  {one.state:<{wide}} {brief_duration(one.duration_s):>7}  "
                f"{one.output_lines} line{'' if one.output_lines == 1 else 's'}{mark}  {one.title[:60]}"
            )
        return "\n".join(lines)


def report(engine: BlockingEngine) -> Report:
    """Return what is running now."""
    found = engine.list(running=True, most=None)
    live = [one for one in found if not serves(one)]
    counts = engine.index.counts()
    for one in found:
        state = str(one.state)
        if serves(one) and counts.get(state):
            counts[state] -= 1
    return Report(
        at=iso(time.time_ns()),
        running=tuple(_line(snapshot) for snapshot in reversed(live)),
        counts={state: number for state, number in counts.items() if number},
    )


def serves(snapshot: Snapshot) -> bool:
    """Tell whether it does nothing by itself: a session, or the project's gateway."""
    return snapshot.session_host or is_gateway(snapshot)


def is_gateway(snapshot: Snapshot) -> bool:
    """Tell whether it is the project's gateway, which nobody started on purpose."""
    return snapshot.title == GATEWAY and snapshot.kind == "command"


def _line(snapshot: Snapshot) -> ReportLine:
    state = str(snapshot.state)
    if snapshot.waiting_for is not None:
        state = f"waiting: {snapshot.waiting_for}"
    return ReportLine(
        id=snapshot.id,
        title=snapshot.title,
        state=state,
        started_at=iso(snapshot.started_ns or snapshot.created_ns),
        duration_s=round(snapshot.duration_s, 3),
        output_lines=snapshot.output_lines,
        is_async=snapshot.is_async,
        done=snapshot.done,
    )
