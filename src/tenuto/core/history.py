"""What agents' steps came to, as values: a record for each one that ended, and totals over many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Literal, get_args

import msgspec

from tenuto.core.budget import Tokens
from tenuto.core.errors import InvalidInput
from tenuto.core.quantities import iso

EndStatus = Literal["completed", "failed", "interrupted", "skipped_dependency_failed"]
By = Literal["model", "runtime", "day", "change", "workflow", "task", "role", "strategy"]
BY: tuple[By, ...] = get_args(By)
SKIPPED: EndStatus = "skipped_dependency_failed"
DAY_NS = 86_400_000_000_000
PICO = 1_000_000_000_000
_MOST_DOLLARS = Decimal(1_000_000)
_TRILLIONTH = Decimal(1).scaleb(-12)
_EXACT = Context(prec=40, rounding=ROUND_HALF_EVEN)


class ExecutionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step that ended: completed, failed, interrupted, or skipped because another failed.

    A step that was interrupted and completed after a resume has a record of each.
    """

    execution: str
    """The task's execution."""
    seq: int
    """Where on the task's tape it began; with the execution, what identifies it."""
    step: str
    status: EndStatus
    executed_ns: int
    """When it ended, in nanoseconds since the epoch."""
    attempt: int = 0
    """How many attempts the step had had by then; 0 if it never started."""
    task_id: str = ""
    change: str = ""
    workflow: str = ""
    role: str = ""
    model: str = ""
    runtime: str = ""
    strategy: str = ""
    kind: str = ""
    """The kind of error, as core.runs has them; `lost` or `killed` if its driver was."""
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    """Dollars, to a trillionth; None where the price is not known."""
    unmetered: bool = False
    """Its spend is only what the runtime told, not what a gateway counted."""
    duration_s: float = 0.0

    @property
    def success(self) -> bool:
        """Whether it was completed."""
        return self.status == "completed"

    @property
    def executed_at(self) -> str:
        """When it ended, as ISO 8601 in UTC."""
        return iso(self.executed_ns)

    @property
    def place(self) -> tuple[int, str, int]:
        """Its place in time; no two records share one."""
        return self.executed_ns, self.execution, self.seq


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What many records come to. Skipped steps are counted, and used nothing."""

    count: int = 0
    completed: int = 0
    failed: int = 0
    interrupted: int = 0
    skipped: int = 0
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    """Dollars of the steps whose cost is known; None if that of none is."""
    unpriced: int = 0
    """Steps that ran and whose cost is not known: it is not in `cost`, and not guessed."""
    unmetered: int = 0
    duration_s: float = 0.0
    p50_s: float | None = None
    p95_s: float | None = None

    @property
    def ran(self) -> int:
        """Steps that were not skipped."""
        return self.count - self.skipped

    @property
    def success_rate(self) -> float | None:
        """The part of the steps that ran which was completed; None if none ran."""
        return self.completed / self.ran if self.ran else None

    @property
    def mean_s(self) -> float | None:
        """The mean duration of the steps that ran."""
        return self.duration_s / self.ran if self.ran else None


class Group(msgspec.Struct, frozen=True):
    """The totals of all records that share something."""

    key: str
    totals: Totals


class History(msgspec.Struct, frozen=True, kw_only=True):
    """An answer about the past."""

    records: tuple[ExecutionRecord, ...] = ()
    """The newest that fit, at most as many as were asked for; none where groups were."""
    totals: Totals = Totals()
    """Of all that fit, listed or not."""
    by: By | None = None
    groups: tuple[Group, ...] = ()


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are wanted; what is left out does not matter."""

    execution: str = ""
    """A task's id, or the beginning of one."""
    since_ns: int = 0
    until_ns: int | None = None
    change: str = ""
    task_id: str = ""
    failed: bool = False
    """Only those without success."""
    most: int | None = None
    before: tuple[int, str, int] | None = None
    """Only those that stand before this place in time, for whoever reads page by page."""

    def fits(self, one: ExecutionRecord) -> bool:
        """Tell whether a record is wanted."""
        return (
            one.execution.startswith(self.execution)
            and one.executed_ns >= self.since_ns
            and (self.until_ns is None or one.executed_ns < self.until_ns)
            and self.change in ("", one.change)
            and self.task_id in ("", one.task_id)
            and not (self.failed and one.success)
            and (self.before is None or one.place < self.before)
        )


