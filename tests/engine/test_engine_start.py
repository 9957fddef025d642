"""Executions come into being: recorded first, then started; parents and children."""

from __future__ import annotations

import itertools
import os
import sys
import uuid
from pathlib import Path

import pytest
from engine_help import (
    PATIENCE,
    await_death,
    ended,
    events_of,
    folded,
    number_after,
    project_of,
    tape_events,
    word,
)

from tenuto import Engine, EngineFault, InvalidInput, NotRunning, Snapshot, State
from tenuto.core.states import may_move
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.settings import Settings
from tenuto.engine.work import Options
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio

NESTED = """
import asyncio, os
from tenuto import Engine

async def main():
    async with Engine() as engine:
        inner = await engine.start(command=["sleep", "1000"])
        print(f"inner={inner};", flush=True)
        %s

asyncio.run(main())
"""


@pytest.mark.promise("X1")
async def test_ids_are_uuid7_and_sort_by_birth(engine: Engine) -> None:
    ids = [await engine.start(command=["true"]) for _ in range(5)]
    assert ids == sorted(ids) and len(set(ids)) == 5
    assert all(uuid.UUID(one).version == 7 for one in ids)


@pytest.mark.promise("X1")
async def test_the_id_and_the_spec_are_recorded_even_if_the_program_cannot_start(
    engine: Engine, project: Project, folder: Path
) -> None:
    broken = folder / "broken"
    broken.write_bytes(b"\x7fELF, but not really")
    broken.chmod(0o755)
    snapshot = await engine.run(command=["./broken", "argument"])
    assert snapshot.state is State.FAILED and snapshot.reason == "exec"
    first = tape_events(project, snapshot.id)[0]
    assert first["type"] == "created" and first["id"] == snapshot.id
    assert first["spec"]["argv"] == [f"{folder}/./broken", "argument"]
    assert [one.id for one in await engine.list()] == [snapshot.id]


@pytest.mark.promise("X1", "X2")
async def test_the_id_and_the_spec_are_recorded_even_if_no_keeper_can_be_had(
    folder: Path, project: Project
) -> None:
    class Broken:
        def launch(self, job: bytes, tape_fd: int, dir_fd: int) -> None:
            assert os.readlink(f"/proc/self/fd/{tape_fd}").endswith("/tape")
            raise EngineFault("there is no keeper today")

        def close(self) -> None:
            pass

    blocking = BlockingEngine(project, Settings(), Broken())  # type: ignore[arg-type]
    try:
        with pytest.raises(EngineFault, match="no keeper today"):
            blocking.start(blocking.code("print(1)", "python", Options()))
        (row,) = blocking.list()
        assert row.state is State.FAILED
    finally:
        blocking.close()
    assert [event["type"] for event in tape_events(project, row.id)] == ["created", "ended"]


@pytest.mark.promise("X1")
async def test_a_kind_a_spec_and_a_state_are_shown_for_code_and_commands(
    engine: Engine, project: Project
) -> None:
    code = await engine.run("1 + 1", language="python")
    command = await engine.run(command=["echo", "hello"], title="say hello")
    assert (code.kind, command.kind) == ("code", "command")
    assert (code.title, command.title) == ("1 + 1", "say hello")
    assert folded(project, code.id).spec.code == "1 + 1"  # type: ignore[union-attr]
    assert code.parent is None


@pytest.mark.promise("X2")
async def test_every_transition_is_legal_and_has_its_time_and_reason(
    engine: Engine, project: Project
) -> None:
    running = await engine.start("print(input())", language="python")
    snapshot = await engine.wait(running, PATIENCE)
    assert snapshot.needs_input
    await engine.send(running, "hello")
    await ended(engine, running)
    moves = folded(project, running).transitions
    assert [str(move.state) for move in moves] == [
        "queued", "running", "waiting", "running", "succeeded",
    ]  # fmt: skip
    assert all(may_move(a.state, b.state) for a, b in itertools.pairwise(moves))
    assert all(a.time_ns <= b.time_ns for a, b in itertools.pairwise(moves))
    assert moves[2].reason == "input"


