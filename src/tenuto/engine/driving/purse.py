"""A task's money: what it may spend, whether the next step may begin, and what it has cost.

Requests that go through the gateway are counted and admitted there, one by one. Of a runtime that
cannot be sent through it, what it tells is counted here, after the fact, and it is stopped once a
hard cap is reached: at most one request too late.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from decimal import Decimal
from importlib import util
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core.budget import Admission, BudgetLimits, Grant, Spend, Tokens
from tenuto.core.errors import BudgetReached, DiskFull
from tenuto.core.plan import Step
from tenuto.core.progress import StepProgress
from tenuto.core.runs import Endpoint, Used
from tenuto.core.task_events import Warned
from tenuto.core.tasks import TaskSpec
from tenuto.engine import budgets
from tenuto.engine.agent_settings import AgentSettings
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.driving.asking import Desk, Withdrawn
from tenuto.engine.driving.choosing import Chosen
from tenuto.engine.driving.printing import Printer
from tenuto.engine.driving.teller import Teller
from tenuto.engine.tasks import task_around
from tenuto.metering.ledger import Ledger

if TYPE_CHECKING:
    from tenuto.engine.gateways import GatewayInfo

_ADDRESSES = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "google": "GOOGLE_GEMINI_BASE_URL",
}


class Purse:
    """What a task may spend and has spent, by the project's ledger."""

    def __init__(
        self,
        engine: BlockingEngine,
        execution: str,
        task: TaskSpec,
        agents: AgentSettings,
        teller: Teller,
        desk: Desk,
        printer: Printer,
    ) -> None:
        """Say in the ledger what the task may spend; an approval of an earlier life still holds."""
        self._engine = engine
        self._execution = execution
        self._teller = teller
        self._desk = desk
        self._printer = printer
        self._ledger = Ledger(engine.project.home)
        self._prices = budgets.prices_of(agents)
        self._environ = _with_addresses(os.environ, agents)
        self._gateway: GatewayInfo | None = None
        self._starting = asyncio.Lock()
        self._deciding = asyncio.Lock()
        self._unmetered: set[str] = set()
        self._tokens: dict[str, str] = {}
        self._excess: set[tuple[str, str]] = set()
        self._asking: set[asyncio.Task[None]] = set()
        self._limits = budgets.LimitsInForce(engine.project, os.environ)
        hard = self._limits().hard if task.hard is None else task.hard
        before = self._ledger.granted(execution)
        self._bounded = task.max_cost is not None or task.max_tokens is not None
        self._dollars = task.max_cost is not None
        self._unpriced = False
        self._grant(
            Grant(
                execution,
                max_cost=task.max_cost,
                max_tokens=task.max_tokens,
                mode=task.budget_mode,
                hard=hard,
                approved=before.approved if before is not None else None,
                approved_tokens=before.approved_tokens if before is not None else None,
                within=task_around(engine, execution),
            )
        )

    def _grant(self, grant: Grant) -> None:
        """Say what may be spent, unless an earlier life has said the same: each resume would add one."""
        if self._ledger.granted(grant.execution, grant.step) != grant:
            self._ledger.grant(grant)

    # Before a step

    async def before(self, step: Step) -> None:
        """Return when a step may begin; raise BudgetReached when it may not."""
        if step.max_cost is not None or step.max_tokens is not None:
            self._dollars = self._dollars or step.max_cost is not None
            whole = self._ledger.granted(self._execution) or Grant(self._execution)
            self._grant(
                msgspec.structs.replace(
                    whole, step=step.id, max_cost=step.max_cost, max_tokens=step.max_tokens
                )
            )
        elif not self._bounded and _boundless(self._limits()):
            return
        async with self._deciding:  # steps that wait for the same answer ask once
            while True:
                found = budgets.decide(self._ledger, self._limits(), self._execution, step.id)
                text = _told(found)
                if found.verdict == "stop":
                    raise BudgetReached(text, _way_out(found))
                if found.verdict == "warn" and found.news:
                    self._warn(step.id, text)
                if found.admitted:
                    return
                await self._ask(step.id, found)

    async def _ask(self, step: str, found: Admission) -> None:
        """Ask whether to go on past a bound, and how far; raise BudgetReached if not."""
        text = _told(found)
        offer = budgets.offer(self._ledger, self._execution, found.crossings)
        decided = await self._desk.ask("budget", f"{text}: go on, {offer.text}?", step)
        if not decided.allow:
            self._bounded = True
            budgets.deny(self._ledger, self._execution)
            raise BudgetReached(f"{text}, and it was denied to go on", "run it with a higher limit")
        budgets.accept(self._ledger, self._execution, offer)

    def _warn(self, step: str, text: str) -> None:
        self._teller.tell(Warned(text=text, step=step))
        self._printer.note(f"[{step}] warning: {text}")

    # Requests

    async def endpoint(self, step: Step, chosen: Chosen) -> Endpoint | None:
        """Return where the step's requests are to go, if they can be counted one by one."""
        why = chosen.probe.unmetered
        if not chosen.runner.capabilities.metered or why:
            self._unmetered.add(step.id)
            return None
        from tenuto.engine import gateways  # not every task needs one

        async with self._starting:
            if self._gateway is None or not await self._answers(self._gateway):
                self._gateway = await asyncio.to_thread(
                    gateways.ensure, self._engine, self._environ
                )
        self._bind(step.id, step.id)
        return gateways.endpoint(self._gateway, self._execution, step.id)

    def goes_on(self, step: Step) -> None:
        """Count what a step asks for in the session of the one before it, whose token that has."""
        before = str(step.continues)
        if before in self._unmetered:
            self._unmetered.add(step.id)
        else:
            self._bind(self._tokens.get(before, before), step.id)

    def _bind(self, token: str, step: str) -> None:
        """Let a step's token stand for a step from here on, in the ledger: gateways may die."""
        self._tokens[step] = token
        if self._ledger.bound(self._execution, token) != step:
            self._ledger.bind(self._execution, token, step)

    async def _answers(self, info: GatewayInfo) -> bool:
        from tenuto.engine import gateways

        return await asyncio.to_thread(gateways.answers, self._engine.project, info)

    def metered(self, step: str) -> bool:
        """Tell whether a step's requests go through the gateway."""
        return step not in self._unmetered

    def used(self, step: str, event: Used) -> str:
        """Count what a runtime says it used, unless the gateway does; return why it must stop now."""
        if self.metered(step):
            return ""
        tokens = Tokens.told(event.input, event.output, event.cache_read, event.cache_write)
        cost = self._prices.cost(event.model, tokens) if event.model else None
        self._ledger.record(self._execution, step, event.model, tokens, cost)
        found = self._ledger.judge(self._execution, step, self._limits())
        if found.verdict == "warn" and found.news:
            self._ledger.warned(self._execution, found.crossings)
            self._warn(step, _told(found))
        return _told(found) if found.verdict == "stop" else ""

    def spent(self, one: StepProgress) -> tuple[Tokens, Decimal | None, bool]:
        """Return a step's tokens and cost, and whether that is only what the runtime told."""
        step = one.step.id
        if step in self._unmetered and one.attempt <= 1 and not one.tokens.total:
            return Tokens(), None, True  # nothing was told, nothing is in the ledger
        self._tell_excess(step)
        spend = self._ledger.spend(self._execution, step)
        self._tell_unpriced(step, spend)
        asked = spend.requests or spend.unsettled
        known = spend.requests > spend.unpriced or (self.metered(step) and not asked)
        return spend.tokens, spend.cost if known else None, step in self._unmetered

    def counted(self, one: StepProgress) -> tuple[Tokens, Decimal | None]:
        """Return what the ledger has of a step that an earlier life of the task began."""
        spend = self._ledger.spend(self._execution, one.step.id)
        if not spend.requests:
            return one.tokens, one.cost
        return spend.tokens, spend.cost if spend.requests > spend.unpriced else None

    def _tell_unpriced(self, step: str, spend: Spend) -> None:
        """Say once that a limit in dollars does not hold what nobody knows the price of."""
        if self._unpriced or not spend.unpriced:
            return
        self._unpriced = True
        if self._dollars or not _boundless(self._limits()):
            extra = "" if util.find_spec("genai_prices") else " (pip install 'tenuto[agents]')"
            text = f"the price of what the model used is not known{extra}"
            self._warn(step, f"{text}: limits in dollars do not count it, those in tokens do")

    def _tell_excess(self, step: str) -> None:
        """Say by how much a limit was passed: what was under way when it was reached counts.

        Of one that is not hard somebody is asked before the next request; after the last, nobody is.
        """
        if not self._bounded and _boundless(self._limits()):
            return
        found = self._ledger.judge(self._execution, step, self._limits())
        others = [one for name, one in self._teller.progress.steps.items() if name != step]
        unasked = found.verdict == "ask" or (found.verdict == "warn" and found.news)
        last = unasked and not any(one.open for one in others)
        over = [one for one in found.crossings if (one.hard or last) and one.spent > one.limit]
        news = [one for one in over if (one.scope, one.unit) not in self._excess]
        if news:
            self._excess.update((one.scope, one.unit) for one in news)
            text = "; ".join(str(one) for one in news)
            self._warn(step, f"{text}: by what was under way")

    # What the gateway tells

    def heard(self, message: Mapping[str, Any]) -> None:
        """Take word that a bound is reached while a request is under way."""
        text, step = str(message.get("text", "")), str(message.get("step", ""))
        if message.get("type") == "budget_warned":
            self._warn(step, text)
        elif message.get("type") == "budget_asked":
            task = asyncio.create_task(self._asked(step))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _asked(self, step: str) -> None:
        """Decide on requests that the gateway holds, and let it know."""
        async with self._deciding:
            found = budgets.decide(self._ledger, self._limits(), self._execution, step)
            if found.verdict == "ask":
                try:
                    await self._ask(step, found)
                except Withdrawn:
                    return
                except BudgetReached as error:
                    self._printer.note(f"[{step}] {error.message}")
        if self._gateway is not None:
            from tenuto.engine import gateways

            await asyncio.to_thread(gateways.wake, self._gateway)

    def close(self) -> None:
        """Let go of the ledger; what was handed out to reach the gateway serves nobody any more."""
        for task in self._asking:
            task.cancel()
        try:
            if self._gateway is not None:
                budgets.close(self._ledger, self._execution)
            self._ledger.sync()
        except DiskFull:
            self._printer.note("the ledger finds no room; the gateway sees by itself that we end")
        finally:
            self._ledger.close()


def _boundless(limits: BudgetLimits) -> bool:
    return limits.daily is None and limits.monthly is None and limits.task is None


def _way_out(found: Admission) -> str:
    """Return what would let it go on."""
    windows = [one.scope for one in found.crossings if one.scope in ("daily", "monthly")]
    if not windows:
        return "start it again with a higher limit"
    return "raise it: tenuto budget --set " + " ".join(f"{one}=AMOUNT" for one in windows)


def _told(found: Admission) -> str:
    return "; ".join(str(one) for one in found.crossings)


def _with_addresses(environ: Mapping[str, str], agents: AgentSettings) -> dict[str, str]:
    """Return the environment with the addresses of model APIs that the settings have."""
    own = {_ADDRESSES[name]: url for name, url in agents.providers.items() if name in _ADDRESSES}
    return {**environ, **own}
