"""Tools that show the whole: the engine, its runtimes and tasks, and what was spent."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tenuto.core.errors import TenutoError
from tenuto.core.execution import Snapshot
from tenuto.core.quantities import brief_duration, iso, money
from tenuto.core.states import RESUMABLE
from tenuto.mcp import replies, task_replies
from tenuto.mcp.arguments import Arguments
from tenuto.mcp.replies import Reply
from tenuto.mcp.spoken import spoken
from tenuto.mcp.task_tools import not_from_inside

if TYPE_CHECKING:
    from tenuto.core.budget import Spend
    from tenuto.engine.budgets import BudgetReport
    from tenuto.engine.runtimes import RuntimeInfo
    from tenuto.mcp.service import Caller, Service

_TASKS = 20
_EXECUTIONS = 10
_STOPPED = 5
_WINDOWS: dict[str, Literal["daily", "monthly"]] = {"day": "daily", "month": "monthly"}


async def status(service: Service, given: Arguments, caller: Caller) -> Reply:
    """Tell how the engine is, or one execution."""
    del caller
    execution_id = given.get("execution_id")
    if execution_id is not None:
        return await _one(service, execution_id)
    engine = service.engine
    health, report, runtimes, tasks, stopped, (spent, budget) = await asyncio.gather(
        engine.health(), engine.report(), service.looks.runtimes(), _tasks(service),
        _stopped(service), _spent(service),
    )  # fmt: skip
    wrong = [check for check in health if not check.ok]
    lines = [f"Health: {'in order' if not wrong else f'{len(wrong)} problems'}"]
    lines += [f"- {one.name}: {one.detail}. {one.hint}".rstrip() for one in wrong or health]
    counts = ", ".join(f"{number} {state}" for state, number in sorted(report.counts.items()))
    lines.append(f"Executions: {counts or 'none yet'}")
    lines += [f"Tasks ({len(tasks)}):", *map(_task_line, tasks)] if tasks else []
    if stopped:
        lines += ["Tasks that can go on with engine_resume, the newest:"]
        lines += [
            f"- {one['execution_id']} {one['state']} since {one['ended_at']}: {one['title']}"
            + (f"; not taken up by itself: {one['why']}" if "why" in one else "")
            for one in stopped
        ]
    settings = engine.settings
    lines.append(f"Runtimes (preferred: {settings.runtime_preferred or 'none'}):")
    lines += [_runtime_line(one) for one in runtimes]
    faults = [service.looks.fault] if service.looks.fault else []
    strategies: tuple[str, ...] = ()
    try:
        strategies = await engine.strategies()
    except TenutoError as error:
        faults.append(str(error))
    lines += [f"- {fault}" for fault in dict.fromkeys(faults)]
    lines += [f"Strategies: {', '.join(strategies)}", *spent]
    data: dict[str, Any] = {
        "healthy": not wrong,
        "health": [msgspec.to_builtins(one) for one in health],
        "counts": report.counts,
        "tasks": tasks,
        "resumable": stopped,
        "runtimes": [_runtime(one) for one in runtimes],
        "available_runtimes": [one.name for one in runtimes if one.available],
        "preferred_runtime": settings.runtime_preferred,
        "runtime_order": list(settings.runtime_order),
        "available_strategies": list(strategies),
        "budget": budget,
        "settings": {"wait": settings.wait, "output_cut_at": service.limit},
    }
    if faults:
        data["faults"] = faults
    return Reply("\n".join(lines), data)


async def _one(service: Service, execution_id: str) -> Reply:
    snapshot = await service.engine.show(execution_id)
    known = await service.facts(snapshot)
    if snapshot.kind != "task":
        return Reply("\n".join(f"{key}: {value}" for key, value in known.items()), known)
    progress = await service.engine.progress(snapshot.id)
    lines = [f"Task {snapshot.id}: {known['status']}: {snapshot.title[:200]}"]
    lines += task_replies.lines(snapshot, progress, known)
    if places := await service.engine.checkpoints(snapshot.id):
        lines.append(f"Newest checkpoint: {task_replies.checkpoint_words(places)}")
        known |= task_replies.checkpoint_facts(places)
    steps = task_replies.next_calls(snapshot, known["asks"], "")
    steps = task_replies.next_ended(snapshot, progress) if snapshot.done else steps
    if steps:
        lines += ["Next:", *(f"- {one}" for one in steps)]
        known["next"] = steps
    return Reply("\n".join(lines), known)


# Tasks that live


async def _tasks(service: Service) -> list[dict[str, Any]]:
    found = await service.engine.list(running=True, kind="task", most=_TASKS)
    return [await _task(service, one) for one in found]


async def _stopped(service: Service) -> list[dict[str, Any]]:
    """Return the newest tasks that can be resumed, and why none of them went on by itself."""
    found = await service.engine.list(states=tuple(RESUMABLE), kind="task", most=_STOPPED)
    why = {one.id: one.why for one in await service.engine.recovered() if not one.resumed}
    return [
        {
            "execution_id": one.id,
            "title": one.title[:80],
            "state": str(one.state),
            "ended_at": iso(one.ended_ns or one.created_ns),
            **({"why": spoken(why[one.id])} if one.id in why else {}),
        }
        for one in found
    ]


async def _task(service: Service, snapshot: Snapshot) -> dict[str, Any]:
    progress = await service.engine.progress(snapshot.id)
    return {
        "execution_id": snapshot.id,
        "title": snapshot.title[:80],
        "status": task_replies.status_of(snapshot, progress),
        "state": replies.state_words(snapshot),
        "duration_s": round(snapshot.duration_s, 3),
        "steps": task_replies.counts(progress),
        "asks": task_replies.asks(snapshot, progress),
    }


def _task_line(task: dict[str, Any]) -> str:
    steps = ", ".join(f"{number} {state}" for state, number in task["steps"].items())
    line = f"- {task['execution_id']} {task['state']}, {brief_duration(task['duration_s'])}"
    line += f", steps: {steps or 'none yet'}: {task['title']}"
    return "\n".join([line, *(f"  asks #{one['n']}: {one['text']}" for one in task["asks"])])


# Runtimes


def _runtime(one: RuntimeInfo) -> dict[str, Any]:
    return {
        "name": one.name,
        "available": one.available,
        "family": one.family,
        "version": one.version or None,
        "kind": one.kind or None,
        "why": one.why or None,
        "hint": one.hint or None,
        "unmetered": one.unmetered or None,
    }


def _runtime_line(one: RuntimeInfo) -> str:
    if one.available:
        line = f"- {one.name}: works{f', version {one.version}' if one.version else ''}"
        return line + (f"; unmetered: {one.unmetered}" if one.unmetered else "")
    hint = f" ({one.hint})" if one.hint else ""
    return f"- {one.name}: {'' if one.available is None else 'not usable: '}{one.why}{hint}"


# Money


async def budget(service: Service, given: Arguments, caller: Caller) -> Reply:
    """Tell what was spent; set limits; let a window count from zero again."""
    del caller
    limits: dict[str, Decimal | bool | None] = dict.fromkeys(given.get("remove", ()))
    for name in ("daily", "monthly", "task"):
        if given.get(name) is not None:
            limits[name] = Decimal(str(given.get(name)))
    if given.get("hard") is not None:
        limits["hard"] = given.get("hard")
    done: list[str] = []
    if limits or given.get("reset"):
        await not_from_inside(service)
    if limits:
        await service.engine.set_budget(**limits)
        done.append(f"Set: {', '.join(f'{k} = {_limit(v)}' for k, v in limits.items())}.")
    if given.get("reset"):
        window = _WINDOWS[given.get("reset")]
        await service.engine.reset_budget(window, "an MCP client")
        done.append(f"Reset: the {window} window counts from zero.")
    report = await service.engine.budget(_EXECUTIONS)
    lines, data = [*done, *budget_lines(report)], budget_data(report)
    lines += [
        f"- {one.id}: {_spent_words(one.spend)}: {one.title[:60]}" for one in report.executions
    ]
    data["executions"] = [
        {"execution_id": one.id, "title": one.title[:80], **_spend(one.spend)}
        for one in report.executions
    ]
    data["days"] = {day: float(one.cost) for day, one in report.days.items()}
    if done:
        data["message"] = " ".join(done)
    return Reply("\n".join(lines), data)


async def _spent(service: Service) -> tuple[list[str], dict[str, Any]]:
    try:
        report = await service.engine.budget(0)
    except TenutoError as error:
        return [f"Budget: {error}"], {"error": str(error)}
    return budget_lines(report), budget_data(report)


def budget_lines(report: BudgetReport) -> list[str]:
    """Return spending and limits as people read them."""
    limits = report.limits
    lines = [
        f"Spent {name}: {_spent_words(spend)}; limit {_limit(limit)}"
        for name, spend, limit in (
            ("today", report.day, limits.daily), ("this month", report.month, limits.monthly),
        )
    ]  # fmt: skip
    hard = "nothing is admitted at a limit" if limits.hard else "limits warn, or ask"
    lines.append(f"Limit for each task: {_limit(limits.task)}; hard: {limits.hard} ({hard})")
    return lines + [f"Note: {one}" for one in _notes(report)]


def budget_data(report: BudgetReport) -> dict[str, Any]:
    """Return spending and limits as data."""
    limits = report.limits
    return {
        "daily_tokens": report.day.tokens.total,
        "daily_spending": float(report.day.cost),
        "monthly_tokens": report.month.tokens.total,
        "monthly_spending": float(report.month.cost),
        "daily_limit": _number(limits.daily),
        "monthly_limit": _number(limits.monthly),
        "task_limit": _number(limits.task),
        "hard": limits.hard,
        "day": _spend(report.day),
        "month": _spend(report.month),
        "notes": _notes(report),
    }


def _notes(report: BudgetReport) -> list[str]:
    notes: list[str] = []
    if report.unpriced:
        notes.append(f"requests without a known price, not in the dollars: {report.unpriced}")
    if report.estimated:
        notes.append(f"requests counted by estimate: {report.estimated}")
    health = report.health
    if health.lost or health.unknown or health.aside:
        notes.append("records of the ledger are damaged; see: tenuto doctor")
    return notes


def _spend(spend: Spend) -> dict[str, Any]:
    return {
        "cost": float(spend.cost),
        "reserved": float(spend.reserved),
        "tokens": spend.tokens.total,
        "requests": spend.requests,
    }


def _spent_words(spend: Spend) -> str:
    cost = "no known price" if spend.unpriced and not spend.cost else money(spend.cost)
    requests = f"{spend.requests} request{'' if spend.requests == 1 else 's'}"
    return f"{cost}, {spend.tokens.total} tokens, {requests}"


def _limit(limit: Decimal | bool | None) -> str:
    if isinstance(limit, bool):
        return str(limit).lower()
    return "none" if limit is None else money(limit)


def _number(limit: Decimal | None) -> float | None:
    return None if limit is None else float(limit)
