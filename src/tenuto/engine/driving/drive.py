"""The driver: starts each step the moment nothing holds it back, and records each as it ends.

What it knows of the past is the fold of its tape, so that it can begin at any point of it: a plan that
is there is not made again, a step that has ended is not run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from functools import partial

import msgspec

from tenuto.core.budget import Tokens
from tenuto.core.errors import TenutoError
from tenuto.core.plan import Plan, Step
from tenuto.core.progress import Progress, StepProgress
from tenuto.core.task_events import (
    PlanExtended,
    Planned,
    StepFinished,
    StepStatus,
    TaskFinished,
    Warned,
)
from tenuto.engine.driving.asking import Desk, Withdrawn
from tenuto.engine.driving.printing import Printer
from tenuto.engine.driving.teller import Teller
from tenuto.keeper.faults import point

_OUTPUT_MOST = 2 * 1024 * 1024

Counted = tuple[Tokens, Decimal | None]
Planner = Callable[[], tuple[str, Plan, str]]
"""Returns the strategy's name, its plan, and why that one."""
Gate = Callable[[], Awaitable[None]]
"""Returns once all that a step builds on is safe on disk; it may be prepared before, not begun."""
Walk = Callable[[Step, Gate], Awaitable[StepFinished]]
"""Runs one step to its end and tells how it ended; the end is recorded by the driver."""
Extend = Callable[[Plan, Step, str], tuple[tuple[Step, ...], Warned | None]]
"""Returns the steps that a review calls for, if any, or what is to be said about it."""


class _Unbegun(Exception):
    """The task is stopped before this step has begun: nothing is to be said about it."""


