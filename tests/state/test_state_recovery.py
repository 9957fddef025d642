"""Recovery at start: lost tasks that are to go on by themselves do, and not for ever."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cli_help import CommandLine
from engine_help import await_death, events_of, keeper_pid, tape_frames
from state_help import A, B, C, await_event, begin, ended, in_step, ran

from tenuto import Engine
from tenuto.core.listing import Query, Row
from tenuto.core.plan import Step
from tenuto.core.states import State
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.recovering import TRIES, Recovered, Recovery, recover_tasks
from tenuto.stores.layout import Project


def lose(engine: BlockingEngine, execution_id: str) -> None:
    """Let its keeper die, as a machine would have it."""
    pid = keeper_pid(engine.project, execution_id)
    os.kill(pid, signal.SIGKILL)
    assert await_death(pid)


def lost(engine: BlockingEngine, *steps: Step, **options: str) -> str:
    execution_id = begin(engine, *steps, **options)
    in_step(engine, execution_id, "b")
    lose(engine, execution_id)
    return execution_id


@pytest.mark.asyncio
@pytest.mark.promise("D3", "X2")
async def test_an_engine_that_opens_takes_up_what_is_to_go_on_by_itself(
    agents: Path, tasks: BlockingEngine, project: Project
):
    wanted = lost(tasks, A, B, C, resume="auto")
    other = lost(tasks, A, B, C)
    async with Engine(str(agents)) as engine:
        (found,) = await engine.recovered()
        assert (found.id, found.resumed) == (wanted, True)
        assert "keeper died" in found.why
        assert await engine.wait(wanted, 60)
        assert (await engine.show(other)).state is State.LOST
    (again,) = events_of(project, wanted, "resumed")
    assert again["by"] == "auto"
    assert ran().count("c") == 1
    async with Engine(str(agents)) as engine:
        assert await engine.recovered() == ()


@pytest.mark.promise("D3")
def test_what_another_engine_has_taken_up_is_not_told_as_refused(tasks: BlockingEngine):
    execution_id = lost(tasks, A, B, C, resume="auto")
    tasks.settle_live()
    (seen,) = tasks.index.latest(Query(states=(State.LOST,), kind="task"))
    (found,) = recover_tasks(tasks)
    assert found.resumed
    assert told_of(tasks, seen) == []
    ended(tasks, execution_id)
    assert told_of(tasks, seen) == []
    assert ran() == ["a", "b", "b", "c"]


def told_of(engine: BlockingEngine, row: Row) -> list[Recovered]:
    recovery = Recovery(engine)
    recovery.take_up(row)
    return recovery.told


@pytest.mark.promise("D3")
def test_listing_takes_nothing_up(tasks: BlockingEngine, cli: CommandLine):
    execution_id = lost(tasks, A, B, C, resume="auto")
    (listed,) = cli.json("ps", "-a")
    assert (listed["id"], listed["state"]) == (execution_id, "lost")
    assert tasks.show(execution_id).state is State.LOST


@pytest.mark.promise("D3")
def test_a_task_that_gets_nowhere_is_left_alone_after_some_tries(
    tasks: BlockingEngine, project: Project
):
    hangs = Step("b", "x", depends_on=("a",), runtime="program")
    execution_id = lost(tasks, A, hangs, resume="auto")
    for number in range(TRIES):
        (found,) = recover_tasks(tasks)
        assert found.resumed
        begun = await_event(tasks, execution_id, lambda one, n=number + 2: attempt(one) == n)
        while not in_session(project, execution_id, begun["seq"]):  # its program is there then
            assert not tasks.wait(execution_id, 0.01).done
        lose(tasks, execution_id)
    (found,) = recover_tasks(tasks)
    assert not found.resumed
    assert f"taken up {TRIES} times" in found.why
    assert tasks.show(execution_id).state is State.LOST
    assert len(events_of(project, execution_id, "resumed")) == TRIES


def in_session(project: Project, execution_id: str, after: int) -> bool:
    frames = tape_frames(project, execution_id)
    return any(frame.seq > after and b'"step_session"' in frame.body for frame in frames)


def attempt(event: dict[str, object]) -> object:
    return event.get("attempt") if event["type"] == "step_started" and event["step"] == "b" else 0


@pytest.mark.promise("D3", "D4")
def test_what_cannot_go_on_as_it_was_is_left_with_the_reason(tasks: BlockingEngine):
    version = Path(os.environ["TENUTO_TEST_VERSION"])
    execution_id = lost(
        tasks, A, Step("b", "[[hang]]", depends_on=("a",), runtime="versioned"), resume="auto"
    )
    version.write_text("9.9.9")
    (found,) = recover_tasks(tasks)
    assert not found.resumed
    assert "9.9.9" in found.why
    assert tasks.show(execution_id).state is State.LOST


@pytest.mark.promise("D3", "U1")
def test_the_command_line_asks_for_it(cli: CommandLine, tasks: BlockingEngine):
    execution_id = cli("task", "--resume", "auto", "-d", "[[hang]] x").stdout.strip()
    spec = tasks.execution(execution_id).spec
    assert spec is not None
    assert spec.task is not None
    assert spec.task["resume"] == "auto"
    tasks.kill(execution_id)
    assert ended(tasks, execution_id).state is State.KILLED
