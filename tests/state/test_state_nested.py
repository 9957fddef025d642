"""Recovery at start of tasks inside tasks: one of them goes on, and nothing finished runs twice."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import msgspec
import pytest
from engine_help import await_death, events_of, keeper_pid, main_pid, marked_processes
from state_help import (
    PATIENCE,
    A,
    B,
    C,
    await_event,
    begin,
    blocking,
    ended,
    in_step,
    ran,
    resume,
    side,
    step_done,
)

from tenuto import Engine
from tenuto.core.ids import short
from tenuto.core.plan import Plan, Step
from tenuto.core.states import State
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.recovering import Recovered, recover_tasks
from tenuto.stores.layout import Project

OUTER = (Step("first", "[[say:first]]"), Step("around", "[[hang]]", ("first",), runtime="nest"))


@pytest.fixture
def pair(tasks: BlockingEngine, agents: Path) -> tuple[str, str]:
    """A task and the one that its agent has started, each with a step behind it and one under way."""
    return both(tasks, agents, resume="auto")


def both(engine: BlockingEngine, folder: Path, **options: str) -> tuple[str, str]:
    (folder / "nested.json").write_bytes(msgspec.json.encode(Plan((A, B, C))))
    outer = begin(engine, *OUTER, **options)
    in_step(engine, outer, "around")
    while "around" not in ran():  # its session is named before its process is there
        assert not engine.wait(outer, 0.01).done
    (inner,) = [line.split()[1] for line in side() if line.startswith("nested ")]
    step_done(engine, inner, "a")
    in_step(engine, inner, "b")
    return outer, inner


def cut_power(engine: BlockingEngine, *ids: str) -> None:
    """Let keepers and drivers die at once, as a machine would have it."""
    pids = [find(engine.project, one) for one in ids for find in (keeper_pid, main_pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # none of them sees the others go
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        assert await_death(pid)


def never_twice() -> None:
    """Assert that each finished step ran once, whoever took it up how often."""
    names = ran()
    assert [names.count(one) for one in ("first", "a")] == [1, 1], names
    assert names.count("nested") == 1, "the agent went on in its session"


def by_id(found: list[Recovered] | tuple[Recovered, ...]) -> dict[str, Recovered]:
    return {one.id: one for one in found}


@pytest.mark.promise("D3", "X2", "X11")
def test_of_a_nested_pair_only_the_outer_one_is_taken_up(
    tasks: BlockingEngine, project: Project, pair: tuple[str, str]
):
    outer, inner = pair
    cut_power(tasks, outer, inner)
    found = by_id(recover_tasks(tasks))
    assert (found[outer].resumed, found[inner].resumed) == (True, False)
    assert short(outer) in found[inner].why
    assert f"tenuto resume {short(inner)}" in found[inner].why
    assert ended(tasks, outer)
    assert tasks.show(inner).state is State.LOST, "who did it around has decided about it"
    assert not events_of(project, inner, "resumed")
    again = by_id(recover_tasks(tasks))
    assert not again[inner].resumed, "the outer one has had its turn"
    never_twice()
    resume(tasks, inner)  # by hand it goes on, with what it had
    assert ended(tasks, inner)
    never_twice()
    assert (ran().count("b"), ran().count("c")) == (2, 1)


@pytest.mark.promise("D3", "X11")
def test_two_engines_that_open_at_once_take_up_one_of_the_pair_too(
    tasks: BlockingEngine, project: Project, pair: tuple[str, str]
):
    outer, inner = pair
    cut_power(tasks, outer, inner)
    gate = threading.Barrier(3)
    found: list[Recovered] = []

    def opening() -> None:
        with blocking(project) as engine:
            gate.wait(PATIENCE)
            found.extend(recover_tasks(engine))

    threads = [threading.Thread(target=opening) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(PATIENCE)
    assert [one.id for one in found if one.resumed] == [outer]
    assert ended(tasks, outer)
    assert not events_of(project, inner, "resumed")
    never_twice()


@pytest.mark.promise("D3")
def test_a_nested_one_goes_on_by_itself_where_nobody_takes_up_the_outer_one(
    tasks: BlockingEngine, agents: Path
):
    outer, inner = both(tasks, agents)  # that one waits for a person
    cut_power(tasks, outer, inner)
    (found,) = recover_tasks(tasks)
    assert (found.id, found.resumed) == (inner, True)
    assert ended(tasks, inner)
    assert tasks.show(outer).state is State.LOST
    never_twice()


@pytest.mark.promise("D3")
def test_a_nested_one_that_was_lost_alone_goes_on_while_the_outer_one_lives(
    tasks: BlockingEngine, pair: tuple[str, str]
):
    outer, inner = pair
    cut_power(tasks, inner)
    (found,) = recover_tasks(tasks)
    assert (found.id, found.resumed) == (inner, True)
    assert ended(tasks, inner)
    assert tasks.show(outer).state is State.RUNNING
    never_twice()
    tasks.interrupt(outer)


@pytest.mark.promise("D3", "X11")
def test_an_outer_one_that_was_taken_up_by_hand_counts_too(
    tasks: BlockingEngine, pair: tuple[str, str]
):
    outer, inner = pair
    cut_power(tasks, outer, inner)
    resume(tasks, outer)
    await_event(tasks, outer, lambda one: one["type"] == "resumed")
    assert ended(tasks, outer)
    assert not by_id(recover_tasks(tasks))[inner].resumed
    resume(tasks, inner)
    assert ended(tasks, inner)
    never_twice()
    assert recover_tasks(tasks) == []


@pytest.mark.asyncio
@pytest.mark.promise("D3", "X11")
async def test_an_engine_that_opens_leaves_no_process_of_the_nested_one(
    agents: Path, tasks: BlockingEngine, pair: tuple[str, str]
):
    outer, inner = pair
    cut_power(tasks, outer, inner)
    async with Engine(str(agents)) as engine:
        found = by_id(await engine.recovered())
        assert (found[outer].resumed, found[inner].resumed) == (True, False)
        assert await engine.wait(outer, PATIENCE)
        assert not marked_processes([inner])
    never_twice()
