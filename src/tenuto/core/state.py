"""An execution's state as one readable document: what its tape comes to, up to some event.

The tape stays the truth. The document can be made from it at any time, and stands in for it where the
tape is damaged. Its checksum is over the canonical JSON: keys sorted, no spaces, without the checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgspec

from tenuto.core import events as ev
from tenuto.core.budget import Tokens
from tenuto.core.errors import InvalidPlan, NewerState, StateDamaged
from tenuto.core.execution import Execution
from tenuto.core.layouts import lay_out
from tenuto.core.plan import Plan, check_plan
from tenuto.core.progress import Progress, StepProgress
from tenuto.core.quantities import iso
from tenuto.core.states import LIVE, State
from tenuto.core.task_events import (
    Checkpointed,
    EnvironmentSeen,
    PlanExtended,
    Planned,
    StepFinished,
    StepStatus,
    TaskEvent,
    TaskFinished,
    Warned,
    decode_task_event,
)
from tenuto.core.tasks import TaskSpec

SCHEMA = 1
_ENDS = {
    "completed": State.SUCCEEDED,
    "failed": State.FAILED,
    "partial": State.FAILED,
    "interrupted": State.INTERRUPTED,
}


class StepState(msgspec.Struct, frozen=True, kw_only=True):
    """A step: what is known of it, and what came of it."""

    id: str
    status: StepStatus
    attempts: int = 0
    output: str = ""
    error: str = ""
    kind: str = ""
    runtime: str = ""
    role: str = ""
    model: str = ""
    session: str = ""
    execution: str = ""
    branch: str = ""
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    unmetered: bool = False
    duration_s: float = 0.0
    ended_at: str | None = None


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a plan is: the plan as it stands, and where each step of it is."""

    strategy: str = ""
    reason: str = ""
    plan: Plan | None = None
    finished: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    interrupted: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What all steps used together."""

    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    unmetered: bool = False


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ran, and with what."""

    cwd: str = ""
    commit: str = ""
    host: str = ""
    machine: str = ""
    tenuto: str = ""
    python: str = ""
    runtimes: dict[str, str] = {}


class ExecutionState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a task needs to go on, readable."""

    schema: int = SCHEMA
    id: str
    status: str
    seq: int
    """The last event on the tape that this covers."""
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    updated_at: str
    metadata: dict[str, Any] = {}
    context: dict[str, Any] = {}
    cursor: Cursor = Cursor()
    results: tuple[StepState, ...] = ()
    ledger: Totals = Totals()
    sessions: dict[str, dict[str, str]] = {}
    """The runtimes' own sessions, by step."""
    environment: Surroundings = Surroundings()
    warnings: tuple[str, ...] = ()
    asks: dict[str, str] = {}
    sha256: str = ""


lay_out(ExecutionState)


# Folding


