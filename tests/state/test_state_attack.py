"""Saved state under attack: what stands in the place of files, tapes that are gone, damaged plans."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_help import CommandLine
from engine_help import await_death, keeper_pid
from state_help import A, B, C, begin, ended, in_step, ran, resume, stopped

from tenuto.core.errors import NotRunning, StateDamaged
from tenuto.core.execution import Execution
from tenuto.dispatch import control
from tenuto.engine import saved, takeover
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.saved import Checkpoint
from tenuto.engine.surroundings import commit_of
from tenuto.stores.layout import Project
from tenuto.stores.states import read_state


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to(path.parent / "state.prev.json")


def _endless(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.promise("D5")
@pytest.mark.parametrize("stand_in", [_folder, _pipe, _link, _endless])
def test_what_stands_in_the_place_of_a_state_file_is_put_aside_and_told(
    tasks: BlockingEngine, project: Project, cli: CommandLine, stand_in: Callable[[Path], None]
) -> None:
    execution_id = stopped(tasks)
    path = Path(project.folder(execution_id)) / "state.json"
    path.unlink()
    stand_in(path)
    before = len(os.listdir("/proc/self/fd"))
    read_state(project.folder(execution_id), execution_id)
    assert len(os.listdir("/proc/self/fd")) == before, "it was left open"
    told = cli("checkpoint", execution_id)
    assert told.returncode == 0 and "put aside" in told.stderr, told
    assert path.is_file() and not path.is_symlink()
    assert "put aside" not in cli("checkpoint", execution_id).stderr
    resume(tasks, execution_id)
    assert ended(tasks, execution_id).state == "succeeded"


@pytest.mark.promise("D4", "D5")
def test_of_a_task_whose_tape_is_gone_the_saved_state_is_still_shown(
    tasks: BlockingEngine, project: Project, cli: CommandLine
) -> None:
    execution_id = stopped(tasks)
    tape = Path(project.folder(execution_id)) / "tape"
    kept = tape.with_name("kept")
    tape.rename(kept)
    try:
        for stand_in in (lambda: None, tape.mkdir):
            stand_in()
            known = saved.state_of(tasks, execution_id)
            assert known.state.cursor.finished == ("a",) and "gone" in known.problems[0]
            for force in (False, True):
                with pytest.raises(StateDamaged, match=r"tape .* cannot be read"):
                    resume(tasks, execution_id, force)
            with pytest.raises(StateDamaged, match="cannot be read"):
                saved.checkpoint(tasks, execution_id)
            told = cli("resume", execution_id)
            assert told.returncode == 1 and "show" in told.stderr, told
    finally:
        if tape.is_dir():
            shutil.rmtree(tape)
        kept.rename(tape)
    resume(tasks, execution_id)
    assert ended(tasks, execution_id).state == "succeeded"


@pytest.mark.promise("D3")
def test_a_takeover_of_what_has_died_meanwhile_goes_on(
    tasks: BlockingEngine, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several who take over at once, each but the first meets one that has ended."""
    execution_id = begin(tasks, A, B, C)
    in_step(tasks, execution_id, "b")

    def frozen(engine: BlockingEngine, execution: Execution) -> bool:
        del engine
        keeper = keeper_pid(project, execution.id)
        os.kill(keeper, signal.SIGKILL)
        await_death(keeper)
        return True

    monkeypatch.setattr(takeover, "_is_frozen", frozen)
    resume(tasks, execution_id, force=True)
    assert ended(tasks, execution_id).state == "succeeded"
    assert ran() == ["a", "b", "b", "c"]


@pytest.mark.promise("D4")
@pytest.mark.parametrize("head", [b"\xff\xfe no commit", b"ref: refs/heads/a\0b", b"", None])
def test_a_repository_that_is_none_holds_nobody_up_and_is_no_commit(
    tmp_path: Path, head: bytes | None
) -> None:
    """What stands in .git is whatever its author put there: garbage, or a pipe without a writer."""
    git = tmp_path / ".git"
    git.mkdir()
    if head is None:
        os.mkfifo(git / "HEAD")
    else:
        (git / "HEAD").write_bytes(head)
    assert commit_of(str(tmp_path)) == ""
    (git / "HEAD").unlink()
    (git / "HEAD").write_bytes(b"ref: refs/heads/main\n")
    os.mkfifo(git / "packed-refs")
    assert commit_of(str(tmp_path)) == ""
    (git / "packed-refs").unlink()
    (git / "packed-refs").write_bytes(b"# pack-refs\n" + b"c" * 40 + b" refs/heads/main\n")
    assert commit_of(str(tmp_path)) == "c" * 40


@pytest.mark.promise("D3", "X11")
def test_an_interrupt_that_meets_an_end_before_it_is_written_waits_for_it(
    tasks: BlockingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of many at once: the keeper has ended the task for another, and is about to say so."""
    execution_id = begin(tasks, A, B, C)
    in_step(tasks, execution_id, "b")
    request = control.request
    asked: list[str] = []

    def late(folder: str, op: str, *more: Any, **fields: Any) -> Any:
        asked.append(op)
        if asked.count("interrupt") == 1 and op == "interrupt":
            request(folder, op, *more, **fields)
            raise NotRunning("the execution has ended", "")
        return request(folder, op, *more, **fields)

    monkeypatch.setattr(control, "request", late)
    snapshot = tasks.interrupt(execution_id)
    assert snapshot.state == "interrupted" and "stopped in b" in snapshot.hint
    resume(tasks, execution_id)
    assert ended(tasks, execution_id).state == "succeeded"


@pytest.mark.promise("D2")
def test_a_checkpoint_that_is_asked_for_between_two_lives_is_of_the_next(
    tasks: BlockingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is gone and its end not written yet; or another has just taken the task up."""
    execution_id = begin(tasks, A, B, C)
    in_step(tasks, execution_id, "b")
    ask = saved._ask  # pyright: ignore[reportPrivateUsage]
    asked: list[str] = []

    def gone(engine: BlockingEngine, whole: str) -> Checkpoint | None:
        asked.append(whole)
        return ask(engine, whole) if len(asked) > 1 else None

    monkeypatch.setattr(saved, "_ask", gone)
    assert saved.checkpoint(tasks, execution_id).state.cursor.finished == ("a",)
    assert len(asked) == 2
    tasks.interrupt(execution_id)
