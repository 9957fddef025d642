"""Random schedules of interrupts, kills and resumes of real tasks, and what must hold at their end.

A world makes some plans, runs each once without a disturbance, and then again and again with some. All
of it follows from one seed. Several schedules run at once: most of their time is waiting for processes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import counted_runner
from engine_help import folded, marked_processes, tape_events
from task_help import never_twice, progress, value

from tenuto import Snapshot
from tenuto.core.errors import NotFinished, NothingAsked, NotRunning, TenutoError
from tenuto.core.plan import Plan, Retry, Step
from tenuto.core.state import decode_state
from tenuto.core.states import State
from tenuto.dispatch.fresh import FreshLauncher
from tenuto.engine.blocking import BlockingEngine, sleep
from tenuto.engine.settings import load_settings
from tenuto.engine.tasks import checked, decide, task_spec, task_work
from tenuto.engine.work import Options
from tenuto.keeper import procfs
from tenuto.keeper.frames import EVENT
from tenuto.metering.ledger import Ledger
from tenuto.stores.layout import Project

PATIENCE = 120.0
SETTINGS = """
[runtime]
preferred = "counted"
order = ["counted"]
[interrupt]
grace = 2
[checkpoint]
every = 0
[runners]
counted = "counted_runner:CountedRunner"
"""
HOWS = {
    "interrupt": 6, "interrupts": 1, "driver": 5, "keeper": 5, "both": 3, "frozen": 1,
    "checkpoint": 1, "driver fault": 5, "keeper fault": 5,
}  # fmt: skip
DRIVER_POINTS = (
    "driver-planning", "driver-planned", "driver-step-started", "driver-step-ended",
    "driver-step-safe", "driver-done", "state-written", "state-previous-kept", "state-replaced",
)  # fmt: skip
KEEPER_POINTS = (
    "writer-before-checkpoint", "writer-after-checkpoint", "writer-before-append",
    "writer-after-append", "writer-before-sync", "keeper-taken", "keeper-begun",
    "keeper-announced", "keeper-ending",
)  # fmt: skip
_FAILED_MOST = 5  # several tell more of what is wrong than the first one does
_SPAWNING = threading.Lock()


class Blow(NamedTuple):
    """One disturbance, and when it comes: after so many more events, or so many seconds."""

    how: str
    events: int = -1
    seconds: float = 0.0
    fault: str = ""

    def __str__(self) -> str:
        when = f"{self.events} events" if self.events >= 0 else f"{self.seconds * 1000:.0f} ms"
        return f"{self.how} {self.fault or f'after {when}'}"


class Shape(NamedTuple):
    """A task of some strategy, and which of its steps ask."""

    strategy: str
    plan: Plan | None
    text: str


def shapes(rng: random.Random, count: int) -> list[Shape]:
    """Return tasks of all three strategies in turn; those with plans are all different."""
    makers = (_parallel, _single, _multi, _parallel, _reviewed)
    return [makers[number % len(makers)](rng) for number in range(count)]


def _task(rng: random.Random, name: str, needs: tuple[str, ...] = (), kind: str = "plain") -> str:
    delay = rng.choice((0.0, 0.002, 0.01, 0.03))
    return f"work as={name} needs={','.join(needs)} delay={delay} kind={kind}"


def _kind(rng: random.Random) -> str:
    return rng.choices(counted_runner.KINDS, (8, 3, 3, 1, 2, 1, 1))[0]


def _step(rng: random.Random, name: str, needs: tuple[str, ...], kind: str = "") -> Step:
    in_flight: Any = "ask" if rng.random() < 0.1 else "retry"
    kind = kind or _kind(rng)
    task = _task(rng, name, needs, kind)
    return Step(name, task, needs, in_flight=in_flight, retry=Retry(2, 0.01))


def _parallel(rng: random.Random) -> Shape:
    names = [f"s{n}" for n in range(rng.randrange(3, 9))]
    steps: list[Step] = []
    for number, name in enumerate(names):
        most = min(number, 3)
        steps.append(_step(rng, name, tuple(rng.sample(names[:number], rng.randint(0, most)))))
    return Shape("parallel", Plan(tuple(steps), rng.choice((None, 1, 2, 4))), "")


def _single(rng: random.Random) -> Shape:
    """One step, or some that go on in one session."""
    if rng.random() < 0.4:
        return Shape("single", None, _task(rng, "task", (), rng.choice(("plain", "twice", "tool"))))
    steps = [_step(rng, f"s{n}", (), "plain") for n in range(rng.randrange(2, 4))]
    return Shape("single", Plan(tuple(steps)), "")


def _multi(rng: random.Random) -> Shape:
    """Architect, developer, reviewer; it is sent back once."""
    return Shape("multi", None, _task(rng, "", (), rng.choice(("plain", "twice", "tool"))))


def _reviewed(rng: random.Random) -> Shape:
    dev = _step(rng, "dev", (), "plain")
    task = _task(rng, "rev", ("dev",))
    rev = Step("rev", task, ("dev",), reviews="dev", rounds=rng.choice((1, 2)))
    beside = _step(rng, "beside", (), rng.choice(("plain", "fail", "child")))
    ship = _step(rng, "ship", ("rev", "dev"), "plain")
    never = _step(rng, "later", ("beside",), "plain")
    return Shape("parallel", Plan((dev, rev, beside, ship, never), rng.choice((1, 3))), "")


def blows(rng: random.Random) -> list[Blow]:
    """Return what will happen to one task, one life after the other."""
    made: list[Blow] = []
    for _ in range(rng.choices((1, 2, 3, 5), (9, 5, 2, 1))[0]):
        how = rng.choices(list(HOWS), list(HOWS.values()))[0]
        if how.endswith("fault"):
            label = rng.choice(DRIVER_POINTS if how == "driver fault" else KEEPER_POINTS)
            made.append(Blow(how, fault=f"{label}:{rng.choice((1, 1, 2, 3, 5, 8))}"))
        elif rng.random() < 0.7:
            made.append(Blow(how, events=rng.randrange(0, 30)))
        else:
            made.append(Blow(how, seconds=rng.uniform(0.0, 1.0)))
    return made


class Round:
    """One task with its blows, on an engine of its own."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.project = world.project
        self._rng = random.Random(f"{world.seed}/{number}")
        self.number = number
        self.which = self._rng.randrange(len(world.shapes))
        self.blows = blows(self._rng)
        self.id = ""
        self.lives = 0
        self.deaths = 0
        self._fault = ""

    def __str__(self) -> str:
        told = "; ".join(map(str, self.blows))
        return (
            f"seed {self.world.seed}, round {self.number}, shape {self.which},"
            f" {self.id}, life {self.lives}: {told}"
        )

    # Lives

    def play(self) -> None:
        """Take the task to its end, whatever happens to it on the way."""
        for blow in self.blows:
            self._live(blow.fault if blow.how == "driver fault" else "", blow)
            if self.world.final(self.id):
                break
        else:
            self._live("", None)
        self.check()

    def _live(self, fault: str, blow: Blow | None) -> None:
        """Begin or take up the task, with a fault in its driver or keeper; strike; see it end."""
        self.lives += 1
        with self.world.engine(fault) as engine:
            self.world.prepare(engine, blow.fault if blow and blow.how == "keeper fault" else "")
            before = self._acknowledged() if self.id else {}
            if self.id:
                self._resume(engine)
            else:
                self.id = self.world.begin(engine, self.which)
            if blow is not None and not blow.fault:
                self._strike(engine, blow)
            ended = self.world.ended(engine, self.id)
            if ended.state is State.LOST:
                self.deaths += 1
            assert ended.state in (State.LOST, State.INTERRUPTED, State.SUCCEEDED, State.FAILED)
        never_twice(self.project, self.id)
        after = self._acknowledged()
        assert before.items() <= after.items(), "an end that was on the tape is gone, or another"

    def _resume(self, engine: BlockingEngine) -> None:
        if self._rng.random() < 0.1:
            self._resume_twice(engine)
            return
        _, sock = engine.resume(self.id, False)
        sock.close()

    def _resume_twice(self, engine: BlockingEngine) -> None:
        """Two take it up at once: one of them does, and the other is told."""
        results: list[TenutoError | None] = []
        gate = threading.Barrier(2)

        def take_up(own: BlockingEngine) -> None:
            gate.wait(PATIENCE)
            try:
                _, sock = own.resume(self.id, False)
                sock.close()
                results.append(None)
            except TenutoError as error:
                results.append(error)

        with self.world.engine("") as other:
            beside = threading.Thread(target=take_up, args=(other,))
            beside.start()
            take_up(engine)
            beside.join(PATIENCE)
        won = results.count(None)
        assert len(results) == 2 and won >= 1, results
        assert all(one is None or isinstance(one, (NotRunning, NotFinished)) for one in results)

    # Blows

    def _strike(self, engine: BlockingEngine, blow: Blow) -> None:
        self._await(engine, blow)
        if blow.how in ("interrupt", "interrupts"):
            self._interrupt(engine, 2 if blow.how == "interrupts" else 1)
        elif blow.how == "checkpoint":
            self._checkpoint(engine)
        elif blow.how == "frozen":
            self._freeze(engine)
        else:
            names = ("driver", "keeper") if blow.how == "both" else (blow.how,)
            self._kill(names, self._rng.random() < 0.5)

    def _await(self, engine: BlockingEngine, blow: Blow) -> None:
        """Return when it is time, or when there is nothing left to wait for."""
        limit = time.monotonic() + (blow.seconds if blow.events < 0 else 20.0)
        seen = 0
        resumes = self.lives - 1
        with engine.watch(self.id) as watch:
            while True:
                for frame in watch.look():
                    if frame.stream == EVENT:
                        resumes -= b'"type":"resumed"' in frame.body
                        seen += resumes <= 0
                left = limit - time.monotonic()
                enough = 0 <= blow.events <= seen
                asks = watch.execution.waiting_for is not None
                if enough or left <= 0 or watch.over or asks:
                    return
                sleep(watch, left)

    def _interrupt(self, engine: BlockingEngine, times: int) -> None:
        def once() -> None:
            with contextlib.suppress(NotRunning):
                found = engine.interrupt(self.id)
                assert found.done, found.state

        threads = [threading.Thread(target=once) for _ in range(times - 1)]
        for one in threads:
            one.start()
        once()
        for one in threads:
            one.join(PATIENCE)

    def _checkpoint(self, engine: BlockingEngine) -> None:
        from tenuto.engine.saved import checkpoint, checkpoints_of

        found = checkpoint(engine, self.id)
        state = decode_state(Path(found.path).read_bytes())
        assert state.id == self.id
        if found.seq >= 0:
            assert found.seq in [one.seq for one in checkpoints_of(engine, self.id)]

    def _freeze(self, engine: BlockingEngine) -> None:
        """Stop the driver for good, and take over from it."""
        if not self._signal("driver", signal.SIGSTOP):
            return
        try:
            _, sock = engine.resume(self.id, True)
        except (NotRunning, NotFinished):  # it came to its end before it was stopped
            self._signal("driver", signal.SIGCONT)
            return
        sock.close()
        self.deaths += 1

    def _kill(self, names: tuple[str, ...], reverse: bool) -> None:
        for name in reversed(names) if reverse else names:
            self._signal(name, signal.SIGKILL)

    def _signal(self, name: str, number: int) -> bool:
        """Send a signal to the driver or the keeper of its last life, if that is there."""
        started = folded(self.project, self.id).started
        if started is None:
            return False
        pid, start = (
            (started.pid, started.pid_start)
            if name == "driver"
            else (started.keeper_pid, started.keeper_start)
        )
        if not pid or procfs.start_time(pid) != start:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    # What must hold

    def _acknowledged(self) -> dict[str, tuple[str, str]]:
        """Return the steps that have ended for good, and how."""
        steps = progress(self.project, self.id).steps
        return {name: (one.status, one.output) for name, one in steps.items() if not one.open}

    def check(self) -> None:
        """Assert that it came to what the uninterrupted one did."""
        whole = self.world.wholes[self.which]
        again = self.world.shown(self.id)
        found, expected = essence(again), essence(whole)
        other = {
            name: (found[name], expected[name]) for name in found if found[name] != expected[name]
        }
        assert not other, other
        ordered(self.project, self.id)
        self._check_counts()
        folder = Path(self.project.folder(self.id))
        state = decode_state((folder / "state.json").read_bytes())
        assert state.status == again.state
        assert {one.id: one.output for one in state.results} == {
            one["id"]: one["output"] for one in value(again)["steps"]
        }
        unfinished = [name for name in os.listdir(folder) if name.endswith((".new", ".prev"))]
        assert not unfinished, unfinished
        assert not marked_processes([self.id])

    def _check_counts(self) -> None:
        lines = self.world.lines(self.id)
        completed = [one for one in value(self.world.shown(self.id))["steps"] if one["output"]]
        began = Counter(
            one["step"]
            for one in tape_events(self.project, self.id)
            if one["type"] == "step_started"
        )
        with contextlib.closing(Ledger(self.project.home)) as ledger:
            for one in value(self.world.shown(self.id))["steps"]:
                step = one["id"]
                spend = ledger.spend(self.id, step)
                used, counted = lines[f"use {step}"], lines[f"counted {step}"]
                assert counted <= spend.requests <= used, (step, spend, lines)
                assert spend.tokens.input == spend.requests * counted_runner.TOKENS[0]
                assert one["tokens_in"] == spend.tokens.input, (step, one, spend)
        for one in completed:
            step = one["id"]
            assert lines[f"end {step}"] >= 1
            # without a crash nothing is in doubt: each end was told, and each beginning
            if not self.deaths:
                assert lines[f"end {step}"] == 1, lines
                assert lines[f"begin {step}"] <= began[step], (lines, began)
            assert lines[f"end {step}"] <= 1 + self.deaths, lines