class StateFold:
    """Takes a task's frames in their order, and says what they come to."""

    def __init__(self, execution_id: str) -> None:
        """Begin before frame 0."""
        self.execution = Execution(execution_id)
        self.progress = Progress()
        self.seq = -1
        self._time_ns = 0

    def apply(self, seq: int, time_ns: int, body: bytes) -> bool:
        """Take one event; tell whether it is one of the task's own."""
        self.seq, self._time_ns = seq, time_ns
        event = decode_task_event(body)
        if event is None:
            self.execution.apply(time_ns, ev.decode_event(body))
            if self.execution.live:
                self.progress.ended = ""
            else:
                self.progress.cut_short(*_end_of(self.execution))
        else:
            self.progress.apply(event, time_ns)
        return event is not None

    @property
    def status(self) -> str:
        """The execution's state; a driver that has said its last word is about to end in that."""
        finished = self.progress.finished
        if finished is not None and self.execution.state in LIVE:
            return str(_ENDS[finished.status])
        return str(self.execution.state)

    def state(self) -> ExecutionState:
        """Return the document, with its checksum."""
        execution, progress = self.execution, self.progress
        steps = list(progress.steps.values())
        task = self._task()
        whole = ExecutionState(
            id=execution.id,
            status=self.status,
            seq=self.seq,
            created_at=iso(execution.created_ns),
            started_at=iso(execution.started_ns) if execution.started_ns else None,
            ended_at=iso(execution.ended_ns) if execution.ended_ns else None,
            updated_at=iso(self._time_ns),
            metadata=self._metadata(task),
            context=_context(task),
            cursor=self._cursor(steps),
            results=tuple(_step_state(one) for one in progress.in_order()),
            ledger=Totals(
                tokens=progress.tokens,
                cost=progress.cost,
                unmetered=any(one.unmetered for one in steps),
            ),
            sessions={one.step.id: _session(one, progress) for one in steps if one.session},
            environment=_surroundings(progress),
            warnings=tuple(progress.warnings),
            asks={str(n): one.text for n, one in progress.asked.items()},
        )
        return msgspec.structs.replace(whole, sha256=checksum(msgspec.to_builtins(whole)))

    def _task(self) -> TaskSpec:
        spec = self.execution.spec
        try:
            return msgspec.convert((spec.task if spec else None) or {}, TaskSpec)
        except msgspec.ValidationError:
            return TaskSpec()

    def _metadata(self, task: TaskSpec) -> dict[str, Any]:
        spec = self.execution.spec
        forked = task.forked_from
        return {
            "title": spec.label() if spec else "",
            "kind": spec.kind if spec else "task",
            "strategy": self.progress.strategy or task.strategy,
            "runtime": task.runtime,
            "role": task.role,
            "model": task.model,
            "parent": spec.parent if spec else None,
            "resume": task.resume,
            "forked_from": None if forked is None else {"id": forked.id, "seq": forked.seq},
        }

    def _cursor(self, steps: list[StepProgress]) -> Cursor:
        progress = self.progress
        ready = {step.id for step in progress.ready()}

        def of(*statuses: StepStatus) -> tuple[str, ...]:
            return tuple(one.step.id for one in steps if one.status in statuses)

        pending = of("pending")
        return Cursor(
            strategy=progress.strategy,
            reason=progress.reason,
            plan=progress.plan,
            finished=tuple(one.step.id for one in steps if not one.open),
            running=of("running"),
            interrupted=of("interrupted"),
            ready=tuple(name for name in pending if name in ready),
            waiting=tuple(name for name in pending if name not in ready),
        )


def _end_of(execution: Execution) -> tuple[str, str]:
    """Return the state in which an execution ended, and why, for the steps that it ended in."""
    why = execution.lost.reason if execution.lost else ""
    if execution.ended is not None:
        why = execution.ended.detail or execution.ended.reason
    return str(execution.state), f"stopped: {why}" if why else "stopped"


def _context(task: TaskSpec) -> dict[str, Any]:
    return {
        "task": task.text, "context": task.context, "files": list(task.files),
        "skills": list(task.skills), "change": task.change, "task_id": task.task_id,
        "workflow": task.workflow,
    }  # fmt: skip


def _step_state(one: StepProgress) -> StepState:
    return StepState(
        id=one.step.id, status=one.status, attempts=one.attempt, output=one.output,
        error=one.error, kind=one.kind, runtime=one.runtime, role=one.role, model=one.model,
        session=one.session, execution=one.execution, branch=one.branch, tokens=one.tokens,
        cost=one.cost, unmetered=one.unmetered, duration_s=one.duration_s,
        ended_at=iso(one.ended_ns) if one.ended_ns else None,
    )  # fmt: skip


def _session(one: StepProgress, progress: Progress) -> dict[str, str]:
    version = progress.versions.get(one.runtime, "")
    return {"runtime": one.runtime, "session": one.session, "version": version}


def _surroundings(progress: Progress) -> Surroundings:
    seen = progress.environment or EnvironmentSeen(cwd="")
    return Surroundings(
        cwd=seen.cwd, commit=seen.commit, host=seen.host, machine=seen.machine,
        tenuto=seen.tenuto, python=seen.python, runtimes=dict(progress.versions),
    )  # fmt: skip


# As text


def checksum(document: dict[str, Any]) -> str:
    """Return the checksum of a state's document, over all but the checksum itself."""
    bare = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def encode_state(state: ExecutionState) -> bytes:
    """Return a state as people read it: indented JSON."""
    return msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"


