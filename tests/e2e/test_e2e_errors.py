"""What goes wrong at a model's server, with real runtimes: told, kept, counted, never a success."""

from __future__ import annotations

import json
from typing import Any

import pytest
from world import LONGEST_S, Runtime, Task, World

from tenuto.testing.models import Cut, Fail, Garbage, Model, Overflow, Silence, Step

LONG = 999
CASES: dict[str, tuple[list[Step], set[str]]] = {
    # first what runtimes try again for a minute
    "overload": ([Fail(529, "Overloaded", times=LONG)], {"overloaded", "server"}),
    "cut": ([Cut(after=2, times=LONG)], {"network"}),
    "garbage": ([Garbage(times=LONG)], {"protocol", "network", "server", "failed"}),
    "key": ([Fail(401, "invalid x-api-key", times=LONG)], {"auth"}),
    # OpenCode keeps the server's words and not its status: of these nobody can tell the kind
    "request": ([Fail(400, "this is no request", times=LONG)], {"bad_request", "failed"}),
    "overflow": ([Overflow(times=LONG)], {"context"}),
    "busy": ([Fail(429, retry_after=0.1), "It worked in the end."], set()),
}


def plan_of(cases: dict[str, Any]) -> str:
    """A plan with one step for each case; only what passes is tried again by the driver."""
    again = {"busy": {"times": 1, "pause": 0.1}}
    steps = [
        {"id": name, "task": f"The case is {name}-case.", "retry": again.get(name, {"times": 0})}
        for name in cases
    ]
    return json.dumps({"steps": steps, "concurrency": 4})


@pytest.mark.promise("R2", "R3", "G2", "B1")
@pytest.mark.timeout(LONGEST_S + 20)
@pytest.mark.runtimes("claude-code", "codex")
def test_every_failure_is_told_and_counted(alone: World, runtime: Runtime) -> None:
    for name, (steps, _) in CASES.items():
        alone.model.when(
            lambda seen, name=name: f"{name}-case" in seen.text and bool(seen.tools), *steps
        )
    alone.begin()
    (alone.folder / "plan.json").write_text(plan_of(CASES))
    done = alone(
        "task", "-d", "--strategy", "parallel", "--plan", "plan.json",
        "--runtime", runtime.runtime, "--model", runtime.model,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    task = Task(alone, done.stdout.strip())
    shown = task.wait()
    found = {one["id"]: one for one in shown["task"]["steps"]}
    kinds = {one["step"]: one.get("kind", "") for one in task.events("step_finished")}
    wrong: dict[str, Any] = {}
    for name, (_, allowed) in CASES.items():
        step = found[name]
        if not allowed:
            good = step["status"] == "completed" and step["output"] == "It worked in the end."
        elif name == "overflow" and runtime.compacts:
            good = step["status"] == "completed"
        else:
            good = step["status"] == "failed" and kinds[name] in allowed and bool(step["error"])
        if not good:
            wrong[name] = (kinds[name], step["status"], step["error"], step["output"])
    assert not wrong, wrong
    assert (shown["state"], shown["reason"]) == ("failed", "partial"), (shown, task.output)
    assert "[cut] This answer is long enough" in task.output  # what was said is kept
    # what its runtime may try again, in silence, is told while it does
    assert "[overload] the model's server answered 529 (overloaded)" in task.output
    assert "[cut] the model's answer broke off" in task.output
    heard = [one["what"]["type"] for one in task.events("step_said") if one["step"] == "busy"]
    assert [one for one in heard if one.startswith("model_")] == ["model_failed", "model_answered"]
    assert not shown["task"]["fallbacks"]
    alone.balanced(task)


@pytest.mark.promise("R2", "U1", "D3", "B1")
@pytest.mark.runtimes("claude-code")
def test_what_a_runtime_tries_again_is_shown_and_can_be_interrupted(
    world: World, model: Model, runtime: Runtime
) -> None:
    model.play(Fail(529), Silence(), by="request", bare=False)
    task = world.start(runtime, "Try for ever.")
    done = world("wait", task.id, "--until", "answered 529", "--up-to", "60s")
    assert done.returncode == 0, (done.stderr, task.shown)
    (step,) = task.task["steps"]
    assert step["status"] == "running" and "overloaded" in step["trouble"]
    told = world("show", task.id).stdout
    assert "overloaded" in told and f"; {runtime.runtime} may try again" in told
    assert world("interrupt", task.id).returncode == 0
    task.gone_within(1.0)
    assert task.state == "interrupted"
    assert not task.task["steps"][0]["trouble"]
    world.balanced(task)


@pytest.mark.promise("R1", "X4", "D3")
@pytest.mark.runtimes("claude-code")
def test_silence_lasts_until_it_is_interrupted(
    world: World, model: Model, runtime: Runtime
) -> None:
    model.play(Silence(), by="request", bare=False)
    task = world.start(runtime, "Wait for nobody.")
    model.until(lambda seen: bool(seen.tools))
    assert task.state == "running"
    assert world("interrupt", task.id).returncode == 0
    task.gone_within(1.0)
    assert task.state == "interrupted"
    world.balanced(task)