class Driver:
    """Takes a plan to its end."""

    def __init__(
        self,
        teller: Teller,
        desk: Desk,
        printer: Printer,
        planner: Planner,
        extend: Extend,
        finish: Callable[[], Awaitable[list[str]]],
        counted: Callable[[StepProgress], Counted] = lambda one: (one.tokens, one.cost),
    ) -> None:
        """Take the line to the tape, who makes the plan, and what is to be done after the last step.

        `counted` says what a step had spent that was cut short, and is not to be run again.
        """
        self._teller = teller
        self._desk = desk
        self._printer = printer
        self._planner = planner
        self._extend = extend
        self._finish = finish
        self._counted = counted
        self._walking: set[str] = set()
        self._unsafe: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()  # nothing runs any more, or something cannot go on
        self._fault: BaseException | None = None
        self._start: Callable[[], None] = lambda: None
        self.stopping = self._over = False

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self._teller.progress

    async def run(self, walk: Walk, concurrency: int) -> str:
        """Drive until nothing is left to do, or until it is stopped; return the task's status."""
        if self.progress.plan is None:
            strategy, plan, reason = self._planner()
            point("driver-planning")
            await self._teller.safe(Planned(strategy=strategy, plan=plan, reason=reason))
            point("driver-planned")
        plan = self.progress.plan
        assert plan is not None
        self._desk.void_old()
        await self._mend()
        self._printer.several = len(plan.steps) > 1
        most = plan.concurrency or concurrency
        await self._take_up()
        self._start = lambda: self._start_ready(walk, most)
        self._start()
        while self._tasks and self._fault is None:  # each starts those that waited for it
            self._news.clear()
            await self._news.wait()
        if self._fault is not None:
            raise self._fault
        stopped = self.stopping and not self.progress.done
        for problem in await self._finish() if not stopped else ():
            self._printer.note(f"warning: {problem}")
            self._teller.tell(Warned(about="worktree", text=problem))
        status = "interrupted" if stopped and not self._over else self.progress.status
        await self._teller.safe(self._summary(status))
        return status

    def _start_ready(self, walk: Walk, most: int) -> None:
        if self.stopping:
            return
        for step in self.progress.ready():
            if len(self._walking) >= most:
                return
            if step.id not in self._walking:
                self._run(step, partial(self._guarded, walk, step))

    def _run(self, step: Step, walk: Callable[[], Awaitable[StepFinished | None]]) -> None:
        """Take a step to its end and to the tape, beside the others: what ends at once syncs at once."""
        self._walking.add(step.id)

        async def whole() -> None:
            try:
                finished = await walk()
            finally:
                self._walking.discard(step.id)
            if finished is not None:
                await self._ended(finished)

        task = asyncio.create_task(whole())
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fault = self._fault or task.exception()
        if self._fault is not None or not self._tasks:
            self._news.set()

    async def _gate(self, step: Step) -> None:
        """Return once what a step builds on is safe; unless the task stops before that."""
        for name in step.depends_on:
            if name in self._unsafe:
                try:
                    await self._unsafe[name]
                except TenutoError:  # the step that it is about tells of it
                    raise _Unbegun from None
        if self.stopping:
            raise _Unbegun

    async def _guarded(self, walk: Walk, step: Step) -> StepFinished | None:
        """Run a step; whatever goes wrong in it is its own failure, not the end of the others.

        Of one that is being stopped it is no failure: an interrupt reaches processes that are only
        being started, too, and what comes of that says nothing about the step.
        """
        try:
            return await walk(step, lambda: self._gate(step))
        except _Unbegun:
            return None
        except Withdrawn:
            return self._cut_short(step, "the task was stopped before somebody decided")
        except TenutoError as error:
            text, kind = str(error), str(getattr(error, "kind", error.code))
        except Exception as error:
            text = f"a defect in the driver: {type(error).__name__}: {error}"
            kind = "engine_fault"
        return self._cut_short(step, text, kind, "interrupted" if self.stopping else "failed")

    def _cut_short(
        self, step: Step, error: str, kind: str = "", status: StepStatus = "interrupted"
    ) -> StepFinished:
        """Return the end of a step that says nothing itself, with all that is known of it."""
        one = self.progress.steps[step.id]
        return StepFinished(
            step=step.id, status=status, attempt=one.attempt, error=error, kind=kind,
            session=one.session, runtime=one.runtime, role=one.role, model=one.model,
            tokens=one.tokens, cost=one.cost, unmetered=one.unmetered,
        )  # fmt: skip

    async def _ended(self, finished: StepFinished) -> None:
        """Record the end of a step with what follows from it; nothing builds on it before it is safe.

        While the disk is at it, the next steps are prepared.
        """
        step = self.progress.steps[finished.step].step
        events = (finished, *self._following(step, finished.status, finished.output))
        point("driver-step-ended")
        safe = self._teller.safe(*events)
        self._unsafe[finished.step] = safe
        safe.add_done_callback(lambda _: self._saved(finished.step, safe))
        self._start()
        await safe
        point("driver-step-safe")

    def _saved(self, name: str, safe: asyncio.Future[None]) -> None:
        if not safe.cancelled() and safe.exception() is None:
            self._unsafe.pop(name, None)

    def _following(
        self, step: Step, status: StepStatus, output: str
    ) -> list[StepFinished | PlanExtended | Warned]:
        """Return what follows from the end of a step: another round, or that others are skipped."""
        assert self.progress.plan is not None
        if status == "completed" and step.reviews is not None:
            more, remark = self._extend(self.progress.plan, step, output)
            if remark is not None and remark.text not in self.progress.warnings:
                self._printer.note(f"warning: {remark.text}")
                return [remark]
            return [PlanExtended(steps=more, because=f"{step.id} sent it back")] if more else []
        if status != "failed":
            return []
        why = f"{step.id} failed"
        return [
            StepFinished(step=name, status="skipped_dependency_failed", error=why)
            for name in self.progress.doomed(step.id)
        ]

    async def _mend(self) -> None:
        """Record what follows from ends on the tape, where it was cut off right behind them."""
        steps, seen = self.progress.steps, set[str]()
        while new := [name for name in steps if name not in seen]:  # a round may bring others back
            for name in new:
                one = steps[name]
                again = self.progress.is_reviewed_again(name)
                for event in [] if again else self._following(one.step, one.status, one.output):
                    await self._teller.safe(event)
            seen.update(new)

    async def _take_up(self) -> None:
        """Deal with the steps that were under way when this task last stopped, as each one says."""
        for one in self.progress.in_flight():
            fate = one.step.in_flight
            if fate == "ask":
                text = f"step {one.step.id} was cut short, part of it may be done: run it again?"
                try:
                    decided = await self._desk.ask("step", text, one.step.id)
                except Withdrawn:  # whoever takes the task up again is asked again
                    return
                fate = "retry" if decided.allow else "skip"
            if fate == "retry":
                self._teller.tell(self._cut_short(one.step, "it was cut short", "unknown"))
            else:
                text = "it was cut short, and is not to be run again"
                end = self._cut_short(one.step, text, "unknown", "failed")
                tokens, cost = self._counted(one)
                end = msgspec.structs.replace(end, tokens=tokens, cost=cost)
                self._run(one.step, partial(_known, end))

    def stop(self, over: bool = False) -> None:
        """Start nothing more; `over` says that this is the task's end, and none to go on from."""
        self.stopping = True
        self._over = self._over or over

    def _summary(self, status: str) -> TaskFinished:
        progress = self.progress
        return TaskFinished(
            status=status,  # pyright: ignore[reportArgumentType]
            output=aggregated(progress),
            tokens=progress.tokens,
            cost=progress.cost,
            steps={name: one.status for name, one in progress.steps.items()},
        )


async def _known(end: StepFinished) -> StepFinished:
    return end


def aggregated(progress: Progress) -> str:
    """Return all outputs in the order of the dependencies; one alone stands for itself."""
    done = [one for one in progress.in_order() if one.status == "completed"]
    if len(progress.steps) == 1:
        return done[0].output if done else ""
    whole = "\n\n".join(
        f"=== {one.step.id}{f' ({one.role})' if one.role else ''} ===\n{one.output}" for one in done
    )
    if len(whole) <= _OUTPUT_MOST:
        return whole
    return f"{whole[:_OUTPUT_MOST]}\n\n(cut here: the steps' own outputs are complete)"
