"""Budgets as users have them: limits in force, reports, resets, and decisions for a task's driver."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core.budget import (
    EVERYTHING,
    Admission,
    BudgetLimits,
    Crossing,
    Estimate,
    Grant,
    Spend,
    approving,
)
from tenuto.core.errors import InvalidInput
from tenuto.core.layouts import lay_out
from tenuto.core.quantities import money
from tenuto.engine.agent_settings import AgentSettings
from tenuto.engine.settings import (
    PROJECT_FILE,
    Settings,
    load_settings,
    parse_dollars,
    user_file,
)
from tenuto.metering.ledger import Health, Ledger
from tenuto.metering.prices import Prices, tier_price
from tenuto.metering.records import Window
from tenuto.stores.layout import Project, as_error, make_link

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

_NAMES = ("daily", "monthly", "task", "hard")


class ExecutionSpend(msgspec.Struct, frozen=True):
    """What one execution spent."""

    id: str
    title: str
    spend: Spend


class BudgetReport(msgspec.Struct, frozen=True):
    """What was spent, and what may be."""

    day: Spend
    month: Spend
    limits: BudgetLimits
    executions: tuple[ExecutionSpend, ...]
    """The newest first."""
    days: dict[str, Spend]
    """Every day of this month, resets or not."""
    health: Health
    """What is wrong with the ledger, if anything."""

    @property
    def unpriced(self) -> int:
        """Requests of this month whose price is not known."""
        return self.month.unpriced

    @property
    def estimated(self) -> int:
        """Requests of this month that were counted by what went over the line."""
        return self.month.estimated

    @property
    def unsettled(self) -> int:
        """Requests of this month under way, or whose gateway died: they count as estimated before."""
        return self.month.unsettled


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `budget --set` stored; what it does not name is left to the settings."""

    daily: Decimal | msgspec.UnsetType | None = msgspec.UNSET
    monthly: Decimal | msgspec.UnsetType | None = msgspec.UNSET
    task: Decimal | msgspec.UnsetType | None = msgspec.UNSET
    hard: bool | msgspec.UnsetType = msgspec.UNSET


class LimitsInForce:
    """The project's limits as they are now; files are read again only when they have changed."""

    def __init__(self, project: Project, environ: Mapping[str, str]) -> None:
        """Take whose limits they are; settings of the environment stay as they were."""
        self._project = project
        self._environ = environ
        self._paths = (
            user_file(environ), os.path.join(project.root, PROJECT_FILE), _path(project),
        )  # fmt: skip
        self._seen: list[tuple[int, int]] | None = None
        self._limits = BudgetLimits()

    def __call__(self) -> BudgetLimits:
        """Return them; while a file cannot be taken, as when it is being edited, the last ones."""
        seen = [_stamp(path) for path in self._paths]
        if seen != self._seen:
            try:
                settings, _ = load_settings(self._project.root, self._environ)
                self._limits = limits_of(self._project, settings)
            except InvalidInput:
                if self._seen is None:
                    raise
            self._seen = seen
        return self._limits


def limits_of(project: Project, settings: Settings) -> BudgetLimits:
    """Return the limits in force: what was set, else what the settings say."""
    values: dict[str, Any] = {
        "daily": settings.budget_daily,
        "monthly": settings.budget_monthly,
        "task": settings.budget_task,
        "hard": settings.budget_hard,
    }
    given = _given(project)
    for name in _NAMES:
        value = getattr(given, name)
        if value is not msgspec.UNSET:
            values[name] = value
    return BudgetLimits(**values)


def set_limits(engine: BlockingEngine, **limits: Decimal | bool | None) -> BudgetLimits:
    """Store limits for the project, None for none; return what is in force now.

    A gateway takes them up with its next request.
    """
    unknown = sorted(set(limits) - set(_NAMES))
    if unknown:
        raise InvalidInput(
            f"there is no limit {', '.join(unknown)}", f"there are {', '.join(_NAMES)}"
        )
    changed = {name: _checked(name, value) for name, value in limits.items()}
    stored = msgspec.structs.replace(_given(engine.project), **changed)
    make_link(engine.project)
    _store(engine.project, stored)
    return limits_of(engine.project, engine.settings)


def _checked(name: str, value: Decimal | bool | None) -> Decimal | bool | None:
    if name == "hard":
        if not isinstance(value, bool):
            raise InvalidInput(f"hard is true or false, not {value!r}")
        return value
    return None if value is None else parse_dollars(value)


def reset(engine: BlockingEngine, window: str, by: str = "") -> None:
    """Let a window count from zero again: daily or monthly."""
    chosen: Window
    if window == "daily":
        chosen = "daily"
    elif window == "monthly":
        chosen = "monthly"
    else:
        raise InvalidInput(f"there is no window {window!r}", "reset daily or monthly")
    with opened(engine.project) as ledger:
        ledger.reset(chosen, by)


def report(engine: BlockingEngine, most: int = 20) -> BudgetReport:
    """Return what was spent, and what may be."""
    with opened(engine.project) as ledger:
        spends = ledger.executions()
        newest = sorted(spends, reverse=True)[:most]  # ids sort by birth
        rows = {one: engine.index.get(one) for one in newest}
        return BudgetReport(
            day=ledger.window("daily"),
            month=ledger.window("monthly"),
            limits=limits_of(engine.project, engine.settings),
            executions=tuple(
                ExecutionSpend(one, row.title if row is not None else "", spends[one])
                for one, row in rows.items()
            ),
            days=ledger.days(),
            health=ledger.health(),
        )


