"""How tasks fail: full disks, damaged tapes, nonsense on the line, agents and drivers that hang."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_help import events_of, main_pid, require, tape_frames
from task_help import (
    begin,
    blocking,
    finished,
    never_twice,
    plan,
    prepared,
    progress,
    side,
    started,
    statuses,
    value,
)

from tenuto import Snapshot
from tenuto.core.plan import Step
from tenuto.core.states import State, WaitingFor
from tenuto.engine.blocking import BlockingEngine
from tenuto.keeper.frames import EVENT
from tenuto.stores.layout import Project, make_home
from tenuto.stores.tape import TapeReader

PATIENCE = 60
MB = 1024 * 1024


@pytest.fixture
def engine(agents: object, project: Project) -> Iterator[BlockingEngine]:
    with blocking(project) as made:
        yield made


def ended(engine: BlockingEngine, execution_id: str) -> Snapshot:
    snapshot = engine.wait(execution_id, PATIENCE)
    assert snapshot.done, snapshot.state
    return snapshot


def resumed(engine: BlockingEngine, execution_id: str, force: bool = False) -> Snapshot:
    _, sock = engine.resume(execution_id, force)
    sock.close()
    return ended(engine, execution_id)


def until(engine: BlockingEngine, execution_id: str, check: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < limit
        engine.wait(execution_id, 0.01)


# A full disk


@pytest.fixture
def disk(agents: Path, project: Project) -> Iterator[Path]:
    """The state folder on a small file system of its own."""
    require(os.geteuid() == 0, "root, to mount a small file system")
    make_home(project)
    home = Path(os.path.realpath(project.home))
    words = ["mount", "-t", "tmpfs", "-o", f"size={4 * MB},mode=0700", "tenuto-test", str(home)]
    done = subprocess.run(words, check=False, capture_output=True)
    require(done.returncode == 0, "a tmpfs that can be mounted")
    yield home
    subprocess.run(["mount", "-o", f"remount,size={64 * MB}", home], check=True)
    with blocking(project) as engine:
        for one in engine.list(running=True):
            engine.kill(one.id)
    subprocess.run(["umount", "-l", home], check=True)


def fill(home: Path) -> Path:
    filler = home / "filler"
    with open(filler, "ab", buffering=0) as file:
        for size in (65536, 4096, 512):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return filler


def held_up(engine: BlockingEngine, disk: Path) -> tuple[str, Path]:
    """Return a task whose first step ended and finds no room for that, and what takes the room."""
    go = disk.parent / "go"
    work = plan(
        Step("a", f"[[await:{go}]] [[say:{'long ' * 40_000}]]"), Step("b", "[[say:after]]", ("a",))
    )
    execution_id = begin(engine, plan=work, strategy="parallel", runtime="side")
    until(engine, execution_id, lambda: "begin a" in side())
    filler = fill(disk)
    go.write_text("")

    def waits() -> bool:
        return engine.show(execution_id).waiting_for is WaitingFor.DISK

    until(engine, execution_id, waits)
    return execution_id, filler


@pytest.mark.promise("D2", "X2")
def test_a_checkpoint_without_room_is_not_called_safe_and_the_task_goes_on_once_there_is(
    disk: Path, project: Project
) -> None:
    with blocking(project) as engine:
        execution_id, filler = held_up(engine, disk)
        assert "begin b" not in side(), "nothing is built on what is not safe"
        assert not finished(project, execution_id)
        filler.unlink()
        list(engine.follow(execution_id))
        snapshot = ended(engine, execution_id)
        assert snapshot.state == "succeeded", (snapshot.reason, snapshot.detail)
        assert statuses(snapshot) == {"a": "completed", "b": "completed"}
        assert len(progress(project, execution_id).steps["a"].output) == 200_000
        never_twice(project, execution_id)


@pytest.mark.promise("D2", "D3")
def test_a_driver_killed_on_a_full_disk_has_not_succeeded_and_goes_on_later(
    disk: Path, project: Project
) -> None:
    with blocking(project) as engine:
        execution_id, filler = held_up(engine, disk)
        os.kill(main_pid(project, execution_id), signal.SIGKILL)
        filler.unlink()
        list(engine.follow(execution_id))
        crashed = ended(engine, execution_id)
        assert (crashed.state, crashed.reason) == ("lost", "driver")
        assert resumed(engine, execution_id).state == "succeeded"
        never_twice(project, execution_id)


# Agents and drivers that hang


@pytest.mark.promise("D3", "X8")
@pytest.mark.parametrize("runtime", ["deaf", "blocked"])
def test_what_does_not_react_to_an_interrupt_is_ended_all_the_same(
    engine: BlockingEngine, project: Project, runtime: str
) -> None:
    work = plan(Step("a", "[[say:kept]]", runtime="side"), Step("b", "x", ("a",), runtime=runtime))
    execution_id = begin(engine, plan=work, strategy="parallel")
    until(engine, execution_id, lambda: f"begin {runtime}" in side())
    began = time.monotonic()
    snapshot = engine.interrupt(execution_id)
    assert time.monotonic() - began < 15
    assert snapshot.state is State.INTERRUPTED
    assert progress(project, execution_id).steps["a"].output == "kept"
    assert progress(project, execution_id).steps["b"].open


@pytest.mark.promise("X4", "X8")
def test_a_deadline_that_was_asked_for_ends_a_task_and_keeps_what_is_done(
    agents: Path, project: Project
) -> None:
    from tenuto.engine.tasks import checked, task_spec, task_work
    from tenuto.engine.work import Options

    work = plan(Step("a", "[[say:kept]]"), Step("b", "[[hang]]", ("a",)))
    with blocking(project) as engine:
        spec = checked(engine, task_spec("", plan=work, strategy="parallel", runtime="side"))
        _, sock = engine.start(task_work(engine, spec, Options(deadline=3.0)))
        sock.close()
        (one,) = engine.list(kind="task")
        snapshot = ended(engine, one.id)
    assert (snapshot.state, snapshot.reason) == ("failed", "deadline")
    assert progress(project, one.id).steps["a"].output == "kept"


@pytest.mark.promise("X12", "R2")
@pytest.mark.parametrize("word", ["exit", "os_exit", "abort", "raise"])
def test_an_agent_that_takes_the_driver_with_it_has_not_succeeded(
    engine: BlockingEngine, project: Project, word: str
) -> None:
    work = plan(Step("a", "[[say:kept]]", runtime="side"), Step("b", word, ("a",), runtime="bomb"))
    execution_id = begin(engine, plan=work, strategy="parallel")
    snapshot = ended(engine, execution_id)
    if word == "raise":
        assert (snapshot.state, snapshot.reason) == ("failed", "partial")
        assert "boom" in snapshot.detail
    else:
        assert (snapshot.state, snapshot.reason) == ("lost", "driver")
    assert progress(project, execution_id).steps["a"].output == "kept"


# What is written, and what is said


@pytest.mark.promise("D5")
@pytest.mark.parametrize("where", ["first", "middle", "planned"])
def test_a_tape_that_is_damaged_among_a_tasks_events_is_read_as_far_as_it_can_be(
    engine: BlockingEngine, project: Project, where: str
) -> None:
    """Steps whose end cannot be read run again; without a plan one is made anew."""
    steps = [Step(f"s{n}", f"[[say:word {n}]]", (f"s{n - 1}",) if n else ()) for n in range(3)]
    work = plan(*steps, Step("last", "[[hang]]", ("s2",)))
    execution_id = begin(engine, plan=work, strategy="parallel", runtime="side")
    until(engine, execution_id, lambda: "begin last" in side())
    assert engine.interrupt(execution_id).state == "interrupted"
    path = os.path.join(project.folder(execution_id), "tape")
    kinds = {"first": b'"step_finished"', "middle": b'"step_finished"', "planned": b'"planned"'}
    hits = [
        frame for frame in tape_frames(project, execution_id)
        if frame.stream == EVENT and kinds[where] in frame.body
    ]  # fmt: skip
    hit = hits[1] if where == "middle" else hits[0]
    place = hit.end - len(hit.body) - 2
    before = overwritten(path, place, random.Random(1).randbytes(min(len(hit.body), 60)))
    with TapeReader(project.folder(execution_id)) as reader:
        list(reader.frames())
        assert reader.damaged > 0
    without_states(project, execution_id)
    _, sock = engine.resume(execution_id, True)
    sock.close()
    until(engine, execution_id, lambda: side().count("begin last") > 1)
    until(
        engine, execution_id, lambda: words(project, execution_id) == ["word 0", "word 1", "word 2"]
    )
    again = {"first": "s0", "middle": "s1", "planned": ""}[where]
    for name in ("s0", "s1", "s2"):
        assert side().count(f"begin {name}") == (2 if name == again else 1)
    engine.kill(execution_id)
    overwritten(path, place, before)  # all tapes are checked at the end


def without_states(project: Project, execution_id: str) -> None:
    """Take the state files away: they would know what the tape has lost."""
    for name in ("state.json", "state.prev.json"):
        Path(project.folder(execution_id), name).unlink(missing_ok=True)


def words(project: Project, execution_id: str) -> list[str]:
    steps = progress(project, execution_id).steps
    return [steps[name].output for name in ("s0", "s1", "s2") if name in steps]


def overwritten(path: str, place: int, data: bytes) -> bytes:
    """Write over a part of a file, and return what stood there."""
    with open(path, "r+b") as file:
        file.seek(place)
        before = file.read(len(data))
        file.seek(place)
        file.write(data)
    return before


@pytest.mark.promise("D5", "D3")
def test_what_follows_from_an_end_is_made_up_for_where_the_tape_was_cut(
    engine: BlockingEngine, project: Project
) -> None:
    """A power cut can leave the end of a step, and not what was written right behind it."""
    go = Path(os.environ["TENUTO_TEST_SIDE"] + ".go")
    work = plan(
        Step("dev", "[[say:written]]"),
        Step(
            "rev", f"[[await:{go}]] [[say:Verdict: send back]]", ("dev",), reviews="dev", rounds=1
        ),
        Step("ship", "[[say:shipped]]", ("rev",)),
        Step("bad", "[[fail:auth]]"),
        Step("never", "x", ("bad",)),
    )
    execution_id = begin(engine, plan=work, strategy="parallel", runtime="side")
    until(engine, execution_id, lambda: "begin rev" in side())
    path = os.path.join(project.folder(execution_id), "tape")
    engine.interrupt(execution_id)
    hit = next(
        frame for frame in tape_frames(project, execution_id)
        if frame.stream == EVENT and b"skipped_dependency_failed" in frame.body
    )  # fmt: skip
    before = overwritten(path, hit.end - 4, b"\0\0\0\0")
    without_states(project, execution_id)
    go.write_text("")
    snapshot = resumed(engine, execution_id, force=True)
    assert snapshot.reason == "partial"
    found = statuses(snapshot)
    assert found["never"] == "skipped_dependency_failed"
    assert {"dev.2", "rev.2"} <= set(found)
    overwritten(path, hit.end - 4, before)


@pytest.mark.promise("X2")
def test_nonsense_on_the_line_harms_nobody(engine: BlockingEngine, project: Project) -> None:
    """The driver's own line, written to by what it runs."""
    execution_id = begin(engine, "nonsense", runtime="bomb")
    snapshot = ended(engine, execution_id)
    assert snapshot.state == "succeeded", (snapshot.reason, snapshot.detail)
    kinds = [one["type"] for one in events_of(project, execution_id, "ended")]
    assert kinds == ["ended"]
    assert statuses(snapshot) == {"task": "completed"}