def essence(snapshot: Snapshot) -> dict[str, Any]:
    """Return what a task came to, without what may differ from run to run."""
    document = value(snapshot)
    steps = {one["id"]: _essence(one) for one in document["steps"]}
    return {
        "state": snapshot.state, "reason": snapshot.reason, "detail": snapshot.detail,
        **{name: document[name] for name in ("status", "success", "strategy", "output")},
        "warnings": document["warnings"],
        "steps": steps,
    }  # fmt: skip


def _essence(step: dict[str, Any]) -> dict[str, Any]:
    names = ["id", "status", "role", "runtime", "output"]
    # which failure comes first, of several that a step was skipped for, is chance
    names += ["error"] if step["status"] != "skipped_dependency_failed" else []
    return {name: step[name] for name in names}


def ordered(project: Project, execution_id: str) -> None:
    """Assert that no step began before what it waits for was completed."""
    plan = progress(project, execution_id).plan
    assert plan is not None
    waits = {step.id: set(step.depends_on) for step in plan.steps}
    done: set[str] = set()
    for event in tape_events(project, execution_id):
        if event["type"] == "step_finished" and event["status"] == "completed":
            done.add(event["step"])
        elif event["type"] == "step_started":
            assert waits[event["step"]] <= done, f"{event['step']} began too early"


