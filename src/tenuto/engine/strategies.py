"""Strategies: three builders of plans, users' own, and what a review adds to a plan.

A strategy only says which steps there are and what they wait for; one driver runs every plan.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from tenuto.core.errors import InvalidInput, InvalidPlan, TenutoError
from tenuto.core.plan import Plan, Step, check_plan
from tenuto.core.rounds import feedback_of
from tenuto.core.selection import ROLES, TABLES, Role, Tables, choose, unknown_name
from tenuto.core.tasks import TaskSpec
from tenuto.engine.plugins import load_part, named_parts

GROUP = "tenuto.strategies"
CHAIN = ("architect", "developer", "reviewer")
_BUILT_IN = ("auto", "single", "multi", "parallel")
_ROUNDS = 2
ReviewVerdict = Literal["approve", "send_back"]


class Built(msgspec.Struct, frozen=True):
    """A plan, the strategy that it is of, and why that one."""

    strategy: str
    plan: Plan
    reason: str


def known_strategies(settings: Mapping[str, str] = {}) -> tuple[str, ...]:
    """Return the names of all strategies, our own first."""
    return (*_BUILT_IN, *sorted(set(named_parts(GROUP, settings)) - set(_BUILT_IN)))


def build_plan(
    spec: TaskSpec,
    *,
    roles: Mapping[str, Role] = ROLES,
    tables: Tables = TABLES,
    strategies: Mapping[str, str] = {},
) -> Built:
    """Return the plan for a task, checked. `strategies` are users' own, as module:function.

    Raises UnknownName for a strategy, role or type that is not known, InvalidPlan for a plan that
    cannot run, InvalidInput where what is asked for does not go together.
    """
    name, reason = spec.strategy, "as asked"
    if name == "auto":
        name, reason = pick(spec, roles=roles, tables=tables)
    if name == "single":
        plan = _single(spec)
    elif name == "multi":
        plan = _multi(spec, roles)
    elif name == "parallel":
        plan = _parallel(spec)
    else:
        plan = _users_own(name, spec, strategies)
    plan = msgspec.structs.replace(
        plan,
        steps=tuple(_with_choices(step, spec) for step in plan.steps),
        concurrency=spec.concurrency if spec.concurrency is not None else plan.concurrency,
    )
    for step in plan.steps:
        if step.role is not None and step.role not in roles:
            raise unknown_name("role", step.role, roles)
        if step.type is not None and step.type not in tables.types:
            raise unknown_name("task type", step.type, tables.types)
    return Built(name, check_plan(plan), reason)


def pick(
    spec: TaskSpec, *, roles: Mapping[str, Role] = ROLES, tables: Tables = TABLES
) -> tuple[str, str]:
    """Return the strategy for a task that names none, and why: the same for the same task."""
    if spec.plan is not None:
        if any(step.depends_on for step in spec.plan.steps):
            return "parallel", "its plan has dependencies"
        return "single", "its plan has no dependencies: one step after the other"
    if spec.chain:
        return "multi", "it names a chain of roles"
    if spec.role is not None:
        return "single", "it names the role that does it"
    choice = choose(
        spec.text, files=spec.files, type=spec.type, model=spec.model, tables=tables, roles=roles
    )
    strategy = "multi" if choice.complexity in ("complex", "architectural") else "single"
    return strategy, f"{choice.complexity} work: {choice.reason}"


def _text(spec: TaskSpec) -> str:
    if not spec.text.strip():
        raise InvalidInput("the task has no text", "say what is to be done, or give a plan")
    return spec.text


def _single(spec: TaskSpec) -> Plan:
    if spec.chain:
        raise InvalidInput("a chain of roles is for the strategy multi", "leave one of them out")
    if spec.plan is None:
        return Plan((Step("task", _text(spec)),))
    steps: list[Step] = []
    for step in _in_order(spec.plan):
        if not steps:
            steps.append(step)
            continue
        before = steps[-1].id
        waits = dict.fromkeys([*step.depends_on, before])
        steps.append(
            msgspec.structs.replace(
                step, depends_on=tuple(waits), continues=step.continues or before
            )
        )
    return msgspec.structs.replace(spec.plan, steps=tuple(steps))


def _in_order(plan: Plan) -> list[Step]:
    """Return the steps, each after those it depends on, else as they were written."""
    check_plan(plan)
    at = {step.id: place for place, step in enumerate(plan.steps)}
    missing = {step.id: len(set(step.depends_on)) for step in plan.steps}
    dependents: dict[str, list[str]] = {}
    for step in plan.steps:
        for other in set(step.depends_on):
            dependents.setdefault(other, []).append(step.id)
    ready = [at[name] for name, count in missing.items() if not count]
    heapq.heapify(ready)
    steps: list[Step] = []
    while ready:
        step = plan.steps[heapq.heappop(ready)]
        steps.append(step)
        for name in dependents.get(step.id, ()):
            missing[name] -= 1
            if not missing[name]:
                heapq.heappush(ready, at[name])
    return steps


def _multi(spec: TaskSpec, roles: Mapping[str, Role]) -> Plan:
    if spec.plan is not None:
        raise InvalidInput(
            "the strategy multi makes its own plan, and one was given",
            "run that plan with single or parallel",
        )
    if spec.role is not None:
        raise InvalidInput(
            f"the strategy multi has several roles, and {spec.role!r} was asked for",
            "name them all as a chain, or use single",
        )
    text = _text(spec)
    steps: list[Step] = []
    for role in spec.chain or CHAIN:
        if role not in roles:
            raise unknown_name("role", role, roles)
        count = sum(step.role == role for step in steps)
        reviewed = next((one.id for one in reversed(steps) if one.role != "reviewer"), None)
        steps.append(
            Step(
                f"{role}-{count + 1}" if count else role,
                f"{text}\n\nYour part as {role}: {roles[role].part or 'what your role says'}.",
                depends_on=tuple(step.id for step in steps),
                role=role,
                reviews=reviewed if role == "reviewer" else None,
                rounds=_ROUNDS,
            )
        )
    return Plan(tuple(steps))


def _parallel(spec: TaskSpec) -> Plan:
    if spec.plan is None:
        raise InvalidInput(
            "the strategy parallel needs a plan", "give one: steps with an id, a task, depends_on"
        )
    if spec.chain:
        raise InvalidInput("a chain of roles is for the strategy multi", "leave one of them out")
    return spec.plan


def _users_own(name: str, spec: TaskSpec, settings: Mapping[str, str]) -> Plan:
    parts = named_parts(GROUP, settings)
    if name not in parts:
        raise unknown_name("strategy", name, known_strategies(settings))
    build: Callable[[TaskSpec], object] = load_part("strategy", name, parts[name])
    if not callable(build):
        raise InvalidInput(f"the strategy {name!r} ({parts[name]}) is no function")
    try:
        plan = build(spec)
    except TenutoError:
        raise
    except Exception as error:
        raise InvalidPlan(
            f"the strategy {name!r} failed: {type(error).__name__}: {error}",
            f"correct {parts[name]}",
        ) from error
    if not isinstance(plan, Plan):
        raise InvalidPlan(
            f"the strategy {name!r} returned {type(plan).__name__}, not a Plan",
            f"correct {parts[name]}",
        )
    return plan


def _with_choices(step: Step, spec: TaskSpec) -> Step:
    """Return a step with what the task says for all, where the step does not say it itself."""
    return msgspec.structs.replace(
        step,
        role=step.role or spec.role,
        model=step.model or spec.model,
        runtime=step.runtime or spec.runtime,
        type=step.type or spec.type,
        skills=tuple(dict.fromkeys([*spec.skills, *step.skills])),
        files=tuple(dict.fromkeys([*spec.files, *step.files])),
    )


_VERDICT = re.compile(
    r"^[ \t>*_`#-]*verdict[*_`]*[ \t]*:[ \t*_`]*(approved?|send[ \t_-]*back)\b(.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_OTHER = re.compile(r"\b(approved?|send[ \t_-]*back)\b", re.IGNORECASE)
_VERDICT_WITHIN = 20_000  # characters from the end, which is where it is asked for


def review_verdict(output: str) -> ReviewVerdict | None:
    """Return what the last verdict in a reviewer's answer says; None if it gave none."""
    said: ReviewVerdict | None = None
    for word, rest in _VERDICT.findall(output[-_VERDICT_WITHIN:]):
        if not _OTHER.search(rest):  # a line with both only repeats the question
            said = "approve" if word.lower().startswith("approve") else "send_back"
    return said


