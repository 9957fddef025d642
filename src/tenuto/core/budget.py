"""Spend and its bounds, as values: what was used, what may be, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import msgspec

from tenuto.core.layouts import lay_out
from tenuto.core.quantities import money

BudgetMode = Literal["warn", "ask"]
"""What happens at a bound that is not hard: go on and say so, or stop and ask."""
Verdict = Literal["go", "warn", "ask", "stop"]
EVERYTHING = Decimal(10**18)
"""More than anybody spends, in dollars and in tokens: a yes to it is one to all."""
COUNT_MOST = 2**53
"""No count of tokens is so high: whoever says it is wrong."""


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one request, or of many; input is without what came from or went into the cache."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @classmethod
    def told(cls, input: int, output: int, cache_read: int = 0, cache_write: int = 0) -> Tokens:
        """Return counts that somebody else tells: what can be none counts as nothing."""
        counts = (input, output, cache_read, cache_write)
        return cls(*(one if 0 <= one < COUNT_MOST else 0 for one in counts))

    @property
    def total(self) -> int:
        """All of them."""
        return self.input + self.output + self.cache_read + self.cache_write

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
        )


class Spend(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was spent in a window, an execution or a step."""

    requests: int = 0
    tokens: Tokens = Tokens()
    cost: Decimal = Decimal(0)
    """Dollars, of the requests whose price is known."""
    unpriced: int = 0
    """Requests of models whose price is not known: their cost is not in `cost`, and not guessed."""
    estimated: int = 0
    """Requests that ended before their usage was told: counted by what went over the line."""
    reserved: Decimal = Decimal(0)
    """Dollars set aside for requests that are under way, or whose counter died before their end."""
    reserved_tokens: int = 0
    """Tokens set aside for them."""
    unsettled: int = 0
    """How many those are; they are not in `requests` yet."""

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.cost + other.cost,
            self.unpriced + other.unpriced,
            self.estimated + other.estimated,
            self.reserved + other.reserved,
            self.reserved_tokens + other.reserved_tokens,
            self.unsettled + other.unsettled,
        )


class BudgetLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds in dollars and tokens; None for none. Days and months are those of UTC."""

    daily: Decimal | None = None
    monthly: Decimal | None = None
    task: Decimal | None = None
    """For each task that has no bound of its own."""
    hard: bool = False
    """Nothing is admitted at or past a bound, in any mode, and nobody is asked."""


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one execution, or one step of it, may spend; the ledger keeps the newest of each."""

    execution: str
    step: str = ""
    max_cost: Decimal | None = None
    max_tokens: int | None = None
    mode: BudgetMode = "warn"
    hard: bool = False
    approved: Decimal | None = None
    """Dollars of this execution up to which somebody said yes; bounds below do not ask again."""
    approved_tokens: int | None = None
    """Likewise for bounds in tokens; None where a yes in dollars was for those, too."""
    closed: bool = False
    """It has ended: nobody who still has a token of it is served."""
    within: str = ""
    """The task whose agent started this one: what is spent here counts, and is bounded, there too."""


class Crossing(msgspec.Struct, frozen=True):
    """A bound that is reached: which, how much it is, and how much is spent and reserved."""

    scope: Literal["daily", "monthly", "execution", "step"]
    unit: Literal["cost", "tokens"]
    limit: Decimal
    spent: Decimal
    hard: bool = False
    reserved: Decimal = Decimal(0)
    """The part of `spent` that is only set aside, and may come back."""
    unpriced: int = 0
    """Not reached, but it cannot hold: so many requests were of models without a known price."""

    def __str__(self) -> str:
        whose = "task" if self.scope == "execution" else self.scope
        if self.unpriced:
            return (
                f"the hard {whose} limit of {money(self.limit)} cannot hold a model whose price is "
                f"not known ({self.unpriced} of its requests were made)"
            )
        if self.unit == "tokens":
            return (
                f"the {whose} limit of {self.limit:.0f} tokens is reached ({self.spent:.0f} used)"
            )
        limit, spent = money(self.limit), money(self.spent)
        return f"the {whose} limit of {limit} is reached ({spent} spent or reserved)"