@pytest.mark.promise("X2")
@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [("exit 0", "succeeded", ""), ("exit 3", "failed", "exit"), ("kill -9 $$", "failed", "signal")],
)
async def test_the_end_is_recorded_with_its_reason(
    engine: Engine, project: Project, code: str, state: str, reason: str
) -> None:
    snapshot = await engine.run(code, language="bash")
    last = folded(project, snapshot.id).transitions[-1]
    assert (str(last.state), last.reason) == (state, reason)
    assert (str(snapshot.state), snapshot.reason) == (state, reason)


@pytest.mark.promise("X2")
async def test_the_first_end_counts(engine: Engine, project: Project) -> None:
    running = await engine.start(command=["sleep", "1000"], deadline=0.1)
    snapshot = await ended(engine, running)
    assert snapshot.reason == "deadline"
    assert len(events_of(project, running, "ended")) == 1


@pytest.mark.promise("X2")
async def test_an_interrupted_command_resumes_only_by_force(engine: Engine, folder: Path) -> None:
    code = "echo run >> runs; echo ready; sleep 1000"
    running = await engine.start(code, language="bash")
    await word(engine, running, "ready")
    snapshot = await engine.interrupt(running)
    assert snapshot.state is State.INTERRUPTED
    with pytest.raises(InvalidInput, match="runs it again"):
        await engine.resume(running)
    again = await engine.resume(running, force=True, wait=0)
    assert again.running and again.id == running
    await engine.wait(running, PATIENCE, until="/ready(.|\n)*ready/")
    assert (folder / "runs").read_text() == "run\nrun\n"
    assert (await engine.kill(running)).state is State.KILLED


@pytest.mark.promise("X2")
@pytest.mark.parametrize("code", ["exit 0", "exit 1"])
async def test_what_has_succeeded_or_failed_cannot_be_resumed(engine: Engine, code: str) -> None:
    snapshot = await engine.run(code, language="bash")
    with pytest.raises(NotRunning, match="only interrupted and lost"):
        await engine.resume(snapshot.id, force=True)


async def _nested(engine: Engine, then: str) -> tuple[str, str]:
    outer = await engine.start(NESTED % then, language="python")
    inner = (await word(engine, outer, "/inner=[0-9a-f-]+;/"))[len("inner=") : -1]
    return outer, inner


@pytest.mark.promise("X1", "X8")
async def test_kill_takes_along_what_was_started_inside(engine: Engine) -> None:
    outer, inner = await _nested(engine, "await asyncio.sleep(1000)")
    assert (await engine.show(inner)).parent == outer
    assert (await engine.show(inner)).running
    await engine.kill(outer)
    assert (await engine.show(outer)).state is State.KILLED
    assert (await engine.show(inner)).state is State.KILLED


@pytest.mark.promise("X1", "X8")
async def test_the_normal_end_of_the_outer_leaves_the_inner_alone(engine: Engine) -> None:
    outer, inner = await _nested(engine, "pass")
    snapshot = await ended(engine, outer)
    assert snapshot.state is State.SUCCEEDED
    assert not snapshot.left_behind, "the inner one's keeper is not the outer one's process"
    assert (await engine.show(inner)).running
    assert (await engine.kill(inner)).state is State.KILLED


@pytest.mark.promise("X1", "X8")
async def test_kill_reaches_three_levels_deep(engine: Engine) -> None:
    deepest = NESTED % "await asyncio.sleep(1000)"
    middle = f"await engine.start({deepest!r}, language='python'); await asyncio.sleep(1000)"
    outer, _ = await _nested(engine, middle)
    while len(live := await engine.list(running=True)) < 4:
        middle_id = next((one.id for one in live if one.kind == "code" and one.id != outer), None)
        if middle_id:
            await word(engine, middle_id, "inner=")
    await engine.kill(outer)
    assert not await engine.list(running=True)
    assert {one.state for one in await engine.list()} == {State.KILLED}


