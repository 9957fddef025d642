"""The verbs of tasks and budgets, for the public engine. What they need is loaded by the first one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tenuto.core.execution import Snapshot
from tenuto.core.listing import Query
from tenuto.core.states import State
from tenuto.engine.work import Options, Work

if TYPE_CHECKING:
    from decimal import Decimal
    from typing import Literal

    from tenuto.core.budget import BudgetLimits
    from tenuto.core.history import By, History
    from tenuto.core.progress import Progress
    from tenuto.core.state import CheckpointInfo
    from tenuto.core.task_events import Decided
    from tenuto.engine.blocking import BlockingEngine
    from tenuto.engine.budgets import BudgetReport
    from tenuto.engine.history import Moment, Place
    from tenuto.engine.recovering import Recovered
    from tenuto.engine.runtimes import Found, RuntimeInfo
    from tenuto.engine.saved import Checkpoint, SavedState
    from tenuto.engine.settings import Settings
    from tenuto.engine.watch import Watch

_T = TypeVar("_T")
_LOST = Query(most=1, states=(State.LOST,), kind="task")


class TaskVerbs:
    """What an engine can do with tasks; mixed into it."""

    _recovering: Future[None] | None = None
    _recovered: tuple[Recovered, ...] = ()

    if TYPE_CHECKING:

        @property
        def settings(self) -> Settings: ...

        @property
        def _engine(self) -> BlockingEngine: ...

        async def _call(self, function: Callable[..., _T], *arguments: Any) -> _T: ...

        async def _wait(
            self, watch: Watch, up_to: float | None, until: str | None, began: float
        ) -> Snapshot: ...

    async def task(
        self, text: str = "", *, plan: Any = None, wait: float | None = None, **options: Any
    ) -> Snapshot:
        """Have agents do a task, and wait for it; its value is what came of it, step by step.

        Options: strategy, runtime, role, model, type, skills, files, max_cost, max_tokens, max_turns,
        hard, permissions, bypass, worktree, concurrency, chain, change, task_id, workflow, context,
        resume ("auto"); and cwd, env, title, deadline, idle. `plan` is JSON, a mapping or a Plan.
        """
        began, wait = time.monotonic(), self.settings.patience(wait)
        work = await self._call(self._task_work, text, plan, options)
        execution_id, sock = await self._call(self._engine.start, work)
        return await self._wait(self._engine.watch(execution_id, -1, sock), wait, None, began)

    async def start_task(
        self, text: str = "", *, plan: Any = None, execution_id: str = "", **options: Any
    ) -> str:
        """Start a task and return its id (a new one unless given); options as for `task`."""
        work = await self._call(self._task_work, text, plan, {"detached": True, **options})
        work = msgspec.structs.replace(work, execution_id=execution_id)
        execution_id, sock = await self._call(self._engine.start, work)
        sock.close()
        return execution_id

    def _task_work(self, text: str, plan: Any, options: dict[str, Any]) -> Work:
        from tenuto.engine import tasks

        own, of_task = tasks.given_options(options)
        spec = tasks.task_spec(text, plan=plan, **of_task)
        spec = tasks.checked(self._engine, spec, own.get("cwd"))
        return tasks.task_work(self._engine, spec, Options(**own))

    async def progress(self, execution_id: str) -> Progress:
        """Return how far a task is: its plan, its steps, what it asks."""
        from tenuto.engine import tasks

        def read() -> Progress:
            execution = self._engine.execution(execution_id)
            tasks.task_of(execution.spec)
            return tasks.progress_now(self._engine.project, execution.id)

        return await self._call(read)

    async def approve(
        self, execution_id: str, *, n: int | None = None, why: str = "", by: str = ""
    ) -> list[Decided]:
        """Say yes to what a task asks: all of it, or one question by its number."""
        from tenuto.engine import tasks

        return await self._call(tasks.decide, self._engine, execution_id, True, n, why, by)

    async def deny(
        self, execution_id: str, *, n: int | None = None, why: str = "", by: str = ""
    ) -> list[Decided]:
        """Say no to what a task asks: all of it, or one question by its number."""
        from tenuto.engine import tasks

        return await self._call(tasks.decide, self._engine, execution_id, False, n, why, by)

    # Durable state

    async def resume(
        self,
        execution_id: str,
        *,
        force: bool = False,
        from_seq: int | None = None,
        cwd: str | None = None,
        wait: float | None = None,
        fork_id: str = "",
    ) -> Snapshot:
        """Run an interrupted or lost execution again and wait for it.

        A task goes on where it was; with `from_seq` a new one goes on from that checkpoint of it, with
        a new id unless `fork_id` is given.
        `cwd` is the folder to go on in, where its own is not there any more. `force` runs code and
        commands again from their beginning, takes over a task whose driver does not answer, and
        passes what a check before the resume finds changed.
        """
        began, wait = time.monotonic(), self.settings.patience(wait)
        whole, sock = await self._call(
            lambda: self._engine.resume(execution_id, force, from_seq, cwd=cwd, fork_id=fork_id)
        )
        return await self._wait(self._engine.watch(whole, -1, sock), wait, None, began)

    async def checkpoint(self, execution_id: str) -> Checkpoint:
        """Have a task's state saved, and return once it is on disk."""
        from tenuto.engine import saved

        return await self._call(saved.checkpoint, self._engine, execution_id)

    async def checkpoints(self, execution_id: str) -> list[CheckpointInfo]:
        """Return the places from which a task can be forked, oldest first."""
        from tenuto.engine import saved

        return await self._call(saved.checkpoints_of, self._engine, execution_id)

    async def state(self, execution_id: str) -> SavedState:
        """Return all that is saved of a task, and what was wrong with what was read."""
        from tenuto.engine import saved

        return await self._call(saved.state_of, self._engine, execution_id)

    async def recovered(self) -> tuple[Recovered, ...]:
        """Return the lost tasks that this engine took up again by itself as it opened, or could not."""
        if self._recovering is not None:
            await asyncio.wrap_future(self._recovering)
        return self._recovered

    def _recover(self) -> None:
        if not self._engine.index.latest(_LOST) and not self._engine.index.live():
            return
        from tenuto.engine.recovering import recover_tasks

        self._recovered = tuple(recover_tasks(self._engine))

    @property
    def inside(self) -> str | None:
        """The execution that this process runs in, if any."""
        from tenuto.keeper.procfs import MARK

        return self._engine.environ.get(MARK)

    # What became of them

    async def history(
        self,
        execution_id: str | None = None,
        *,
        since: Moment = None,
        until: Moment = None,
        by: By | None = None,
        change: str = "",
        task_id: str = "",
        failed: bool = False,
        most: int | None = 50,
        before: Place | None = None,
    ) -> History:
        """Return what agents' steps came to, newest first, or by group; and the totals of all that fit.

        `since` and `until` are times, or ages such as "7d". With an id: the steps of one task, which
        may still run. Else it is of tasks that have ended. `before` is the `place` of the last record
        of a page: the next page begins after it.
        """
        from tenuto.engine.history import history

        return await self._call(
            lambda: history(
                self._engine, execution_id, since=since, until=until, by=by, change=change,
                task_id=task_id, failed=failed, most=most, before=before,
            )
        )  # fmt: skip

    # What there is to work with

    async def runtimes(self, found: Found | None = None) -> list[RuntimeInfo]:
        """Look at every runtime of agents: whether it works here, or what it lacks.

        That runs programs and takes seconds; `found` is told of each as soon as it is known.
        """
        from tenuto.engine.agent_settings import load_agent_settings
        from tenuto.engine.runtimes import runtimes

        engine = self._engine
        agents, _ = await self._call(load_agent_settings, engine.project.root, engine.environ)
        return await runtimes(engine.settings, agents, engine.environ, engine.project.root, found)

    async def strategies(self) -> tuple[str, ...]:
        """Return the names of all strategies, users' own among them."""

        def read() -> tuple[str, ...]:
            from tenuto.engine.agent_settings import load_agent_settings
            from tenuto.engine.strategies import known_strategies

            engine = self._engine
            agents, _ = load_agent_settings(engine.project.root, engine.environ)
            return known_strategies(agents.strategies)

        return await self._call(read)

    # Budgets

    async def budget(self, most: int = 20) -> BudgetReport:
        """Return what was spent today and this month, and what may be; and by the newest executions."""
        from tenuto.engine import budgets

        return await self._call(budgets.report, self._engine, most)

    async def set_budget(self, **limits: Decimal | float | bool | None) -> BudgetLimits:
        """Set limits in dollars, None for none: daily, monthly, task; and whether they are hard."""
        from tenuto.engine import budgets
        from tenuto.engine.settings import parse_dollars

        given = {
            name: value if value is None or isinstance(value, bool) else parse_dollars(value)
            for name, value in limits.items()
        }
        return await self._call(lambda: budgets.set_limits(self._engine, **given))

    async def reset_budget(self, window: Literal["daily", "monthly"], by: str = "python") -> None:
        """Let a window count from zero again."""
        from tenuto.engine import budgets

        await self._call(budgets.reset, self._engine, window, by)
