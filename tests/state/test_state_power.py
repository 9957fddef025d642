"""Power cuts at every moment of a task's life: nothing that was called safe is lost."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_help import assert_nothing_left, end_everything
from keeping import Keeping
from power import Disk, Luck, Recorder, lucks
from state_help import PATIENCE, blocking, ended, ran, resume

from tenuto.core import events as ev
from tenuto.core.ids import new_id
from tenuto.core.plan import Plan, Step
from tenuto.core.specs import Spec
from tenuto.core.state import checkpoints, decode_state
from tenuto.core.states import State
from tenuto.core.task_events import (
    Checkpointed,
    StepFinished,
    StepSession,
    StepStarted,
    TaskEvent,
    decode_task_event,
)
from tenuto.core.tasks import TaskSpec
from tenuto.engine.driving.asking import Desk
from tenuto.engine.driving.drive import Driver
from tenuto.engine.driving.printing import Printer
from tenuto.engine.driving.saving import Saver
from tenuto.engine.driving.teller import Teller
from tenuto.engine.saved import folded, task_events
from tenuto.engine.tasks import progress_of
from tenuto.stores.layout import Project, make_private
from tenuto.stores.pen import Pen
from tenuto.stores.states import read_state, sync_tape
from tenuto.stores.tape import TapeReader

LONG = (pytest.mark.full, pytest.mark.timeout(900))
PLAN = Plan(
    (
        Step("a", "[[say:word of a]]"),
        Step("b", "[[say:word of b]]"),
        Step("c", "[[say:word of c]]", ("a",)),
        Step("d", "[[say:word of d]]", ("a", "b")),
        Step("e", "[[say:word of e]]", ("c", "d")),
    ),
    concurrency=2,
)


class Life:
    """A task that is driven in this process, with whoever asks it for checkpoints."""

    def __init__(self, home: Path, recorder: Recorder, seed: int) -> None:
        self.project = Project(root=str(home.parent), home=str(home))
        self.id = new_id()
        self.folder = self.project.folder(self.id)
        self._recorder = recorder
        self._rng = random.Random(seed)

    async def live(self) -> None:
        argv = ("python", "-m", "tenuto.engine.driving")
        task = msgspec.to_builtins(TaskSpec(plan=PLAN))
        spec = Spec("task", argv, str(self.project.root), task=task)
        make_private(self.project.executions)
        pen = Pen.create(self.folder, ev.Created(id=self.id, spec=spec))
        self._reader = TapeReader(self.folder)
        self._recorder.written = self._seen
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        keeping = Keeping(pen, far, loop)
        teller = Teller(near, progress_of(self.folder))
        await teller.open()
        saver = Saver(teller, self.folder, self.id, 0.0, 8)
        saver.begin()
        teller.heard = lambda message: None
        await self._drive(teller, saver)
        await saver.end()
        await teller.close()
        await keeping.end()
        assert keeping.lent, "the writer never read the line itself"
        self._recorder.written = lambda: None
        self._reader.close()
        keeping.writer.close()
        os.close(pen.dir_fd)

    async def _drive(self, teller: Teller, saver: Saver) -> None:
        async def finish() -> list[str]:
            return []

        safe = teller.safe

        def noted(*events: TaskEvent) -> asyncio.Future[None]:
            saved = safe(*events)
            saved.add_done_callback(lambda _: told(events))
            return saved

        def told(events: tuple[TaskEvent, ...]) -> None:
            for event in events:
                if isinstance(event, StepFinished):
                    self._recorder.told((event.step, event.output))

        teller.safe = noted  # type: ignore[method-assign]

        async def walk(step: Step, gate: Callable[[], Awaitable[None]]) -> StepFinished:
            await gate()
            teller.tell(StepStarted(step=step.id, attempt=1, runtime="side"))
            await asyncio.sleep(self._rng.uniform(0, 0.01))
            teller.tell(StepSession(step=step.id, session=f"of {step.id}"))
            if self._rng.random() < 0.7:
                saver.checkpoint(f"key {step.id}")
            await asyncio.sleep(self._rng.uniform(0, 0.02))
            return StepFinished(step=step.id, status="completed", output=f"word of {step.id}")

        planner: Callable[[], Any] = lambda: ("parallel", PLAN, "a test")  # noqa: E731
        driver = Driver(
            teller, Desk(teller), Printer(False), planner, lambda *_: ((), None), finish
        )
        assert await driver.run(walk, 2) == "completed"

    def _seen(self) -> None:
        """Take checkpoints as given when a process that waits for them does."""
        for frame in self._reader.new_events():
            event = decode_task_event(frame.body)
            if isinstance(event, Checkpointed):
                assert not event.error
                sync_tape(self.folder)  # as engine.saved does before it answers
                self._recorder.told(Path(event.path).name)
                self._recorder.told((event.sha256, frame.seq))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorder, Life]:
    home = tmp_path_factory.mktemp("power") / "home"
    home.mkdir()
    recorder = Recorder(home)
    life = Life(home, recorder, 7)
    with recorder.watching():
        asyncio.run(asyncio.wait_for(life.live(), PATIENCE))
    return recorder, life


def check(disk: Disk, place: Path, life: Life) -> None:
    """Assert that everything that was called safe is found again."""
    disk.make(place)
    folder = str(place / os.path.relpath(life.folder, life.project.home))
    steps = dict(one for one in disk.told if isinstance(one, tuple) and len(one[0]) == 1)
    kept = [one for one in disk.told if isinstance(one, str)]
    seqs = [one[1] for one in disk.told if isinstance(one, tuple) and len(one[0]) > 1]
    if not disk.told and not os.path.exists(f"{folder}/tape"):
        return  # nothing was promised yet
    pen = Pen.take_up(folder) if _has_magic(folder) else None
    if pen is None:
        assert not disk.told, "the tape cannot be read"
        return
    pen.put_down()
    fold, _ = folded(folder, life.id)
    for name, output in steps.items():
        one = fold.progress.steps[name]
        assert (one.status, one.output) == ("completed", output)
    places = {one.seq for one in checkpoints(task_events(folder))}
    assert places.issuperset(seqs), "a checkpoint that was told cannot be forked from"
    for name in kept:
        assert decode_state((Path(folder) / name).read_bytes()).id == life.id
    read = read_state(folder, life.id, str(place / "quarantine"))
    if read.state is not None:
        known = {one.id: one.output for one in read.state.results if one.status == "completed"}
        assert known.items() <= {f"{n}": f"word of {n}" for n in "abcde"}.items()


def _has_magic(folder: str) -> bool:
    from tenuto.keeper import frames

    try:
        with open(f"{folder}/tape", "rb") as file:
            return frames.find_magic(file.fileno()) is not None
    except FileNotFoundError:
        return False


@pytest.mark.promise("D2", "D5")
@pytest.mark.parametrize(("more", "most"), [(1, 3), pytest.param(12, 16, marks=LONG)])
def test_a_power_cut_at_any_moment_loses_nothing_that_was_called_safe(
    recorded: tuple[Recorder, Life], tmp_path: Path, more: int, most: int
):
    recorder, life = recorded
    count = 0
    for upto in range(len(recorder.steps) + 1):
        for number, luck in enumerate(lucks(f"{upto}", more)[-most:]):
            place = tmp_path / f"{upto}-{number}"
            try:
                check(Disk(recorder, recorder.steps[:upto], luck), place, life)
            except BaseException as error:
                error.add_note(f"after {upto} of {len(recorder.steps)} steps; {luck}")
                raise
            shutil.rmtree(place)
            count += 1
    told = sum(type(one).__name__ == "Told" for one in recorder.steps)
    print(f"\n{len(recorder.steps)} steps, {told} told, {count} cuts")
    assert told > 8


@pytest.mark.promise("D2", "D3", "D5")
@pytest.mark.parametrize("share", [0.4, 0.8, pytest.param(0.2, marks=pytest.mark.full)])
def test_after_a_power_cut_a_task_goes_on_and_runs_nothing_again_that_was_called_safe(
    recorded: tuple[Recorder, Life], agents: Path, tmp_path: Path, share: float
):
    recorder, life = recorded
    steps = recorder.steps[: int(share * len(recorder.steps))]
    project = Project(root=str(agents), home=str(tmp_path / "disk"))
    disk = Disk(recorder, steps, Luck("none", "none", random.Random(0)))
    disk.make(Path(project.home))
    safe = [one[0] for one in disk.told if isinstance(one, tuple) and len(one[0]) == 1]
    try:
        with blocking(project) as engine:
            (found,) = engine.list(most=None)
            assert (found.id, found.state) == (life.id, State.LOST)
            resume(engine, life.id)
            snapshot = ended(engine, life.id)
            assert snapshot.state is State.SUCCEEDED, (snapshot.reason, snapshot.detail)
            outputs = {one["id"]: one["output"] for one in snapshot.value["steps"]}
        assert outputs == {name: f"word of {name}" for name in "abcde"}
        assert not set(ran()) & set(safe), "it ran again"
    finally:
        end_everything(project)
    assert_nothing_left(project)
