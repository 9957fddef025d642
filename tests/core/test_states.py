import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.core import events as ev
from tenuto.core.execution import Execution
from tenuto.core.specs import Spec
from tenuto.core.states import ENDED, LIVE, RESUMABLE, State, WaitingFor, may_move

S = State
LEGAL = {
    S.QUEUED: {S.RUNNING, S.INTERRUPTED, S.SUCCEEDED, S.FAILED, S.KILLED, S.LOST},
    S.RUNNING: {S.WAITING, S.INTERRUPTED, S.SUCCEEDED, S.FAILED, S.KILLED, S.LOST},
    S.WAITING: {S.RUNNING, S.WAITING, S.INTERRUPTED, S.SUCCEEDED, S.FAILED, S.KILLED, S.LOST},
    S.INTERRUPTED: {S.QUEUED},
    S.LOST: {S.QUEUED},
    S.SUCCEEDED: set(),
    S.FAILED: set(),
    S.KILLED: set(),
}
SPEC = Spec(kind="command", argv=("true",), cwd="/")


@pytest.mark.promise("X2")
@pytest.mark.parametrize("here", State)
@pytest.mark.parametrize("there", State)
def test_a_move_is_legal_exactly_when_the_table_says_so(here, there):
    assert may_move(here, there) == (there in LEGAL[here])


@pytest.mark.promise("X2")
def test_the_states_are_the_promised_ones():
    assert [str(state) for state in State] == (
        ["queued", "running", "waiting", "interrupted", "succeeded", "failed", "killed", "lost"]
    )
    assert {str(one) for one in WaitingFor} == {"input", "approval", "budget", "host", "disk"}
    assert set(State) == LIVE | ENDED
    assert not LIVE & ENDED
    assert {State.INTERRUPTED, State.LOST} == RESUMABLE


def test_a_state_reads_as_its_word():
    assert f"{State.RUNNING} {State.LOST!s} {WaitingFor.DISK:>6}" == "running lost   disk"


EVENTS = st.one_of(
    st.just(ev.Created(id="a", spec=SPEC)),
    st.just(ev.Started(pid=1, pid_start=1, keeper_pid=1, keeper_start=1, boot="b")),
    st.builds(ev.Waited, on=st.sampled_from(WaitingFor), detail=st.sampled_from(["", "why"])),
    st.just(ev.Continued()),
    st.builds(ev.Ended, state=st.sampled_from(State), reason=st.sampled_from(["", "exit"])),
    st.just(ev.Lost(reason="its keeper died")),
    st.just(ev.Resumed()),
    st.just(ev.BecameInteractive()),
    st.just(ev.WaitGaveUp()),
    st.just(ev.ValueReturned(json=1)),
    st.just(ev.Raised(name="E")),
    st.builds(ev.Cleared, upto=st.integers(0, 9)),
    st.just(ev.Repaired(size=3)),
    st.just(ev.LeftBehindEnded()),
    st.just(ev.Unknown(type_name="newer")),
)


@pytest.mark.promise("X2")
@given(st.lists(EVENTS, max_size=30))
def test_no_sequence_of_events_makes_an_illegal_move(events):
    execution = Execution("a")
    for number, event in enumerate(events):
        before, moves = execution.state, len(execution.transitions)
        execution.apply(number, event)
        if execution.state is not before:
            assert may_move(before, execution.state)
            assert execution.transitions[-1].state is execution.state
            assert execution.transitions[-1].time_ns == number
        if before in ENDED and not isinstance(event, ev.Resumed):
            assert execution.state is before
        assert len(execution.transitions) - moves <= 1
        assert (execution.waiting_for is not None) == (execution.state is State.WAITING)
        assert execution.live == (execution.state in LIVE)
    assert execution.snapshot(10_000).state is execution.state


@pytest.mark.promise("X2")
@given(
    st.lists(
        st.builds(ev.Ended, state=st.sampled_from(sorted(ENDED)), exit_code=st.integers(0, 255))
    )
)
def test_the_first_end_wins(ends):
    execution = Execution("a")
    execution.apply(1, ev.Created(id="a", spec=SPEC))
    for number, end in enumerate(ends):
        execution.apply(number + 2, end)
        execution.apply(number + 2, ev.Lost(reason="late"))
    if ends:
        assert (execution.state, execution.ended) == (ends[0].state, ends[0])
        assert execution.ended_ns == 2
        assert execution.lost is None
        assert len(execution.transitions) == 2


@pytest.mark.promise("X2")
def test_every_transition_is_kept_with_its_time_and_reason():
    execution = Execution("a")
    script = [
        ev.Created(id="a", spec=SPEC),
        ev.Started(pid=1, pid_start=1, keeper_pid=1, keeper_start=1, boot="b"),
        ev.Waited(on=WaitingFor.INPUT),
        ev.Waited(on=WaitingFor.DISK, detail="No space left on device"),
        ev.Continued(),
        ev.Ended(state=State.INTERRUPTED, reason="interrupted"),
        ev.Resumed(),
        ev.Started(pid=2, pid_start=1, keeper_pid=1, keeper_start=1, boot="b"),
        ev.Lost(reason="its keeper died"),
    ]
    for number, event in enumerate(script):
        execution.apply(number * 10, event)
    assert [(str(t.state), t.time_ns, t.reason) for t in execution.transitions] == [
        ("queued", 0, ""),
        ("running", 10, ""),
        ("waiting", 20, "input"),
        ("waiting", 30, "No space left on device"),
        ("running", 40, ""),
        ("interrupted", 50, "interrupted"),
        ("queued", 60, "resumed"),
        ("running", 70, ""),
        ("lost", 80, "its keeper died"),
    ]


def test_an_end_record_with_a_live_state_is_passed_over():
    execution = Execution("a")
    execution.apply(1, ev.Created(id="a", spec=SPEC))
    execution.apply(2, ev.Ended(state=State.RUNNING))
    assert execution.state is State.QUEUED
    assert execution.ended_ns is None


def test_a_resume_forgets_what_the_first_run_left():
    execution = Execution("a")
    execution.apply(1, ev.Created(id="a", spec=SPEC))
    execution.apply(2, ev.ValueReturned(json=5))
    execution.apply(3, ev.Raised(name="E"))
    execution.apply(4, ev.Ended(state=State.INTERRUPTED, exit_code=3))
    execution.apply(5, ev.Resumed())
    snapshot = execution.snapshot(10)
    assert (snapshot.state, snapshot.exit_code, snapshot.has_value) == (State.QUEUED, None, False)
    assert execution.raised is None
    assert snapshot.ended_ns is None
