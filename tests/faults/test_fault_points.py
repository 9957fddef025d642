"""Death at each labelled point of the code, in the process that passes it."""

import json
import os
import signal

import pytest
from fault_help import HAS_GROUPS, alive, gone, lines, processes_of, read, settled

from tenuto.core.errors import NotRunning
from tenuto.core.states import State

LAST = 60
LONG = 5000  # it is cleared long before the last of these
DIED = -signal.SIGKILL
WAYS = ("fresh", "zygote")

# label, the states that are then true, whether the program may have run
CALLER_POINTS = [
    ("start-indexed", {State.LOST}, False),
    ("start-recorded", {State.LOST}, False),
    # the keeper may have said that it takes the job before the starter died: then it goes on
    ("start-handed-over", {State.LOST, State.SUCCEEDED}, True),
]
KEEPER_POINTS = [
    ("keeper-taken", {State.LOST}),
    ("keeper-begun", {State.LOST}),
    ("keeper-announced", {State.LOST}),
    ("keeper-read", {State.LOST}),
    ("keeper-read:20", {State.LOST}),
    ("keeper-ending", {State.LOST}),
    ("writer-before-append", {State.LOST}),
    ("writer-before-append:10", {State.LOST}),
    ("writer-after-append", {State.LOST}),
    ("writer-after-append:10", {State.LOST}),
    ("writer-before-sync", {State.SUCCEEDED}),
]


class Call:
    """A caller process that starts a chatty program under a fault, and what became of both."""

    def __init__(self, world, way, fault, argv=None, **request):
        self.world = world
        path = world.folder / "acked"
        request |= {"way": way, "argv": argv or world.chatty(LAST), "acked": str(path)}
        process = world.spawn("caller.py", json.dumps(request), fault=fault)
        out, err = process.communicate(timeout=60)
        self.code = process.returncode
        self.error = err.decode()
        self.announced = out.decode().split()
        self.acked = path.read_bytes()
        assert self.code in (0, DIED), self.error


@pytest.mark.promise("X11", "X2")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("fault", "states", "may_run"), CALLER_POINTS)
def test_a_starter_that_dies_leaves_nothing_half_made(world, way, fault, states, may_run):
    call = Call(world, way, fault)
    assert call.code == DIED
    assert not call.announced
    (listed,) = world.executions()
    with world.fresh() as engine:
        if listed.state is State.SUCCEEDED or listed.running:
            assert may_run
            engine.wait(listed.id, 20)
        snapshot = settled(engine, listed.id, whole=lines(LAST))
    assert snapshot.state in states
    assert world.runs() == (snapshot.state is State.SUCCEEDED)
    assert not processes_of(world.log, patience_s=20)


@pytest.mark.promise("X11", "X2", "X8")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("fault", "states"), KEEPER_POINTS)
def test_a_keeper_that_dies_loses_nothing_it_had_shown(world, way, fault, states):
    call = Call(world, way, fault)
    assert call.code == 0, "the caller lives on"
    (execution_id,) = call.announced
    with world.fresh() as engine:
        snapshot = settled(engine, execution_id, call.acked, lines(LAST))
        assert [one.id for one in engine.list(most=None)] == [execution_id]
    assert snapshot.state in states
    assert world.runs() <= 1
    if fault == "keeper-taken":
        assert world.runs() == 0
    if snapshot.state is State.LOST and world.runs():
        assert "before the work began" not in snapshot.reason
    assert not processes_of(world.log, patience_s=20)


@pytest.mark.promise("X6", "X11")
@pytest.mark.parametrize("way", WAYS)
def test_death_before_a_cleared_tape_is_in_place_keeps_the_old_one(world, way):
    call = Call(world, way, "rewrite-before-rename", world.chatty(LONG), clear_at=60)
    (execution_id,) = call.announced
    with world.fresh() as engine:
        snapshot = settled(engine, execution_id, call.acked, lines(LONG))
        assert snapshot.state is State.LOST
        assert call.acked
        assert engine.clear(execution_id).state is State.LOST  # and it can still be cleared
        assert read(engine, execution_id) == b""
    assert world.runs() == 1


