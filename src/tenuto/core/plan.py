"""A plan: steps and what each waits for. Checked as a whole before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, cast

import msgspec

from tenuto.core.errors import InvalidInput, InvalidPlan
from tenuto.core.layouts import lay_out
from tenuto.core.specs import check_text

MergeMode = Literal["keep", "merge", "discard"]
InFlight = Literal["retry", "ask", "skip"]
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PATH = re.compile(r"([A-Za-z_]+)|\[(\d+)\]")
_SHOWN = 80
_STEPS_MOST = 100_000
_EDGES_MOST = 500_000


class Retry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How often a step is tried again after a failure that may pass, and after which pause."""

    times: int = 2
    pause: float = 1.0
    """Seconds before the first new try; each further one waits twice as long."""
    on_any: bool = False
    """Also after failures that are no passing ones."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One piece of work for one agent."""

    id: str
    task: str
    depends_on: tuple[str, ...] = ()
    role: str | None = None
    model: str | None = None
    """A tier (fast, main, heavy) or a model as the runtime names it."""
    runtime: str | None = None
    type: str | None = None
    """The task's type: architecture, feature, bugfix, …; inferred where it is missing."""
    skills: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    max_cost: Decimal | None = None
    max_tokens: int | None = None
    retry: Retry = Retry()
    in_flight: InFlight = "retry"
    """What a resume does with it if it was interrupted half way."""
    continues: str | None = None
    """A step whose session it goes on in, if the runtime is the same."""
    reviews: str | None = None
    """A step that it may send back: the two run again, with what it said."""
    rounds: int = 2
    """How often it may."""


class Plan(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Steps in the order they were written; what an order needs stands in `depends_on`."""

    steps: tuple[Step, ...]
    concurrency: int | None = None


lay_out(Plan)


def read_plan(data: bytes | str | Mapping[str, Any] | Plan) -> Plan:
    """Return a plan from JSON: an object with `steps` (or `tasks`), or a bare list of steps.

    One that is a Plan already is read again: what was put into it may be of any type.
    """
    try:
        raw: Any = msgspec.json.decode(data) if isinstance(data, (bytes, str)) else data
        raw = msgspec.to_builtins(raw) if isinstance(raw, Plan) else raw
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidPlan(f"the plan is no JSON: {error}", "correct the place it names") from None
    if not isinstance(raw, (Mapping, list)):
        raise InvalidPlan("a plan is an object with steps", 'such as {"steps": [{"id": …}]}')
    whole = cast("Mapping[str, Any]", {"steps": raw} if isinstance(raw, list) else raw)
    if "steps" in whole and "tasks" in whole:
        raise InvalidPlan("the plan has both steps and tasks", "put all of them under steps")
    fields = {("steps" if key == "tasks" else key): value for key, value in whole.items()}
    try:
        plan = msgspec.convert(fields, Plan, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        known = ", ".join(Step.__struct_fields__)
        raise InvalidPlan(
            f"the plan does not fit: {_misfit(error, fields)}", f"a step has: {known}"
        ) from None
    return check_plan(plan)


def _misfit(error: Exception, fields: Mapping[str, Any]) -> str:
    """Return what is wrong where, with what stands there: `steps[0].task is 5: Expected `str`…`."""
    what, at, path = str(error).partition(" - at `$.")
    here: Any = fields
    try:
        for name, number in _PATH.findall(path):
            here = here[int(number)] if number else here[name]
        shown = msgspec.json.encode(here).decode()
    except (LookupError, TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return str(error)
    if not at:
        return what
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return f"{path.rstrip('`')} is {shown}: {what}"


def check_plan(plan: Plan) -> Plan:
    """Return the plan if it can run; else raise InvalidPlan, naming the step, the id or the cycle."""
    if not plan.steps:
        raise InvalidPlan("the plan has no steps", "add at least one")
    if len(plan.steps) > _STEPS_MOST:
        raise InvalidPlan(
            f"the plan has {len(plan.steps)} steps, {_STEPS_MOST} are the most", "split it"
        )
    if plan.concurrency is not None and plan.concurrency < 1:
        raise InvalidPlan(f"concurrency is {plan.concurrency}", "at least 1, or leave it out")
    steps: dict[str, Step] = {}
    edges = 0
    for step in plan.steps:
        if not _ID.fullmatch(step.id):
            raise InvalidPlan(
                f"{step.id!r:.80} is no id for a step",
                "up to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
            )
        if step.id in steps:
            raise InvalidPlan(f"two steps have the id {step.id!r}", "rename one of them")
        _check_step(step)
        steps[step.id] = step
        edges += len(step.depends_on)
    if edges > _EDGES_MOST:
        raise InvalidPlan(
            f"the plan has {edges} dependencies, {_EDGES_MOST} are the most", "split it"
        )
    for step in plan.steps:
        _check_names(step, steps)
    cycle = _cycle(steps)
    if cycle:
        raise InvalidPlan(
            f"the steps wait for each other: {' → '.join(cycle)}", "remove one of these"
        )
    return plan


def _check_step(step: Step) -> None:
    if not step.task.strip():
        raise InvalidPlan(f"step {step.id!r} has no task", "say what is to be done")
    texts = {
        "task": (step.task,), "role": (step.role,), "model": (step.model,),
        "runtime": (step.runtime,), "type": (step.type,),
        "skills": step.skills, "files": step.files,
    }  # fmt: skip
    for name, given in texts.items():
        for text in given:
            try:
                check_text(f"{name} of step {step.id!r}", text or "")
            except InvalidInput as error:
                raise InvalidPlan(error.message, error.hint) from None
    bounds = {
        "max_cost": step.max_cost, "max_tokens": step.max_tokens, "rounds": step.rounds,
        "retry.times": step.retry.times, "retry.pause": step.retry.pause,
    }  # fmt: skip
    for name, value in bounds.items():
        nothing = isinstance(value, Decimal) and value.is_nan()  # which cannot even be compared
        if value is not None and (nothing or not 0 <= value < 1e15):
            raise InvalidPlan(f"{name} of step {step.id!r} is {value}", "0 or more")


def _check_names(step: Step, steps: Mapping[str, Step]) -> None:
    for other in step.depends_on:
        if other not in steps:
            near = ", ".join(list(steps)[:20])
            raise InvalidPlan(
                f"step {step.id!r} depends on {other!r}, which the plan does not have",
                f"its steps are: {near}{', …' if len(steps) > 20 else ''}",
            )
    for name, other in (("continues", step.continues), ("reviews", step.reviews)):
        if other is not None and other not in step.depends_on:
            raise InvalidPlan(
                f"step {step.id!r} {name} {other!r} without depending on it",
                f"add {other!r} to its depends_on",
            )


def _cycle(steps: Mapping[str, Step]) -> list[str]:
    """Return the ids around one cycle, the first again at the end, or nothing."""
    missing = {step.id: len(set(step.depends_on)) for step in steps.values()}
    dependents: dict[str, list[str]] = {}
    for step in steps.values():
        for other in set(step.depends_on):
            dependents.setdefault(other, []).append(step.id)
    ready = [name for name, count in missing.items() if not count]
    while ready:
        done = ready.pop()
        del missing[done]
        for name in dependents.get(done, ()):
            missing[name] -= 1
            if not missing[name]:
                ready.append(name)
    if not missing:
        return []
    here, seen = next(iter(missing)), dict[str, int]()
    path: list[str] = []
    while here not in seen:  # each that is left waits for another that is left
        seen[here] = len(path)
        path.append(here)
        here = next(one for one in steps[here].depends_on if one in missing)
    return [*path[seen[here] :], here][::-1]
