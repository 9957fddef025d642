"""An execution as a fold over its tape's events, and the snapshot that callers are given."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tenuto.core import events as ev
from tenuto.core.errors import ExecutionFailed
from tenuto.core.event import Event
from tenuto.core.specs import Spec
from tenuto.core.states import ENDED, LIVE, State, WaitingFor, may_move

StreamName = Literal["out", "err"]


class Chunk(msgspec.Struct, frozen=True):
    """Bytes the program wrote at once to one stream."""

    seq: int
    time_ns: int
    stream: StreamName
    data: bytes
    level: str = ""
    """The level it was logged at (debug, log, info, warn, error), if it was logged."""

    @property
    def text(self) -> str:
        """The bytes as text; what is not UTF-8 shows as replacement characters."""
        return self.data.decode("utf-8", "replace")


class Transition(msgspec.Struct, frozen=True):
    """One change of state with its time and reason."""

    state: State
    time_ns: int
    reason: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An execution at one moment, with the output the caller asked for. True when it succeeded."""

    id: str
    kind: str
    title: str
    state: State
    waiting_for: WaitingFor | None = None
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None
    signal: str | None = None
    value: Any = None
    has_value: bool = False
    chunks: tuple[Chunk, ...] = ()
    next_seq: int = 0
    """The cursor: given as `after`, it goes on without a gap and without a repeat."""
    truncated: bool = False
    handed_over: bool = False
    is_async: bool = False
    interactive: bool = False
    created_ns: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    changed_ns: int = 0
    """When its state last changed."""
    duration_s: float = 0.0
    output_bytes: int = 0
    output_lines: int = 0
    left_behind: tuple[ev.LeftBehind, ...] = ()
    usage: ev.Usage = ev.Usage()
    engine: str | None = None
    """What ran code-mode: quickjs or deno; None for anything else."""
    confinement: ev.Confined | None = None
    """What held it, as it was found to work; None for an unconfined execution."""
    parent: str | None = None
    session: str | None = None
    """The session whose cell it is, or that it is itself (`session_host`)."""
    session_host: bool = False
    host: str | None = None
    """The execution that is the cell's session."""
    session_note: str = ""
    """Set where the session had to be begun anew: what was kept in it before is gone."""
    matched: str | None = None
    damaged: int = 0
    hint: str = ""

    def __bool__(self) -> bool:
        return self.state is State.SUCCEEDED

    @property
    def done(self) -> bool:
        """It has ended, one way or another."""
        return self.state in ENDED

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self.state in LIVE

    @property
    def needs_input(self) -> bool:
        """It is blocked until someone writes to its stdin."""
        return self.waiting_for is WaitingFor.INPUT

    @property
    def output(self) -> str:
        """What the chunks hold, both streams in order, as text."""
        return b"".join(chunk.data for chunk in self.chunks).decode("utf-8", "replace")

    @property
    def stdout(self) -> bytes:
        """The chunks' standard output."""
        return b"".join(chunk.data for chunk in self.chunks if chunk.stream == "out")

    @property
    def stderr(self) -> bytes:
        """The chunks' standard error."""
        return b"".join(chunk.data for chunk in self.chunks if chunk.stream == "err")

    def raise_for_state(self) -> Snapshot:
        """Return itself if it succeeded or still runs, else raise ExecutionFailed."""
        if self.done and self.state is not State.SUCCEEDED:
            why = f": {self.reason}" if self.reason else ""
            more = f" ({self.detail})" if self.detail else ""
            raise ExecutionFailed(f"execution {self.id} {self.state}{why}{more}", self.hint)
        return self


