"""Tasks from the side of whoever starts and watches them: their work, how far they are, decisions."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec

from tenuto.core.errors import InvalidInput, InvalidPlan, NothingAsked, NotRunning
from tenuto.core.execution import Execution
from tenuto.core.ids import short
from tenuto.core.plan import MergeMode, read_plan
from tenuto.core.progress import Progress, spent
from tenuto.core.specs import Spec, check_text
from tenuto.core.state import StateFold
from tenuto.core.task_events import Decided, TaskEvent, decode_task_event
from tenuto.core.tasks import PermissionPolicy, TaskSpec
from tenuto.dispatch import control
from tenuto.engine.settings import parse_dollars
from tenuto.engine.watch import Watch
from tenuto.engine.work import Options, Work
from tenuto.keeper.frames import EVENT
from tenuto.keeper.procfs import MARK
from tenuto.stores.layout import Project, current_folder
from tenuto.stores.tape import TapeReader

if TYPE_CHECKING:
    from tenuto.engine.agent_settings import AgentSettings
    from tenuto.engine.blocking import BlockingEngine

TELLS = tuple(str(one.__struct_config__.tag) for one in get_args(TaskEvent))
_PATIENCE_S = 10.0
_DEPTH_MOST = 4
_PARENTS_MOST = 64
_MOST = 10**15
_PLAN_MOST = 8 * 1024 * 1024  # as JSON: it must fit into one record
_NAMES = ("runtime", "role", "model", "type")
_CHOICES = {"worktree": get_args(MergeMode), "permissions": get_args(PermissionPolicy)}


def task_spec(text: str = "", *, plan: Any = None, **options: Any) -> TaskSpec:
    """Return a checked TaskSpec; options are its fields, or raise InvalidInput or InvalidPlan."""
    check_text("the task", text)
    known = [
        name for name in TaskSpec.__struct_fields__ if name not in ("text", "plan", "forked_from")
    ]
    for name, value in options.items():
        if name not in known:
            raise InvalidInput(f"a task has no option {name!r}", f"it has: {', '.join(known)}")
        if name in _CHOICES and value is not None and value not in _CHOICES[name]:
            allowed = ", ".join(_CHOICES[name])
            raise InvalidInput(f"{name} is {value!r}", f"use one of {allowed}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("files", "skills", "chain"):
        if name in given:
            given[name] = _texts(name, given[name])
    if "max_cost" in given:
        given["max_cost"] = _dollars("max_cost", given["max_cost"])
    _check_bounds(given)
    if plan is not None:
        given["plan"] = read_plan(plan)
    elif not text.strip():
        raise InvalidInput("there is no task", "say what is to be done, or give a plan")
    try:
        return msgspec.convert(
            {"text": text, **msgspec.to_builtins(given, builtin_types=(Decimal,))},
            TaskSpec,
            strict=False,
        )
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"the task's options do not fit: {error}", "see: tenuto task -h"
        ) from None


def _check_bounds(given: Mapping[str, Any]) -> None:
    for name, least in (("max_tokens", 0), ("concurrency", 1), ("max_turns", 1)):
        value = given.get(name, least)
        if isinstance(value, int) and not least <= value < _MOST:
            raise InvalidInput(f"{name} is {value}", f"{least} or more, or leave it out")
    for name in ("context", "change", "task_id", "workflow", "strategy", *_NAMES):
        if name in given:
            check_text(name, given[name])


def checked(engine: BlockingEngine, task: TaskSpec, cwd: str | None = None) -> TaskSpec:
    """Return the task if every name in it is known here, else raise: before anything is recorded."""
    from tenuto.engine.agent_settings import load_agent_settings
    from tenuto.engine.skills import skills_of
    from tenuto.engine.strategies import build_plan

    _check_depth(engine)
    agents, _ = load_agent_settings(engine.project.root, engine.environ)
    built = build_plan(
        task, roles=agents.roles, tables=agents.selection, strategies=agents.strategies
    )
    check_runtimes(engine, agents, {step.runtime for step in built.plan.steps})
    skills = skills_of(engine.project.root, engine.environ, agents.skill_paths)
    for name in dict.fromkeys(name for step in built.plan.steps for name in step.skills):
        skills.get(name)
    for name in task.files:  # those of later steps may yet be made
        if not os.path.exists(os.path.join(cwd or current_folder(), name)):
            raise InvalidInput(f"there is no file {name}", "name one below the working directory")
    size = len(msgspec.json.encode(built.plan))
    if size > _PLAN_MOST:
        raise InvalidPlan(f"the plan has {size} bytes, {_PLAN_MOST} are the most", "split it")
    return task


def task_around(engine: BlockingEngine, execution_id: str) -> str:
    """Return the task whose agent started this execution, however far above; nothing if none did."""
    row = engine.index.get(execution_id)
    for _ in range(_PARENTS_MOST):
        row = engine.index.get(row.parent) if row is not None and row.parent else None
        if row is None:
            return ""
        if row.kind == "task":
            return row.id
    return ""


def _check_depth(engine: BlockingEngine) -> None:
    """Raise InvalidInput where agents start tasks whose agents start tasks, and so on."""
    here, depth = engine.environ.get(MARK, ""), 0
    while here and depth < _DEPTH_MOST:
        row = engine.index.get(here)
        depth += row is not None and row.kind == "task"
        here = task_around(engine, here) if row is not None else ""
    if depth >= _DEPTH_MOST:
        raise InvalidInput(
            f"{_DEPTH_MOST} tasks are inside of each other already, no more are started there",
            "do this part without another task",
        )


def check_runtimes(
    engine: BlockingEngine, agents: AgentSettings, named: Iterable[str | None]
) -> None:
    """Raise UnknownName for a runtime that is not known, here or by the settings."""
    from tenuto.runners.registry import runner

    settings = engine.settings
    for name in {*named, settings.runtime_preferred, *settings.runtime_order} - {None}:
        runner(
            str(name),
            commands=agents.agents,
            programs=settings.programs,
            custom=agents.runners,
            home="",
        )


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInput(f"{name} is a list of texts", f'such as {name}=["one"]')
    return tuple(check_text(name, one) for one in cast("Sequence[object]", value))


def _dollars(name: str, value: object) -> Decimal:
    try:
        return parse_dollars(value)
    except InvalidInput:
        raise InvalidInput(
            f"{name} is {value!r:.80}, which is no amount of dollars", "such as 2.00"
        ) from None


def task_work(engine: BlockingEngine, task: TaskSpec, options: Options) -> Work:
    """Return the work that is a task's driver."""
    argv = (sys.executable, "-m", "tenuto.engine.driving")
    work = engine.command(argv, options)
    title = options.title or task.text or _plan_title(task)
    spec = msgspec.structs.replace(
        work.spec, kind="task", title=title, sandbox=None, task=msgspec.to_builtins(task)
    )
    return _as_driver(engine, msgspec.structs.replace(work, spec=spec))


