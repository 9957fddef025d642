"""Interrupts that meet an end, silence or stubbornness; and taking over from what is frozen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_help import CommandLine
from engine_help import alive, events_of, folded, keeper_pid, main_pid
from state_help import A, B, C, await_event, begin, blocking, ended, in_step, ran, resume, stopped

from tenuto import NotFinished, NotRunning, UnknownExecution
from tenuto.core.ids import new_id
from tenuto.core.plan import Step
from tenuto.core.state import decode_state
from tenuto.core.states import State
from tenuto.dispatch import control
from tenuto.engine import recover, takeover
from tenuto.engine.blocking import BlockingEngine
from tenuto.keeper import procfs
from tenuto.stores.layout import Project

LONG = Step("b", "x", depends_on=("a",), runtime="program")


def in_program(engine: BlockingEngine, execution_id: str) -> str:
    """Wait until the program of the step b runs, and return its execution."""
    in_step(engine, execution_id, "b")
    (row,) = [row for row in engine.index.children(execution_id) if row.kind == "step"]
    await_event(engine, row.id, lambda one: one["type"] == "started")
    return row.id


def processes(project: Project, *ids: str) -> list[tuple[int, int]]:
    """Return the processes of executions, keepers too, each with its start time."""
    pids = [pid for one in ids for pid in (main_pid(project, one), keeper_pid(project, one))]
    return [(pid, procfs.start_time(pid)) for pid in pids]


def all_dead(known: list[tuple[int, int]]) -> bool:
    return not any(procfs.start_time(pid) == start for pid, start in known)


# Interrupt


@pytest.mark.promise("D3", "X2")
def test_an_interrupt_says_what_it_stopped_and_again_the_same(tasks: BlockingEngine):
    execution_id = begin(tasks, A, B, C)
    in_step(tasks, execution_id, "b")
    first = tasks.interrupt(execution_id)
    assert first.state is State.INTERRUPTED
    assert "stopped in b; 1 of 3 steps completed and saved (a)" in first.hint
    assert "tenuto resume" in first.hint
    again = tasks.interrupt(execution_id)
    assert again.state is State.INTERRUPTED
    assert again.hint == f"it was interrupted before: {first.hint}"
    assert len(events_of(tasks.project, execution_id, "ended")) == 1


@pytest.mark.promise("D3", "X2")
def test_an_interrupt_of_what_has_ended_or_is_unknown_says_so(tasks: BlockingEngine):
    done = begin(tasks, A)
    assert ended(tasks, done)
    with pytest.raises(NotRunning, match="succeeded"):
        tasks.interrupt(done)
    killed = begin(tasks, A, B)
    in_step(tasks, killed, "b")
    tasks.kill(killed)
    with pytest.raises(NotRunning, match="killed"):
        tasks.interrupt(killed)
    with pytest.raises(UnknownExecution):
        tasks.interrupt(new_id())


@pytest.mark.promise("D3", "X2")
def test_an_interrupt_of_a_lost_task_says_how_to_go_on(tasks: BlockingEngine, project: Project):
    execution_id = begin(tasks, A, B, C)
    in_step(tasks, execution_id, "b")
    os.kill(keeper_pid(project, execution_id), signal.SIGKILL)
    with pytest.raises(NotRunning, match="lost") as told:
        tasks.interrupt(execution_id)
    assert "tenuto resume" in told.value.hint
    resume(tasks, execution_id)
    assert ended(tasks, execution_id)
    assert ran() == ["a", "b", "b", "c"]


@pytest.mark.promise("D3")
def test_a_driver_that_ignores_everything_but_sigkill_is_ended_and_its_state_saved(
    tasks: BlockingEngine, project: Project
):
    execution_id = begin(tasks, A, Step("b", "x", depends_on=("a",), runtime="stubborn"))
    program = in_program(tasks, execution_id)
    known = processes(project, execution_id, program)[:3]  # a keeper may serve again
    snapshot = tasks.interrupt(execution_id)
    assert snapshot.state is State.INTERRUPTED
    assert snapshot.signal == "SIGKILL"
    assert "stopped in b; 1 of 2" in snapshot.hint
    assert all_dead([known[0], known[2]])
    assert not folded(project, program).live
    state = decode_state((Path(project.folder(execution_id)) / "state.json").read_bytes())
    assert state.status == "interrupted"
    assert (state.cursor.running, state.cursor.interrupted) == ((), ("b",))


@pytest.mark.promise("D3")
def test_an_interrupt_through_a_keeper_that_does_not_answer(
    tasks: BlockingEngine, project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(control, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(control.request, "__defaults__", (0.2,))
    execution_id = begin(tasks, A, LONG, C)
    program = in_program(tasks, execution_id)
    known = processes(project, execution_id)
    driven = main_pid(project, program)
    os.kill(keeper_pid(project, execution_id), signal.SIGSTOP)
    snapshot = tasks.interrupt(execution_id)
    assert snapshot.state is State.INTERRUPTED
    assert "did not answer" in snapshot.detail
    assert all_dead(known)
    assert not alive(driven)


@pytest.mark.promise("D3", "U1")
def test_the_command_line_says_what_was_stopped(cli: CommandLine, tasks: BlockingEngine):
    execution_id = begin(tasks, A, B, C)
    in_step(tasks, execution_id, "b")
    told = cli("interrupt", execution_id)
    assert told.returncode == 0
    assert "stopped in b; 1 of 3 steps completed" in told.stdout
    again = cli("interrupt", execution_id)
    assert again.returncode == 0
    assert "interrupted before" in again.stdout
    assert cli("interrupt", new_id()).returncode == 1


STARTS = """
import os, signal
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.work import Options
signal.signal(signal.SIGINT, signal.SIG_IGN)
engine = BlockingEngine.open_here()
engine.launcher.prepare()
os.killpg(0, signal.SIGINT)
execution_id, sock = engine.start(engine.command(["true"], Options()))
print(engine.wait(execution_id, 60, sock=sock).state)
engine.close()
"""


@pytest.mark.promise("D3", "X11")
def test_an_interrupt_does_not_reach_a_keeper_that_is_being_started(agents: Path):
    """A driver's group is sent SIGINT, perhaps while it starts a runtime: that is not its failure."""
    done = subprocess.run(
        [sys.executable, "-c", STARTS], capture_output=True, text=True, timeout=90, check=False,
        start_new_session=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("succeeded\n", "")


# Takeover


@pytest.mark.promise("D3", "X11")
@pytest.mark.parametrize("whose", ["driver", "keeper", "program's keeper too"])
def test_a_frozen_task_is_killed_verified_and_taken_over(
    tasks: BlockingEngine, project: Project, monkeypatch: pytest.MonkeyPatch, whose: str
):
    monkeypatch.setattr(control, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(control.request, "__defaults__", (0.3,))
    monkeypatch.setattr("tenuto.engine.ending._KILL_PATIENCE_S", 1.0)
    execution_id = begin(tasks, A, LONG, C)
    program = in_program(tasks, execution_id)
    known = processes(project, execution_id, program)
    driver, keeper, child, its_keeper = (pid for pid, _ in known)
    frozen = {"driver": [driver], "keeper": [keeper], "program's keeper too": [driver, its_keeper]}
    for pid in frozen[whose]:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(NotFinished, match="is still running"):
        resume(tasks, execution_id)
    resume(tasks, execution_id, force=True)
    assert all_dead([known[0], known[2]])
    assert not alive(child)
    for pid in frozen[whose]:
        assert all_dead([one for one in known if one[0] == pid])
    assert not recover_live(project, program)
    in_step(tasks, execution_id, "b")
    assert folded(project, execution_id).live
    assert events_of(project, execution_id, "step_finished")[0]["step"] == "a"
    assert ran() == ["a"]
    tasks.kill(execution_id)


def recover_live(project: Project, execution_id: str) -> bool:
    execution = recover.settle(project, execution_id)
    return execution is not None and execution.live


@pytest.mark.promise("D3")
def test_a_driver_that_hangs_without_being_stopped_is_found_by_its_silence(
    tasks: BlockingEngine, project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(takeover, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(procfs, "is_stopped", lambda _: False)
    execution_id = stopped(tasks)
    with blocking(project) as engine:
        other = begin(engine, A, B, C)
        in_step(engine, other, "b")
        os.kill(main_pid(project, other), signal.SIGSTOP)  # seen as hanging only
        resume(engine, other, force=True)
        assert ended(engine, other)
    resume(tasks, execution_id)
    assert ended(tasks, execution_id)
