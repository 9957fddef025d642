"""A task's money: what it may spend, whether the next step may begin, and what it has cost."""

from __future__ import annotations

from decimal import Decimal

from tenuto.core.budget import Tokens
from tenuto.core.plan import Step
from tenuto.core.runs import Endpoint, Probe, Used


class Purse:
    """Counts what runtimes tell, where nothing counts their requests."""

    def __init__(self) -> None:
        """Begin with nothing spent."""
        self._told: dict[str, Tokens] = {}

    async def before(self, step: Step) -> None:
        """Return when a step may begin; raise BudgetReached when it may not."""

    async def endpoint(self, step: Step, probe: Probe) -> Endpoint | None:
        """Return where the step's requests are to go, if they can be counted one by one."""
        del step, probe
        return None

    def used(self, step: str, event: Used) -> None:
        """Take what a runtime says it used."""
        tokens = Tokens(event.input, event.output, event.cache_read, event.cache_write)
        self._told[step] = self._told.get(step, Tokens()) + tokens

    async def spent(self, step: str) -> tuple[Tokens, Decimal | None, bool]:
        """Return the step's tokens and cost, and whether that is only what the runtime told."""
        return self._told.get(step, Tokens()), None, True
