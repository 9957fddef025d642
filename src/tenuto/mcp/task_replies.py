"""What a call about a task answers: what came of it step by step, or how far it is and what it asks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core.execution import Snapshot
from tenuto.core.quantities import brief_duration, iso, money
from tenuto.core.states import RESUMABLE, State
from tenuto.engine.inside import INSIDE
from tenuto.engine.stopped import document as stopped_document
from tenuto.engine.tasks import result_document
from tenuto.mcp import replies
from tenuto.mcp.pages import Page
from tenuto.mcp.replies import Reply
from tenuto.mcp.spoken import spoken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenuto.core.progress import Progress, StepProgress
    from tenuto.core.state import CheckpointInfo

_STEPS = 40  # shown of a plan; those that went wrong before those that went well
_ASKS = 20
_ERROR = 400
_DETAIL = 4000
_WARNINGS = 20
_RESUME = "tenuto resume"
_UNUSABLE = ("auth", "missing", "outdated")


def status_of(snapshot: Snapshot, progress: Progress) -> str:
    """Return how a task stands: running, waiting, completed, partial, failed, or as it was ended."""
    if not snapshot.done:
        return "waiting" if snapshot.waiting_for is not None else "running"
    if snapshot.state is State.SUCCEEDED:
        return "completed"
    if snapshot.state is State.FAILED:
        finished = progress.finished
        return "partial" if finished is not None and finished.status == "partial" else "failed"
    return str(snapshot.state)


def facts(snapshot: Snapshot, progress: Progress) -> dict[str, Any]:
    """Return what is known of a task, without its output."""
    whole = result_document(progress)
    shown = _shown(progress)
    runtimes = list(dict.fromkeys(one.runtime for one in progress.steps.values() if one.runtime))
    status = status_of(snapshot, progress)
    known: dict[str, Any] = {
        **replies.facts(snapshot),
        "status": status,
        "success": status == "completed",
        "strategy": progress.strategy,
        "strategy_reason": progress.reason,
        "runtime": ", ".join(runtimes),
        "runtimes": runtimes,
        "tokens_in": whole["tokens_in"],
        "tokens_out": whole["tokens_out"],
        "cost": whole["cost"],
        **({"inherited": whole["inherited"]} if whole["inherited"] else {}),
        "steps": [_step(one) for one in shown],
        "warnings": whole["warnings"][-_WARNINGS:],
        "fallbacks": whole["fallbacks"][-_WARNINGS:],
        "asks": asks(snapshot, progress),
    }
    if known.get("detail"):
        known["detail"] = spoken(known["detail"])
    if len(shown) < len(progress.steps):
        known["steps_total"] = len(progress.steps)
        known["steps_by_status"] = counts(progress)
    return known


def asks(snapshot: Snapshot, progress: Progress) -> list[dict[str, Any]]:
    """Return what somebody has to decide now."""
    if snapshot.waiting_for is None:
        return []
    return [
        {"n": n, "about": one.about, "text": one.text, "step": one.step,
         "detail": _cut_detail(one.detail)}
        for n, one in list(progress.asked.items())[:_ASKS]
    ]  # fmt: skip


def finished(snapshot: Snapshot, progress: Progress, page: Page) -> Reply:
    """Answer with how a task ended and what came of it; `page` is of its result, or of its log."""
    data = facts(snapshot, progress)
    steps = next_ended(snapshot, progress)
    parts = [page.text] if page.text else []
    parts.append(_ending(snapshot, progress, data["status"]))
    parts.append("\n".join(_summary(progress, data)))
    if steps:
        parts.append("Next:\n" + "\n".join(f"- {one}" for one in steps))
    data = {"message": parts[-2 if not steps else -3], **data, **page.data()}
    if steps:
        data["next"] = steps
    return Reply("\n\n".join(parts), data, data["status"] in ("failed", "partial", "lost"))


def going(snapshot: Snapshot, progress: Progress, page: Page, opening: str, heading: str) -> Reply:
    """Answer with a task that goes on, or waits for a decision: what it asks, how far it is."""
    data = facts(snapshot, progress)
    calls = next_calls(snapshot, data["asks"], page.cursor)
    parts = [opening]
    if data["asks"]:
        parts.append("\n".join(["It asks:", *map(_question_line, data["asks"])]))
    if progress.steps:
        parts.append("\n".join(_summary(progress, data)))
    parts.append(f"{heading}:\n{page.text or '(no output yet)'}")
    goes = "It waits; next:" if data["asks"] else "It goes on; next:"
    listed = "\n".join(f"- {one}" for one in calls)
    parts.append(f"{replies.further(snapshot)}\n{goes}\n{listed}")
    data = {"message": opening, **data, **page.data(), "next": calls}
    return Reply("\n\n".join(parts), data, open_id=snapshot.id)


def next_calls(snapshot: Snapshot, asked: list[dict[str, Any]], cursor: str) -> list[str]:
    """Return the calls that make sense while a task lives, written out."""
    where = f'execution_id="{snapshot.id}"'
    calls: list[str] = []
    for one in asked:
        calls.append(f"approve({where}, n={one['n']}) to say yes to #{one['n']}")
        calls.append(f'deny({where}, n={one["n"]}, why="…") to say no to it')
    after = f', cursor="{cursor}"' if cursor else ""
    calls.append(f"output({where}{after}, wait_s=50) for what is new, or the end")
    calls.append(f"engine_interrupt({where}) to stop it; engine_resume goes on later")
    return calls


def next_ended(snapshot: Snapshot, progress: Progress) -> list[str]:
    """Return the calls that make sense after a task's end, if any."""
    where = f'execution_id="{snapshot.id}"'
    if snapshot.state in RESUMABLE:
        left = [one for one in snapshot.hint.split("; ") if INSIDE in one]
        go_on = f"engine_resume({where}) to go on where it stopped; steps that are done stay done"
        return [go_on, *map(spoken, left)]
    calls: list[str] = []
    if any(one.kind in _UNUSABLE for one in progress.steps.values() if one.status == "failed"):
        calls.append("engine_status() for the runtimes that work here, and what the others lack")
    if snapshot.state is State.FAILED and (not progress.steps or _RESUME in snapshot.hint):
        calls += [spoken(snapshot.hint)] if snapshot.hint else []
    if any(one.status == "completed" for one in progress.steps.values()) and not snapshot:
        calls.append(
            f'engine_checkpoint({where}, action="list") for where engine_resume can begin a new task '
            "that keeps the steps that are done"
        )
    return calls


