"""A task whose folder is gone, moved or on another machine goes on in the one that it is given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cli_help import CommandLine
from engine_help import events_of, require_program
from state_help import A, B, C, ended, in_step, let_go, ran, resume, side
from test_state_resume import git

from tenuto import Engine, EnvironmentChanged, FolderGone, InvalidInput, WorktreeFailed
from tenuto.core.plan import Plan
from tenuto.core.states import State
from tenuto.engine import saved, surroundings
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.tasks import checked, task_spec, task_work
from tenuto.engine.work import Options
from tenuto.stores.layout import Project


def stopped_in(engine: BlockingEngine, place: Path, **options: Any) -> str:
    """Return a task that worked in that folder and was interrupted in b."""
    spec = checked(engine, task_spec("", plan=Plan((A, B, C)), **options), str(place))
    execution_id, sock = engine.start(task_work(engine, spec, Options(cwd=str(place))))
    sock.close()
    in_step(engine, execution_id, "b")
    engine.interrupt(execution_id)
    return execution_id


def resumed(engine: BlockingEngine, execution_id: str, cwd: Path | str, force: bool = False) -> str:
    whole, sock = engine.resume(execution_id, force, cwd=str(cwd))
    sock.close()
    return whole


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "elsewhere"
    made.mkdir()
    return made


@pytest.mark.promise("D4")
def test_it_goes_on_in_another_folder_in_new_sessions_and_stays_there(
    tasks: BlockingEngine, project: Project, place: Path, tmp_path: Path
):
    execution_id = stopped_in(tasks, place)
    place.rmdir()
    with pytest.raises(FolderGone, match="does not exist any more") as told:
        tasks.resume(execution_id, False)
    assert told.value.hint.endswith(f"tenuto resume {execution_id[:18]} --cwd DIR")
    other = tmp_path / "other"
    with pytest.raises(InvalidInput, match=r"other does not exist"):
        resumed(tasks, execution_id, other)
    assert tasks.show(execution_id).state is State.INTERRUPTED
    other.mkdir()
    assert resumed(tasks, execution_id, other) == execution_id
    in_step_again(tasks, execution_id)
    tasks.interrupt(execution_id)
    assert side()[-1] == "b new"  # its session belongs to the folder that is gone
    (again,) = events_of(project, execution_id, "resumed")
    assert again["cwd"] == str(other)
    assert not again.get("forced")
    let_go()
    tasks.resume(execution_id, False)[1].close()  # the folder is known from here on
    assert ended(tasks, execution_id)
    assert [one["cwd"] for one in events_of(project, execution_id, "environment_seen")] == [
        str(place), str(other), str(other),
    ]  # fmt: skip
    assert not events_of(project, execution_id, "resumed")[-1].get("cwd")
    assert ran() == ["a", "b", "b", "b", "c"]
    session = events_of(project, execution_id, "step_session")[-3]["session"]
    assert side()[3] == f"b {session}"
    spec = tasks.execution(execution_id).spec
    assert spec is not None
    assert spec.cwd == str(other)
    assert saved.state_of(tasks, execution_id).state.environment.cwd == str(other)


def in_step_again(engine: BlockingEngine, execution_id: str) -> None:
    """Wait until b has been begun for the second time."""
    from state_help import await_event

    await_event(
        engine,
        execution_id,
        lambda one: one["type"] == "step_started" and one["step"] == "b" and one["attempt"] == 2,
    )


@pytest.mark.promise("D4")
def test_the_new_folder_is_held_against_what_the_task_began_with(
    tasks: BlockingEngine, agents: Path, tmp_path: Path
):
    require_program("git")
    origin, clone, bare = tmp_path / "origin", tmp_path / "clone", tmp_path / "bare"
    origin.mkdir()
    bare.mkdir()
    git(origin, "init", "--quiet", "-b", "main")
    git(origin, "commit", "--quiet", "--allow-empty", "-m", "one")
    git(tmp_path, "clone", "--quiet", str(origin), str(clone))
    execution_id = stopped_in(tasks, origin)
    with pytest.raises(EnvironmentChanged, match=f"{bare} is at commit none") as told:
        resumed(tasks, execution_id, bare)
    assert f"tenuto resume --force {execution_id[:18]} --cwd {bare}" in told.value.hint
    let_go()
    resumed(tasks, execution_id, clone)
    assert ended(tasks, execution_id)


@pytest.mark.promise("D4")
def test_a_task_of_another_machine_names_both_what_it_lacks_and_how_to_go_on(
    tasks: BlockingEngine, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    execution_id = stopped_in(tasks, place)
    here = os.uname()
    monkeypatch.setattr(surroundings, "_machine", lambda: "another")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((here[0], "elsewhere", *here[2:])))
    with pytest.raises(EnvironmentChanged, match="another machine") as told:
        tasks.resume(execution_id, False)
    assert told.value.hint.endswith("in another folder, add --cwd DIR")
    place.rmdir()
    with pytest.raises(FolderGone, match="not on this machine") as gone:
        tasks.resume(execution_id, False)
    assert f"tenuto resume --force {execution_id[:18]} --cwd DIR" in gone.value.hint
    let_go()
    resumed(tasks, execution_id, tmp_path, force=True)
    snapshot = ended(tasks, execution_id)
    assert snapshot
    (warning,) = snapshot.value["warnings"]
    assert warning.startswith("resumed by force, although")
    assert "another machine" in warning


@pytest.mark.promise("D3", "D4", "U1")
def test_a_fork_and_the_command_line_take_another_folder_too(
    cli: CommandLine, tasks: BlockingEngine, place: Path, tmp_path: Path
):
    execution_id = stopped_in(tasks, place)
    place.rmdir()
    seq = str(saved.checkpoints_of(tasks, execution_id)[1].seq)
    gone = cli("resume", execution_id, "--from", seq)
    assert f"tenuto resume --from {seq} {execution_id[:18]} --cwd DIR" in gone.stderr
    let_go()
    forked = cli("--json", "resume", execution_id, "--from", seq, "--cwd", str(tmp_path))
    assert forked.returncode == 0, forked.stderr
    assert cli("--json", "resume", execution_id).stdout.count('"folder_gone"') == 1
    done = cli("resume", execution_id, "--cwd", os.path.relpath(tmp_path, cli.folder))
    assert done.returncode == 0, done.stderr
    shown = cli("show", execution_id).stdout
    assert f"{tmp_path}\n" in shown


@pytest.mark.asyncio
@pytest.mark.promise("P1")
async def test_python_takes_another_folder_too(
    agents: Path, tasks: BlockingEngine, place: Path, tmp_path: Path
):
    execution_id = stopped_in(tasks, place)
    place.rmdir()
    let_go()
    async with Engine(str(agents)) as engine:
        with pytest.raises(FolderGone):
            await engine.resume(execution_id)
        assert await engine.resume(execution_id, cwd=str(tmp_path), wait=60)


@pytest.mark.promise("D4")
def test_worktrees_follow_a_repository_that_was_moved(
    tasks: BlockingEngine, agents: Path, tmp_path: Path
):
    require_program("git")
    before, after, bare = tmp_path / "before", tmp_path / "after", tmp_path / "bare"
    before.mkdir()
    git(before, "init", "--quiet", "-b", "main")
    (before / "file").write_text("x\n")
    git(before, "add", "file")
    git(before, "commit", "--quiet", "-m", "one")
    execution_id = stopped_in(tasks, before, worktree="merge")
    git(tmp_path, "clone", "--quiet", str(before), str(bare))  # without the branches of its steps
    before.rename(after)
    with pytest.raises(EnvironmentChanged, match=r"has no branch tenuto/.*/a") as told:
        resumed(tasks, execution_id, bare)
    assert "name that checkout" in told.value.hint
    let_go()
    resumed(tasks, execution_id, after)
    snapshot = ended(tasks, execution_id)
    assert snapshot, snapshot.detail
    assert not snapshot.value["warnings"]


def repository(place: Path) -> None:
    require_program("git")
    place.mkdir()
    git(place, "init", "--quiet", "-b", "main")
    (place / "file").write_text("x\n")
    git(place, "add", "file")
    git(place, "commit", "--quiet", "-m", "one")


@pytest.mark.promise("D4")
@pytest.mark.parametrize("force", [False, True])
def test_a_task_with_worktrees_is_refused_where_git_is_gone_and_can_still_go_on(
    tasks: BlockingEngine, project: Project, tmp_path: Path, force: bool
):
    place, kept = tmp_path / "checkout", tmp_path / "kept"
    repository(place)
    execution_id = stopped_in(tasks, place, worktree="keep")
    name, seq = execution_id[:18], saved.checkpoints_of(tasks, execution_id)[-1].seq
    (place / ".git").rename(kept)
    with pytest.raises(
        WorktreeFailed, match=r"work in git worktrees, and .*no git checkout"
    ) as told:
        resume(tasks, execution_id, force)
    assert f"tenuto resume {name} --cwd DIR" in told.value.hint
    assert f"tenuto resume --from {seq} {name} --cwd DIR" in told.value.hint
    with pytest.raises(WorktreeFailed) as forked:
        tasks.resume(execution_id, force, seq)
    assert f"tenuto resume --from {seq} {name} --cwd DIR" in forked.value.hint
    assert tasks.show(execution_id).state is State.INTERRUPTED, "nothing was spoilt"
    assert not events_of(project, execution_id, "resumed")
    kept.rename(place / ".git")
    let_go()
    resume(tasks, execution_id, force)
    assert ended(tasks, execution_id)
    assert ran().count("a") == 1


@pytest.mark.promise("D3", "D4")
def test_a_fork_whose_branches_are_gone_names_the_checkpoint_before_them(
    tasks: BlockingEngine, tmp_path: Path
):
    place = tmp_path / "checkout"
    repository(place)
    execution_id = stopped_in(tasks, place, worktree="keep")
    planned, done, *_ = saved.checkpoints_of(tasks, execution_id)
    git(tmp_path, "clone", "--quiet", str(place), str(tmp_path / "clone"))
    with pytest.raises(EnvironmentChanged, match="is gone") as told:
        tasks.resume(execution_id, False, done.seq, cwd=str(tmp_path / "clone"))
    words = f"tenuto resume --from {planned.seq} {execution_id[:18]} --cwd {tmp_path / 'clone'}"
    assert told.value.hint.endswith(words)
    let_go()
    forked, sock = tasks.resume(execution_id, False, planned.seq, cwd=str(tmp_path / "clone"))
    sock.close()
    assert ended(tasks, forked)


@pytest.mark.promise("X2", "X13")
def test_code_that_runs_again_takes_another_folder(tasks: BlockingEngine, place: Path):
    work = tasks.command(["/bin/sh", "-c", "pwd; exec sleep 1000"], Options(cwd=str(place)))
    execution_id, sock = tasks.start(work)
    sock.close()
    tasks.wait(execution_id, 60, until=str(place))
    tasks.interrupt(execution_id)
    place.rmdir()
    with pytest.raises(InvalidInput, match=r"elsewhere does not exist.*--cwd"):
        tasks.resume(execution_id, True)
    resumed(tasks, execution_id, place.parent, force=True)
    assert tasks.wait(execution_id, 60, until=f"{place.parent}\n").matched
    tasks.kill(execution_id)


@pytest.mark.promise("D5")
def test_a_bad_state_file_is_told_of_in_the_result(tasks: BlockingEngine, project: Project):
    from state_help import stopped

    execution_id = stopped(tasks)
    (Path(project.folder(execution_id)) / "state.json").write_bytes(b"{")
    resume(tasks, execution_id)
    snapshot = ended(tasks, execution_id)
    assert snapshot
    (warning,) = snapshot.value["warnings"]
    assert warning.startswith("state.json cannot be used: it is not JSON")
    assert "put aside as" in warning