def resumed_work(engine: BlockingEngine, spec: Spec) -> Work:
    """Return the work that takes a task up again, as its tape has it."""
    options = Options(
        cwd=spec.cwd, title=spec.title, deadline=spec.deadline, idle=spec.idle,
        detached=spec.detached, sandbox="none",
    )  # fmt: skip
    work = engine.command((sys.executable, *spec.argv[1:]), options)
    again = msgspec.structs.replace(work.spec, kind="task", task=spec.task, parent=spec.parent)
    return _as_driver(engine, msgspec.structs.replace(work, spec=again))


def _as_driver(engine: BlockingEngine, work: Work) -> Work:
    body = msgspec.json.encode({"root": engine.project.root, "home": engine.project.home}).decode()
    environ = {**work.environ, "PYTHONSAFEPATH": "1"}  # the user's folder has no say in our imports
    return msgspec.structs.replace(work, channel=True, body=body, tells=TELLS, environ=environ)


def _plan_title(task: TaskSpec) -> str:
    steps = task.plan.steps if task.plan else ()
    names = ", ".join(step.id for step in steps[:5])
    return f"plan: {names}{', …' if len(steps) > 5 else ''}"


def task_of(spec: Spec | None) -> TaskSpec:
    """Return a task's own spec, or raise InvalidInput."""
    if spec is None or spec.task is None:
        raise InvalidInput("this execution is no task", "see: tenuto ps --kind task")
    try:
        return msgspec.convert(spec.task, TaskSpec)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the task's spec cannot be read: {error}", "run it anew") from None


def progress_of(folder: str) -> Progress:
    """Return how far a task is, from its tape."""
    progress = Progress()
    with TapeReader(folder) as reader:
        for frame in reader.events():
            event = decode_task_event(frame.body)
            if event is not None:
                progress.apply(event, frame.time_ns)
    return progress


def progress_now(project: Project, execution_id: str) -> Progress:
    """Return how far a task is, with all that the ledger has counted for it by now.

    The tape has what a step had cost when it ended. Of a step that runs, or whose driver was killed,
    only the ledger knows. A step that was under way when the task ended is shown as interrupted.
    """
    from tenuto.engine.budgets import opened

    fold = StateFold(execution_id)
    with TapeReader(project.folder(execution_id)) as reader:
        for frame in reader.events():
            fold.apply(frame.seq, frame.time_ns, frame.body)
    progress = fold.progress
    with opened(project) as ledger:
        for one in progress.steps.values():
            spend = ledger.spend(execution_id, one.step.id)
            if spend.requests:
                one.tokens = spend.tokens
                one.cost = spend.cost if spend.requests > spend.unpriced else None
    return progress


# Decisions