class Execution:
    """Folds events, in the order of the tape, into what is true after them."""

    def __init__(self, execution_id: str) -> None:
        """Begin before frame 0."""
        self.id = execution_id
        self.spec: Spec | None = None
        self.state = State.QUEUED
        self.waiting_for: WaitingFor | None = None
        self.ended: ev.Ended | None = None
        self.started: ev.Started | None = None
        self.value: ev.ValueReturned | None = None
        self.raised: ev.Raised | None = None
        self.lost: ev.Lost | None = None
        self.confined: ev.Confined | None = None
        self.interactive = False
        self.is_async = False
        self.left_behind: tuple[ev.LeftBehind, ...] = ()
        self.created_ns = 0
        self.started_ns: int | None = None
        self.ended_ns: int | None = None
        self.cleared_upto = -1
        self.transitions: list[Transition] = []

    def apply(self, time_ns: int, event: Event) -> None:  # noqa: C901, PLR0912  a case each
        """Take one event. The first end after a start wins; events that make no sense are passed."""
        match event:
            case ev.Created(spec=spec):
                if self.spec is None:
                    self.spec, self.created_ns = spec, time_ns
                    self.is_async = spec.detached
                    self.transitions.append(Transition(State.QUEUED, time_ns))
            case ev.Enqueued():
                if self.state is State.QUEUED:  # who keeps it is known from here on
                    self.started = ev.Started(
                        pid=event.pid, pid_start=event.pid_start, keeper_pid=event.keeper_pid,
                        keeper_start=event.keeper_start, boot=event.boot, cgroup=event.cgroup,
                    )  # fmt: skip
            case ev.Started():
                if self.state is State.QUEUED and self._moves(State.RUNNING, time_ns):
                    self.started, self.started_ns = event, time_ns
            case ev.Waited(on=on, detail=detail):
                if self._moves(State.WAITING, time_ns, detail or str(on)):
                    self.waiting_for = on
            case ev.Continued():
                if self.state is State.WAITING:
                    self._moves(State.RUNNING, time_ns)
            case ev.Ended(state=state, reason=reason):
                if state in ENDED and self._moves(state, time_ns, reason):
                    self.ended, self.ended_ns = event, time_ns
                    self.left_behind = event.left
            case ev.Lost(reason=reason):
                if self._moves(State.LOST, time_ns, reason):
                    self.lost, self.ended_ns = event, time_ns
            case ev.Resumed(cwd=cwd):
                if self._moves(State.QUEUED, time_ns, "resumed"):
                    if cwd and self.spec is not None:
                        self.spec = msgspec.structs.replace(self.spec, cwd=cwd)
                    self.started = self.ended = self.lost = self.value = self.raised = None
                    self.confined = None
                    self.started_ns = self.ended_ns = None
                    self.left_behind = ()
            case _:
                self._note(event)

    def _note(self, event: Event) -> None:
        match event:
            case ev.ValueReturned():
                self.value = event
            case ev.Raised():
                self.raised = event
            case ev.Confined():
                self.confined = event
            case ev.BecameInteractive():
                self.interactive = True
            case ev.WaitGaveUp():
                self.is_async = True
            case ev.Cleared(upto=upto):
                self.cleared_upto = max(self.cleared_upto, upto)
            case ev.LeftBehindEnded():
                self.left_behind = ()
            case _:
                pass

    def _moves(self, state: State, time_ns: int, reason: str = "") -> bool:
        """Go to a state if that move is legal, and tell whether it was."""
        if not may_move(self.state, state):
            return False
        self.state = state
        self.waiting_for = None
        self.transitions.append(Transition(state, time_ns, reason))
        return True

    @property
    def live(self) -> bool:
        """It has not ended, as far as the tape says."""
        return self.state in LIVE

    def snapshot(self, now_ns: int, **extra: Any) -> Snapshot:
        """Return what is true now; `extra` are the fields that only the caller knows."""
        ended = self.ended or ev.Ended(state=self.state)
        begin = self.started_ns or self.created_ns
        value = self.value
        fields: dict[str, Any] = {
            "reason": self.lost.reason if self.lost else ended.reason,
            "output_bytes": self.lost.size if self.lost else ended.size,
            "output_lines": self.lost.lines if self.lost else ended.lines,
            "hint": "",
        }
        fields.update(extra)
        return Snapshot(
            id=self.id,
            kind=self.spec.kind if self.spec else "command",
            title=self.spec.label() if self.spec else "",
            parent=self.spec.parent if self.spec else None,
            session=self.spec.session if self.spec else None,
            session_host=self.spec.session_host if self.spec else False,
            host=self.spec.host if self.spec else None,
            session_note=self.spec.session_note if self.spec else "",
            engine=self.spec.engine if self.spec else None,
            state=self.state,
            waiting_for=self.waiting_for,
            detail=self.transitions[-1].reason if self.waiting_for else ended.detail,
            exit_code=ended.exit_code,
            signal=ended.signal,
            value=None if value is None else (value.json if value.repr is None else value.repr),
            has_value=value is not None,
            is_async=self.is_async,
            interactive=self.interactive,
            created_ns=self.created_ns,
            started_ns=self.started_ns,
            ended_ns=self.ended_ns,
            changed_ns=self.transitions[-1].time_ns if self.transitions else self.created_ns,
            duration_s=max(0, (self.ended_ns or now_ns) - begin) / 1e9 if begin else 0.0,
            left_behind=self.left_behind,
            usage=ended.usage,
            confinement=self.confined,
            **fields,
        )
