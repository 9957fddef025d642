"""Tasks that are ended from outside, at a deadline or by force: what they show, and who goes too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_help import CommandLine
from engine_help import events_of
from task_help import blocking, document, plan, side, statuses

from tenuto import Snapshot
from tenuto.core.plan import Step
from tenuto.core.state import decode_state
from tenuto.core.states import State
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.tasks import checked, progress_now, result_document, task_spec, task_work
from tenuto.engine.work import Options
from tenuto.stores.layout import Project

PATIENCE = 60


@pytest.fixture
def engine(agents: object, project: Project) -> Iterator[BlockingEngine]:
    with blocking(project) as made:
        yield made


def begin(engine: BlockingEngine, last: Step, options: Options) -> str:
    work = plan(Step("a", "[[say:kept]]"), last, Step("c", "later", (last.id,)))
    spec = checked(engine, task_spec("", plan=work, strategy="parallel", runtime="side"))
    execution_id, sock = engine.start(task_work(engine, spec, options))
    sock.close()
    return execution_id


def ended(engine: BlockingEngine, execution_id: str) -> Snapshot:
    snapshot = engine.wait(execution_id, PATIENCE)
    assert snapshot.done
    return snapshot


def saved(engine: BlockingEngine, execution_id: str):
    return decode_state(Path(engine.project.folder(execution_id), "state.json").read_bytes())


@pytest.mark.promise("X4", "D1")
@pytest.mark.parametrize(
    ("bound", "runtime"),
    [
        ({"deadline": 3.0}, "side"), ({"idle": 2.0}, "side"), ({"deadline": 3.0}, "blocked"),
        pytest.param({"deadline": 3.0}, "deaf", marks=pytest.mark.full),
        pytest.param({"idle": 2.0}, "blocked", marks=pytest.mark.full),
    ],
)  # fmt: skip
def test_a_task_at_its_deadline_says_so_everywhere(
    engine: BlockingEngine, project: Project, bound: dict[str, float], runtime: str
) -> None:
    last = Step("b", "[[hang]]", ("a",), runtime=runtime)
    execution_id = begin(engine, last, Options(**bound))  # type: ignore[arg-type]
    snapshot = ended(engine, execution_id)
    (reason,) = bound
    assert (snapshot.state, snapshot.reason) == ("failed", reason)
    assert f"tenuto show {execution_id[:18]} --checkpoints" in snapshot.hint
    progress = progress_now(project, execution_id)
    assert statuses(progress) == {"a": "completed", "b": "interrupted", "c": "pending"}
    assert "asked for" in progress.steps["b"].error, "the reason"
    shown = result_document(progress)
    told = runtime == "side"  # whose driver was ended by force could say nothing itself
    assert (shown["status"], shown["success"]) == ("partial" if told else "failed", False)
    state = saved(engine, execution_id)
    assert (state.status, state.cursor.running, state.cursor.interrupted) == ("failed", (), ("b",))
    whole = events_of(project, execution_id, "task_finished")
    assert [one["status"] for one in whole] == (["partial"] if told else [])


@pytest.mark.promise("X4", "U1")
def test_the_command_line_says_that_the_deadline_was_reached(cli: CommandLine) -> None:
    done = cli("task", "--deadline", "2s", "--runtime", "echo", "[[hang]] on")
    assert done.returncode == 124, done.stderr
    assert "task: interrupted" in done.stderr and "the deadline asked for" in done.stderr
    assert "running" not in done.stderr
    done = cli("run", "--deadline", "300ms", "--", "sleep", "1000")
    assert done.returncode == 124, done.stderr


@pytest.mark.promise("D2", "X4")
def test_a_task_that_reached_its_deadline_goes_on_as_a_fork(cli: CommandLine) -> None:
    gate = cli.folder / "gate"
    (cli.folder / "plan.json").write_text(
        document(
            {"id": "a", "task": "[[say:kept]]"},
            {"id": "b", "task": f"[[await:{gate}]] [[say:done]]", "depends_on": ["a"]},
        )
    )
    done = cli("task", "--deadline", "3s", "--runtime", "side", "--plan", "plan.json")
    assert done.returncode == 124, done.stderr
    (first,) = cli("-q", "ps", "-a", "--kind", "task").stdout.split()
    places = json.loads(cli("--json", "show", first, "--checkpoints").stdout)
    (at,) = [one["seq"] for one in places if one["what"] == "a completed"]
    gate.touch()
    done = cli("resume", first, "--from", str(at))
    assert done.returncode == 0, done.stderr
    assert side().count("begin a") == 1


@pytest.mark.promise("D1", "X8")
def test_a_task_that_was_killed_runs_no_step_any_more(
    engine: BlockingEngine, project: Project
) -> None:
    execution_id = begin(engine, Step("b", "[[hang]]", ("a",)), Options(detached=True))
    _until(engine, execution_id, lambda: "begin b" in side())
    engine.kill(execution_id)
    progress = progress_now(project, execution_id)
    assert statuses(progress) == {"a": "completed", "b": "interrupted", "c": "pending"}
    assert result_document(progress)["status"] == "killed"
    assert saved(engine, execution_id).status == "killed"
    assert saved(engine, execution_id).cursor.running == ()


@pytest.mark.promise("X8", "D3")
@pytest.mark.parametrize("how", ["kill", "interrupt", "deadline"])
def test_a_task_inside_a_task_ends_with_it(engine: BlockingEngine, how: str) -> None:
    options = Options(detached=True, deadline=8.0 if how == "deadline" else None)
    execution_id = begin(engine, Step("b", "[[hang]]", ("a",), runtime="nest"), options)
    _until(engine, execution_id, lambda: any(line.startswith("nested ") for line in side()))
    (inner,) = [line.split()[1] for line in side() if line.startswith("nested ")]
    assert engine.show(inner).state in (State.QUEUED, State.RUNNING)
    if how == "kill":
        engine.kill(execution_id)
    elif how == "interrupt":
        engine.interrupt(execution_id)
    else:
        ended(engine, execution_id)
    assert engine.show(inner).state is (State.KILLED if how == "kill" else State.INTERRUPTED)


def _until(engine: BlockingEngine, execution_id: str, check: Callable[[], object]) -> None:
    with engine.watch(execution_id) as watch:
        while not check():
            assert not watch.over
            watch.look()
            engine.wait(execution_id, 0.01)
