"""Which records a tape yields: exactly one for every step that ended, with what belongs to it alone."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import msgspec
import pytest

from tenuto.core import events as ev
from tenuto.core import task_events as te
from tenuto.core.budget import Tokens
from tenuto.core.event import Event
from tenuto.core.history import ExecutionRecord
from tenuto.core.plan import Plan, Step
from tenuto.core.recording import Recorder
from tenuto.core.specs import Spec
from tenuto.core.states import State

SECOND = 1_000_000_000
TASK = {"text": "x", "change": "c1", "task_id": "T-1", "workflow": "w"}
CREATED = ev.Created(id="x", spec=Spec(kind="task", argv=("d",), cwd="/", task=TASK))
PLANNED = te.Planned(strategy="multi", plan=Plan(steps=(Step(id="a", task="x"),)))


def fold(*events: Event | bytes) -> list[ExecutionRecord]:
    """Fold events that come a second apart."""
    recorder = Recorder("x")
    for seq, one in enumerate((CREATED, PLANNED, *events)):
        body = one if isinstance(one, bytes) else msgspec.json.encode(one)
        recorder.take(seq, seq * SECOND, body)
    return recorder.records


def started(step: str = "a", attempt: int = 1, runtime: str = "echo") -> te.StepStarted:
    return te.StepStarted(step=step, attempt=attempt, runtime=runtime, role="coder", model="m")


def used(tokens: int) -> te.StepUsed:
    return te.StepUsed(step="a", model="m", tokens=Tokens(tokens))


def finished(status: te.StepStatus = "completed", **fields: object) -> te.StepFinished:
    values = {"step": "a", "status": status, "attempt": 1, **fields}
    return te.StepFinished(**values)  # type: ignore[arg-type]


def brief(records: Sequence[ExecutionRecord]) -> list[tuple[str, str, str]]:
    return [(one.step, one.status, one.kind) for one in records]


@pytest.mark.promise("D6")
def test_a_completed_step_has_one_record_with_everything() -> None:
    end = finished(tokens=Tokens(10, 5, 2, 1), cost=Decimal("0.25"), duration_s=0.5, unmetered=True)
    (one,) = fold(started(), used(3), end)
    assert one == ExecutionRecord(
        execution="x", seq=2, step="a", status="completed", executed_ns=4 * SECOND, attempt=1,
        task_id="T-1", change="c1", workflow="w", role="coder", model="m", runtime="echo",
        strategy="multi", tokens=Tokens(10, 5, 2, 1), cost=Decimal("0.25"), unmetered=True,
        duration_s=0.5,
    )  # fmt: skip
    assert one.success
    assert one.executed_at == "1970-01-01T00:00:04.000000Z"


def test_attempts_and_a_fallback_are_one_record_of_whoever_was_last() -> None:
    (one,) = fold(
        started(),
        started(attempt=2),
        te.FellBack(step="a", of="echo", to="second", why="x"),
        started(attempt=3, runtime="second"),
        finished("failed", attempt=3, kind="server", runtime="second"),
    )
    assert (one.attempt, one.runtime, one.kind, one.seq) == (3, "second", "server", 2)
    assert one.duration_s == 4.0, "what the driver did not measure is told by the tape"


def test_a_step_that_never_started_has_a_record_too() -> None:
    records = fold(
        finished("failed", attempt=0, kind="budget_reached"),
        te.StepFinished(step="b", status="skipped_dependency_failed"),
    )
    assert brief(records) == [
        ("a", "failed", "budget_reached"),
        ("b", "skipped_dependency_failed", ""),
    ]
    assert [one.attempt for one in records] == [0, 0]
    assert [one.cost for one in records] == [0, None], (
        "nobody was asked; what is skipped has no cost"
    )


def test_an_interrupted_step_that_is_completed_later_has_both_and_counts_tokens_once() -> None:
    records = fold(
        started(),
        finished("interrupted", tokens=Tokens(100, 10), cost=Decimal("0.10")),
        ev.Ended(state=State.INTERRUPTED),
        ev.Resumed(),
        started(attempt=2),
        finished(attempt=2, tokens=Tokens(150, 30), cost=Decimal("0.25")),  # of both lives together
    )
    assert brief(records) == [("a", "interrupted", ""), ("a", "completed", "")]
    assert [one.tokens for one in records] == [Tokens(100, 10), Tokens(50, 20)]
    assert [one.cost for one in records] == [Decimal("0.1"), Decimal("0.15")]


def test_a_spend_that_was_counted_anew_is_taken_as_it_is() -> None:
    records = fold(
        started(),
        finished("interrupted", tokens=Tokens(100), cost=Decimal(1)),
        started(attempt=2),
        finished(tokens=Tokens(30), cost=Decimal("0.5")),
    )
    assert [one.tokens.input for one in records] == [100, 30]
    assert [one.cost for one in records] == [1, Decimal("0.5")]


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (ev.Lost(reason="x"), "lost"),
        (ev.Ended(state=State.KILLED), "killed"),
        (ev.Resumed(), "lost"),
    ],
)
def test_what_runs_when_the_execution_ends_was_cut_short(end: Event, kind: str) -> None:
    (one,) = fold(started(), used(7), end)
    assert (one.status, one.kind, one.tokens) == ("interrupted", kind, Tokens(7))
    assert (one.executed_ns, one.duration_s, one.cost) == (4 * SECOND, 2.0, None)


def test_after_a_resume_the_driver_speaks_of_the_record_that_is_there() -> None:
    cut = (started(), ev.Lost(reason="x"), ev.Resumed())
    again = (finished("interrupted", kind="unknown"), started(attempt=2), finished(attempt=2))
    assert brief(fold(*cut, *again)) == [("a", "interrupted", "lost"), ("a", "completed", "")]
    (one,) = fold(*cut, finished("failed", kind="unknown"))
    assert (one.status, one.kind, one.executed_ns) == ("failed", "unknown", 3 * SECOND)


def test_what_a_ledger_had_of_a_step_that_is_not_run_again_is_in_its_record() -> None:
    cut = (started(), used(3), ev.Lost(reason="x"), ev.Resumed())
    end = te.StepFinished(
        step="a",
        status="failed",
        attempt=1,
        kind="unknown",
        tokens=Tokens(7, 2),
        cost=Decimal("0.5"),
    )
    (one,) = fold(*cut, end)
    assert (one.tokens, one.cost) == (Tokens(7, 2), Decimal("0.5"))


@pytest.mark.promise("D6")
def test_what_a_fork_begins_with_is_not_counted_twice() -> None:
    task = {**TASK, "forked_from": {"id": "y", "seq": 9}}
    created = ev.Created(id="x", spec=Spec(kind="task", argv=("d",), cwd="/", task=task))
    began = ev.Started(pid=1, pid_start=1, keeper_pid=2, keeper_start=2, boot="b")
    copied = finished(tokens=Tokens(10), cost=Decimal(1))
    skipped = te.StepFinished(step="c", status="skipped_dependency_failed")
    own = te.StepFinished(step="b", status="completed", attempt=1, tokens=Tokens(3))
    events = (created, PLANNED, copied, skipped, began, started("b"), own)
    recorder = Recorder("x")
    for seq, one in enumerate(events):
        recorder.take(seq, seq * SECOND, msgspec.json.encode(one))
    assert brief(recorder.records) == [("b", "completed", "")]
    assert recorder.records[0].tokens == Tokens(3)


def test_a_running_step_has_no_record_yet() -> None:
    assert fold(started(), used(5)) == []


def test_nonsense_on_a_tape_breaks_nothing() -> None:
    huge = b'{"type":"step_finished","step":"a","status":"completed",'
    huge += b'"tokens":{"input":%d,"output":-5}' % (10**30)
    records = fold(
        b"\xff", b"[" * 5000, b"{}", b'{"type":"step_finished"}',
        b'{"type":"step_finished","step":"a","status":"running"}',
        huge + b',"cost":"1e999999","duration_s":1e300,"attempt":-1}',
        b'{"type":"step_finished","step":"b","status":"failed","cost":"NaN"}',
        b'{"type":"step_finished","step":"c","status":"failed","cost":"-1"}',
        te.StepFinished(step="d" * 100_000, status="failed", attempt=1),
    )  # fmt: skip
    assert [one.step[:1] for one in records if one.step != "a"] == ["b", "c", "d"]
    for one in records:
        assert one.cost is None
        assert 0 <= one.tokens.total < 1 << 42
        assert 0 <= one.duration_s <= 1e8
        assert len(one.step) <= 500
        assert one.attempt >= 0
