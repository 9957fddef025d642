"""The fold of a task's events: readiness, skipping, order, further rounds; and the driver over it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.core.budget import Tokens
from tenuto.core.plan import Plan, Step, check_plan
from tenuto.core.progress import Progress
from tenuto.core.rounds import extended, round_of
from tenuto.core.task_events import PlanExtended, Planned, StepFinished, StepStarted, TaskEvent
from tenuto.engine.driving.asking import Desk
from tenuto.engine.driving.drive import Driver, Walk, aggregated
from tenuto.engine.driving.printing import Printer
from tenuto.engine.driving.teller import Teller
from tenuto.engine.strategies import extend

settings.register_profile("tasks", deadline=None, max_examples=80)
settings.load_profile("tasks")


class Memory:
    """Stands in for the line to a keeper: what is told is kept, and folded."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.events: list[TaskEvent] = []
        self.safe_calls = 0

    def tell(self, *events: TaskEvent) -> None:
        for event in events:
            self.events.append(event)
            self.progress.apply(event)

    def safe(self, *events: TaskEvent) -> asyncio.Future[None]:
        self.safe_calls += 1
        self.tell(*events)
        return asyncio.ensure_future(asyncio.sleep(0))

    def wait_for(self, on: str, detail: str) -> None: ...

    def go_on(self) -> None: ...


def driver(memory: Any, plan: Plan, extend: Any = lambda *_: ((), None)) -> Driver:
    async def finish() -> list[str]:
        return []

    planner = lambda: ("given", plan, "a test")  # noqa: E731
    return Driver(memory, Desk(memory), Printer(False), planner, extend, finish)


def run(
    plan: Plan, walk: Callable[[Step], Awaitable[StepFinished]], concurrency: int = 4, **more: Any
) -> tuple[str, Memory]:
    memory = Memory()
    return asyncio.run(driver(memory, plan, **more).run(behind(walk), concurrency)), memory


def behind(walk: Callable[[Step], Awaitable[StepFinished]]) -> Walk:
    """Return a walk that has nothing to prepare."""

    async def gated(step: Step, gate: Callable[[], Awaitable[None]]) -> StepFinished:
        await gate()
        return await walk(step)

    return gated


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Plan, frozenset[str]]:
    """A plan without cycles, its steps in any order, and the steps that will fail."""
    count = draw(st.integers(1, 14))
    names = [f"s{n}" for n in range(count)]
    steps = [
        Step(
            id=name, task="do it",
            depends_on=tuple(draw(st.lists(st.sampled_from(names[:n]), unique=True)) if n else ()),
        )
        for n, name in enumerate(names)
    ]  # fmt: skip
    failing = draw(st.frozensets(st.sampled_from(names), max_size=3))
    return Plan(steps=tuple(draw(st.permutations(steps)))), failing