def extend(plan: Plan, step: Step, output: str, round: int) -> tuple[Step, ...]:
    """Return the steps that follow when a reviewer's output sends back, the `round`th time (1 first).

    They are the reviewed step again, which goes on in its session and waits for the review, and
    the reviewer again (core.rounds.extended puts them into the plan). Nothing if it does not send
    back, or has done so as often as it may.
    """
    if step.reviews is None or not 1 <= round <= step.rounds:
        return ()
    if review_verdict(output) != "send_back":
        return ()
    steps = {one.id: one for one in plan.steps}
    work = steps[step.reviews]
    # of earlier rounds only the last one is handed on
    before = feedback_of(plan, work)
    gone: set[str | None] = {before, work.continues, step.continues} if before else {None}
    again = msgspec.structs.replace(
        work,
        id=_next_id(work.id, round, steps),
        depends_on=(*(one for one in work.depends_on if one not in gone), work.id, step.id),
        continues=work.id,
    )
    gone.add(work.id)
    check = msgspec.structs.replace(
        step,
        id=_next_id(step.id, round, {*steps, again.id}),
        depends_on=(*(one for one in step.depends_on if one not in gone), step.id, again.id),
        continues=step.id,
        reviews=again.id,
    )
    return again, check


def _next_id(name: str, round: int, taken: Iterable[str]) -> str:
    """Return `developer.2` for developer, `developer.3` for developer.2; never one that is taken."""
    used = set(taken)
    base = name.removesuffix(f".{round}") if round > 1 else name
    number = round + 1
    while f"{base[:56]}.{number}" in used:
        number += 1
    return f"{base[:56]}.{number}"
