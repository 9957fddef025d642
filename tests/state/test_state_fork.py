"""Forks: a new task that begins with what another had done at a checkpoint."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from cli_help import CommandLine
from engine_help import require_program, tape_events
from state_help import A, B, C, begin, ended, in_step, let_go, ran, side, step_done, stopped
from test_state_resume import git

from tenuto import Engine, FolderGone, UnknownCheckpoint, UnknownExecution
from tenuto.core.ids import new_id, short
from tenuto.core.plan import Step
from tenuto.core.states import State
from tenuto.engine import saved
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.tasks import task_of
from tenuto.stores.layout import Project


def fork(engine: BlockingEngine, execution_id: str, seq: int) -> str:
    whole, sock = engine.resume(execution_id, False, seq)
    sock.close()
    return whole


@pytest.mark.promise("D3")
def test_a_fork_goes_on_from_its_checkpoint_and_the_original_stays(
    tasks: BlockingEngine, project: Project
):
    execution_id = stopped(tasks)
    tape = Path(project.folder(execution_id)) / "tape"
    before = tape.read_bytes()
    let_go()
    places = {one.what: one.seq for one in saved.checkpoints_of(tasks, execution_id)}
    forked = fork(tasks, execution_id, places["a completed"])
    assert forked != execution_id
    snapshot = ended(tasks, forked)
    assert snapshot
    outputs = {one["id"]: one["output"] for one in snapshot.value["steps"]}
    assert (outputs["a"], outputs["c"]) == ("first", "third")
    assert side()[2:] == ["b new", "c new"]  # a is not run again, b's session is the original's
    origin = task_of(tasks.execution(forked).spec).forked_from
    assert origin is not None
    assert (origin.id, origin.seq) == (execution_id, places["a completed"])
    assert tape.read_bytes() == before
    assert tasks.show(execution_id).state is State.INTERRUPTED
    state = saved.state_of(tasks, forked).state
    assert state.metadata["forked_from"] == {"id": execution_id, "seq": places["a completed"]}


@pytest.mark.promise("D3")
def test_a_fork_from_the_plan_runs_everything_again(tasks: BlockingEngine):
    execution_id = stopped(tasks)
    let_go()
    first = saved.checkpoints_of(tasks, execution_id)[0]
    assert ended(tasks, fork(tasks, execution_id, first.seq))
    assert ran() == ["a", "b", "a", "b", "c"]


@pytest.mark.promise("D3")
def test_what_runs_or_is_done_can_be_forked_too(tasks: BlockingEngine, project: Project):
    execution_id = begin(tasks, A, B, C)
    seq = step_done(tasks, execution_id, "a")
    in_step(tasks, execution_id, "b")
    let_go()
    forked = fork(tasks, execution_id, seq)
    assert ended(tasks, forked)
    assert tasks.show(execution_id).state is State.RUNNING
    tasks.kill(execution_id)
    again = fork(tasks, forked, saved.checkpoints_of(tasks, forked)[-1].seq)
    snapshot = ended(tasks, again)
    assert snapshot
    assert ran() == ["a", "b", "b", "c"]  # nothing was left to do
    kinds = [one["type"] for one in tape_events(project, again)]
    assert kinds[:3] == ["created", "planned", "step_finished"]


@pytest.mark.promise("D4")
def test_a_wrong_checkpoint_names_those_that_exist(tasks: BlockingEngine, cli: CommandLine):
    execution_id = stopped(tasks)
    places = saved.checkpoints_of(tasks, execution_id)
    taken = {one.seq for one in places}
    for seq in {0, 1, 10_000, places[-1].seq + 1} - taken:
        with pytest.raises(UnknownCheckpoint, match="a completed") as told:
            fork(tasks, execution_id, seq)
        assert str(places[0].seq) in told.value.message
    with pytest.raises(UnknownExecution):
        fork(tasks, new_id(), 3)
    assert "unknown_checkpoint" in cli("--json", "resume", execution_id, "--from", "0").stdout
    let_go()
    done = cli("resume", execution_id, "--from", str(places[1].seq), "--wait", "60s")
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()[0]
    assert told.startswith("new task ") and told.endswith(
        f", from checkpoint {places[1].seq} of {short(execution_id)}"
    )
    assert cli.json("show", told.split()[2].rstrip(","))["kind"] == "task"
    assert cli("resume", execution_id, "--from", "x").returncode == 2


@pytest.mark.promise("D3", "U1")
def test_a_fork_shows_what_it_inherited(cli: CommandLine):
    steps = [{"id": "a", "task": "[[use:5,1]] x"}, {"id": "b", "task": "x", "depends_on": ["a"]}]
    plan = json.dumps({"steps": steps})
    first = cli.json("task", "--plan", "-", "--wait", "60s", input=plan)["id"]
    assert "inherited" not in cli("show", first).stdout
    seq = cli.json("show", first, "--checkpoints")[1]["seq"]
    fork = cli.json("resume", first, "--from", str(seq), "--wait", "60s")["id"]
    shown = cli("show", fork).stdout
    assert "; of which inherited, and counted there: 5 in, 1 out" in shown
    assert "), inherited\n" in shown
    assert cli.json("show", fork)["task"]["inherited"]["tokens_in"] == 5


@pytest.mark.promise("D3", "U1")
def test_a_task_that_failed_says_from_where_its_step_is_done_again(cli: CommandLine):
    plan = {"steps": [
        {"id": "a", "task": "[[say:first]]"},
        {"id": "b", "task": "[[say:second]]", "depends_on": ["a"], "runtime": "flaky",
         "retry": {"times": 0}},
        {"id": "c", "task": "[[say:third]]", "depends_on": ["b"]},
    ]}  # fmt: skip
    failed = cli("task", "--plan", "-", "--wait", "60s", input=json.dumps(plan))
    assert failed.returncode == 1, failed.stderr
    again = "to do b again in a new task, with all that was done before it: tenuto "
    hint = failed.stderr.splitlines()[-1].strip()
    assert hint.startswith(again), failed.stderr
    words = hint.removeprefix(again).split()
    assert shlex.join(words) in cli("show", words[1], "--checkpoints").stderr
    assert cli.json("show", words[1])["hint"] == hint
    assert hint in cli("resume", words[1]).stderr
    let_go()
    done = cli(*words, "--wait", "60s")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line] == ["[b] second", "[c] third"]
    shown = cli("show", done.stderr.split()[2].rstrip(","), "--checkpoints")
    assert "to begin a new task at one of them: tenuto resume" in shown.stderr


@pytest.mark.promise("D3")
def test_a_fork_has_worktrees_of_its_own_with_what_was_done(tasks: BlockingEngine, agents: Path):
    require_program("git")
    git(agents, "init", "--quiet", "-b", "main")
    (agents / ".gitignore").write_text("*\n")
    git(agents, "add", "-f", ".gitignore")
    git(agents, "commit", "--quiet", "-m", "one")
    execution_id = begin(tasks, A, B, C, worktree="keep")
    seq = step_done(tasks, execution_id, "a")
    in_step(tasks, execution_id, "b")
    tasks.interrupt(execution_id)
    let_go()
    forked = fork(tasks, execution_id, seq)
    snapshot = ended(tasks, forked)
    assert snapshot, snapshot.detail
    branches = [one["branch"] for one in snapshot.value["steps"]]
    assert len(set(branches)) == 3
    assert all(forked[:8] in one for one in branches)
    for one in branches:
        git(agents, "rev-parse", "--verify", one)


@pytest.mark.promise("D4")
def test_a_fork_needs_its_folder(tasks: BlockingEngine, project: Project, agents: Path):
    execution_id = begin(tasks, Step("a", "[[say:x]] y"))
    assert ended(tasks, execution_id)
    seq = saved.checkpoints_of(tasks, execution_id)[0].seq
    moved = agents.rename(agents.parent / "moved")
    try:
        with pytest.raises(FolderGone):
            fork(tasks, execution_id, seq)
    finally:
        moved.rename(agents)


@pytest.mark.asyncio
@pytest.mark.promise("P1")
async def test_python_forks_too(agents: Path, tasks: BlockingEngine):
    execution_id = stopped(tasks)
    let_go()
    async with Engine(str(agents)) as engine:
        (first, *_) = await engine.checkpoints(execution_id)
        snapshot = await engine.resume(execution_id, from_seq=first.seq, wait=60)
        assert snapshot
        assert snapshot.id != execution_id
