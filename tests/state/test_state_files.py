"""State files: readable, checked, replaced at once, and read with care."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenuto import NewerState, StateDamaged
from tenuto.core import events as ev
from tenuto.core.budget import Tokens
from tenuto.core.event import Event
from tenuto.core.events import encode_event
from tenuto.core.ids import new_id
from tenuto.core.plan import Plan, Step
from tenuto.core.specs import Spec
from tenuto.core.state import (
    SCHEMA,
    ExecutionState,
    StateFold,
    checkpoints,
    checksum,
    decode_state,
    encode_state,
    forked_events,
    mend,
)
from tenuto.core.task_events import (
    EnvironmentSeen,
    PlanExtended,
    Planned,
    StepFinished,
    StepSession,
    StepStarted,
    TaskEvent,
    TaskFinished,
    Warned,
)
from tenuto.stores import states
from tenuto.stores.states import (
    clear_unfinished,
    keep_state,
    kept_states,
    read_state,
    write_state,
)

ID = new_id()
SPEC = Spec("task", ("python",), "/work", title="a thing", task={"text": "do it", "runtime": "x"})
PLAN = Plan((Step("a", "one"), Step("b", "two", depends_on=("a",)), Step("c", "three")))
EVENTS: list[Event] = [
    ev.Created(id=ID, spec=SPEC),
    ev.Started(pid=1, pid_start=1, keeper_pid=2, keeper_start=2, boot="x"),
    EnvironmentSeen(cwd="/work", commit="c" * 40, host="here", tenuto="0.1.0", python="3.11"),
    Planned(strategy="parallel", plan=PLAN, reason="because"),
    StepStarted(step="a", attempt=1, runtime="x", role="developer", model="m"),
    StepSession(step="a", session="s-1", execution="e-1", version="2.0"),
    StepFinished(
        step="a", status="completed", attempt=1, output="done ü \u2028", runtime="x", role="developer",
        session="s-1", tokens=Tokens(10, 5), cost=Decimal("0.10"), duration_s=1.5,
    ),
    StepStarted(step="c", attempt=1, runtime="x"),
    StepSession(step="c", session="s-2", execution="e-2"),
]  # fmt: skip


def folded(*events: Event) -> StateFold:
    fold = StateFold(ID)
    for seq, event in enumerate(events or EVENTS):
        fold.apply(seq, 1_800_000_000_000_000_000 + seq, encode_event(event))
    return fold


@pytest.fixture
def state() -> ExecutionState:
    return folded().state()


@pytest.mark.promise("D1")
def test_a_state_has_everything_and_reads_back_as_it_was(state: ExecutionState):
    assert (state.id, state.status, state.seq, state.schema) == (ID, "running", 8, SCHEMA)
    assert state.metadata["title"] == "a thing"
    assert state.metadata["strategy"] == "parallel"
    assert state.context["task"] == "do it"
    assert state.cursor.finished == ("a",)
    assert state.cursor.running == ("c",)
    assert state.cursor.ready == ("b",)
    assert state.cursor.plan == PLAN
    assert state.results[0].output == "done ü \u2028"
    assert state.ledger.cost == Decimal("0.10")
    assert state.sessions["c"] == {"runtime": "x", "session": "s-2", "version": "2.0"}
    assert state.environment.runtimes == {"x": "2.0"}
    assert state.environment.commit == "c" * 40
    assert decode_state(encode_state(state)) == state


@pytest.mark.promise("D1")
def test_the_checksum_is_over_canonical_json_that_anybody_can_make(state: ExecutionState):
    text = encode_state(state).decode()
    assert text.startswith('{\n  "schema": 1,\n')
    document = json.loads(text)
    told = document.pop("sha256")
    plain = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert told == hashlib.sha256(plain.encode()).hexdigest()


@pytest.mark.promise("D5")
def test_a_state_that_is_cut_or_has_a_wrong_bit_is_never_taken(state: ExecutionState):
    data = encode_state(state)
    for size in range(len(data) - 1):
        if data[:size].strip() != data.strip():
            with pytest.raises(StateDamaged):
                decode_state(data[:size])
    for at in range(len(data)):
        for bit in (0, 3, 5, 7):
            bad = bytearray(data)
            bad[at] ^= 1 << bit
            try:
                found = decode_state(bytes(bad))
            except StateDamaged:
                continue
            assert found == state  # a space that became another


@pytest.mark.promise("D5")
@pytest.mark.parametrize("waits_for", ["b", "nobody"])
def test_a_state_whose_plan_cannot_run_is_never_taken(state: ExecutionState, waits_for: str):
    """Its checksum is right, as somebody's is who wrote it by hand: the plan would be a crash."""
    steps = (Step("a", "x", depends_on=("b",)), Step("b", "x", depends_on=("a", waits_for)))
    cursor = msgspec.structs.replace(state.cursor, plan=Plan(steps))
    bad = msgspec.structs.replace(state, cursor=cursor)
    bad = msgspec.structs.replace(bad, sha256=checksum(msgspec.to_builtins(bad)))
    with pytest.raises(StateDamaged, match="do not fit"):
        decode_state(encode_state(bad))