def decode_state(data: bytes) -> ExecutionState:
    """Return the state in a file's bytes.

    Raises StateDamaged where it is not whole, NewerState where only a newer Tenuto can read it.
    """
    try:
        document: Any = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StateDamaged(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise StateDamaged("it is no JSON object")
    known: dict[str, Any] = document  # pyright: ignore[reportUnknownVariableType]
    if known.get("sha256") != checksum(known):
        raise StateDamaged("its checksum does not fit")
    schema = known.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise StateDamaged(f"its schema is {schema!r}")
    if schema > SCHEMA:
        raise NewerState(
            f"it is of schema {schema}, and this Tenuto reads up to {SCHEMA}",
            "use the newer Tenuto that wrote it",
        )
    for number in range(schema, SCHEMA):
        known = _MIGRATIONS[number](known)
    try:
        state = msgspec.convert(known, ExecutionState)
        if state.cursor.plan is not None:
            check_plan(state.cursor.plan)
    except (msgspec.ValidationError, InvalidPlan) as error:
        raise StateDamaged(f"its fields do not fit: {error}") from None
    return state


_MIGRATIONS: dict[int, Any] = {}
"""By schema: turns a document of that schema into one of the next. There is one schema so far."""


# Checkpoints


class CheckpointInfo(msgspec.Struct, frozen=True):
    """A place on a task's tape from which it can be forked."""

    seq: int
    time_ns: int
    what: str


def checkpoints(events: list[tuple[int, int, TaskEvent]]) -> list[CheckpointInfo]:
    """Return the checkpoints among a task's events: whole, with all that followed from each.

    What was put on the tape in one go (a step's end, the steps that it skips or adds) is one.
    """
    found: list[CheckpointInfo] = []
    for seq, time_ns, event in events:
        if _follows(event) and found:
            found[-1] = CheckpointInfo(seq, time_ns, found[-1].what)
        elif what := _named(event):
            found.append(CheckpointInfo(seq, time_ns, what))
    return found


def _follows(event: TaskEvent) -> bool:
    """Tell whether an event belongs to the one before it."""
    if isinstance(event, StepFinished):
        return event.status == "skipped_dependency_failed"
    if isinstance(event, Warned):
        return event.about in ("review", "rejected")
    return isinstance(event, PlanExtended)


def _named(event: TaskEvent) -> str:
    if isinstance(event, Planned):
        steps = len(event.plan.steps)
        return f"planned: {steps} step{'s' if steps != 1 else ''}"
    if isinstance(event, StepFinished):
        return f"{event.step} {event.status}"
    if isinstance(event, Checkpointed):
        return "on request"
    return f"the task {event.status}" if isinstance(event, TaskFinished) else ""


def before_failure(places: Sequence[CheckpointInfo]) -> tuple[str, int] | None:
    """Return the first step that failed, and the checkpoint from which a fork does it again."""
    for earlier, one in pairwise(places):
        step, _, end = one.what.rpartition(" ")
        if end == "failed" and step != "the task":
            return step, earlier.seq
    return None


def forked_events(events: list[tuple[int, int, TaskEvent]], seq: int) -> list[TaskEvent]:
    """Return the events that a fork at a checkpoint begins with.

    Steps that were not at their end there begin anew. Sessions of runtimes stay the original's: to go
    on in one would change it.
    """
    upto = [(number, event) for number, _, event in events if number <= seq]
    ends: dict[str, int] = {}
    for number, event in upto:
        if isinstance(event, StepFinished) and event.status != "interrupted":
            ends[event.step] = number
    kept: list[TaskEvent] = []
    for _, event in upto:
        if isinstance(event, (Planned, PlanExtended)):
            kept.append(event)
        elif isinstance(event, Warned):
            kept += [event] if event.about in ("review", "rejected") else []
        elif (
            isinstance(event, StepFinished) and event.step in ends and event.status != "interrupted"
        ):
            kept.append(msgspec.structs.replace(event, session="", inherited=True))
    return kept


def mend(progress: Progress, state: ExecutionState) -> list[TaskEvent]:
    """Complete what a damaged tape tells by a saved state: the plan, and ends of steps.

    Returns the events that were missing, in the order in which they are to go on the tape.
    """
    events: list[TaskEvent] = []

    def add(event: TaskEvent) -> None:
        events.append(event)
        progress.apply(event)

    cursor = state.cursor
    if progress.plan is None and cursor.plan is not None:
        add(Planned(strategy=cursor.strategy, plan=cursor.plan, reason=cursor.reason))
    for one in state.results:
        known = progress.steps.get(one.id)  # one of a round that the tape does not know comes again
        if known is None or not known.open or one.status in ("pending", "running", "interrupted"):
            continue
        add(
            StepFinished(
                step=one.id, status=one.status, attempt=one.attempts, output=one.output,
                error=one.error, kind=one.kind, runtime=one.runtime, role=one.role,
                model=one.model, session=one.session, tokens=one.tokens, cost=one.cost,
                unmetered=one.unmetered, duration_s=one.duration_s, branch=one.branch,
            )
        )  # fmt: skip
    return events
