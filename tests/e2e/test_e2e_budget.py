"""Budgets with real runtimes: a hard cap admits nothing, a soft one asks, a day's holds for all."""

from __future__ import annotations

from decimal import Decimal

import pytest
from runtimes import RUNTIMES
from world import Runtime, World

from tenuto.core.budget import Tokens
from tenuto.core.quantities import money
from tenuto.testing.models import Model, Say

MUCH = Tokens(input=100_000, output=10)
CAP = "0.1"
"""Dollars; one answer of that many tokens is more with every model that is used here."""


@pytest.mark.promise("B2", "B3")
@pytest.mark.runtimes("claude-code", "codex")
def test_a_hard_cap_ends_the_task_before_the_next_request(
    world: World, model: Model, runtime: Runtime
) -> None:
    model.play(Say(runtime.shell("true"), usage=MUCH), "This must never be asked for.")
    task = world.run(runtime, "Spend.", "--max-cost", CAP, "--hard", "--permissions", "allow")
    shown = task.shown
    assert (shown["state"], shown["reason"]) == ("failed", "budget"), (shown, task.output)
    # it was in flight, and nothing after it; OpenCode asks for a title beside it
    assert [one.tokens for one in world.bill].count(MUCH) == 1
    assert len(model.seen) == 1
    (step,) = shown["task"]["steps"]
    assert (
        f"limit of {money(Decimal(CAP))} is reached" in step["error"]
        and "--max-cost" in step["error"]
    )
    assert world.spend(task).cost > Decimal(CAP)
    world.balanced(task)


@pytest.mark.promise("B2", "B3", "U1")
@pytest.mark.runtimes("claude-code")
@pytest.mark.parametrize("allowed", [True, False], ids=["approved", "denied"])
def test_a_soft_cap_holds_the_request_until_somebody_decides(
    world: World, model: Model, runtime: Runtime, allowed: bool
) -> None:
    model.play(Say(runtime.shell("true"), usage=MUCH), "Went on.")
    task = world.run(runtime, "Spend.", "--max-cost", CAP, "--permissions", "allow")
    shown = task.shown
    assert (shown["state"], shown["waiting_for"]) == ("waiting", "budget"), (shown, task.output)
    assert len(model.seen) == 1
    (asked,) = shown["task"]["asks"]
    assert asked["about"] == "budget" and CAP in asked["text"]
    world.balanced(task)
    assert world("approve" if allowed else "deny", task.id).returncode == 0
    shown = task.wait()
    if allowed:
        assert shown["state"] == "succeeded" and shown["task"]["output"] == "Went on."
    else:
        assert (shown["state"], shown["reason"]) == ("failed", "budget"), (shown, task.output)
        assert len(model.seen) == 1
    world.balanced(task)


@pytest.mark.promise("R1", "R2")
@pytest.mark.runtimes("cli-anthropic", slow=("claude-code",))
def test_an_agent_that_does_not_come_to_an_end_is_held_to_its_turns(
    world: World, model: Model, runtime: Runtime
) -> None:
    model.play(*[runtime.shell("true")] * 20)
    task = world.run(runtime, "Go on and on.", "--max-turns", "3", "--permissions", "allow")
    shown = task.shown
    assert (shown["state"], shown["reason"]) == ("failed", "turns"), (shown, task.output)
    assert len(model.seen) == 3
    world.balanced(task)


@pytest.mark.promise("B1", "B2", "U1")
@pytest.mark.runtimes("claude-code")
def test_a_days_limit_holds_for_every_task_of_the_project(alone: World) -> None:
    runtime = RUNTIMES["claude-code"]
    alone.begin()
    alone.model.play(Say("That was dear.", usage=MUCH))
    assert alone("budget", "--set", f"daily={CAP}", "hard=true").returncode == 0
    first = alone.run(runtime, "Spend.")
    assert first.state == "succeeded", first.output
    second = alone.run(runtime, "Spend more.")
    shown = second.shown
    assert (shown["state"], shown["reason"]) == ("failed", "budget"), shown
    assert "tenuto budget --set" in str(shown["task"]), shown["task"]
    assert len(alone.bill) == 1
    alone.balanced(first, second)
    told = alone.json("budget")
    assert Decimal(str(told["day"]["cost"])) == alone.spend(first).cost, told
