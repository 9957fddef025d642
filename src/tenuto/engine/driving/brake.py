"""How a driver is stopped: asked by a signal, told by its keeper that its time is over, or by force."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from tenuto.engine.ending import interrupt_children
from tenuto.engine.inside import named, of_agents

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine
    from tenuto.engine.driving.asking import Desk
    from tenuto.engine.driving.drive import Driver
    from tenuto.engine.driving.stepping import Walker

_T = TypeVar("_T")
_INSIST_S = 1.0


class Beginnings:
    """What takes long and has nothing to save yet, as the start of a runtime: a stop gives it up."""

    def __init__(self) -> None:
        """Begin with nothing under way."""
        self._under_way: dict[asyncio.Task[Any], Callable[[], Awaitable[None]] | None] = {}
        self._given_up: set[asyncio.Task[Any]] = set()
        self._over = False

    async def unless_given_up(
        self, work: Coroutine[Any, Any, _T], end: Callable[[], Awaitable[None]] | None = None
    ) -> _T | None:
        """Return what comes of some work, or none if it is given up; `end` ends the processes of it.

        It is done in the task of the caller: most of it is over at once, and a step has no time to lose.
        """
        if self._over:
            work.close()
            return None
        task = asyncio.current_task()
        assert task is not None
        self._under_way[task] = end
        try:
            return await work
        except (asyncio.CancelledError, Exception):  # its process may have been ended under it
            if task not in self._given_up:
                raise
            return None
        finally:
            del self._under_way[task]
            if task in self._given_up:
                self._given_up.discard(task)
                task.uncancel()

    async def give_up(self) -> None:
        """Give up all that is under way, for good, and return once its processes are gone."""
        self._over = True
        open_ones = {one: end for one, end in self._under_way.items() if one not in self._given_up}
        for task in open_ones:
            self._given_up.add(task)
            task.cancel()
        ends = [end() for end in open_ones.values() if end is not None]
        await asyncio.gather(*ends, return_exceptions=True)


class Brake:
    """Stops everything that a driver has under way."""

    def __init__(self, driver: Driver, desk: Desk, walker: Walker) -> None:
        """Take who is to be told."""
        self._driver = driver
        self._desk = desk
        self._walker = walker
        self._under_way: set[asyncio.Task[None]] = set()
        self._is_over = False

    def listen(self) -> None:
        """Take SIGINT for a polite request, and SIGTERM for one that insists."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stop, False)
        loop.add_signal_handler(signal.SIGTERM, self._stop, True)

    def _stop(self, hard: bool) -> None:
        self._driver.stop()
        self._desk.stop()
        self._begin(self._walker.close() if hard else self._walker.stop())

    def over(self, message: dict[str, Any]) -> None:
        """Stop for good: a deadline that was asked for has come, and our keeper waits only briefly."""
        self._is_over = True
        self._driver.stop(over=True)
        self._desk.stop()
        reason, text = str(message.get("reason", "")), str(message.get("text", ""))
        self._begin(self._walker.stop(reason, text))
        loop = asyncio.get_running_loop()
        loop.call_later(_INSIST_S, lambda: self._begin(self._walker.close()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._under_way.add(asyncio.create_task(work))

    async def end_leftovers(self, engine: BlockingEngine, execution: str, grace: float) -> str:
        """Interrupt what agents of an earlier life left running, and return what there was.

        A driver that was killed could not; and whoever does their part now may start it anew.
        """
        project, index = engine.project, engine.index
        left = await asyncio.to_thread(of_agents, project, index, execution)
        if not left:
            return ""
        await asyncio.to_thread(interrupt_children, project, index, execution, grace)
        return f"what an earlier life of this task left running was interrupted: {named(left)}"

    async def see_off(self, engine: BlockingEngine, execution: str) -> None:
        """End what agents started elsewhere, if the task's time is over: by a kill it would end too."""
        if self._is_over:
            project, index = engine.project, engine.index
            await asyncio.to_thread(interrupt_children, project, index, execution, _INSIST_S)