@pytest.mark.promise("D1", "D5")
def test_nothing_is_written_that_would_be_too_large_to_read(
    tmp_path: Path, state: ExecutionState, monkeypatch: pytest.MonkeyPatch
):
    states.write_state(str(tmp_path), state, True)
    monkeypatch.setattr(states, "_MOST", len(encode_state(state)))
    larger = msgspec.structs.replace(state, warnings=("x",))
    larger = msgspec.structs.replace(larger, sha256=checksum(msgspec.to_builtins(larger)))
    with pytest.raises(OSError, match="too large"):
        states.write_state(str(tmp_path), larger, True)
    assert os.listdir(tmp_path) == ["state.json"]
    assert states.read_state(str(tmp_path), ID).state == state


@pytest.mark.promise("D1")
def test_a_newer_schema_is_refused_and_said_to_be_that(state: ExecutionState):
    with pytest.raises(NewerState, match=f"schema {SCHEMA + 1}"):
        decode_state(changed(state, schema=SCHEMA + 1, something="new"))
    for schema in (0, -1, "1", None):
        with pytest.raises(StateDamaged):
            decode_state(changed(state, schema=schema))
    with pytest.raises(StateDamaged, match="fields do not fit"):
        decode_state(changed(state, results="none"))
    for data in (b"", b"[]", b"null", b"[" * 100_000):
        with pytest.raises(StateDamaged):
            decode_state(data)


def changed(state: ExecutionState, **fields: Any) -> bytes:
    document = msgspec.to_builtins(state) | fields
    return json.dumps({**document, "sha256": checksum(document)}).encode()


# Files


@pytest.mark.promise("D1", "X16")
def test_files_are_private_whole_and_the_one_before_is_kept(tmp_path: Path, state: ExecutionState):
    later = folded(*EVENTS, TaskFinished(status="completed")).state()
    before = os.umask(0)
    try:
        write_state(str(tmp_path), state, True)
        assert sorted(os.listdir(tmp_path)) == ["state.json"]
        write_state(str(tmp_path), later, False)
    finally:
        os.umask(before)
    assert sorted(os.listdir(tmp_path)) == ["state.json", "state.prev.json"]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert read_state(str(tmp_path), ID).state == later
    assert decode_state((tmp_path / "state.prev.json").read_bytes()) == state
    assert later.status == "succeeded"


@pytest.mark.promise("D5")
@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "folder", "other"])
def test_a_bad_file_is_put_aside_told_and_the_one_before_it_used(
    tmp_path: Path, state: ExecutionState, harm: str
):
    folder, aside = tmp_path / ID, tmp_path / "quarantine"
    folder.mkdir()
    later = folded(*EVENTS, TaskFinished(status="completed")).state()
    write_state(str(folder), state, True)
    write_state(str(folder), later, True)
    path = folder / "state.json"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if harm == "folder":
        path.unlink()
        path.mkdir()
    else:
        other = msgspec.structs.replace(later, id=new_id())
        foreign = changed(other)
        path.write_bytes(
            {"cut": bytes(data[:99]), "flipped": bytes(data), "empty": b"", "other": foreign}[harm]
        )
    read = read_state(str(folder), ID, str(aside))
    assert (read.state, read.name) == (state, "state.prev.json")
    assert len(read.problems) == 1
    assert "state.json cannot be used" in read.problems[0]
    (quarantined,) = aside.iterdir()
    assert str(quarantined) in read.problems[0]
    assert aside.stat().st_mode & 0o777 == 0o700
    assert not path.exists()


@pytest.mark.promise("D5")
def test_without_a_good_file_there_is_no_state_and_without_any_no_problem(tmp_path: Path):
    assert read_state(str(tmp_path), ID) == states.Read(None)
    (tmp_path / "state.json").write_text("{")
    (tmp_path / "state.prev.json").write_text("{")
    read = read_state(str(tmp_path), ID)
    assert read.state is None
    assert len(read.problems) == 2


def test_a_file_of_a_newer_tenuto_stays_where_it_is(tmp_path: Path, state: ExecutionState):
    folder = tmp_path / ID
    folder.mkdir()
    (folder / "state.json").write_bytes(changed(state, schema=9))
    read = read_state(str(folder), ID, str(tmp_path / "quarantine"))
    assert read.newer is not None
    assert "schema 9" in read.newer.message
    assert (folder / "state.json").exists()
    assert not (tmp_path / "quarantine").exists()


@pytest.mark.promise("D5")
@pytest.mark.parametrize("call", ["write", "fsync", "link", "replace"])
def test_a_write_that_fails_anywhere_leaves_the_old_state_and_nothing_else(
    tmp_path: Path, state: ExecutionState, monkeypatch: pytest.MonkeyPatch, call: str
):
    write_state(str(tmp_path), state, True)
    before = (tmp_path / "state.json").read_bytes()

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    later = folded(*EVENTS, TaskFinished(status="failed")).state()
    with pytest.raises(OSError, match="No space"):
        write_state(str(tmp_path), later, True)
    monkeypatch.undo()
    assert (tmp_path / "state.json").read_bytes() == before
    assert [name for name in os.listdir(tmp_path) if name.endswith(".new")] == []
    assert read_state(str(tmp_path), ID).state == state