def stopped(
    snapshot: Snapshot, progress: Progress, places: Sequence[CheckpointInfo], before: bool
) -> Reply:
    """Answer what an interrupt of a task stopped, and what is saved."""
    steps = stopped_document(progress)
    text = f"Task {snapshot.id} is {snapshot.state}{' since an earlier call' if before else ''}."
    text += f" Stopped: {_names(steps['stopped'])}." if steps["stopped"] else ""
    text += f" Done and saved: {_names(steps['completed'])}." if steps["completed"] else ""
    text += f" Failed: {_names(steps['failed'])}." if steps["failed"] else ""
    text += f" Not begun: {_names(steps['pending'])}." if steps["pending"] else ""
    text += "" if progress.steps else " It had no plan yet."
    text += f" Newest checkpoint: {checkpoint_words(places)}." if places else ""
    data = {"message": text, **facts(snapshot, progress), **checkpoint_facts(places)}
    data["stopped"] = {name: found[:_STEPS] for name, found in steps.items()}
    if following := next_ended(snapshot, progress):
        text += f"\nNext: {following[0]}."
        data["next"] = following
    return Reply(text, data)


def checkpoint_facts(places: Sequence[CheckpointInfo]) -> dict[str, Any]:
    """Return the newest checkpoint of a task, and how many there are."""
    if not places:
        return {}
    last = places[-1]
    newest = {"seq": last.seq, "time": iso(last.time_ns), "what": last.what}
    return {"checkpoint": newest, "checkpoints_total": len(places)}


def checkpoint_words(places: Sequence[CheckpointInfo]) -> str:
    """Return the newest checkpoint of a task in a few words."""
    last = places[-1]
    return f"{last.seq} ({last.what}, {iso(last.time_ns)}), of {len(places)}"


def lines(snapshot: Snapshot, progress: Progress, data: dict[str, Any]) -> list[str]:
    """Return how a task stands, a line for each thing: what it asks, its figures, its steps."""
    asked = ["It asks:", *map(_question_line, data["asks"])] if data["asks"] else []
    ended = [_ending(snapshot, progress, data["status"])] if snapshot.done else []
    return [*asked, *ended, *_summary(progress, data)]


# Parts


def _ending(snapshot: Snapshot, progress: Progress, status: str) -> str:
    took = brief_duration(snapshot.duration_s)
    if status == "completed":
        return f"Task {snapshot.id} completed after {took}."
    why = spoken(snapshot.detail) or snapshot.reason
    more = f": {why}" if why and status != "interrupted" else "."
    if status == "partial":
        good = sum(one.status == "completed" for one in progress.steps.values())
        return (
            f"Partial: task {snapshot.id} ended after {took} with {good} of {len(progress.steps)} "
            f"steps completed{more}"
        )
    if status in ("failed", "lost"):
        return f"Error: task {snapshot.id} {status} after {took}{more}"
    return f"Task {snapshot.id} was {status} after {took}{more}"