@pytest.mark.promise("X6", "X11")
@pytest.mark.parametrize("way", WAYS)
def test_death_after_a_cleared_tape_is_in_place_keeps_the_new_one(world, way):
    call = Call(world, way, "rewrite-after-rename", world.chatty(LONG), clear_at=60)
    (execution_id,) = call.announced
    with world.fresh() as engine:
        snapshot = settled(engine, execution_id)
        assert snapshot.state is State.LOST
        assert read(engine, execution_id) == b""
    assert world.runs() == 1


@pytest.mark.promise("X6", "X11")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["rewrite-before-rename", "rewrite-after-rename"])
def test_a_caller_that_dies_clearing_an_ended_tape_leaves_a_whole_one(world, way, fault):
    call = Call(world, way, fault, clear_after=True)
    assert call.code == DIED
    (execution_id,) = call.announced
    with world.fresh() as engine:
        snapshot = settled(engine, execution_id)
        assert snapshot.state is State.SUCCEEDED
        whole = lines(LAST) if fault == "rewrite-before-rename" else b""
        assert read(engine, execution_id) == whole
        assert engine.clear(execution_id).state is State.SUCCEEDED
        assert read(engine, execution_id) == b""


@pytest.mark.promise("X8", "X11")
@pytest.mark.parametrize("environ", ["kept", "cleared"])
@pytest.mark.parametrize("way", WAYS)
def test_daemons_of_a_dead_keeper_are_swept(world, way, environ):
    if environ == "cleared" and not HAS_GROUPS:
        pytest.skip("without a writable cgroup a daemon that clears its environment is not found")
    pids = world.folder / "pids"
    words = "env -i " if environ == "cleared" else ""
    script = (
        f"echo ran >> {world.side}; (setsid {words}sh -c 'echo $$ >> {pids}; exec sleep 1000' &); "
        f"while [ ! -s {pids} ]; do :; done; echo line 1; sleep 1000"
    )
    call = Call(world, way, "keeper-read", argv=["sh", "-c", script])
    (execution_id,) = call.announced
    (daemon,) = map(int, pids.read_text().split())
    with world.fresh() as engine:
        settled(engine, execution_id, call.acked, lines(1))
    assert not alive(daemon)
    assert world.runs() == 1


@pytest.mark.promise("X8", "X11")
@pytest.mark.parametrize("way", WAYS)
def test_daemons_of_a_keeper_that_died_before_its_start_was_recorded_are_swept(world, way):
    if not HAS_GROUPS:
        pytest.skip("without a writable cgroup a daemon that clears its environment is not found")
    pids = world.folder / "pids"
    script = (
        f"echo ran >> {world.side}; "
        f"(setsid env -i sh -c 'echo $$ > {pids}.new; mv {pids}.new {pids}; exec sleep 1000' &); "
        "sleep 1000"
    )
    call = Call(world, way, f"keeper-begun@{pids}", argv=["sh", "-c", script])
    with world.fresh() as engine:
        assert [one.state for one in engine.list()] == [State.LOST]
    assert not alive(int(pids.read_text()))
    assert world.runs() == 1
    assert call.acked == b""


@pytest.mark.promise("X8", "X11")
@pytest.mark.parametrize("finder", ["list", "show", "kill"])
def test_what_an_ended_execution_left_behind_ends_with_its_keeper(world, finder):
    pids = world.folder / "pids"
    script = (
        f"(setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' &); while [ ! -s {pids} ]; do :; done"
    )
    engine = world.engine()
    execution_id = world.start(engine, ["sh", "-c", script])
    snapshot = engine.wait(execution_id, 20)
    assert snapshot.state is State.SUCCEEDED
    (daemon,) = (one.pid for one in snapshot.left_behind)
    assert alive(daemon), "it stays under its keeper"
    assert [one.state for one in engine.list()] == [State.SUCCEEDED]
    assert alive(daemon)
    keeper = world.started(execution_id).keeper_pid
    os.kill(keeper, signal.SIGKILL)
    gone([keeper])
    with world.fresh() as other:
        if finder == "list":
            assert other.list(running=True) == []
        elif finder == "show":
            assert other.show(execution_id).left_behind == ()
        else:
            with pytest.raises(NotRunning):
                other.kill(execution_id)
        assert not alive(daemon)
        assert settled(other, execution_id).state is State.SUCCEEDED
        assert other.show(execution_id).left_behind == ()