def decide(
    engine: BlockingEngine,
    execution_id: str,
    allow: bool,
    n: int | None = None,
    why: str = "",
    by: str = "",
) -> list[Decided]:
    """Decide what a task asks now, all or one by its number; return once the task has taken it.

    What it comes to ask meanwhile stays open: nobody has seen it.
    """
    whole = engine.resolve(execution_id)
    folder = engine.project.folder(whole)
    execution = engine.execution(whole)
    task_of(execution.spec)
    if not execution.live:
        raise _asks_nothing(execution)
    open_ones = progress_of(folder).asked
    wanted = set(open_ones) if n is None else {n}
    if not open_ones or not wanted <= set(open_ones):
        asks = "; ".join(f"#{k}: {one.text}" for k, one in open_ones.items())
        raise NothingAsked(
            f"{short(whole)} asks {'nothing' if not asks else f'no question {n}'}",
            f"it asks {asks}" if asks else f"see: tenuto show {short(whole)}",
        )
    message = {"type": "decide", "allow": allow, "why": why, "by": by or _user()}
    with engine.watch(whole) as watch:
        try:
            for number in sorted(wanted):
                control.request(folder, "tell", message={**message, "n": number})
        except control.NoKeeper:  # it died just now
            raise _asks_nothing(engine.execution(whole)) from None
        return _until_decided(watch, wanted)


def _asks_nothing(execution: Execution) -> NotRunning:
    name = short(execution.id)
    return NotRunning(
        f"{name} is {execution.state}: it asks nothing any more", f"see: tenuto show {name}"
    )


def _until_decided(watch: Watch, wanted: set[int]) -> list[Decided]:
    from tenuto.engine.blocking import sleep

    found: dict[int, Decided] = {}
    limit = time.monotonic() + _PATIENCE_S
    watch.only_events = True
    while True:
        for frame in watch.look():
            event = decode_task_event(frame.body) if frame.stream == EVENT else None
            if isinstance(event, Decided) and event.n in wanted:
                found[event.n] = event
        left = limit - time.monotonic()
        if wanted <= set(found) or watch.over or left <= 0:
            return list(found.values())
        sleep(watch, left)


def _user() -> str:
    return os.environ.get("USER") or f"uid {os.getuid()}"


def result_document(progress: Progress, most: int | None = None) -> dict[str, Any]:
    """Return what came of a task, for programs: complete, or all outputs cut to so many characters."""
    finished = progress.finished
    tokens = progress.tokens
    each = None if most is None else most // max(1, len(progress.steps))
    steps = [
        {
            "id": one.step.id, "status": one.status, "role": one.role, "runtime": one.runtime,
            "model": one.model, "attempts": one.attempt,
            "output": one.output[:each], "error": one.error[:each], "trouble": one.trouble,
            "tokens_in": one.tokens.input + one.tokens.cache_read + one.tokens.cache_write,
            "tokens_out": one.tokens.output, "cost": _money(one.cost),
            "unmetered": one.unmetered, "duration_s": one.duration_s, "session": one.session,
            "execution_id": one.execution, "branch": one.branch, "inherited": one.inherited,
        }
        for one in progress.in_order()
    ]  # fmt: skip
    return {
        "status": finished.status if finished is not None else progress.ended or "running",
        "success": finished is not None and finished.status == "completed",
        "strategy": progress.strategy,
        "reason": progress.reason,
        "output": finished.output[:most] if finished is not None else "",
        "cut": most is not None,
        "tokens_in": tokens.input + tokens.cache_read + tokens.cache_write,
        "tokens_out": tokens.output,
        "cost": _money(progress.cost),
        "inherited": inherited_document(progress),
        "steps": steps,
        "warnings": list(progress.warnings),
        "fallbacks": [f"{one.step}: {one.of} → {one.to} ({one.why})" for one in progress.fallbacks],
        "asks": [
            {"n": n, "about": one.about, "text": one.text, "step": one.step, "detail": one.detail}
            for n, one in progress.asked.items()
            if finished is None and not progress.ended  # nobody can answer what an ended one asked
        ],
    }


def inherited_document(progress: Progress) -> dict[str, Any] | None:
    """Return what of a fork's tokens and cost is the original's; None where nothing is."""
    steps = progress.inherited
    if not steps:
        return None
    tokens, cost = spent(steps)
    tokens_in = tokens.total - tokens.output
    return {
        "steps": len(steps), "tokens_in": tokens_in, "tokens_out": tokens.output,
        "cost": _money(cost),
    }  # fmt: skip


def _money(cost: Decimal | None) -> float | None:
    return None if cost is None else float(cost)


def given_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what of a caller's options belongs to the execution, and what to the task."""
    own = {"cwd", "env", "title", "deadline", "idle", "detached"}
    return (
        {name: value for name, value in options.items() if name in own and value is not None},
        {name: value for name, value in options.items() if name not in own},
    )