@pytest.mark.promise("D5", "D1")
def test_what_a_killed_writer_left_is_cleared_and_a_live_ones_is_not(
    tmp_path: Path, state: ExecutionState
):
    child = subprocess.Popen(["true"])
    child.wait()
    write_state(str(tmp_path), state, True)
    dead = f"{child.pid}-{child.pid}"
    unfinished = [f"state.json.{dead}.new", f"state.json.{dead}.prev", f"state.7.json.{dead}.new"]
    others = [f"state.json.{os.getpid()}-7.new", "state.7.json", "tape", "state.json.x.new"]
    for name in (*unfinished, *others):
        (tmp_path / name).write_text("{")
    clear_unfinished(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(["state.json", *others])


@pytest.mark.promise("D5")
def test_a_death_between_the_two_renames_leaves_nothing_behind_in_the_end(
    tmp_path: Path, state: ExecutionState
):
    """Then both names are of one file, and renaming a third one of it does nothing at all."""
    write_state(str(tmp_path), state, True)
    os.link(tmp_path / "state.json", tmp_path / "state.prev.json")
    write_state(str(tmp_path), state, True)
    assert sorted(os.listdir(tmp_path)) == ["state.json", "state.prev.json"]


@pytest.mark.promise("D1")
def test_writers_in_several_threads_do_not_meet(tmp_path: Path, state: ExecutionState):
    """Two interrupts at once, in one process, both save what they found."""
    problems: list[BaseException] = []

    def often() -> None:
        try:
            for _ in range(50):
                write_state(str(tmp_path), state, False)
                assert read_state(str(tmp_path), ID).problems == ()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=often) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert problems == []
    assert sorted(os.listdir(tmp_path)) == ["state.json", "state.prev.json"]


@pytest.mark.promise("D2")
def test_checkpoints_on_request_stay_as_files_up_to_a_number(tmp_path: Path):
    fold = folded()
    for seq in range(9, 14):
        fold.apply(seq, 1_800_000_000_000_000_100 + seq, b'{"type":"warned","text":"w"}')
        keep_state(str(tmp_path), fold.state(), 3)
    assert kept_states(str(tmp_path)) == [11, 12, 13]
    assert read_state(str(tmp_path), ID).state == fold.state()


# Checkpoints among events


def numbered(*events: TaskEvent) -> list[tuple[int, int, TaskEvent]]:
    return [(10 * n, n, event) for n, event in enumerate(events)]


def test_what_follows_from_a_step_belongs_to_its_checkpoint():
    events = numbered(
        Planned(strategy="multi", plan=PLAN),
        StepStarted(step="a", attempt=1, runtime="x"),
        StepFinished(step="a", status="failed"),
        StepFinished(step="b", status="skipped_dependency_failed"),
        StepStarted(step="c", attempt=1, runtime="x"),
        StepFinished(step="c", status="completed"),
        PlanExtended(steps=(Step("c.2", "again"),)),
        Warned(text="w", about="budget"),
        TaskFinished(status="partial"),
    )
    found = [(one.seq, one.what) for one in checkpoints(events)]
    assert found == [
        (0, "planned: 3 steps"),
        (30, "a failed"),
        (60, "c completed"),
        (80, "the task partial"),
    ]


def test_a_fork_has_the_ended_steps_only_and_no_session_of_the_original():
    events = numbered(
        Planned(strategy="parallel", plan=PLAN),
        StepStarted(step="a", attempt=1, runtime="x"),
        StepStarted(step="c", attempt=1, runtime="x"),
        StepSession(step="c", session="s-2"),
        StepFinished(step="a", status="completed", output="out", session="s-1"),
        StepFinished(step="c", status="interrupted", session="s-2"),
        TaskFinished(status="interrupted"),
    )
    kept = forked_events(events, 60)
    assert kept == [
        Planned(strategy="parallel", plan=PLAN),
        StepFinished(step="a", status="completed", output="out", inherited=True),
    ]
    assert forked_events(events, 0) == kept[:1]


@pytest.mark.promise("D5")
def test_a_damaged_tape_is_completed_by_what_was_saved():
    state = folded().state()
    lost_plan = folded(*(one for one in EVENTS if not isinstance(one, Planned)))
    events = mend(lost_plan.progress, state)
    assert [type(one) for one in events] == [Planned]  # the tape itself still has a's end
    assert lost_plan.progress.steps["a"].output == "done ü \u2028"
    lost_end = folded(*(one for one in EVENTS if not isinstance(one, StepFinished)))
    (again,) = mend(lost_end.progress, state)
    assert isinstance(again, StepFinished)
    assert (again.step, again.output, again.cost) == ("a", "done ü \u2028", Decimal("0.10"))
    assert mend(folded().progress, state) == []