def report_document(report: BudgetReport) -> dict[str, Any]:
    """Return a report for programs; amounts are dollars."""

    def told(spend: Spend) -> dict[str, Any]:
        return {
            "requests": spend.requests, "cost": float(spend.cost),
            "tokens": msgspec.to_builtins(spend.tokens), "total_tokens": spend.tokens.total,
            "reserved": float(spend.reserved), "unpriced": spend.unpriced,
            "estimated": spend.estimated, "unsettled": spend.unsettled,
        }  # fmt: skip

    def amount(value: Decimal | None) -> float | None:
        return None if value is None else float(value)

    limits = report.limits
    return {
        "schema": 1,
        "day": told(report.day),
        "month": told(report.month),
        "limits": {
            "daily": amount(limits.daily), "monthly": amount(limits.monthly),
            "task": amount(limits.task), "hard": limits.hard,
        },
        "days": {day: told(one) for day, one in report.days.items()},
        "executions": [
            {"id": one.id, "title": one.title, **told(one.spend)} for one in report.executions
        ],
        "health": msgspec.to_builtins(report.health),
    }  # fmt: skip


class opened:
    """A project's ledger, for as long as it is needed."""

    def __init__(self, project: Project) -> None:
        """Take whose it is."""
        self._ledger = Ledger(project.home)

    def __enter__(self) -> Ledger:
        return self._ledger

    def __exit__(self, *error: object) -> None:
        self._ledger.close()


# For a task's driver


def decide(
    ledger: Ledger,
    limits: BudgetLimits,
    execution: str,
    step: str = "",
    ahead: Estimate | None = None,
) -> Admission:
    """Say whether a step may begin: go, warn, ask or stop.

    With an estimate of what it may come to, a bound that it would reach counts too; one that is hard
    is only warned of then, since nothing is spent yet. What is news now is none the next time.
    """
    now = ledger.judge(execution, step, limits)
    if now.news:
        ledger.warned(execution, now.crossings)
    if now.verdict != "go" or ahead is None:
        return now
    later = ledger.judge(execution, step, limits, ahead)
    if later.verdict == "stop":
        return msgspec.structs.replace(later, verdict="warn", news=True)
    return later


def approve(ledger: Ledger, execution: str, up_to: Decimal | None = None) -> None:
    """Say yes for an execution: up to so many dollars, or to all that it will spend.

    Held requests go on once their gateway is woken. Hard caps stay.
    """
    grant = ledger.granted(execution) or Grant(execution)
    amount = EVERYTHING if up_to is None else up_to
    ledger.grant(msgspec.structs.replace(grant, approved=amount, approved_tokens=None))


class Offer(msgspec.Struct, frozen=True):
    """How far a yes to some bounds goes: a whole limit further than what is spent now."""

    approved: Decimal | None
    approved_tokens: int | None
    text: str
    """For those who are asked."""


def offer(ledger: Ledger, execution: str, crossings: Sequence[Crossing]) -> Offer:
    """Return what is asked for at some bounds that are reached."""
    grant = ledger.granted(execution) or Grant(execution)
    after = approving(ledger.spend(execution), grant, crossings)
    ends = {"cost": after.approved, "tokens": after.approved_tokens}
    amounts = {unit: ends[unit] or 0 for unit in dict.fromkeys(one.unit for one in crossings)}
    if max(amounts.values()) >= EVERYTHING:
        text = "to the task's end"
    else:
        named = [
            money(Decimal(amount)) if unit == "cost" else f"{amount} tokens"
            for unit, amount in amounts.items()
        ]
        text = f"until this task has used {' or '.join(named)}"
    return Offer(after.approved, after.approved_tokens, text)


def accept(ledger: Ledger, execution: str, offer: Offer) -> None:
    """Say yes to what was offered. Held requests go on once their gateway is woken."""
    grant = ledger.granted(execution) or Grant(execution)
    ledger.grant(
        msgspec.structs.replace(
            grant, approved=offer.approved, approved_tokens=offer.approved_tokens
        )
    )


def deny(ledger: Ledger, execution: str) -> None:
    """Say no for an execution: from now on nothing more of it is admitted."""
    grant = ledger.granted(execution) or Grant(execution)
    spend = ledger.spend(execution)
    ledger.grant(msgspec.structs.replace(grant, max_cost=spend.cost + spend.reserved, hard=True))


def close(ledger: Ledger, execution: str) -> None:
    """Say that an execution has ended: whoever still has a token of it is refused."""
    grant = ledger.granted(execution) or Grant(execution)
    ledger.grant(msgspec.structs.replace(grant, closed=True))


def prices_of(agents: AgentSettings) -> Prices:
    """Return prices with those that the settings have."""
    return Prices(
        {name: tier_price(coming, going) for name, (coming, going) in agents.prices.items()}
    )


def _path(project: Project) -> str:
    return os.path.join(project.home, "budget.json")


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_ino


def _given(project: Project) -> Given:
    try:
        with open(_path(project), "rb") as file:
            given = msgspec.json.decode(file.read(), type=Given)
        for name in _NAMES:  # somebody may have written it by hand
            if getattr(given, name) is not msgspec.UNSET:
                _checked(name, getattr(given, name))
        return given
    except FileNotFoundError:
        return Given()
    except (OSError, msgspec.MsgspecError, InvalidInput, ArithmeticError) as error:
        raise InvalidInput(
            f"{_path(project)} cannot be read: {error}", "set the limits anew, or remove that file"
        ) from None


def _store(project: Project, given: Given) -> None:
    fresh = f"{_path(project)}.{secrets.token_hex(4)}"
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(msgspec.json.encode(given))
            file.flush()
            os.fdatasync(file.fileno())
        os.rename(fresh, _path(project))
    except OSError as error:
        raise as_error(error, "the limits cannot be stored") from error


lay_out(Given)
