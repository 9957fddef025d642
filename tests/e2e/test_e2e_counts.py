"""Steps that speak in one session of a runtime: each has its own requests in the books."""

from __future__ import annotations

import json
import os
import signal

import pytest
from world import Runtime, Task, World

from tenuto.core.budget import Tokens
from tenuto.metering.ledger import Ledger
from tenuto.testing.models import Gate, Model, Say, Slow


def start(world: World, runtime: Runtime, *names: str) -> Task:
    """Start a task whose steps go on in one session."""
    steps = [{"id": one, "task": f"This is part {one}."} for one in names]
    (world.folder / "parts.json").write_text(json.dumps({"steps": steps}))
    words = ["--strategy", "single", "--plan", "parts.json", "--permissions", "allow"]
    model = ["--model", runtime.model] if runtime.model else []
    done = world("task", "-d", "--runtime", runtime.runtime, *model, *words)
    assert done.returncode == 0, done.stderr
    return Task(world, done.stdout.strip())


def by_step(world: World, task: Task) -> dict[str, Tokens]:
    """What the ledger has of each step; `show` says the same."""
    ledger = Ledger(world.project.home)
    try:
        shown = {one["id"]: (one["tokens_in"], one["tokens_out"]) for one in task.task["steps"]}
        found = {name: ledger.spend(task.id, name).tokens for name in shown}
    finally:
        ledger.close()
    assert shown == {name: (one.total - one.output, one.output) for name, one in found.items()}, (
        shown
    )
    return found


@pytest.mark.promise("B1", "B3", "G1", "D3")
@pytest.mark.runtimes("claude-code", "cli-anthropic")
def test_each_step_in_a_session_has_its_own_requests_even_when_its_driver_dies(
    world: World, model: Model, runtime: Runtime
) -> None:
    gate = Gate()
    gate.let(3)
    words = "The second began.\n" * 8 + "And more would come.\n" * 8
    model.play(
        Say("The first is done.", usage=Tokens(1000, 10)), Slow(gate, Say(words)), by="request",
        bare=False,
    )  # fmt: skip
    task = start(world, runtime, "first", "second", "third")
    done = world("wait", task.id, "--until", "The second began", "--up-to", "60s")
    assert done.returncode == 0, (done.stderr, task.shown, task.output)
    assert len({one["execution"] for one in task.events("step_session") if one["execution"]}) == 1
    os.kill(task.driver, signal.SIGKILL)
    task.gone_within(1.0)
    assert task.wait()["state"] == "lost", task.shown
    cut = [one.tokens for one in world.bill if one.tokens != Tokens(1000, 10)]

    model.play(
        Say("The second is done.", usage=Tokens(200, 20)),
        Say("The third is done.", usage=Tokens(30, 3)), by="request", bare=False,
    )  # fmt: skip
    assert world("resume", "-d", task.id).returncode == 0
    shown = task.wait()
    assert shown["state"] == "succeeded", (shown, task.output)
    found = by_step(world, task)
    if runtime.name != "open-code":  # which asks for a title beside it
        assert found == {
            "first": Tokens(1000, 10),
            "second": sum(cut, Tokens(200, 20)),
            "third": Tokens(30, 3),
        }
    assert found["second"].total > 220, "what was cut short counts where it began"
    assert found["third"] == Tokens(30, 3)
    world.balanced(task)