def _summary(progress: Progress, data: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if progress.strategy:
        reason = f" ({progress.reason})" if progress.reason else ""
        lines.append(f"Strategy: {progress.strategy}{reason}")
    if data["tokens_in"] or data["tokens_out"] or data["cost"]:
        unmetered = any(one.unmetered for one in progress.steps.values())
        told = " (as the runtime told it; not metered)" if unmetered else ""
        lines.append(
            f"Tokens: {data['tokens_in']} in, {data['tokens_out']} out; "
            f"cost: {money(data['cost'])}{told}"
        )
        if part := data.get("inherited"):
            lines.append(
                f"Of which inherited from the task that it was forked from, and counted there: "
                f"{part['tokens_in']} in, {part['tokens_out']} out; cost: {money(part['cost'])}"
            )
    if progress.steps:
        lines.append(f"Steps ({', '.join(f'{n} {s}' for s, n in counts(progress).items())}):")
    lines += [_step_line(one) for one in _shown(progress)]
    more = len(progress.steps) - len(data["steps"])
    if more:
        lines.append(f"- and {more} more")
    lines += [f"Warning: {one}" for one in data["warnings"]]
    lines += [f"Fallback: {one}" for one in data["fallbacks"]]
    return lines


def _shown(progress: Progress) -> list[StepProgress]:
    """Return the steps to show, in order; of many, those that are not completed first."""
    ordered = progress.in_order()
    if len(ordered) <= _STEPS:
        return ordered
    first = [one for one in ordered if one.status not in ("completed", "pending")]
    rest = [one for one in ordered if one.status in ("completed", "pending")]
    kept = {one.step.id for one in [*first, *rest][:_STEPS]}
    return [one for one in ordered if one.step.id in kept]


def counts(progress: Progress) -> dict[str, int]:
    """Return how many steps stand in each status."""
    return dict(Counter(str(one.status) for one in progress.steps.values()))


def _step(one: StepProgress) -> dict[str, Any]:
    tokens = one.tokens
    shown: dict[str, Any] = {
        "id": one.step.id,
        "status": one.status,
        "role": one.role,
        "runtime": one.runtime,
        "model": one.model,
        "attempts": one.attempt,
        "tokens_in": tokens.input + tokens.cache_read + tokens.cache_write,
        "tokens_out": tokens.output,
        "cost": None if one.cost is None else float(one.cost),
        "duration_s": one.duration_s,
    }
    optional: dict[str, Any] = {
        "depends_on": list(one.step.depends_on[:_STEPS]),
        "unmetered": one.unmetered,
        "inherited": one.inherited,
        "error": _error(one),
        "trouble": one.trouble[:_ERROR],
        "execution_id": one.execution,
        "branch": one.branch,
    }
    return {**shown, **{name: value for name, value in optional.items() if value}}


def _step_line(one: StepProgress) -> str:
    what = f"- {one.step.id}: {one.status}"
    who = ", ".join(part for part in (one.role, one.runtime, one.model) if part)
    what += f" ({who})" if who else ""
    what += f", try {one.attempt}" if one.attempt > 1 else ""
    what += f", branch {one.branch}" if one.branch else ""
    what += ", inherited" if one.inherited else ""
    why = _error(one) or (f"{one.trouble[:_ERROR]}, it may try again" if one.trouble else "")
    return f"{what}: {why}" if why else what


def _error(one: StepProgress) -> str:
    """Return why a step is not completed; that of an earlier try is over once it runs again."""
    return "" if one.status in ("completed", "running") else spoken(one.error)[:_ERROR]


def question(one: dict[str, Any]) -> str:
    """Return what is asked, in one line."""
    detail = one["detail"]
    shown = "" if detail is None else detail if isinstance(detail, str) else _json(detail)
    return f"#{one['n']} ({one['about']}): {one['text']}{f': {shown}' if shown else ''}"


def _question_line(one: dict[str, Any]) -> str:
    return f"- {question(one)}"


def _cut_detail(detail: Any) -> Any:
    """Return what a question is about, as much of it as an answer holds."""
    text = _json(detail)
    return detail if len(text) <= _DETAIL else f"{text[:_DETAIL]}… ({len(text)} characters)"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _names(steps: list[str]) -> str:
    more = f" and {len(steps) - _STEPS} more" if len(steps) > _STEPS else ""
    return ", ".join(steps[:_STEPS]) + more
