"""What a task's driver puts on its tape: the plan, its steps, what agents did, used and asked."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import msgspec

from tenuto.core.budget import Tokens
from tenuto.core.event import Event
from tenuto.core.plan import Plan, Step

StepStatus = Literal[
    "pending", "running", "completed", "failed", "interrupted", "skipped_dependency_failed"
]


class Planned(Event, frozen=True, tag="planned"):
    """The plan, complete; the driver works on this one and no other."""

    strategy: str
    plan: Plan
    reason: str = ""


class PlanExtended(Event, frozen=True, tag="plan_extended"):
    """Steps that were added because of what a step said, such as a reviewer who sends back."""

    steps: tuple[Step, ...]
    because: str = ""


class StepStarted(Event, frozen=True, tag="step_started"):
    """An attempt at a step began, with everything that was chosen for it and why."""

    step: str
    attempt: int
    runtime: str
    role: str = ""
    model: str = ""
    reason: str = ""
    cwd: str = ""


class StepSession(Event, frozen=True, tag="step_session"):
    """The runtime's own session, by which the step can be taken up again."""

    step: str
    session: str
    execution: str = ""
    """The execution that is the runtime's process, if it has one."""
    version: str = ""


class StepSaid(Event, frozen=True, tag="step_said"):
    """What an agent did besides talking: tools, permissions, retries. `what` is a RunEvent.

    Or what the gateway tells of its requests: `model_failed` with a text, later `model_answered`.
    """

    step: str
    what: dict[str, Any]


class StepUsed(Event, frozen=True, tag="step_used"):
    """What one request, or one turn, used, as the runtime told it."""

    step: str
    model: str = ""
    tokens: Tokens = Tokens()


class FellBack(Event, frozen=True, tag="fell_back"):
    """Another runtime of the family took over, and why."""

    step: str
    of: str
    to: str
    why: str


class StepFinished(Event, frozen=True, tag="step_finished"):
    """The end of a step: a checkpoint, on disk before anything builds on it."""

    step: str
    status: StepStatus
    attempt: int = 0
    output: str = ""
    error: str = ""
    kind: str = ""
    """The kind of error, as core.runs has them."""
    runtime: str = ""
    role: str = ""
    model: str = ""
    session: str = ""
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    """None where the price is not known."""
    unmetered: bool = False
    """Its spend is only what the runtime told, not what a gateway counted."""
    duration_s: float = 0.0
    branch: str = ""
    inherited: bool = False
    """It was done, and paid for, in the task that this one was forked from."""


class Asked(Event, frozen=True, tag="asked"):
    """Somebody has to decide: approve or deny, by this number."""

    n: int
    about: Literal["permission", "budget", "step"]
    text: str
    step: str = ""
    detail: Any = None


class Decided(Event, frozen=True, tag="decided"):
    """What was decided, and by whom: a person, or a rule."""

    n: int
    allow: bool
    by: str = ""
    why: str = ""


class Warned(Event, frozen=True, tag="warned"):
    """Something is not as it was asked for, and the work went on: a bound that was passed, say."""

    text: str
    step: str = ""
    about: Literal["budget", "review", "rejected", "worktree", "state"] = "budget"
    """A bound; a review without a verdict, or one that was not satisfied; a branch not merged; a
    state file that could not be written."""


class EnvironmentSeen(Event, frozen=True, tag="environment_seen"):
    """Where a life of the task began: what a resume holds against what it finds."""

    cwd: str
    commit: str = ""
    """What git has checked out there, if anything."""
    host: str = ""
    machine: str = ""
    """Tells machines apart where they have an id; empty where not."""
    tenuto: str = ""
    python: str = ""


class Checkpointed(Event, frozen=True, tag="checkpointed"):
    """A checkpoint that somebody asked for: all before it is on disk, in the tape and as a file."""

    key: str
    """Names the request, for whoever waits for it."""
    seq: int = -1
    """The last event that the file covers."""
    path: str = ""
    sha256: str = ""
    error: str = ""
    """Why there is no file, if there is none; what is on the tape is safe all the same."""


class TaskFinished(Event, frozen=True, tag="task_finished"):
    """How the whole ended, before its process does."""

    status: Literal["completed", "failed", "partial", "interrupted"]
    output: str = ""
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    steps: dict[str, str] = msgspec.field(default_factory=dict)


TaskEvent = (
    Planned
    | PlanExtended
    | StepStarted
    | StepSession
    | StepSaid
    | StepUsed
    | FellBack
    | StepFinished
    | Asked
    | Decided
    | Warned
    | EnvironmentSeen
    | Checkpointed
    | TaskFinished
)

_decoder: msgspec.json.Decoder[TaskEvent] = msgspec.json.Decoder(TaskEvent)


def decode_task_event(body: bytes) -> TaskEvent | None:
    """Return the task's event in a frame's body, or None for anything else."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
