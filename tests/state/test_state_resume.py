"""Before a resume: what was saved is whole, and what the task works with is as it was."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_help import CommandLine
from engine_help import events_of, require_program, tape_events
from state_help import (
    A,
    B,
    C,
    begin,
    blocking,
    ended,
    in_step,
    let_go,
    ran,
    resume,
    side,
    step_done,
    stopped,
)

from tenuto import (
    EnvironmentChanged,
    FolderGone,
    NewerState,
    NewerTape,
    NotFinished,
    NotRunning,
    RuntimeGone,
    StateDamaged,
    TenutoError,
    UnknownExecution,
)
from tenuto.core.ids import new_id
from tenuto.core.plan import Step
from tenuto.core.state import checksum, decode_state
from tenuto.core.states import State
from tenuto.engine import surroundings
from tenuto.engine.blocking import BlockingEngine
from tenuto.keeper import frames
from tenuto.stores.layout import Project


def refused(engine: BlockingEngine, execution_id: str, kind: type[TenutoError], text: str) -> str:
    """Assert that a resume is refused with that error, that nothing changed; return the hint."""
    with pytest.raises(kind, match=text) as raised:
        resume(engine, execution_id)
    assert type(raised.value) is kind
    assert engine.show(execution_id).state is State.INTERRUPTED
    return raised.value.hint


def goes_on(engine: BlockingEngine, execution_id: str, force: bool) -> None:
    """Assert that a resume brings it to its end, and that no finished step ran again."""
    resume(engine, execution_id, force)
    snapshot = ended(engine, execution_id)
    assert snapshot, (snapshot.state, snapshot.detail)
    assert [one["output"] for one in snapshot.value["steps"]][::2] == ["first", "third"]
    assert ran() == ["a", "b", "b", "c"]


@pytest.mark.promise("D3")
def test_a_resume_keeps_what_is_done_and_goes_on_in_the_session(
    tasks: BlockingEngine, project: Project
):
    execution_id = stopped(tasks)
    session = events_of(project, execution_id, "step_session")[-1]["session"]
    goes_on(tasks, execution_id, force=False)
    assert side()[2] == f"b {session}"
    (again,) = events_of(project, execution_id, "resumed")
    assert not again.get("forced")


@pytest.mark.promise("D3")
def test_resume_of_what_runs_or_is_done_or_unknown(tasks: BlockingEngine):
    running = begin(tasks, A, B)
    in_step(tasks, running, "b")
    with pytest.raises(NotFinished, match="is still running"):
        resume(tasks, running)
    with pytest.raises(NotFinished, match="its driver answers"):
        resume(tasks, running, force=True)
    assert tasks.show(running).state is State.RUNNING
    tasks.kill(running)
    done = begin(tasks, A)
    assert ended(tasks, done)
    for force in (False, True):
        with pytest.raises(NotRunning, match="only interrupted and lost ones") as told:
            resume(tasks, done, force)
        assert "--checkpoints" in told.value.hint
        with pytest.raises(UnknownExecution):
            resume(tasks, new_id(), force)


@pytest.mark.promise("D3")
def test_of_two_resumes_at_once_one_wins_and_the_other_is_told(
    tasks: BlockingEngine, project: Project
):
    execution_id = stopped(tasks)
    errors: list[TenutoError] = []
    won: list[bool] = []
    gate = threading.Barrier(4)

    def one() -> None:
        with blocking(project) as engine:
            gate.wait()
            try:
                resume(engine, execution_id)
                won.append(True)
            except TenutoError as error:
                errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended(tasks, execution_id)
    assert len(won) == 1, errors
    for error in errors:
        assert isinstance(error, (NotFinished, NotRunning))
        assert "resume" in str(error) or "still" in str(error)
    assert len(events_of(project, execution_id, "resumed")) == 1
    assert ran() == ["a", "b", "b", "c"]


# Integrity


@pytest.mark.promise("D4", "D5")
def test_a_damaged_tape_is_refused_and_forced_with_what_the_state_file_still_knows(
    tasks: BlockingEngine, project: Project, spoil: Spoil
):
    execution_id = stopped(tasks)
    spoil(execution_id, b'"step_finished","step":"a"')
    hint = refused(tasks, execution_id, StateDamaged, "bytes of the tape")
    assert "--force" in hint
    assert "--checkpoints" in hint
    goes_on(tasks, execution_id, force=True)
    (again,) = events_of(project, execution_id, "resumed")
    assert again["forced"]
    kinds = [one["type"] for one in tape_events(project, execution_id)]
    assert kinds[kinds.index("resumed") + 1] == "step_finished"


@pytest.mark.promise("D4", "D5")
def test_a_lost_plan_comes_back_from_the_state_file(tasks: BlockingEngine, spoil: Spoil):
    execution_id = stopped(tasks)
    spoil(execution_id, b'"type":"planned"')
    refused(tasks, execution_id, StateDamaged, "1 of its events are known from state.json")
    goes_on(tasks, execution_id, force=True)


@pytest.mark.promise("D4", "D5")
def test_without_a_readable_spec_nothing_can_be_resumed(tasks: BlockingEngine, spoil: Spoil):
    execution_id = stopped(tasks)
    spoil(execution_id, b'"type":"created"')
    for force in (False, True):
        with pytest.raises(StateDamaged, match="spec"):
            resume(tasks, execution_id, force)


Spoil = Callable[[str, bytes], None]


@pytest.fixture
def spoil(project: Project, folder: Path) -> Iterator[Spoil]:
    """Turns a bit in the first event that has a text; it is turned back at the end."""
    turned: list[tuple[Path, int]] = []

    def turn(path: Path, at: int) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1]))

    def spoil(execution_id: str, mark: bytes) -> None:
        path = Path(project.folder(execution_id)) / "tape"
        at = path.read_bytes().index(mark) + len(mark) - 2
        turn(path, at)
        turned.append((path, at))

    yield spoil
    for path, at in turned:
        turn(path, at)


@pytest.mark.promise("D1", "D4")
def test_state_files_that_are_gone_or_damaged_do_not_stand_in_the_way(
    tasks: BlockingEngine, project: Project
):
    execution_id = stopped(tasks)
    folder = Path(project.folder(execution_id))
    (folder / "state.json").write_bytes(b"\0" * 100)
    (folder / "state.prev.json").unlink(missing_ok=True)
    goes_on(tasks, execution_id, force=False)
    assert os.listdir(project.quarantine)
    assert decode_state((folder / "state.json").read_bytes()).status == "succeeded"


@pytest.mark.promise("D1", "D4")
def test_a_state_of_a_newer_tenuto_is_refused_and_can_be_forced(
    tasks: BlockingEngine, project: Project
):
    import json

    execution_id = stopped(tasks)
    path = Path(project.folder(execution_id)) / "state.json"
    document = {**json.loads(path.read_text()), "schema": 2}
    path.write_text(json.dumps({**document, "sha256": checksum(document)}))
    hint = refused(tasks, execution_id, NewerState, "schema 2")
    assert "--force" in hint
    assert path.exists()
    goes_on(tasks, execution_id, force=True)


@pytest.mark.promise("D1", "D4")
def test_a_tape_of_a_newer_format_is_refused_by_name(tasks: BlockingEngine, project: Project):
    execution_id = stopped(tasks)
    path = Path(project.folder(execution_id)) / "tape"
    with path.open("rb") as file:
        found = frames.find_magic(file.fileno())
    assert found is not None
    frames_format = frames.FORMAT
    try:
        frames.FORMAT = frames_format + 1
        newer = frames.preamble(found[0])
    finally:
        frames.FORMAT = frames_format
    data = path.read_bytes()
    path.write_bytes(newer + data[len(newer) :])
    with pytest.raises(NewerTape):
        resume(tasks, execution_id, True)
    path.write_bytes(data)


# Surroundings


@pytest.mark.promise("D4")
def test_a_working_directory_that_is_gone_is_named_and_cannot_be_forced(
    tasks: BlockingEngine, agents: Path, tmp_path: Path
):
    from tenuto.core.plan import Plan
    from tenuto.engine.tasks import checked, task_spec, task_work
    from tenuto.engine.work import Options

    place = tmp_path / "elsewhere"
    place.mkdir()
    spec = checked(tasks, task_spec("", plan=Plan((A, B, C))))
    execution_id, sock = tasks.start(task_work(tasks, spec, Options(cwd=str(place))))
    sock.close()
    in_step(tasks, execution_id, "b")
    tasks.interrupt(execution_id)
    place.rmdir()
    hint = refused(tasks, execution_id, FolderGone, str(place))
    assert "put it back" in hint
    with pytest.raises(FolderGone):
        resume(tasks, execution_id, force=True)
    place.mkdir()
    goes_on(tasks, execution_id, force=False)


@pytest.mark.promise("D4")
def test_a_runtime_that_is_gone_or_of_another_version(tasks: BlockingEngine):
    version = Path(os.environ["TENUTO_TEST_VERSION"])
    execution_id = begin(tasks, A, Step("b", "[[hang]] x", depends_on=("a",), runtime="versioned"))
    in_step(tasks, execution_id, "b")
    tasks.interrupt(execution_id)
    version.unlink()
    hint = refused(tasks, execution_id, RuntimeGone, "versioned.*taken away")
    assert "put it back" in hint
    version.write_text("1.2.4")
    hint = refused(tasks, execution_id, EnvironmentChanged, "version 1.2.4.*1.2.3")
    assert "--force" in hint
    version.write_text("v1.2.3 (same)")
    resume(tasks, execution_id)
    in_step(tasks, execution_id, "b")
    assert tasks.interrupt(execution_id).state is State.INTERRUPTED
    version.write_text("2.0.0")
    resume(tasks, execution_id, force=True)
    tasks.kill(execution_id)


@pytest.mark.promise("D4")
def test_steps_that_name_no_runtime_are_refused_where_none_works(
    tasks: BlockingEngine, agents: Path
):
    execution_id = begin(tasks, A, Step("b", "[[say:x]]", ("a",), runtime="looked_for"), C)
    step_done(tasks, execution_id, "a")
    assert tasks.interrupt(execution_id).state is State.INTERRUPTED
    let_go()
    tasks.environ["TENUTO_ECHO_MISSING"] = "somebody took it away"
    hint = refused(
        tasks, execution_id, RuntimeGone, r"has c left to do.* side: somebody took it away \(unset"
    )
    assert "tenuto doctor" in hint and "--force" in hint
    assert tasks.show(execution_id).state is State.INTERRUPTED
    del tasks.environ["TENUTO_ECHO_MISSING"]
    resume(tasks, execution_id)
    assert ended(tasks, execution_id)


@pytest.mark.promise("D4")
def test_a_runtime_that_is_not_known_any_more(tasks: BlockingEngine, agents: Path):
    execution_id = begin(tasks, A, Step("b", "[[hang]] x", depends_on=("a",), runtime="versioned"))
    in_step(tasks, execution_id, "b")
    tasks.interrupt(execution_id)
    settings = agents / "tenuto.toml"
    settings.write_text(
        "\n".join(one for one in settings.read_text().splitlines() if "versioned" not in one)
    )
    refused(tasks, execution_id, RuntimeGone, "nothing of that name")


@pytest.mark.promise("D4")
def test_another_commit_is_refused_and_new_ones_on_top_are_not(tasks: BlockingEngine, agents: Path):
    require_program("git")
    git(agents, "init", "--quiet", "-b", "main")
    git(agents, "commit", "--quiet", "--allow-empty", "-m", "one")
    first = surroundings.commit_of(str(agents))
    assert first == git(agents, "rev-parse", "HEAD").strip()
    git(agents, "pack-refs", "--all")
    assert surroundings.commit_of(str(agents)) == first
    git(agents, "commit", "--quiet", "--allow-empty", "-m", "two")
    execution_id = stopped(tasks)
    git(agents, "checkout", "--quiet", first)
    hint = refused(tasks, execution_id, EnvironmentChanged, f"at commit {first[:10]}")
    assert "git checkout" in hint
    assert "--force" in hint
    git(agents, "checkout", "--quiet", "main")
    git(agents, "commit", "--quiet", "--allow-empty", "-m", "three")
    goes_on(tasks, execution_id, force=False)


def git(folder: Path, *words: str) -> str:
    who = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t"}
    env = {**os.environ, **who, "GIT_COMMITTER_EMAIL": "t@t"}
    return subprocess.run(
        ["git", *words], cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.promise("D4")
def test_what_ran_on_another_machine_is_refused_and_can_be_forced(
    tasks: BlockingEngine, monkeypatch: pytest.MonkeyPatch
):
    execution_id = stopped(tasks)
    monkeypatch.setattr(surroundings, "_machine", lambda: "another")
    here = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((here[0], "elsewhere", *here[2:])))
    hint = refused(tasks, execution_id, EnvironmentChanged, "another machine")
    assert "--force" in hint
    goes_on(tasks, execution_id, force=True)


@pytest.mark.promise("D4", "U1")
def test_the_command_line_tells_each_error_by_its_code(
    cli: CommandLine, tasks: BlockingEngine, spoil: Spoil
):
    execution_id = stopped(tasks)
    spoil(execution_id, b'"step_finished","step":"a"')
    done = cli("--json", "resume", execution_id)
    assert done.returncode == 1
    assert '"state_damaged"' in done.stdout
    let_go()
    forced = cli("resume", "--force", execution_id, "--wait", "60s")
    assert forced.returncode == 0, forced.stderr