def check_by(by: str | None) -> By | None:
    """Return what to group by, or raise InvalidInput."""
    for one in BY:
        if one == by:
            return one
    if by is None:
        return None
    raise InvalidInput(f"steps cannot be grouped by {by!r}", f"use one of {', '.join(BY)}")


def key_of(by: By) -> Callable[[ExecutionRecord], str]:
    """Return what tells to which group a record belongs."""
    if by == "day":
        return lambda one: day_name(one.executed_ns // DAY_NS)
    if by == "task":  # a task without an id of its user's is known by its execution's
        return lambda one: one.task_id or one.execution
    return lambda one: str(getattr(one, by))


def day_name(number: int) -> str:
    """Return a day of UTC, counted from the epoch, as people write it."""
    return iso(number * DAY_NS)[:10]


def total(records: Iterable[ExecutionRecord]) -> Totals:
    """Return what records come to."""
    counts: dict[str, int] = {}
    tokens, pico, priced, unpriced, unmetered = Tokens(), 0, 0, 0, 0
    durations: list[int] = []
    for one in records:
        counts[one.status] = counts.get(one.status, 0) + 1
        tokens += one.tokens
        if one.cost is not None:
            pico, priced = pico + as_pico(one.cost), priced + 1
        if one.status != SKIPPED:
            durations.append(as_micro(one.duration_s))
            unmetered += one.unmetered
            unpriced += one.cost is None
    durations.sort()
    ran, skipped = len(durations), counts.get(SKIPPED, 0)
    return Totals(
        count=ran + skipped,
        completed=counts.get("completed", 0),
        failed=counts.get("failed", 0),
        interrupted=counts.get("interrupted", 0),
        skipped=skipped,
        tokens=tokens,
        cost=dollars(pico) if priced else None,
        unpriced=unpriced,
        unmetered=unmetered,
        duration_s=sum(durations) / 1e6,
        p50_s=_percentile(durations, 50),
        p95_s=_percentile(durations, 95),
    )


def _percentile(ordered: Sequence[int], percent: int) -> float | None:
    """Return the least duration that is not below so many percent of all."""
    if not ordered:
        return None
    return ordered[(len(ordered) * percent + 99) // 100 - 1] / 1e6


def group(records: Iterable[ExecutionRecord], by: By) -> list[Group]:
    """Return the totals of each group, as `in_order` has them."""
    key = key_of(by)
    found: dict[str, list[ExecutionRecord]] = {}
    for one in records:
        found.setdefault(key(one), []).append(one)
    return in_order([Group(name, total(members)) for name, members in found.items()], by)


def in_order(groups: Iterable[Group], by: By) -> list[Group]:
    """Return days one after the other, and all else by how many steps there were."""
    if by == "day":
        return sorted(groups, key=lambda one: one.key)
    return sorted(groups, key=lambda one: (-one.totals.count, one.key))


# Amounts are kept as whole numbers, so that sums are exact wherever they are made.


def known_cost(cost: Decimal | None) -> Decimal | None:
    """Return an amount to a trillionth of a dollar; None for what can be no cost."""
    if cost is None or not cost.is_finite() or not 0 <= cost <= _MOST_DOLLARS:
        return None
    try:
        return dollars(as_pico(cost))
    except InvalidOperation:
        return None


def as_pico(cost: Decimal) -> int:
    """Return dollars as a whole number of trillionths."""
    return int(cost.quantize(_TRILLIONTH, context=_EXACT) * PICO)


def dollars(pico: int) -> Decimal:
    """Return trillionths as dollars, without zeros that say nothing."""
    plain = Decimal(pico).scaleb(-12, context=_EXACT)
    return plain.quantize(Decimal(1)) if pico % PICO == 0 else plain.normalize(_EXACT)


def as_micro(seconds: float) -> int:
    """Return a duration in whole microseconds."""
    return round(seconds * 1e6)
