"""Which steps of a task have ended, and how: a fold over its tape that yields execution records.

A step's record begins with its first attempt and ends with `step_finished`, whatever was tried in
between. A step that was under way when the execution itself ended was cut short, and its record says
so, from that moment; what the driver decides about it after a resume is about the same record.
Steps that a fork begins with are the original's, and have their records there.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from tenuto.core import task_events as te
from tenuto.core.budget import Tokens
from tenuto.core.events import Created, Ended, Lost, Resumed, Started
from tenuto.core.history import EndStatus, ExecutionRecord, known_cost

_NAME_MOST = 500
_TOKENS_MOST = 1 << 40  # more than all requests of a day; sums of millions still fit into 64 bits
_SECONDS_MOST = 1e8
_ENDS: dict[str, EndStatus] = {
    "completed": "completed",
    "failed": "failed",
    "interrupted": "interrupted",
    "skipped_dependency_failed": "skipped_dependency_failed",
}
_Told = (
    Created
    | Started
    | Resumed
    | Ended
    | Lost
    | te.Planned
    | te.StepStarted
    | te.StepUsed
    | te.StepFinished
)
_decoder: msgspec.json.Decoder[_Told] = msgspec.json.Decoder(_Told)


class _Running(msgspec.Struct):
    """A step under way."""

    seq: int
    began_ns: int
    attempt: int = 0
    runtime: str = ""
    role: str = ""
    model: str = ""
    used: Tokens = Tokens()


class Recorder:
    """Takes the events of one task's tape in order."""

    def __init__(self, execution: str) -> None:
        """Begin before the first one."""
        self._execution = execution
        self._records: dict[int, ExecutionRecord] = {}
        self._running: dict[str, _Running] = {}
        self._cut: dict[str, int] = {}  # the record of a step that its execution's end cut short
        self._spent: dict[str, tuple[Tokens, Decimal]] = {}  # by the records so far
        self._strategy = ""
        self._inherits = False  # what comes is the original's: its own life has not begun
        self._names = {"task_id": "", "change": "", "workflow": ""}

    @property
    def records(self) -> list[ExecutionRecord]:
        """The records so far, in the order in which their steps ended."""
        return sorted(self._records.values(), key=lambda one: one.place)

    def take(self, seq: int, time_ns: int, body: bytes) -> None:
        """Take one event; what has nothing to do with steps is passed over."""
        try:
            event = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError):
            return
        match event:
            case Created(spec=spec):
                self._name(spec.task)
            case Started():
                self._inherits = False
            case te.Planned(strategy=strategy):
                self._strategy = strategy[:_NAME_MOST]
            case te.StepStarted():
                self._start(seq, time_ns, event)
            case te.StepUsed(step=step, tokens=tokens):
                if step in self._running:
                    self._running[step].used += tokens
            case te.StepFinished():
                if not self._inherits:
                    self._finish(seq, time_ns, event)
            case Ended(state=state):
                self._cut_short(time_ns, str(state))
            case _:
                self._cut_short(time_ns, "lost")

    def _name(self, task: Any) -> None:
        if isinstance(task, dict):
            self._inherits = bool(task.get("forked_from"))  # pyright: ignore
            self._names = {
                name: str(task.get(name) or "")[:_NAME_MOST]  # pyright: ignore
                for name in self._names
            }

    def _start(self, seq: int, time_ns: int, event: te.StepStarted) -> None:
        one = self._running.setdefault(event.step, _Running(seq, time_ns))
        one.attempt, one.runtime = event.attempt, event.runtime
        one.role, one.model = event.role, event.model
        self._cut.pop(event.step, None)

    def _finish(self, seq: int, time_ns: int, event: te.StepFinished) -> None:
        status = _ENDS.get(event.status)
        if status is None:
            return
        one = self._running.pop(event.step, None)
        cut = self._cut.pop(event.step, None)
        if one is None and cut is not None:
            if status == "failed":  # somebody decided that it is not to be run again
                before = self._records[cut]
                tokens, cost = self._since_last(event.step, event.tokens, event.cost, Tokens())
                self._records[cut] = msgspec.structs.replace(
                    before, status=status, kind=event.kind, tokens=before.tokens + tokens, cost=cost
                )
            return
        unbegun = one is None and event.attempt == 0 and status == "failed"
        one = one or _Running(seq, time_ns, event.attempt)
        one.attempt = event.attempt or one.attempt
        one.runtime, one.role = event.runtime or one.runtime, event.role or one.role
        one.model = event.model or one.model
        tokens, cost = self._since_last(event.step, event.tokens, event.cost, one.used)
        if unbegun and event.cost is None and not tokens.total:
            cost = Decimal(0)  # nobody was asked anything
        seconds = event.duration_s or (time_ns - one.began_ns) / 1e9
        self._record(event.step, one, status, event.kind, time_ns, tokens, cost, seconds)
        if event.unmetered:
            found = self._records[one.seq]
            self._records[one.seq] = msgspec.structs.replace(found, unmetered=True)

    def _cut_short(self, time_ns: int, why: str) -> None:
        """End what was under way when the execution ended."""
        for step, one in self._running.items():
            tokens, cost = self._since_last(step, Tokens(), None, one.used)
            seconds = (time_ns - one.began_ns) / 1e9
            self._record(step, one, "interrupted", why, time_ns, tokens, cost, seconds)
            self._cut[step] = one.seq
        self._running.clear()

    def _since_last(
        self, step: str, tokens: Tokens, cost: Decimal | None, used: Tokens
    ) -> tuple[Tokens, Decimal | None]:
        """Return what belongs to this record alone: the ledger counts a step over all its lives."""
        before, paid = self._spent.get(step, (Tokens(), Decimal(0)))
        whole, price = _bounded(tokens), known_cost(cost)
        if not whole.total:
            own = _bounded(used)
        elif _within(before, whole):
            own = Tokens(
                whole.input - before.input, whole.output - before.output,
                whole.cache_read - before.cache_read, whole.cache_write - before.cache_write,
            )  # fmt: skip
        else:
            own, before, paid = whole, Tokens(), Decimal(0)  # it was counted anew
        own_cost = None if price is None else price - paid if price >= paid else price
        self._spent[step] = (before + own, paid + (own_cost or Decimal(0)))
        return own, own_cost

    def _record(
        self,
        step: str,
        one: _Running,
        status: EndStatus,
        kind: str,
        time_ns: int,
        tokens: Tokens,
        cost: Decimal | None,
        seconds: float,
    ) -> None:
        self._records[one.seq] = ExecutionRecord(
            execution=self._execution,
            seq=one.seq,
            step=step[:_NAME_MOST],
            status=status,
            executed_ns=time_ns,
            attempt=max(0, min(one.attempt, _TOKENS_MOST)),
            role=one.role[:_NAME_MOST],
            model=one.model[:_NAME_MOST],
            runtime=one.runtime[:_NAME_MOST],
            strategy=self._strategy,
            kind=kind[:_NAME_MOST],
            tokens=tokens,
            cost=cost,
            duration_s=round(max(0.0, min(seconds, _SECONDS_MOST)), 6),
            task_id=self._names["task_id"],
            change=self._names["change"],
            workflow=self._names["workflow"],
        )


def _bounded(tokens: Tokens) -> Tokens:
    """Return tokens that no sum of them breaks."""
    return Tokens(
        *(
            max(0, min(count, _TOKENS_MOST))
            for count in (tokens.input, tokens.output, tokens.cache_read, tokens.cache_write)
        )
    )


def _within(part: Tokens, whole: Tokens) -> bool:
    return (
        part.input <= whole.input
        and part.output <= whole.output
        and part.cache_read <= whole.cache_read
        and part.cache_write <= whole.cache_write
    )
