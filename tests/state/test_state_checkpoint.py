"""State files of real tasks, and checkpoints on request."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_help import CommandLine
from engine_help import events_of, keeper_pid, main_pid, require
from state_help import (
    A,
    B,
    C,
    await_event,
    begin,
    blocking,
    ended,
    in_step,
    let_go,
    ran,
    resume,
    step_done,
    stopped,
)

from tenuto import DiskFull, Engine, InvalidInput, KeeperUnreachable, UnknownExecution
from tenuto.core.ids import new_id
from tenuto.core.plan import Step
from tenuto.core.state import decode_state
from tenuto.core.states import State
from tenuto.engine import saved
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.work import Options
from tenuto.stores.layout import Project, make_home
from tenuto.stores.states import read_state

MB = 1024 * 1024


def path_of(project: Project, execution_id: str, name: str = "state.json") -> Path:
    return Path(project.folder(execution_id)) / name


@pytest.mark.promise("D1")
def test_a_finished_task_has_a_state_that_says_what_its_tape_says(
    tasks: BlockingEngine, project: Project
):
    execution_id = begin(tasks, A, Step("c", "[[say:third]] x", depends_on=("a",)))
    assert ended(tasks, execution_id)
    path = path_of(project, execution_id)
    state = decode_state(path.read_bytes())
    assert path.stat().st_mode & 0o777 == 0o600
    assert state.status == "succeeded"
    assert [(one.id, one.status, one.output) for one in state.results] == [
        ("a", "completed", "first"),
        ("c", "completed", "third"),
    ]
    assert state.environment.cwd == project.root
    assert state.environment.runtimes == {"side": "1"}
    fold, damaged = saved.folded(project.folder(execution_id), execution_id)
    assert damaged == 0
    assert fold.state().results == state.results


@pytest.mark.promise("D1")
def test_code_and_commands_have_no_state_file(tasks: BlockingEngine, project: Project):
    execution_id, sock = tasks.start(tasks.command(["true"], Options()))
    sock.close()
    ended(tasks, execution_id)
    assert not path_of(project, execution_id).exists()
    with pytest.raises(InvalidInput, match="no task"):
        saved.checkpoint(tasks, execution_id)


@pytest.mark.promise("D2", "D3")
def test_an_interrupt_saves_the_state(tasks: BlockingEngine, project: Project):
    execution_id = stopped(tasks)
    state = decode_state(path_of(project, execution_id).read_bytes())
    assert state.status == "interrupted"
    assert (state.cursor.finished, state.cursor.interrupted) == (("a",), ("b",))
    assert state.cursor.waiting == ("c",)
    assert state.sessions["b"]["runtime"] == "side"


@pytest.mark.promise("D2")
def test_a_checkpoint_on_request_is_on_disk_when_it_is_answered(
    tasks: BlockingEngine, project: Project
):
    execution_id = begin(tasks, A, B, C)
    in_step(tasks, execution_id, "b")
    first = saved.checkpoint(tasks, execution_id)
    second = saved.checkpoint(tasks, execution_id)
    assert first.seq < second.seq
    for one in (first, second):
        state = decode_state(Path(one.path).read_bytes())
        assert state.cursor.finished == ("a",)
        assert state.cursor.running == ("b",)
        assert state.seq < one.seq
    told = events_of(project, execution_id, "checkpointed")
    assert [one["path"] for one in told] == [first.path, second.path]
    places = {one.seq: one.what for one in saved.checkpoints_of(tasks, execution_id)}
    assert places[first.seq] == places[second.seq] == "on request"
    tasks.kill(execution_id)


@pytest.mark.promise("D2")
def test_a_checkpoint_of_an_ended_task_is_made_from_its_tape(
    tasks: BlockingEngine, project: Project
):
    execution_id = stopped(tasks)
    for name in ("state.json", "state.prev.json"):
        path_of(project, execution_id, name).unlink()
    found = saved.checkpoint(tasks, execution_id)
    assert decode_state(Path(found.path).read_bytes()) == found.state
    assert found.state.status == "interrupted"


@pytest.mark.promise("D2")
def test_the_state_follows_a_running_task_and_how_often_is_settable(agents: Path, project: Project):
    with (agents / "tenuto.toml").open("a") as file:
        file.write("[checkpoint]\nevery = 0\nkeep = 2\n")
    with blocking(project) as engine:
        execution_id = begin(engine, A, B, C)
        step_done(engine, execution_id, "a")
        in_step(engine, execution_id, "b")
        path = path_of(project, execution_id)
        while (
            not path.exists()
            or "b"
            not in (read_state(str(path.parent), execution_id).state or _none()).cursor.running
        ):
            engine.wait(execution_id, 0.02)
        for _ in range(4):
            saved.checkpoint(engine, execution_id)
        assert len([name for name in os.listdir(path.parent) if name.count(".") == 2]) == 3
        engine.kill(execution_id)


def _none():
    raise AssertionError("a state file that is there can be read at any moment")


@pytest.mark.promise("D2")
def test_unknown_ids_and_a_driver_that_is_stopped(
    tasks: BlockingEngine, project: Project, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(UnknownExecution):
        saved.checkpoint(tasks, new_id())
    execution_id = begin(tasks, A, B)
    in_step(tasks, execution_id, "b")
    monkeypatch.setattr(saved, "_PATIENCE_S", 0.3)
    driver = main_pid(project, execution_id)
    os.kill(driver, signal.SIGSTOP)
    with pytest.raises(KeeperUnreachable, match="did not answer") as refused:
        saved.checkpoint(tasks, execution_id)
    assert "resume --force" in refused.value.hint
    keeper = keeper_pid(project, execution_id)
    os.kill(keeper, signal.SIGSTOP)
    with pytest.raises(KeeperUnreachable, match=r"the keeper of .* did not answer") as refused:
        saved.checkpoint(tasks, execution_id)
    assert "resume --force" in refused.value.hint
    os.kill(keeper, signal.SIGCONT)
    os.kill(driver, signal.SIGCONT)
    await_event(tasks, execution_id, lambda one: one["type"] == "checkpointed")
    tasks.kill(execution_id)


@pytest.mark.promise("D1", "D5")
def test_a_bad_state_file_is_told_and_made_again_from_the_tape(
    tasks: BlockingEngine, project: Project
):
    execution_id = stopped(tasks)
    path = path_of(project, execution_id)
    good = decode_state(path.read_bytes())
    path.write_bytes(path.read_bytes()[:200])
    known = saved.state_of(tasks, execution_id)
    assert known.state.results == good.results
    assert "put aside" in known.problems[0]
    found = saved.checkpoint(tasks, execution_id)
    assert decode_state(path.read_bytes()) == found.state
    assert saved.state_of(tasks, execution_id).problems == ()


# A full disk


@pytest.fixture
def disk(agents: Path, project: Project) -> Iterator[Path]:
    """The state folder on a small file system of its own."""
    require(os.geteuid() == 0, "root, to mount a small file system")
    make_home(project)
    home = Path(os.path.realpath(project.home))
    words = ["mount", "-t", "tmpfs", "-o", f"size={8 * MB},mode=0700", "tenuto-test", str(home)]
    done = subprocess.run(words, check=False, capture_output=True)
    require(done.returncode == 0, "a tmpfs that can be mounted")
    yield home
    subprocess.run(["mount", "-o", f"remount,size={64 * MB}", home], check=True)
    with blocking(project) as engine:
        for one in engine.at_work():
            engine.kill(one.id)
    subprocess.run(["umount", "-l", home], check=True)


@pytest.mark.promise("D2", "D5")
def test_a_checkpoint_on_a_full_disk_says_so_and_the_task_goes_on(disk: Path, project: Project):
    with blocking(project) as engine:
        execution_id = begin(engine, A, B, C)
        in_step(engine, execution_id, "b")
        good = saved.checkpoint(engine, execution_id)
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(DiskFull, match="safe on its tape"):
            saved.checkpoint(engine, execution_id)
        assert decode_state(Path(good.path).read_bytes()) == good.state
        assert read_state(project.folder(execution_id), execution_id).state is not None
        filler.unlink()
        assert saved.checkpoint(engine, execution_id).seq > good.seq
        assert engine.interrupt(execution_id).state is State.INTERRUPTED


@pytest.mark.promise("D2", "D3")
def test_an_interrupt_on_a_full_disk_says_what_is_saved_and_it_goes_on_once_there_is_room(
    disk: Path, project: Project
):
    with blocking(project) as engine:
        execution_id = begin(engine, A, B, C)
        in_step(engine, execution_id, "b")
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"x" * 4096)
        stopped = engine.interrupt(execution_id)
        assert stopped.state is State.INTERRUPTED
        assert "1 of 3 steps completed and saved (a)" in stopped.hint
        filler.unlink()
        let_go()
        resume(engine, execution_id)
        assert ended(engine, execution_id)
        assert (ran().count("a"), ran().count("c")) == (1, 1)


@pytest.mark.promise("D2", "D3", "X11")
@pytest.mark.parametrize("fault", ["state-written:2", "state-previous-kept:2", "state-replaced:3"])
def test_a_driver_that_is_killed_while_it_checkpoints_has_lost_nothing(
    agents: Path, project: Project, monkeypatch: pytest.MonkeyPatch, fault: str
):
    with (agents / "tenuto.toml").open("a") as file:
        file.write("[checkpoint]\nevery = 1000\n")
    monkeypatch.setenv("TENUTO_FAULT", fault)
    with blocking(project) as engine:
        execution_id = begin(engine, A, B, C)
    monkeypatch.delenv("TENUTO_FAULT")
    with blocking(project) as engine:
        in_step(engine, execution_id, "b")
        found = saved.checkpoint(engine, execution_id)  # from the tape, then
        assert found.state.cursor.finished == ("a",)
        assert decode_state(Path(found.path).read_bytes()) == found.state
        assert engine.show(execution_id).state is State.LOST
        let_go()
        resume(engine, execution_id)
        assert ended(engine, execution_id)
        assert (ran().count("a"), ran().count("c")) == (1, 1)
    names = os.listdir(project.folder(execution_id))
    assert not [one for one in names if one.endswith((".new", ".prev"))]


# Surfaces


@pytest.mark.promise("D2", "U1")
def test_the_command_line_saves_and_shows(cli: CommandLine, tasks: BlockingEngine):
    execution_id = begin(tasks, A, B, C)
    in_step(tasks, execution_id, "b")
    found = cli.json("checkpoint", execution_id)
    assert decode_state(Path(found["path"]).read_bytes()).sha256 == found["sha256"]
    told = cli("checkpoint", execution_id)
    assert "1 of 3 steps ended" in told.stdout
    assert "--from" in told.stderr
    listed = cli.json("show", execution_id, "--checkpoints")
    assert found["seq"] in [one["seq"] for one in listed]
    assert found["covers"] not in [one["seq"] for one in listed]
    named = cli("resume", execution_id, "--from", Path(found["path"]).name.split(".")[1], "-d")
    assert named.returncode == 0, "the number in the file's name is taken, too"
    forked = cli.json("show", named.stdout.strip())
    assert forked["spec"]["task"]["forked_from"]["seq"] == found["seq"]
    cli("kill", forked["id"])
    assert "a completed" in cli("show", execution_id, "--checkpoints").stdout
    state = cli.json("show", execution_id, "--state")
    assert state["cursor"]["running"] == ["b"]
    assert "finished" in cli("show", execution_id, "--state").stdout
    stopped = cli.json("interrupt", execution_id)
    assert stopped["steps"] == {
        "stopped": ["b"], "completed": ["a"], "failed": [], "pending": ["c"],
    }  # fmt: skip
    refused = cli("checkpoint", new_id())
    assert refused.returncode == 1
    assert json.loads(cli("--json", "checkpoint", "zz").stdout)["error"]["code"] == "bad_input"


@pytest.mark.asyncio
@pytest.mark.promise("P1", "D2")
async def test_python_has_the_same_verbs(agents: Path):
    async with Engine(str(agents)) as engine:
        execution_id = await engine.start_task("[[say:done]] now")
        await engine.wait(execution_id, 60)
        known = await engine.state(execution_id)
        assert known.state.status == "succeeded"
        saved_one = await engine.checkpoint(execution_id)
        assert saved_one.seq == (await engine.checkpoints(execution_id))[-1].seq
        assert await engine.recovered() == ()


@pytest.mark.promise("U1", "D3")
def test_ps_says_that_more_tasks_can_go_on_than_it_lists(cli: CommandLine, tasks: BlockingEngine):
    first, second = (begin(tasks, A, B), begin(tasks, A, B))
    for one in (first, second):
        in_step(tasks, one, "b")
        tasks.interrupt(one)
    both, newest = cli("ps"), cli("ps", "-n", "1")
    assert both.stdout.count("interrupted") == 2 and both.stderr == ""
    assert newest.stdout.count("interrupted") == 1
    assert newest.stderr == "more can go on: tenuto ps -n 10\n"
    assert json.loads(cli("--json", "ps", "-n", "1").stdout) == []


@pytest.mark.promise("D2", "D3")
def test_only_its_age_removes_a_task_that_can_go_on(cli: CommandLine, tasks: BlockingEngine):
    task = begin(tasks, A, B)
    in_step(tasks, task, "b")
    tasks.interrupt(task)
    cleaned = cli("clean", "--keep", "0", "--max-size", "0")
    assert "1 task that can go on stayed" in cleaned.stderr
    document = cli.json("clean", "--keep", "0")
    assert (document["unfinished"], document["resumable"]) == (1, 0)
    assert tasks.show(task).state == "interrupted"
    gone = cli("clean", "--older", "0s")
    assert gone.stderr == "with them 1 task that could have gone on\n"
    assert cli("show", task).returncode != 0
