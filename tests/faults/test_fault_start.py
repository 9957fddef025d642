"""Starts that go wrong halfway: nobody is told a thing that is not so, and nothing runs twice."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from fault_help import eventually, found, gone, processes_of, settled

from tenuto.core.errors import EngineFault
from tenuto.core.ids import new_id
from tenuto.core.listing import Row
from tenuto.core.states import State
from tenuto.dispatch.launch import ZygoteLauncher
from tenuto.engine import start
from tenuto.engine.recover import starter_mark
from tenuto.keeper import procfs
from tenuto.stores.pen import Pen


def named(world, name):
    return [pid for pid in found(world.log) if procfs.name(pid) == name]


def idle_keepers(world, number=1):
    """Wait for the keepers that are kept ahead, and return them."""

    def look():
        zygotes = named(world, "tenuto-zygote")
        idle = [pid for pid in named(world, "tenuto-idle") if procfs.parent(pid) in zygotes]
        return idle if len(idle) >= number else None

    return eventually(look, what="keepers ahead")


@pytest.mark.promise("X13", "X2")
def test_a_keeper_that_comes_too_late_runs_nothing(world, monkeypatch):
    """The caller was told that it failed: whoever takes the job after that must not run it."""
    engine = world.engine(ZygoteLauncher(1))
    stopped = [*idle_keepers(world), *named(world, "tenuto-zygote")]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patch, pytest.raises(EngineFault):
            patch.setattr(start, "_START_PATIENCE_S", 0.1)
            patch.setattr(start, "_TRIES", 1)
            world.start(engine, world.chatty(3))
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert not gone(stopped[:1]), "the late keeper lets go"
    (listed,) = engine.list()
    assert (listed.state, listed.reason) == (State.FAILED, "keeper")
    assert world.runs() == 0
    again = world.start(engine, world.chatty(3))
    assert engine.wait(again, 20).state is State.SUCCEEDED
    assert world.runs() == 1


@pytest.mark.promise("X17")
@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_starting_goes_on_after_the_zygote_was_killed(world, ahead):
    engine = world.engine(ZygoteLauncher(ahead))
    idle_keepers(world, ahead)
    (zygote,) = named(world, "tenuto-zygote")
    os.kill(zygote, signal.SIGKILL)
    gone([zygote])
    for _ in range(ahead + 2):  # those ahead still serve; then a new zygote does
        execution_id = world.start(engine, ["true"])
        assert engine.wait(execution_id, 20).state is State.SUCCEEDED
    assert engine.launcher.restarts == 1
    assert engine.launcher.alive


@pytest.mark.promise("X17")
def test_starting_goes_on_after_what_is_kept_ahead_was_killed(world):
    engine = world.engine(ZygoteLauncher(2))
    victims = idle_keepers(world, 2)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    gone(victims)
    began = time.monotonic()
    for _ in range(4):
        execution_id = world.start(engine, ["true"])
        assert engine.wait(execution_id, 20).state is State.SUCCEEDED
    assert time.monotonic() - began < 10
    assert engine.launcher.restarts == 0


@pytest.mark.promise("X11")
def test_a_zygote_and_its_keepers_ahead_end_with_their_engine(world):
    engine = world.engine(ZygoteLauncher(3))
    idle_keepers(world, 3)
    engine.launcher.close()
    assert not processes_of(world.log, patience_s=20)


@pytest.mark.promise("X2", "X9")
def test_a_tape_that_is_just_being_made_is_not_lost(world):
    """Between the making of the file and its lock, somebody lists."""
    engine = world.engine()
    execution_id = new_id()
    row = Row(
        execution_id, "command", State.QUEUED, created_ns=1, starter=starter_mark(os.getpid())
    )
    engine.index.add(row)
    folder = engine.project.folder(execution_id)
    for make in (
        lambda: None,
        lambda: os.makedirs(folder),
        lambda: open(f"{folder}/tape", "x").close(),
    ):
        make()
        with world.fresh() as other:
            assert [one.state for one in other.list()] == [State.QUEUED]
            assert other.show(execution_id).state is State.QUEUED
    dead = msgspec.structs.replace(row, id=new_id(), starter="1:2:3")
    engine.index.add(dead)
    os.makedirs(engine.project.folder(dead.id))
    open(f"{engine.project.folder(dead.id)}/tape", "x").close()
    with world.fresh() as other:
        states = {one.id: one.state for one in other.list()}
        assert states == {execution_id: State.QUEUED, dead.id: State.LOST}
        assert settled(other, dead.id).state is State.LOST
    engine.index.forget([execution_id])


@pytest.mark.promise("X1", "X9", "D5")
def test_an_index_made_anew_between_row_and_folder_knows_the_execution(world, monkeypatch):
    """Row, then somebody deletes the index and somebody else makes it anew, then the folder."""
    engine = world.engine()
    before = world.start(engine, ["true"])

    def create(folder, first):
        os.unlink(engine.project.index)
        with world.fresh() as other:
            assert [one.id for one in other.list()] == [before]
        return Pen.create(folder, first)

    with monkeypatch.context() as patch:
        patch.setattr(start, "Pen", SimpleNamespace(create=create))
        execution_id = world.start(engine, ["true"])
    with world.fresh() as other:
        assert [one.id for one in other.list()] == [execution_id, before]
        assert other.wait(execution_id, 20).state is State.SUCCEEDED


@pytest.mark.promise("X9", "D5")
def test_a_rebuild_before_the_tape_is_written_does_not_call_it_lost(world):
    engine = world.engine()
    mark = starter_mark(os.getpid())
    execution_id = new_id()
    engine.index.add(Row(execution_id, "command", State.QUEUED, created_ns=1, starter=mark))
    os.makedirs(engine.project.folder(execution_id))
    for _ in range(2):
        assert engine.index.rebuild() == 1
        assert [one.state for one in engine.list()] == [State.QUEUED]
        Path(engine.project.folder(execution_id), "tape").touch()
    engine.index.forget([execution_id])
