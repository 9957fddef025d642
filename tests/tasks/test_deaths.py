"""The driver over its fold alone, in thousands of lives: cut short anywhere, it comes to the same.

Real processes die in test_task_schedules.py. Here a life ends in the middle of telling, and what was
told and not synced is lost from some point on, as a power cut would have it.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_progress import Memory, behind, driver, graphs

from tenuto.core.errors import EngineFault
from tenuto.core.plan import Plan, Step
from tenuto.core.rounds import round_of
from tenuto.core.task_events import Planned, StepFinished, StepStarted, TaskEvent, TaskFinished
from tenuto.engine.driving.drive import Driver, aggregated
from tenuto.engine.strategies import extend

many = settings(deadline=None, max_examples=100)
thousands = settings(deadline=None, max_examples=2000)


class Death(BaseException):
    """What ends a life: nothing catches it."""


class Mortal(Memory):
    """A line that breaks after so many events; `synced` of them are safe by then."""

    def __init__(self, events: list[TaskEvent], left: int) -> None:
        super().__init__()
        super().tell(*events)
        self.synced = len(events)
        self._left = left

    def tell(self, *events: TaskEvent) -> None:
        for event in events:
            if self._left <= 0:
                raise Death
            self._left -= 1
            super().tell(event)

    def safe(self, *events: TaskEvent) -> asyncio.Future[None]:
        self.tell(*events)
        return asyncio.ensure_future(self._sync(len(self.events)))

    async def _sync(self, upto: int) -> None:
        await asyncio.sleep(0)
        self.synced = max(self.synced, upto)
        if self._left <= 0:
            raise Death


def answer(steps: Any, step: Step, failing: frozenset[str]) -> StepFinished:
    """Return an end that depends on what came before alone."""
    if step.id in failing:
        return StepFinished(step=step.id, status="failed", error="no")
    told = "+".join(f"{name}({steps[name].output})" for name in sorted(step.depends_on))
    output = f"{step.id}<{told}>"
    if step.reviews is not None:
        output += f"\n\nVerdict: {'approve' if step.id.endswith('.2') else 'send back'}"
    return StepFinished(step=step.id, status="completed", output=output)


def further(plan: Plan, step: Step, output: str) -> tuple[tuple[Step, ...], None]:
    return extend(plan, step, output, round_of(plan, step)), None


@st.composite
def works(draw: st.DrawFn) -> tuple[Plan, frozenset[str]]:
    """A graph, some of whose steps are reviews that send back once."""
    plan, failing = draw(graphs())
    steps: list[Step] = []
    reviewed: set[str] = set()
    for step in plan.steps:
        reviews = None
        free = [name for name in step.depends_on if name not in reviewed]
        if free and draw(st.booleans()):
            reviews = free[0]
            reviewed.update((reviews, step.id))
        steps.append(Step(step.id, step.task, step.depends_on, reviews=reviews, rounds=1))
    return Plan(tuple(steps)), failing


def live(
    memory: Mortal, plan: Plan, failing: frozenset[str], concurrency: int, stop_at: int, pauses: Any
) -> str:
    """Drive until the end, a death ("") or a stop; assert that nothing runs that must not."""
    made: Driver = driver(memory, plan, further)
    ended = {name for name, one in memory.progress.steps.items() if not one.open}
    began = 0

    async def walk(step: Step) -> StepFinished:
        nonlocal began
        known = memory.progress.steps
        assert step.id not in ended, "it had ended in an earlier life"
        assert all(known[name].status == "completed" for name in step.depends_on)
        began += 1
        if began == stop_at:
            made.stop()
        attempt = known[step.id].attempt + 1
        memory.tell(StepStarted(step=step.id, attempt=attempt, runtime="echo"))
        for _ in range(pauses.randrange(4)):
            await asyncio.sleep(0)
        if made.stopping and pauses.randrange(2):
            return StepFinished(step=step.id, status="interrupted", attempt=attempt)
        return answer(known, step, failing)

    async def whole() -> str:
        # of several steps that die at once, asyncio would complain about all but one
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        return await made.run(behind(walk), concurrency)

    try:
        return asyncio.run(whole())
    except Death:
        return ""


def lived(
    work: tuple[Plan, frozenset[str]], lives: list[tuple[int, int, int]], concurrency: int, rng: Any
) -> None:
    plan, failing = work
    whole = Memory()

    async def walk(step: Step) -> StepFinished:
        return answer(whole.progress.steps, step, failing)

    status = asyncio.run(driver(whole, plan, further).run(behind(walk), concurrency))
    events: list[TaskEvent] = []
    for left, stop_at, lost in [*lives, (10**9, 0, 0)]:
        memory = Mortal(events, left)
        found = live(memory, plan, failing, concurrency, stop_at, rng)
        kept = len(memory.events)
        if not found:
            kept = max(memory.synced, kept - lost)
        events = memory.events[:kept]
        if found not in ("", "interrupted"):
            break
    assert found == status
    again = Memory()
    again.tell(*events)
    assert _results(again) == _results(whole)
    # further rounds stand in the order in which the reviews ended
    assert sorted(aggregated(again.progress)) == sorted(aggregated(whole.progress))
    assert sum(isinstance(one, TaskFinished) for one in events) >= 1
    ends = _ends(events)
    assert len(ends) == len(set(ends)), "a step ended twice"


def _ends(events: list[TaskEvent]) -> list[str]:
    ends = [one for one in events if isinstance(one, StepFinished)]
    return [one.step for one in ends if one.status != "interrupted"]


def _results(memory: Memory) -> dict[str, tuple[str, str, str]]:
    """Return how each step ended; of several failures, any may be the one that it was skipped for."""
    return {
        name: (one.status, one.output, one.error if one.status == "failed" else "")
        for name, one in memory.progress.steps.items()
    }


LIVES = st.lists(
    st.tuples(st.integers(0, 25), st.integers(0, 6), st.integers(0, 6)), max_size=6
)  # how many events it tells, at which step it is stopped, how many unsynced events are lost


@many
@pytest.mark.promise("D3", "D2")
@given(works(), LIVES, st.integers(1, 4), st.integers(0, 1 << 32))
def test_lives_that_end_anywhere_come_to_the_same(
    work: tuple[Plan, frozenset[str]], lives: list[tuple[int, int, int]], most: int, seed: int
) -> None:
    lived(work, lives, most, random.Random(seed))


@pytest.mark.full
@pytest.mark.timeout(1200)
@thousands
@pytest.mark.promise("D3", "D2")
@given(works(), LIVES, st.integers(1, 4), st.integers(0, 1 << 32))
def test_thousands_of_lives_that_end_anywhere_come_to_the_same(
    work: tuple[Plan, frozenset[str]], lives: list[tuple[int, int, int]], most: int, seed: int
) -> None:
    lived(work, lives, most, random.Random(seed))


@pytest.mark.promise("D3", "D5")
def test_steps_behind_a_skipped_one_are_skipped_where_the_tape_was_cut_between_them() -> None:
    """What follows from one end is many records where many steps wait for it."""
    plan = Plan((Step("a", "x"), Step("b", "x", ("a",)), Step("c", "x", ("b",))))
    memory = Memory()
    memory.tell(
        Planned(strategy="parallel", plan=plan),
        StepFinished(step="a", status="failed", error="no"),
        StepFinished(step="b", status="skipped_dependency_failed", error="a failed"),
    )

    async def walk(step: Step) -> StepFinished:
        raise AssertionError(f"{step.id} can never begin")

    assert asyncio.run(driver(memory, plan).run(behind(walk), 4)) == "failed"
    assert memory.progress.steps["c"].status == "skipped_dependency_failed"


@pytest.mark.promise("D3")
def test_what_goes_wrong_while_a_task_is_stopped_is_no_failure_of_its_step() -> None:
    plan = Plan((Step("a", "x"), Step("b", "x", ("a",))))
    memory = Memory()
    first = driver(memory, plan)

    async def stopped(step: Step) -> StepFinished:
        first.stop()
        raise EngineFault("no keeper could be started: Broken pipe")

    assert asyncio.run(first.run(behind(stopped), 4)) == "interrupted"
    assert memory.progress.steps["a"].status == "interrupted"
    assert memory.progress.steps["b"].status == "pending"

    async def walk(step: Step) -> StepFinished:
        return StepFinished(step=step.id, status="completed")

    assert asyncio.run(driver(memory, plan).run(behind(walk), 4)) == "completed"
