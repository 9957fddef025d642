"""How far a task is: a fold over its events. The driver acts on nothing else, so it can be resumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal

from tenuto.core import task_events as ev
from tenuto.core.budget import Tokens
from tenuto.core.plan import Plan, Step
from tenuto.core.rounds import extended
from tenuto.core.task_events import StepStatus

_OF_STEPS = (ev.StepStarted, ev.StepSession, ev.StepSaid, ev.StepUsed, ev.StepFinished)
_NEVER_BEGAN: frozenset[StepStatus] = frozenset({"pending", "skipped_dependency_failed"})
_TROUBLE = ("model_failed", "retried")
_OPEN: frozenset[StepStatus] = frozenset({"pending", "running", "interrupted"})


class StepProgress:
    """One step, as far as the events tell."""

    def __init__(self, step: Step) -> None:
        """Begin before its first attempt."""
        self.step = step
        self.status: StepStatus = "pending"
        self.attempt = 0
        self.output = self.error = self.kind = ""
        self.runtime = self.role = self.model = self.session = self.reason = ""
        self.execution = self.branch = self.cwd = ""
        self.trouble = ""  # how its model failed it, while the runtime tries again by itself
        self.tokens = Tokens()
        self.cost: Decimal | None = None
        self.unmetered = False
        self.inherited = False  # done in the task that this one was forked from
        self.duration_s = 0.0
        self.ended_ns = 0
        self.missing: set[str] = set()

    @property
    def open(self) -> bool:
        """Something is still to be done for it."""
        return self.status in _OPEN


class Progress:
    """All steps and what is open; steps that are ready are found without looking at all of them."""

    def __init__(self) -> None:
        """Begin before the plan is known."""
        self.plan: Plan | None = None
        self.strategy = self.reason = ""
        self.steps: dict[str, StepProgress] = {}
        self.asked: dict[int, ev.Asked] = {}
        self.numbered = 0
        self.decisions: dict[int, ev.Decided] = {}
        self.warnings: list[str] = []
        self.fallbacks: list[ev.FellBack] = []
        self.finished: ev.TaskFinished | None = None
        self.ended = ""
        self.environment: ev.EnvironmentSeen | None = None
        self.versions: dict[str, str] = {}  # of runtimes, as they told them last
        self._dependents: dict[str, dict[str, None]] = {}
        self._ready: dict[str, None] = {}
        self._superseded: set[str | None] = set()
        self._early: list[tuple[ev.TaskEvent, int]] = []
        self._undone = False  # something was asked for beside the steps, and not reached

    def apply(self, event: ev.TaskEvent, time_ns: int = 0) -> None:
        """Take one event; of a step that no plan has told yet, once one does.

        That is so where a damaged tape has lost its plan: the next driver makes it anew.
        """
        if not isinstance(event, _OF_STEPS):
            self._of_task(event)
        elif event.step in self.steps:
            self._of_step(self.steps[event.step], event, time_ns)
        else:
            self._early.append((event, time_ns))

    def _of_step(self, one: StepProgress, event: ev.TaskEvent, time_ns: int) -> None:
        match event:
            case ev.StepStarted():
                self._started(one, event)
            case ev.StepSession():
                one.session, one.execution = event.session, event.execution
                if event.version:
                    self.versions[one.runtime] = event.version
            case ev.StepSaid(what=what):
                one.trouble = str(what.get("text", "")) if what.get("type") in _TROUBLE else ""
            case ev.StepUsed():
                one.tokens += event.tokens
            case ev.StepFinished():
                self._finished(one, event, time_ns)
            case _:
                pass

    def _of_task(self, event: ev.TaskEvent) -> None:
        match event:
            case ev.Planned(plan=plan):
                if self.plan is None:  # else somebody put it back at the same time as another
                    self.plan, self.strategy, self.reason = plan, event.strategy, event.reason
                    self._add(plan.steps)
            case ev.PlanExtended(steps=steps):
                self._further(event, steps)
            case ev.FellBack():
                self.fallbacks.append(event)
            case ev.Asked(n=n):
                self.asked[n] = event
                self.numbered = max(self.numbered, n)
            case ev.Decided(n=n):
                self.asked.pop(n, None)
                self.decisions[n] = event
            case ev.Warned(text=text, about=about):
                self.warnings.append(text)
                self._undone = self._undone or about in ("rejected", "worktree")
            case ev.EnvironmentSeen():
                self.environment, self.finished = event, None  # another life of it begins
            case ev.TaskFinished():
                self.finished = event
            case _:
                pass

    def _add(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.steps[step.id] = StepProgress(step)
        for step in steps:
            self._tie(self.steps[step.id])
        early, self._early = self._early, []
        for event, time_ns in early:
            self.apply(event, time_ns)

    def _tie(self, one: StepProgress) -> None:
        """Note what a step waits for."""
        name = one.step.id
        one.missing = {
            other for other in one.step.depends_on if self.steps[other].status != "completed"
        }
        for other in one.step.depends_on:
            self._dependents.setdefault(other, {})[name] = None
        if not one.missing and one.status in ("pending", "interrupted"):
            self._ready[name] = None

    def _further(self, event: ev.TaskEvent, steps: tuple[Step, ...]) -> None:
        """Take a further round, once; before what it builds on is known, it waits for that.

        A damaged tape may have lost the round before it, which the next driver makes anew.
        """
        if self.plan is None or all(step.id in self.steps for step in steps):
            return
        known = {*self.steps, *(step.id for step in steps)}
        if all(known.issuperset(step.depends_on) for step in steps):
            self._extend(self.plan, steps)
        else:
            self._early.append((event, 0))

    def _extend(self, plan: Plan, steps: tuple[Step, ...]) -> None:
        """Add the steps of a further round; whoever waited for the reviewer waits for the new one."""
        self.plan = extended(plan, steps)
        self._superseded.update(step.continues for step in steps)
        self._add(steps)
        for step in self.plan.steps:
            one = self.steps[step.id]
            if one.step is not step:
                for other in one.step.depends_on:
                    self._dependents[other].pop(step.id, None)
                self._ready.pop(step.id, None)
                one.step = step
                self._tie(one)

    def _started(self, one: StepProgress, event: ev.StepStarted) -> None:
        one.status, one.attempt = "running", event.attempt
        one.runtime, one.role, one.model = event.runtime, event.role, event.model
        one.reason, one.cwd, one.trouble = event.reason, event.cwd, ""
        one.inherited = False
        self._ready.pop(one.step.id, None)

    def _finished(self, one: StepProgress, event: ev.StepFinished, time_ns: int) -> None:
        one.status, one.ended_ns = event.status, time_ns
        one.output, one.error, one.kind = event.output, event.error, event.kind
        one.trouble = ""
        one.tokens, one.cost, one.unmetered = event.tokens, event.cost, event.unmetered
        one.duration_s, one.branch = event.duration_s, event.branch
        one.inherited = event.inherited
        one.session = event.session or one.session
        one.runtime, one.role = event.runtime or one.runtime, event.role or one.role
        one.model, one.attempt = event.model or one.model, event.attempt or one.attempt
        self._ready.pop(one.step.id, None)
        if event.status == "completed":
            for name in self._dependents.get(one.step.id, ()):
                other = self.steps[name]
                other.missing.discard(one.step.id)
                if not other.missing and other.status == "pending":
                    self._ready[name] = None
        elif event.status == "interrupted":
            self._ready[one.step.id] = None

    def cut_short(self, state: str, why: str = "") -> None:
        """Take it that its process is gone in this state: what it was at was stopped there."""
        self.ended = state
        for one in self.in_flight():
            one.status, one.error = "interrupted", why
            self._ready[one.step.id] = None

    def ready(self) -> Iterator[Step]:
        """Yield the steps that wait for nothing any more, in the order they became so."""
        for name in self._ready:
            yield self.steps[name].step

    def is_continued(self, name: str) -> bool:
        """Tell whether a step that is still open goes on in the session of this one."""
        after = (self.steps[other] for other in self._dependents.get(name, ()))
        return any(one.step.continues == name and one.open for one in after)

    def is_reviewed_again(self, name: str) -> bool:
        """Tell whether a review was followed by a further round."""
        after = (self.steps[other].step for other in self._dependents.get(name, ()))
        return any(step.continues == name and step.reviews is not None for step in after)

    def in_flight(self) -> list[StepProgress]:
        """Return the steps that began and did not end."""
        return [one for one in self.steps.values() if one.status == "running"]

    def doomed(self, name: str) -> list[str]:
        """Return every open step that can never start because this one failed, nearest first."""
        seen = {name}
        queue = [name]
        for here in queue:
            for other in self._dependents.get(here, ()):
                # behind one that is known to be skipped there may be some that are not known yet
                if other not in seen and self.steps[other].status in _NEVER_BEGAN:
                    seen.add(other)
                    queue.append(other)
        return [one for one in queue[1:] if self.steps[one].status == "pending"]

    @property
    def done(self) -> bool:
        """No step is open."""
        return all(not one.open for one in self.steps.values())

    def in_order(self) -> list[StepProgress]:
        """Return the steps so that each comes after those it depends on."""
        left = {name: len(set(one.step.depends_on)) for name, one in self.steps.items()}
        queue = [name for name, count in left.items() if not count]
        for here in queue:
            for other in self._dependents.get(here, ()):
                left[other] -= 1
                if not left[other]:
                    queue.append(other)
        return [self.steps[name] for name in queue]

    @property
    def status(self) -> str:
        """Completed, failed, or partial: some steps were completed and some not."""
        latest = [one for name, one in self.steps.items() if name not in self._superseded]
        good = sum(one.status == "completed" for one in latest)
        if good == len(latest) and not self._undone:
            return "completed"
        return "partial" if good else "failed"

    @property
    def tokens(self) -> Tokens:
        """All tokens of all steps."""
        return spent(self.steps.values())[0]

    @property
    def cost(self) -> Decimal | None:
        """The cost of all steps; None if that of none is known."""
        return spent(self.steps.values())[1]

    @property
    def inherited(self) -> list[StepProgress]:
        """The steps that a fork began with: their tokens and cost are not its own."""
        return [one for one in self.steps.values() if one.inherited]


def spent(steps: Iterable[StepProgress]) -> tuple[Tokens, Decimal | None]:
    """Return the tokens of steps, and their cost; None if that of none is known."""
    tokens, cost = Tokens(), None
    for one in steps:
        tokens += one.tokens
        if one.cost is not None:
            cost = (cost or Decimal(0)) + one.cost
    return tokens, cost
