"""What a call answers, as text and as data, each complete: clients show one or the other."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from tenuto.core.errors import (
    AmbiguousId,
    NotOwned,
    NotRunning,
    TenutoError,
    UnknownExecution,
    UnknownTool,
)
from tenuto.core.execution import Snapshot
from tenuto.core.quantities import brief_duration, iso
from tenuto.core.states import State, WaitingFor
from tenuto.engine.reports import ReportLine
from tenuto.mcp.pages import Page
from tenuto.mcp.spoken import spoken

_SHOWN_RUNNING = 10
_TITLE = 60


class Reply(msgspec.Struct, frozen=True):
    """One answer. `open_id` names an execution that goes on, for clients that take tasks."""

    text: str
    data: dict[str, Any]
    is_error: bool = False
    open_id: str = ""


def seconds(number: float) -> str:
    """Return seconds as people write them: 30, 0.4."""
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}".removesuffix(".0")


def state_words(snapshot: Snapshot) -> str:
    """Return the state, and whom it waits for."""
    if snapshot.waiting_for is not None:
        return f"waiting: {snapshot.waiting_for}"
    return str(snapshot.state)


def facts(snapshot: Snapshot) -> dict[str, Any]:
    """Return what is known of an execution, without its output."""
    known: dict[str, Any] = {
        "execution_id": snapshot.id,
        "state": str(snapshot.state),
        "kind": snapshot.kind,
        "title": snapshot.title[:200],
        "async": snapshot.is_async,
        "started_at": iso(snapshot.started_ns or snapshot.created_ns),
        "duration_s": round(snapshot.duration_s, 3),
        "output_lines": snapshot.output_lines,
        "output_bytes": snapshot.output_bytes,
    }
    optional: dict[str, Any] = {
        "waiting_for": str(snapshot.waiting_for) if snapshot.waiting_for else None,
        "ended_at": iso(snapshot.ended_ns) if snapshot.ended_ns else None,
        "exit_code": snapshot.exit_code,
        "signal": snapshot.signal,
        "engine": snapshot.engine,
        "reason": snapshot.reason or None,
        "detail": snapshot.detail or None,
        "interactive": snapshot.interactive or None,
        "parent": snapshot.parent,
        "confinement": snapshot.confinement.level if snapshot.confinement else None,
        "session_note": snapshot.session_note or None,
        "damaged_bytes": snapshot.damaged or None,
    }
    if snapshot.done and snapshot.hint:
        optional["suggestion"] = spoken(snapshot.hint)
    if snapshot.left_behind:
        optional["left_behind"] = [msgspec.to_builtins(one) for one in snapshot.left_behind]
    known.update({key: value for key, value in optional.items() if value is not None})
    if snapshot.has_value and snapshot.kind != "task":  # a task's is shown as what it means
        known["value"] = snapshot.value
    return known


def finished(snapshot: Snapshot, page: Page) -> Reply:
    """Answer with how an execution ended and what it wrote."""
    parts = [page.text] if page.text else []
    if snapshot.has_value:
        parts.append(f"Value: {_shown(snapshot.value)}")
    took = brief_duration(snapshot.duration_s)
    took += f" in {snapshot.engine}" if snapshot.engine else ""
    code = "" if snapshot.exit_code is None else f" (exit code {snapshot.exit_code})"
    if snapshot:
        parts.append(f"Execution {snapshot.id} succeeded after {took}{code}.")
    else:
        why = snapshot.detail or snapshot.reason
        more = f": {why}" if why else "."
        parts.append(f"Error: execution {snapshot.id} {snapshot.state} after {took}{code}{more}")
        if snapshot.hint:
            parts.append(f"Suggestions:\n- {spoken(snapshot.hint)}")
    if snapshot.session_note:
        parts.append(f"Note: {snapshot.session_note}")
    if snapshot.left_behind:
        names = ", ".join(f"{one.pid} {one.command[:40]}" for one in snapshot.left_behind)
        parts.append(f"Processes it left running: {names}")
    data = {**facts(snapshot), **page.data()}
    failed = snapshot.state in (State.FAILED, State.LOST)
    return Reply("\n\n".join(parts), data, failed)


def handover(snapshot: Snapshot, waited_s: float) -> str:
    """Return the words with which a handover opens."""
    opening = f"Execution moved to async mode after {seconds(waited_s)} seconds."
    if snapshot.waiting_for is not None:
        opening += f" It waits for {_whom(snapshot)}."
    return opening


def still_going(snapshot: Snapshot, page: Page, opening: str, heading: str) -> Reply:
    """Answer with a live execution's output and the next calls."""
    steps = next_calls(snapshot, page.cursor)
    shown = page.text or "(no output yet)"
    text = f"{opening}\n\n{heading}:\n{shown}\n\n{further(snapshot)}\nIt goes on; next:\n"
    text += "\n".join(f"- {step}" for step in steps)
    data = {"message": opening, **facts(snapshot), **page.data(), "next": steps}
    return Reply(text, data, open_id=snapshot.id)