class World:
    """A project with some tasks that came to their end undisturbed, to compare with."""

    def __init__(self, folder: Path, project: Project, seed: int, kinds: int) -> None:
        (folder / "tenuto.toml").write_text(SETTINGS)
        self.project = project
        self.seed = seed
        self.shapes = shapes(random.Random(f"{seed}/shapes"), kinds)
        self.wholes: list[Snapshot] = []
        self.rounds = self.lives = self.deaths = 0
        self.hows: Counter[str] = Counter()
        self._settings, _ = load_settings(project.root, os.environ)
        self._failed: list[str] = []

    @contextlib.contextmanager
    def engine(self, fault: str):
        """An engine of a thread's own, whose drivers have that fault."""
        environ = {**os.environ, **({"TENUTO_FAULT": fault} if fault else {})}
        engine = BlockingEngine(self.project, self._settings, FreshLauncher(), environ)
        try:
            yield engine
        finally:
            engine.close()

    def prepare(self, engine: BlockingEngine, fault: str) -> None:
        """Have the next keeper started, with that fault; it learns of it from our own environment."""
        assert isinstance(engine.launcher, FreshLauncher)
        with _SPAWNING:
            if fault:
                os.environ["TENUTO_FAULT"] = fault
            try:
                engine.launcher.prepare()
            finally:
                os.environ.pop("TENUTO_FAULT", None)

    def begin(self, engine: BlockingEngine, which: int) -> str:
        shape = self.shapes[which]
        wanted = task_spec(shape.text, plan=shape.plan, strategy=shape.strategy)
        work = task_work(engine, checked(engine, wanted), Options(detached=True))
        execution_id, sock = engine.start(work)
        sock.close()
        return execution_id

    def ended(self, engine: BlockingEngine, execution_id: str) -> Snapshot:
        """Wait for the end of a life; whatever is asked on the way is approved."""
        limit = time.monotonic() + PATIENCE
        while True:
            snapshot = engine.wait(execution_id, limit - time.monotonic())
            if snapshot.done:
                return snapshot
            assert time.monotonic() < limit, f"it does not end: {snapshot.state}"
            with contextlib.suppress(NothingAsked, NotRunning):  # taken back, or ended
                decide(engine, execution_id, True)

    def final(self, execution_id: str) -> bool:
        return folded(self.project, execution_id).state in (State.SUCCEEDED, State.FAILED)

    def shown(self, execution_id: str) -> Snapshot:
        with self.engine("") as engine:
            return engine.show(execution_id)

    def lines(self, execution_id: str) -> Counter[str]:
        path = Path(os.environ["TENUTO_TEST_COUNTS"], execution_id, "lines")
        return Counter(path.read_text().splitlines())

    # Many

    def compare(self, rounds: range, budget_s: float, lanes: int = 3) -> int:
        """Run every shape undisturbed, then the rounds, some at once; return how many there were."""
        with ThreadPoolExecutor(lanes) as pool:
            self.wholes = list(pool.map(self._whole, range(len(self.shapes))))
        limit = time.monotonic() + budget_s
        waiting = iter(rounds)
        taking = threading.Lock()

        def lane() -> None:
            while time.monotonic() < limit and len(self._failed) < _FAILED_MOST:
                with taking:
                    number = next(waiting, None)
                if number is None:
                    return
                self._round(number)

        threads = [threading.Thread(target=lane) for _ in range(lanes)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert not self._failed, "\n\n".join(self._failed)
        return self.rounds

    def _whole(self, which: int) -> Snapshot:
        with self.engine("") as engine:
            self.prepare(engine, "")
            execution_id = self.begin(engine, which)
            self.ended(engine, execution_id)
            return engine.show(execution_id)

    def _round(self, number: int) -> None:
        one = Round(self, number)
        try:
            one.play()
        except BaseException as error:
            import traceback

            self._failed.append(f"{one}\n{''.join(traceback.format_exception(error))}")
            print(f"\n{self._failed[-1]}", flush=True)
        self.rounds += 1
        self.lives += one.lives
        self.deaths += one.deaths
        self.hows.update(blow.how for blow in one.blows)