@pytest.mark.promise("X4")
async def test_nothing_has_a_deadline_by_itself(engine: Engine, project: Project) -> None:
    snapshot = await engine.run("1", language="python")
    spec = folded(project, snapshot.id).spec
    assert spec is not None
    assert spec.deadline is None and spec.idle is None
    assert all(getattr(spec.limits, name) is None for name in ("memory", "cpu", "output"))


@pytest.mark.promise("X4")
@pytest.mark.parametrize("bound", [{"deadline": 0.5}, {"idle": 0.5}], ids=["deadline", "idle"])
async def test_a_deadline_that_was_asked_for_fails_visibly_and_keeps_the_output(
    engine: Engine, project: Project, bound: dict[str, float]
) -> None:
    (name,) = bound
    snapshot = await engine.run("echo partial; sleep 1000", language="bash", **bound)  # type: ignore[arg-type]
    assert (snapshot.state, snapshot.reason) == (State.FAILED, name)
    assert snapshot.output == "partial\n"
    assert "0.5 s" in snapshot.detail and "kept" in snapshot.hint
    assert getattr(folded(project, snapshot.id).spec, name) == 0.5


@pytest.mark.promise("X4")
async def test_a_deadline_ends_daemons_too(engine: Engine) -> None:
    code = "setsid sleep 1000 & echo pid=$!; sleep 1000"
    snapshot = await engine.run(code, language="bash", deadline=0.5)
    assert snapshot.reason == "deadline"
    pid = int(snapshot.output.split("=")[1])
    assert await_death(pid)


@pytest.mark.promise("X4")
async def test_output_holds_off_the_idle_deadline(engine: Engine) -> None:
    code = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done"
    snapshot = await engine.run(code, language="bash", idle=1.2)
    assert snapshot.state is State.SUCCEEDED
    assert snapshot.output == "1\n2\n3\n4\n5\n6\n"


@pytest.mark.promise("X4", "X7")
async def test_the_idle_deadline_does_not_fire_while_it_waits_for_input(engine: Engine) -> None:
    running = await engine.start(command=["cat"], idle=0.3)
    assert (await engine.wait(running, PATIENCE)).needs_input
    # by the time this clock has run out, the idle deadline has come three times over
    await engine.run(command=["sleep", "1"])
    assert (await engine.show(running)).needs_input
    await engine.send(running, "x", eof=True)
    assert (await ended(engine, running)).state is State.SUCCEEDED


@pytest.mark.promise("X4")
async def test_a_deadline_must_be_above_zero(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="above zero"):
        await engine.run(command=["true"], deadline=0)
    assert not await engine.list()


@pytest.mark.promise("X13")
async def test_python_in_an_execution_is_the_one_with_tenuto(engine: Engine) -> None:
    snapshot: Snapshot = await engine.run("import sys; sys.prefix", language="python")
    assert snapshot.value == sys.prefix


@pytest.mark.promise("X11")
async def test_the_state_is_under_xdg_state_home_with_a_link_in_the_project(
    engine: Engine, folder: Path
) -> None:
    await engine.run(command=["true"])
    link = folder / ".tenuto"
    assert link.is_symlink()
    assert Path(os.readlink(link)).is_relative_to(os.environ["XDG_STATE_HOME"])
    assert project_of(folder).home == os.readlink(link)
    assert await number_after(engine, await engine.start("echo 'n=5;'", language="bash"), "n") == 5


@pytest.mark.promise("X1")
@pytest.mark.parametrize("how", [{}, {"pty": True}, {"language": "python"}])
async def test_a_variable_that_is_no_text_is_handed_on_with_its_bytes(folder, monkeypatch, how):
    monkeypatch.setitem(os.environb, b"ODD", b"a\xffb")
    code = "import os; print(os.environb[b'ODD'])"
    async with Engine(str(folder)) as engine:
        if "language" in how:
            snapshot = await engine.run(code, **how)
        else:
            snapshot = await engine.run(command=[sys.executable, "-c", code], **how)
    assert snapshot.output.strip() == r"b'a\xffb'"