@pytest.mark.promise("G2")
@given(graphs(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_every_graph_ends_as_its_edges_say(
    graph: tuple[Plan, frozenset[str]], concurrency: int, random: Any
) -> None:
    plan, failing = graph
    check_plan(plan)
    steps = {step.id: step for step in plan.steps}
    done: list[str] = []
    running: set[str] = set()
    most = 0

    async def walk(step: Step) -> StepFinished:
        nonlocal most
        assert step.id not in done and step.id not in running, "a step runs once"
        assert all(other in done for other in step.depends_on), "not before what it waits for"
        running.add(step.id)
        most = max(most, len(running))
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        running.discard(step.id)
        if step.id in failing:
            return StepFinished(step=step.id, status="failed", error="no")
        done.append(step.id)
        return StepFinished(step=step.id, status="completed", output=f"out {step.id}")

    status, memory = run(plan, walk, concurrency)
    assert most <= concurrency
    doomed: set[str] = set()
    for name in (f"s{n}" for n in range(len(steps))):
        if any(other in doomed or other in failing for other in steps[name].depends_on):
            doomed.add(name)
    expected = {
        name: "skipped_dependency_failed" if name in doomed
        else "failed" if name in failing else "completed"
        for name in steps
    }  # fmt: skip
    assert {name: one.status for name, one in memory.progress.steps.items()} == expected
    good = sum(one == "completed" for one in expected.values())
    assert status == ("completed" if good == len(steps) else "partial" if good else "failed")
    order = [one.step.id for one in memory.progress.in_order()]
    assert sorted(order) == sorted(steps)
    for name in order:
        assert all(order.index(other) < order.index(name) for other in steps[name].depends_on)
    refolded = Progress()
    for event in memory.events:
        refolded.apply(event)
    assert {n: o.status for n, o in refolded.steps.items()} == expected


@pytest.mark.promise("D2")
def test_a_drivers_last_words_go_out_whole_however_slowly_they_are_read() -> None:
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least that there is
    read = bytearray()
    go_on = threading.Event()

    def slowly() -> None:
        with far:
            while part := far.recv(1000):
                read.extend(part)
                if len(read) > 1_990_000:  # the rest is less than what makes a writer wait
                    go_on.wait(60)

    async def speak() -> None:
        teller = Teller(near, Progress())
        await teller.open()
        teller.value(lambda _: "x" * 2_000_000)
        teller.outcome("succeeded")
        closing = asyncio.create_task(teller.close())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done(), "it is not said yet"
        go_on.set()
        await closing

    reader = threading.Thread(target=slowly)
    reader.start()
    try:
        asyncio.run(speak())
    finally:
        go_on.set()
        reader.join(60)
    assert not reader.is_alive()
    assert json.loads(read.splitlines()[-1])["state"] == "succeeded"


@pytest.mark.promise("G2")
def test_a_slow_sibling_holds_nobody_up() -> None:
    """No barrier: c starts when b is done, while a still runs."""
    release = asyncio.Event()
    plan = Plan(
        steps=(Step("a", "x"), Step("b", "x"), Step("c", "x", depends_on=("b",)),)
    )  # fmt: skip

    async def walk(step: Step) -> StepFinished:
        if step.id == "a":
            await release.wait()
        if step.id == "c":
            release.set()
        return StepFinished(step=step.id, status="completed")

    status, _ = run(plan, walk)
    assert status == "completed"


@pytest.mark.promise("G2")
def test_a_defect_in_one_step_is_its_own_failure() -> None:
    plan = Plan(steps=(Step("a", "x"), Step("b", "x"), Step("c", "x", depends_on=("a",))))

    async def walk(step: Step) -> StepFinished:
        if step.id == "a":
            raise RuntimeError("oh")
        return StepFinished(step=step.id, status="completed", output="fine")

    status, memory = run(plan, walk)
    assert status == "partial"
    assert "RuntimeError: oh" in memory.progress.steps["a"].error
    assert memory.progress.steps["c"].status == "skipped_dependency_failed"
    assert aggregated(memory.progress) == "=== b ===\nfine"


@pytest.mark.promise("D3")
def test_what_has_ended_is_not_run_again_and_what_was_cut_short_is() -> None:
    plan = Plan(steps=(Step("a", "x"), Step("b", "x"), Step("c", "x", depends_on=("a", "b"))))
    memory = Memory()
    memory.tell(
        Planned(strategy="parallel", plan=plan),
        StepStarted(step="a", attempt=1, runtime="echo"),
        StepStarted(step="b", attempt=1, runtime="echo"),
        StepFinished(step="a", status="completed", output="kept", cost=Decimal("0.5")),
    )
    seen: list[str] = []

    async def walk(step: Step) -> StepFinished:
        seen.append(step.id)
        return StepFinished(step=step.id, status="completed", tokens=Tokens(1, 2))

    made = driver(memory, Plan(steps=(Step("never", "x"),)))
    assert asyncio.run(made.run(behind(walk), 4)) == "completed"
    assert seen == ["b", "c"]
    assert memory.progress.steps["a"].output == "kept"
    assert (memory.progress.cost, memory.progress.tokens) == (Decimal("0.5"), Tokens(2, 4))


@pytest.mark.promise("D3", "D5")
def test_what_follows_from_a_review_is_made_up_for_once() -> None:
    """Its end is on the tape, the further round that it asked for is not; or is, and is not repeated."""
    plan = Plan(
        steps=(
            Step("dev", "x"),
            Step("rev", "x", depends_on=("dev",), reviews="dev", rounds=1),
            Step("ship", "x", depends_on=("rev",)),
        )
    )
    memory = Memory()
    memory.tell(
        Planned(strategy="parallel", plan=plan),
        StepFinished(step="dev", status="completed"),
        StepFinished(step="rev", status="completed", output="Verdict: send back"),
    )
    seen: list[str] = []

    async def walk(step: Step) -> StepFinished:
        seen.append(step.id)
        output = "Verdict: approve" if step.id == "rev.2" else "fine"
        return StepFinished(step=step.id, status="completed", output=output)

    def further(plan: Plan, step: Step, output: str) -> tuple[tuple[Step, ...], None]:
        return extend(plan, step, output, round_of(plan, step)), None

    for _ in range(2):
        assert asyncio.run(driver(memory, plan, further).run(behind(walk), 4)) == "completed"
        assert seen == ["dev.2", "rev.2", "ship"]


@pytest.mark.promise("D3", "D5")
@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)])
def test_a_damaged_tape_without_some_rounds_has_them_again_and_runs_nothing_twice(
    lost: tuple[int, ...],
) -> None:
    """What ended in a round that is not known, or behind it, is done all the same."""
    first = Plan(
        steps=(
            Step("dev", "x"),
            Step("rev", "x", depends_on=("dev",), reviews="dev", rounds=2),
            Step("ship", "x", depends_on=("rev",)),
            Step("last", "x", depends_on=("ship",)),
        )
    )
    back = "Verdict: send back"
    plan = first
    events: list[TaskEvent] = [Planned(strategy="parallel", plan=first)]
    for number, name in enumerate(("rev", "rev.2")):
        step = next(one for one in plan.steps if one.id == name)
        events.append(StepFinished(step=str(step.reviews), status="completed"))
        events.append(StepFinished(step=name, status="completed", output=back))
        more = extend(plan, step, back, round_of(plan, step))
        plan = extended(plan, more)
        if number not in lost:
            events.append(PlanExtended(steps=more))
    events.append(StepFinished(step="dev.3", status="completed"))
    events.append(StepFinished(step="rev.3", status="completed", output="Verdict: approve"))
    events.append(StepFinished(step="ship", status="completed"))
    memory = Memory()
    memory.tell(*events)
    seen: list[str] = []

    async def walk(step: Step) -> StepFinished:
        seen.append(step.id)
        return StepFinished(step=step.id, status="completed")

    def further(plan: Plan, step: Step, output: str) -> tuple[tuple[Step, ...], None]:
        return extend(plan, step, output, round_of(plan, step)), None

    assert asyncio.run(driver(memory, first, further).run(behind(walk), 4)) == "completed"
    assert seen == ["last"]
    again = Progress()  # and whoever reads the tape after that sees the same
    planned = [one for one in memory.events if isinstance(one, (Planned, PlanExtended))]
    for event in (*memory.events, *planned):  # though two put back what was lost
        again.apply(event)
    assert again.done and set(again.steps) == {one.id for one in plan.steps}


