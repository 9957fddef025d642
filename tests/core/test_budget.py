"""What a yes at a bound is worth: how far it goes, and for what."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tenuto.core.budget import (
    BudgetLimits,
    Grant,
    Spend,
    Tokens,
    Verdict,
    approving,
    judge,
)

pytestmark = pytest.mark.promise("B2")
NOTHING = Spend()
GRANT = Grant("one", max_cost=Decimal(4), max_tokens=15, mode="ask")


def asked(
    whole: Spend, grant: Grant, limits: BudgetLimits | None = None
) -> tuple[Verdict, list[str]]:
    verdict, crossings = judge(whole, NOTHING, whole, NOTHING, limits or BudgetLimits(), grant)
    return verdict, [f"{one.scope}/{one.unit}" for one in crossings]


def spent(cost: int, tokens: int = 0, reserved: int = 0) -> Spend:
    return Spend(1, Tokens(0, tokens), Decimal(cost), reserved=Decimal(reserved))


def after_yes(whole: Spend, grant: Grant, limits: BudgetLimits | None = None) -> Grant:
    _, crossings = judge(whole, NOTHING, whole, NOTHING, limits or BudgetLimits(), grant)
    return approving(whole, grant, crossings)


def test_a_yes_goes_a_whole_limit_further_than_what_is_spent_and_reserved() -> None:
    grant = after_yes(spent(5, reserved=1), GRANT)
    assert grant.approved == 10
    assert asked(spent(9), grant) == ("go", ["execution/cost"])
    assert asked(spent(10), grant) == ("ask", ["execution/cost"])
    assert after_yes(spent(10), grant).approved == 14


def test_of_several_bounds_the_least_says_how_far() -> None:
    daily = BudgetLimits(daily=Decimal(3))
    assert asked(spent(5), GRANT, daily) == ("ask", ["daily/cost", "execution/cost"])
    assert after_yes(spent(5), GRANT, daily).approved == 8


def test_a_yes_to_dollars_is_none_to_tokens_nor_the_other_way() -> None:
    dollars = after_yes(spent(5, 10), GRANT)
    assert asked(spent(6, 20), dollars) == ("ask", ["execution/tokens"])
    tokens = after_yes(spent(1, 20), GRANT)
    assert tokens.approved_tokens == 35
    assert asked(spent(1, 34), tokens) == ("go", ["execution/tokens"])
    assert asked(spent(4, 34), tokens) == ("ask", ["execution/cost"])
    both = after_yes(spent(4, 34), after_yes(spent(4, 34), tokens))
    assert asked(spent(7, 34), both) == ("go", ["execution/cost", "execution/tokens"])


def test_a_yes_to_a_bound_of_nothing_holds_for_all() -> None:
    nothing = Grant("one", max_cost=Decimal(0), max_tokens=0, mode="ask")
    grant = after_yes(spent(0), nothing)
    assert asked(spent(10**9, 2**53), grant)[0] == "go"


def test_a_yes_that_was_written_before_tokens_were_counted_holds_for_both() -> None:
    grant = Grant("one", max_cost=Decimal(4), max_tokens=15, mode="ask", approved=Decimal(10**12))
    assert asked(spent(5, 20), grant)[0] == "go"


def test_no_yes_passes_a_hard_cap() -> None:
    grant = after_yes(spent(5), GRANT)
    assert asked(spent(5), grant, BudgetLimits(hard=True))[0] == "stop"
