"""Tools of durable state: checkpoints of a task, and what agents' steps came to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core.errors import InvalidInput, UnknownExecution
from tenuto.core.quantities import brief_duration, iso, money
from tenuto.core.state import before_failure
from tenuto.engine.history import record_document, totals_document
from tenuto.mcp.arguments import Arguments
from tenuto.mcp.replies import Reply
from tenuto.mcp.task_replies import next_ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenuto.core.budget import Tokens
    from tenuto.core.execution import Snapshot
    from tenuto.core.history import ExecutionRecord, Group, History, Totals
    from tenuto.core.progress import Progress
    from tenuto.core.state import CheckpointInfo, ExecutionState
    from tenuto.engine.history import Place
    from tenuto.engine.saved import Checkpoint
    from tenuto.mcp.service import Caller, Service

_NAMED = 40  # of steps and of checkpoints, in one answer
_RECORDS = 20
_CURSOR = re.compile(r"h(\d{1,20})\.(\d{1,20})\.([0-9a-f-]{36})")
_PARTS = ("finished", "running", "interrupted", "ready", "waiting")


# Checkpoints


async def checkpoint(service: Service, given: Arguments, caller: Caller) -> Reply:
    """Save a task's state now, or only tell what is saved and where it can be forked."""
    del caller
    engine = service.engine
    snapshot = await engine.show(given.get("execution_id"))
    made = None
    if given.get("action", "save") == "save":
        made = await engine.checkpoint(snapshot.id)
        snapshot = await engine.show(snapshot.id)
    places = await engine.checkpoints(snapshot.id)
    known = await engine.state(snapshot.id)
    progress = await engine.progress(snapshot.id)
    opening = _opening(snapshot, made, places)
    steps = _next_of(snapshot, progress, places)
    problems = [*(made.problems if made is not None else ()), *known.problems]
    lines = [opening, *_saved_lines(known.state), *(f"Problem: {one}" for one in problems)]
    if places:
        lines += ["Checkpoints:", *map(_place_line, places[-_NAMED:])]
    more = len(places) - _NAMED
    lines += [f"- and {more} before these"] if more > 0 else []
    lines += ["Next:", *(f"- {one}" for one in steps)] if steps else []
    data: dict[str, Any] = {
        "message": opening,
        "execution_id": snapshot.id,
        "state": str(snapshot.state),
        "saved": _saved(known.state),
        "checkpoints": [
            {"seq": one.seq, "time": iso(one.time_ns), "what": one.what} for one in places[-_NAMED:]
        ],
        "checkpoints_total": len(places),
    }
    if made is not None:
        data["checkpoint"] = {"seq": made.seq, "path": made.path, "sha256": made.state.sha256}
    if problems:
        data["problems"] = problems
    if steps:
        data["next"] = steps
    return Reply("\n".join(lines), data)


def _opening(snapshot: Snapshot, made: Checkpoint | None, places: Sequence[CheckpointInfo]) -> str:
    if made is None:
        return f"Task {snapshot.id} ({snapshot.state}) has {len(places)} checkpoints."
    where = f"checkpoint {made.seq}" if made.seq >= 0 else "before its plan was made"
    return f"The state of task {snapshot.id} ({made.state.status}) is saved: {where}, {made.path}."


def _place_line(one: CheckpointInfo) -> str:
    return f"- {one.seq}: {one.what}, {iso(one.time_ns)}"


def _next_of(snapshot: Snapshot, progress: Progress, places: Sequence[CheckpointInfo]) -> list[str]:
    """Return the calls that make sense with these checkpoints."""
    where = f'execution_id="{snapshot.id}"'
    calls = [one for one in next_ended(snapshot, progress) if one.startswith("engine_resume(")]
    if failed := before_failure(places):
        again, seq = failed
        calls.append(
            f"engine_resume({where}, from={seq}) to do {again} again in a new task, with all that "
            "was done before it"
        )
    elif places:
        calls.append(
            f"engine_resume({where}, from=N), N a number from the list, to begin a new task there; "
            "this one stays as it is"
        )
    return calls


def _saved(state: ExecutionState) -> dict[str, Any]:
    """Return what is saved of a task, without the outputs of its steps."""
    cursor = state.cursor
    lists = {name: getattr(cursor, name) for name in _PARTS}
    return {
        "status": state.status,
        "seq": state.seq,
        "updated_at": state.updated_at,
        "steps": len(state.results),
        **{name: list(found[:_NAMED]) for name, found in lists.items()},
        "counts": {name: len(found) for name, found in lists.items() if found},
        "sessions": dict(list(state.sessions.items())[:_NAMED]),
        "environment": msgspec.to_builtins(state.environment),
        "forked_from": state.metadata.get("forked_from"),
        "sha256": state.sha256,
    }


def _saved_lines(state: ExecutionState) -> list[str]:
    cursor, place = state.cursor, state.environment
    lines = [f"Saved up to event {state.seq}, {state.updated_at}; steps: {len(state.results)}"]
    for name in _PARTS:
        found: tuple[str, ...] = getattr(cursor, name)
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            lines.append(f"- {name}: {', '.join(found[:_NAMED])}{more}")
    sessions = [
        f"{step}: {one['runtime']} {one['session']}" for step, one in state.sessions.items()
    ]
    lines += [f"Sessions: {'; '.join(sessions[:_NAMED])}"] if sessions else []
    at = f" at commit {place.commit}" if place.commit else ""
    runtimes = "".join(f", {name} {version}" for name, version in place.runtimes.items())
    lines.append(
        f"Folder: {place.cwd}{at} on {place.host}; tenuto {place.tenuto}, python {place.python}"
        f"{runtimes}"
    )
    if forked := state.metadata.get("forked_from"):
        lines.append(f"Forked from: {forked['id']} at {forked['seq']}")
    lines.append(f"sha256: {state.sha256}")
    return lines


