"""Tasks that agents start inside a task: whose they are, and what ends them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import msgspec
import pytest
from cli_help import CommandLine
from engine_help import DEATH_S, await_death, keeper_pid, main_pid, marked_processes
from task_help import PATIENCE, blocking, plan, progress, side, value
from task_help import begin as begin_task

from tenuto.core.ids import short
from tenuto.core.listing import Row
from tenuto.core.plan import Step
from tenuto.core.states import State
from tenuto.engine import ending, recover
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.inside import living
from tenuto.engine.tasks import decide
from tenuto.mcp.task_replies import next_ended
from tenuto.stores.layout import Project


@pytest.fixture
def engine(agents: object, project: Project) -> Iterator[BlockingEngine]:
    with blocking(project) as made:
        yield made


def begin(engine: BlockingEngine, text: str = "[[hang]]") -> tuple[str, str]:
    """Start a task whose agent starts one, and return both once the inner one works."""
    execution_id = begin_task(engine, plan=plan(Step("a", text)), runtime="nest")
    return execution_id, _inner(engine, execution_id, 1)


def _inner(engine: BlockingEngine, execution_id: str, number: int) -> str:
    with engine.watch(execution_id) as watch:
        while (
            len(found := [one.split()[1] for one in side() if one.startswith("nested ")]) < number
        ):
            assert not watch.over
            watch.look()
            engine.wait(execution_id, 0.01)
    inner = found[-1]
    with engine.watch(inner) as watch:  # its agent is there
        while not any(engine.execution(one).started for one in everything(engine, inner)[1:]):
            assert not watch.over
            watch.look()
            engine.wait(inner, 0.01)
    return inner


def lost(engine: BlockingEngine, execution_id: str) -> bool:
    while not (now := engine.wait(execution_id, PATIENCE)).done:  # it may wait for somebody
        continue
    return now.state is State.LOST


def everything(engine: BlockingEngine, *roots: str) -> list[str]:
    """Return these executions and all that were started inside of them."""
    found = list(roots)
    for one in found:
        found += [row.id for row in engine.index.children(one)]
    return found


def verified_dead(engine: BlockingEngine, *roots: str) -> None:
    """No process of these trees is left: drivers, agents, what they started."""
    for pid, command in marked_processes(everything(engine, *roots)):
        assert await_death(pid, DEATH_S), f"{command} lives"


@pytest.mark.promise("X8")
def test_a_kill_takes_tasks_inside_along_with_their_drivers_and_agents(
    engine: BlockingEngine, project: Project
) -> None:
    outer, inner = begin(engine)
    driver = main_pid(project, inner)
    assert len(marked_processes(everything(engine, inner))) >= 2, "a driver and an agent"
    engine.kill(outer)
    assert engine.show(inner).state is State.KILLED
    assert not living(project, engine.index, outer)
    assert not marked_processes(everything(engine, outer)), "verified, not only told"
    assert await_death(driver, 0)


@pytest.mark.promise("X8")
def test_a_kill_goes_on_below_what_ends_just_then(
    engine: BlockingEngine, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer, inner = begin(engine)
    (agent,) = [row for row in engine.index.children(outer) if row.id == _parent(engine, inner)]
    settle = recover.settle_row
    ending.wait_for_end(project, agent.id)

    def seen_before(project: Project, row: Row) -> Row:
        """Return the agent as it was a moment ago."""
        if row.id == agent.id:
            return msgspec.structs.replace(row, state=State.RUNNING)
        return settle(project, row)

    monkeypatch.setattr(recover, "settle_row", seen_before)
    engine.kill(outer)
    assert engine.show(inner).state is State.KILLED


def _parent(engine: BlockingEngine, execution_id: str) -> str:
    row = engine.index.get(execution_id)
    assert row is not None and row.parent
    return row.parent


@pytest.mark.promise("X8", "X11", "D3")
@pytest.mark.parametrize("who", ["driver", "keeper"])
def test_what_a_lost_task_left_running_is_shown_as_its_own_and_ended_by_a_kill(
    engine: BlockingEngine, project: Project, cli: CommandLine, who: str
) -> None:
    outer, inner = begin(engine)
    os.kill((main_pid if who == "driver" else keeper_pid)(project, outer), signal.SIGKILL)
    assert lost(engine, outer)
    assert engine.show(inner).state in (State.RUNNING, State.QUEUED), "nobody ended it"
    hint = engine.show(outer).hint
    assert f"{short(inner)} runs on inside of it" in hint and "tenuto kill" in hint, hint
    go_on, end = next_ended(engine.show(outer), progress(project, outer))
    assert go_on.startswith("engine_resume(") and f'kill(execution_id="{short(outer)}")' in end
    assert short(inner) in end and "tenuto" not in end
    (tree,) = json.loads(cli("--json", "tree").stdout)
    assert tree["id"] == outer and inner in json.dumps(tree["children"])
    done = cli("kill", outer)
    assert done.returncode == 0, done.stderr
    assert engine.show(inner).state is State.KILLED
    assert engine.show(outer).state is State.LOST, "it can still be resumed"
    verified_dead(engine, outer)
    again = cli("kill", outer)
    assert again.returncode != 0 and "has ended already: lost" in again.stderr


@pytest.mark.promise("X8", "X11", "D3")
def test_a_resume_ends_what_the_life_before_left_running_before_anything_begins(
    engine: BlockingEngine, project: Project
) -> None:
    outer, first = begin(engine, "[[ask:Bash]] [[say:done]]")
    os.kill(main_pid(project, outer), signal.SIGKILL)
    assert lost(engine, outer)
    _, sock = engine.resume(outer, False)
    sock.close()
    second = _inner(engine, outer, 2)
    assert second != first
    assert engine.show(first).state is State.INTERRUPTED, "it can be resumed by itself"
    verified_dead(engine, first)
    (told,) = progress(project, outer).warnings
    assert "interrupted" in told and short(first) in told
    with engine.watch(outer) as watch:
        while not progress(project, outer).asked:
            watch.look()
            engine.wait(outer, 0.01)
    decide(engine, outer, True, None)
    snapshot = engine.wait(outer, PATIENCE)
    assert snapshot.state is State.SUCCEEDED and value(snapshot)["output"] == "done"
    assert engine.show(second).state in (State.RUNNING, State.QUEUED), "its own end ends nobody"
    engine.kill(second)