@pytest.mark.promise("D5")
def test_ends_of_steps_are_kept_where_the_plan_before_them_is_lost() -> None:
    memory = Memory()
    memory.tell(
        StepStarted(step="a", attempt=1, runtime="echo"),
        StepFinished(step="a", status="completed", output="kept"),
    )
    seen: list[str] = []

    async def walk(step: Step) -> StepFinished:
        seen.append(step.id)
        return StepFinished(step=step.id, status="completed")

    plan = Plan(steps=(Step("a", "x"), Step("b", "x", depends_on=("a",))))
    assert asyncio.run(driver(memory, plan).run(behind(walk), 4)) == "completed"
    assert seen == ["b"] and memory.progress.steps["a"].output == "kept"


@pytest.mark.promise("D3")
def test_a_stop_starts_nothing_more() -> None:
    plan = Plan(steps=(Step("a", "x"), Step("b", "x", depends_on=("a",))))
    memory = Memory()
    made = driver(memory, plan)

    async def walk(step: Step) -> StepFinished:
        made.stop()
        return StepFinished(step=step.id, status="completed")

    assert asyncio.run(made.run(behind(walk), 4)) == "interrupted"
    assert memory.progress.steps["b"].status == "pending"


@pytest.mark.promise("G1")
def test_a_reviewer_sends_back_and_those_behind_it_wait_for_the_last_review() -> None:
    plan = Plan(
        steps=(
            Step("dev", "x"),
            Step("rev", "x", depends_on=("dev",), reviews="dev"),
            Step("ship", "x", depends_on=("rev",)),
        )
    )
    order: list[str] = []

    async def walk(step: Step) -> StepFinished:
        order.append(step.id)
        output = "SEND BACK" if step.id == "rev" else "fine"
        return StepFinished(step=step.id, status="completed", output=output)

    def extend(_: Plan, __: Step, output: str) -> Any:
        if output != "SEND BACK":
            return (), None
        more = (
            Step("dev.2", "again", depends_on=("dev", "rev"), continues="dev"),
            Step("rev.2", "again", depends_on=("dev.2", "rev"), reviews="dev.2", continues="rev"),
        )
        return more, None

    status, memory = run(plan, walk, extend=extend)
    assert status == "completed"
    assert order == ["dev", "rev", "dev.2", "rev.2", "ship"]
    assert sum(isinstance(one, PlanExtended) for one in memory.events) == 1


@pytest.mark.promise("G2")
def test_a_thousand_steps_are_each_looked_at_a_few_times_only() -> None:
    steps = tuple(Step(f"s{n}", "x", depends_on=(f"s{n - 1}",) if n else ()) for n in range(1000))

    async def walk(step: Step) -> StepFinished:
        return StepFinished(step=step.id, status="completed")

    status, memory = run(Plan(steps=steps), walk)
    assert status == "completed"
    assert memory.safe_calls == 1002  # the plan, each step once, and the end