def further(snapshot: Snapshot) -> str:
    """Return the line by which every handover names its execution."""
    return (
        f'[Execution ID: {snapshot.id} - Use \'action: "get_async_log", '
        f'executionId: "{snapshot.id}"\' to view further progress]'
    )


def next_calls(snapshot: Snapshot, cursor: str) -> list[str]:
    """Return the calls that make sense now, written out."""
    where = f'execution_id="{snapshot.id}"'
    calls = [f'output({where}, cursor="{cursor}", wait_s=50) for what is new, or the end']
    if snapshot.waiting_for is WaitingFor.INPUT:
        calls.insert(0, f'send_input({where}, text="…") to answer it')
    calls.append(f"kill({where}) to end it")
    return calls


def _whom(snapshot: Snapshot) -> str:
    if snapshot.waiting_for is WaitingFor.INPUT:
        return "input on stdin"
    return str(snapshot.waiting_for)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def listed(running: tuple[ReportLine, ...] | list[ReportLine]) -> tuple[str, dict[str, Any]]:
    """Return the running list as text and as data; a long one with its first ones and their number."""
    shown: list[dict[str, Any]] = [
        {
            "execution_id": one.id,
            "state": one.state,
            "duration_s": one.duration_s,
            "output_lines": one.output_lines,
            "async": one.is_async,
            "title": one.title[:_TITLE],
        }
        for one in running[:_SHOWN_RUNNING]
    ]
    data: dict[str, Any] = {"running": shown}
    if not shown:
        return "Running now: nothing.", data
    lines = [
        f"- {one['execution_id']} {one['state']}, {brief_duration(one['duration_s'])}, "
        f"{one['output_lines']} lines: {one['title']}"
        for one in shown
    ]
    more = len(running) - len(shown)
    if more:
        lines.append(f"- and {more} more: see list()")
        data["running_more"] = more
    return f"Running now ({len(running)}):\n" + "\n".join(lines), data


def refused(error: TenutoError) -> Reply:
    """Answer with an error: what, why, and the next call."""
    hint = spoken(error.hint)
    if isinstance(error, NotOwned):
        hint = "only a server started in that project's folder can reach it"
    elif isinstance(error, AmbiguousId):
        hint = "give more of the id"
    elif isinstance(error, UnknownExecution):
        near = error.hint if error.hint.startswith("the nearest") else ""
        hint = "; ".join(part for part in (near, 'see the ids with list(which="all")') if part)
    elif isinstance(error, UnknownTool):
        hint = hint.replace(
            "list them with: tenuto tools list", 'see composed_tools(action="list")'
        )
    elif isinstance(error, NotRunning) and error.hint.startswith("see"):
        hint = "read how it ended with output(execution_id=…)"
    text = f"Error: {error.message}" + (f"\nNext: {hint}" if hint else "")
    return Reply(text, {"error": error.message, "code": error.code, "next": [hint] if hint else []},
                 is_error=True)  # fmt: skip