@pytest.mark.promise("G2")
def test_a_plan_of_many_edges_is_carried_by_the_line(
    engine: BlockingEngine, project: Project
) -> None:
    """Far more than a program's message may hold; all but the first are skipped at once."""
    names = [f"s{n}" for n in range(900)]
    steps = [Step("s0", "[[fail:auth]]")]
    steps += [Step(names[n], "x", tuple(names[:n])) for n in range(1, 900)]
    execution_id = begin(engine, plan=plan(*steps), strategy="parallel", runtime="side")
    snapshot = ended(engine, execution_id)
    assert (snapshot.state, snapshot.reason) == ("failed", "auth")
    assert list(statuses(snapshot).values()).count("skipped_dependency_failed") == 899
    assert started(project, execution_id) == ["s0"]


def test_settings_that_cannot_be_read_end_the_task_with_a_reason(
    folder: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was broken between the start and the driver's first line."""
    prepared(folder, monkeypatch)
    with blocking(project) as engine:
        from tenuto.engine.tasks import checked, task_spec, task_work
        from tenuto.engine.work import Options

        work = task_work(engine, checked(engine, task_spec("x")), Options())
        (folder / "tenuto.toml").write_text("[runtime\n")
        execution_id, sock = engine.start(work)
        sock.close()
        snapshot = ended(engine, execution_id)
    assert (snapshot.state, snapshot.reason) == ("failed", "bad_input")
    assert "tenuto.toml" in snapshot.detail and "Traceback" not in snapshot.output
    assert not value_of(snapshot)


def value_of(snapshot: Snapshot) -> object:
    return value(snapshot) if snapshot.has_value else None