# History


async def history(service: Service, given: Arguments, caller: Caller) -> Reply:
    """Tell what steps came to, page by page, or by group; and the totals."""
    del caller
    execution_id, limit = given.get("execution_id"), given.get("limit", _RECORDS)
    if execution_id is not None:
        execution_id = await _task(service, execution_id)
    found = await service.engine.history(
        execution_id, since=given.get("since"), until=given.get("until"), by=given.get("by"),
        change=given.get("change", ""), task_id=given.get("task_id", ""),
        failed=given.get("failed", False), most=limit + 1, before=_before(given.get("cursor")),
    )  # fmt: skip
    lines = [f"Steps: {total_words(found.totals)}"]
    data: dict[str, Any] = {"totals": _slim(totals_document(found.totals))}
    if found.by is not None:
        _add_groups(found, lines, data, limit)
    else:
        _add_records(found, lines, data, limit, service.limit)
    return Reply("\n".join(lines), data)


async def _task(service: Service, execution_id: str) -> str:
    """Return the id of a task; one that was cleaned away is still in the history."""
    try:
        snapshot = await service.engine.show(execution_id)
    except UnknownExecution:
        return execution_id
    if snapshot.kind != "task":
        raise InvalidInput(
            f"{snapshot.id} is no task ({snapshot.kind}): only tasks have steps",
            f'see engine_status(execution_id="{snapshot.id}")',
        )
    return snapshot.id


def _before(cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise InvalidInput(
            f"{cursor[:80]!r} is no cursor of engine_history", "use the one of its last answer"
        )
    return int(found[1]), found[3], int(found[2])


def _add_records(
    found: History, lines: list[str], data: dict[str, Any], limit: int, room: int
) -> None:
    """Add as many records as were asked for and an answer holds, and where the next page begins."""
    shown: list[ExecutionRecord] = []
    for one in found.records[:limit]:
        room -= len(msgspec.json.encode(_record(one))) + 2
        if shown and room < 0:
            break
        shown.append(one)
    lines += [_record_line(one) for one in shown] or ["(none)"]
    data["steps"] = [_record(one) for one in shown]
    if len(found.records) > len(shown):
        executed_ns, execution, seq = shown[-1].place
        cursor = f"h{executed_ns}.{seq}.{execution}"
        step = (
            f'engine_history(…, cursor="{cursor}") with the same arguments for those before these'
        )
        lines += ["Next:", f"- {step}"]
        data |= {"cursor": cursor, "truncated": True, "next": [step]}


def _add_groups(found: History, lines: list[str], data: dict[str, Any], limit: int) -> None:
    lines += [f"- {_key(one)}: {total_words(one.totals)}" for one in found.groups[:limit]]
    data["by"] = found.by
    data["groups"] = [
        {"key": one.key, **_slim(totals_document(one.totals))} for one in found.groups[:limit]
    ]
    more = len(found.groups) - limit
    if more > 0:
        step = "engine_history with a larger limit, or with since, for fewer groups"
        lines += [f"- and {more} more", "Next:", f"- {step}"]
        data |= {"groups_total": len(found.groups), "truncated": True, "next": [step]}


def _key(one: Group) -> str:
    return one.key or "(none)"


def _record(one: ExecutionRecord) -> dict[str, Any]:
    return _slim(record_document(one))


def _slim(document: dict[str, Any]) -> dict[str, Any]:
    """Return it without what says nothing."""
    return {name: value for name, value in document.items() if value not in ("", None)}


def _record_line(one: ExecutionRecord) -> str:
    line = f"- {one.executed_at} {one.execution} {one.step}: {one.status}"
    who = ", ".join(part for part in (one.role, one.runtime, one.model, one.strategy) if part)
    line += f" ({who})" if who else ""
    line += f", {one.kind}" if one.kind else ""
    line += f", try {one.attempt}" if one.attempt > 1 else ""
    if one.attempt:
        line += f", {_token_words(one.tokens)}"
        line += f", {_cost_words(one)}, {brief_duration(one.duration_s)}"
    names = {"task": one.task_id, "change": one.change, "workflow": one.workflow}
    known = ", ".join(f"{name} {value}" for name, value in names.items() if value)
    return f"{line}; {known}" if known else line


def _cost_words(one: ExecutionRecord) -> str:
    cost = "cost unknown" if one.cost is None else money(one.cost)
    return f"{cost} (not metered)" if one.unmetered else cost


def _token_words(tokens: Tokens) -> str:
    words = f"{tokens.input} tokens in, {tokens.output} out"
    if tokens.cache_read or tokens.cache_write:
        words += f", {tokens.cache_read} from the cache, {tokens.cache_write} into it"
    return words


def total_words(one: Totals) -> str:
    """Return totals of steps in one line."""
    counts = {"completed": one.completed, "failed": one.failed, "interrupted": one.interrupted,
              "skipped": one.skipped}  # fmt: skip
    said = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    if not one.count:
        return "none"
    words = f"{one.count} ({said})"
    if one.success_rate is not None:
        words += f", {one.success_rate:.0%} of those that ran succeeded"
    words += f"; {_token_words(one.tokens)}"
    words += f", cost {money(one.cost)}"
    words += (
        f" and {one.unpriced} steps of unknown cost"
        if one.unpriced and one.cost is not None
        else ""
    )
    if one.p50_s is not None and one.p95_s is not None:
        words += f"; {brief_duration(one.duration_s)} in all, p50 {brief_duration(one.p50_s)}, "
        words += f"p95 {brief_duration(one.p95_s)}"
    return words