lay_out(Tokens)


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request may come to, told before it is made."""

    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    """None where the price is not known."""


class Admission(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a request may be made, and under which reservation; none unless it is go or warn."""

    verdict: Verdict
    crossings: tuple[Crossing, ...] = ()
    reservation: str = ""
    news: bool = False
    """Nobody has been warned of these bounds yet."""

    @property
    def admitted(self) -> bool:
        """Whether it may be made."""
        return self.verdict in ("go", "warn")


def judge(
    whole: Spend,
    part: Spend,
    day: Spend,
    month: Spend,
    limits: BudgetLimits,
    grant: Grant,
    step_grant: Grant | None = None,
) -> tuple[Verdict, tuple[Crossing, ...]]:
    """Say what becomes of the next request, by what the execution, its step, day and month spent.

    A bound counts as reached by what is spent and reserved, without the request itself: so nothing is
    admitted at or past it, and what goes over it was under way before. A hard one in dollars also ends
    what turns out to have no known price: nothing would ever reach it.
    """
    task = limits.task if grant.max_cost is None else grant.max_cost
    hard = limits.hard or grant.hard
    found = [
        *_crossed("daily", "cost", limits.daily, day, limits.hard, whole.unpriced),
        *_crossed("monthly", "cost", limits.monthly, month, limits.hard, whole.unpriced),
        *_crossed("execution", "cost", task, whole, hard, whole.unpriced),
        *_crossed("execution", "tokens", grant.max_tokens, whole, hard),
    ]
    if step_grant is not None:
        hard = limits.hard or grant.hard or step_grant.hard
        found += _crossed("step", "cost", step_grant.max_cost, part, hard, part.unpriced)
        found += _crossed("step", "tokens", step_grant.max_tokens, part, hard)
    stops = tuple(one for one in found if one.hard)
    if stops:
        return "stop", stops
    if not found:
        return "go", ()
    if grant.mode == "warn":
        return "warn", tuple(found)
    asks = tuple(one for one in found if not _is_approved(one, whole, grant))
    return ("ask", asks) if asks else ("go", tuple(found))


def _is_approved(crossing: Crossing, whole: Spend, grant: Grant) -> bool:
    """Tell whether somebody said yes to more than what the execution has spent and reserved."""
    if crossing.unit == "tokens" and grant.approved_tokens is not None:
        return whole.tokens.total + whole.reserved_tokens < grant.approved_tokens
    return grant.approved is not None and whole.cost + whole.reserved < grant.approved


def approving(whole: Spend, grant: Grant, crossings: Sequence[Crossing]) -> Grant:
    """Return the grant after a yes to these bounds: until as much again as the least was spent.

    Of a bound of nothing there is no such amount, so that a yes holds for all that is spent.
    """

    def up_to(unit: str, spent: Decimal, before: Decimal) -> Decimal:
        limits = [one.limit for one in crossings if one.unit == unit]
        if not limits:
            return before
        return spent + min(limits) if min(limits) > 0 else EVERYTHING

    cost = up_to("cost", whole.cost + whole.reserved, grant.approved or Decimal(0))
    used = Decimal(whole.tokens.total + whole.reserved_tokens)
    tokens = up_to("tokens", used, Decimal(grant.approved_tokens or 0))
    return msgspec.structs.replace(grant, approved=cost, approved_tokens=int(tokens))


def _crossed(
    scope: Literal["daily", "monthly", "execution", "step"],
    unit: Literal["cost", "tokens"],
    limit: Decimal | int | None,
    spend: Spend,
    hard: bool,
    unpriced: int = 0,
) -> list[Crossing]:
    """Return the bound if it is reached, or hard and of no use against what was asked for."""
    if limit is None:
        return []
    bound = Decimal(limit)
    reserved = spend.reserved if unit == "cost" else Decimal(spend.reserved_tokens)
    spent = reserved + (spend.cost if unit == "cost" else Decimal(spend.tokens.total))
    if spent >= bound:
        return [Crossing(scope, unit, bound, spent, hard, reserved)]
    if hard and unpriced:
        return [Crossing(scope, unit, bound, spent, hard, reserved, unpriced)]
    return []
