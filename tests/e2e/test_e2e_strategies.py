"""Several agents: each is really shown what those before it said, on whatever runtime it runs."""

from __future__ import annotations

import json

import pytest
from runtimes import RUNTIMES
from world import Runtime, Task, World

from tenuto.testing.models import Fail, Seen


def of_role(role: str):
    return lambda seen: bool(seen.tools) and f"You are a{role} agent" in seen.text


@pytest.mark.promise("G1", "R2")
@pytest.mark.runtimes("claude-code")
def test_a_handoff_shows_real_outputs_and_a_review_comes_back(
    alone: World, runtime: Runtime
) -> None:
    model = alone.model
    model.when(of_role("n architect"), "Design: call it ziggurat.")
    model.when(of_role(" developer"), "Built without tests.", "Built with tests, as asked.")
    model.when(
        of_role(" reviewer"),
        lambda seen: (
            "Fine.\n\nVerdict: approved"
            if "Built with tests" in seen.text
            else "Tests are missing: obsidian.\n\nVerdict: send back"
        ),
        "Fine.\n\nVerdict: approved",
    )
    alone.begin()
    task = alone.run(runtime, "Build the cache.", "--strategy", "multi")
    shown = task.shown
    assert shown["state"] == "succeeded", (shown, task.output)
    steps = shown["task"]["steps"]
    roles = ["architect", "developer", "reviewer", "developer", "reviewer"]
    assert [one["role"] for one in steps] == roles
    assert all(one["status"] == "completed" for one in steps)
    assert len(model.seen) == 5, [one.texts for one in model.seen]
    first, built, review, again, last = model.seen
    assert "ziggurat" not in first.text
    assert "Design: call it ziggurat." in built.text
    assert "Built without tests." in review.text
    assert "Tests are missing: obsidian." in again.text
    assert "Built with tests, as asked." in last.text
    # the developer goes on in its own session
    assert again.spoken == 1 and "Built without tests." in json.dumps(again.raw)
    alone.balanced(task)


@pytest.mark.promise("G2", "R1")
@pytest.mark.runtimes("claude-code", "codex")
def test_a_graph_runs_on_two_runtimes_at_once(alone: World) -> None:
    model = alone.model
    for name in "abcd":
        model.when(
            lambda seen, name=name: bool(seen.tools) and f"This is part {name}." in seen.text,
            f"Outcome-{name}.",
        )
    claude, codex = RUNTIMES["claude-code"], RUNTIMES["codex"]
    steps = [
        {"id": "a", "runtime": "claude-code", "model": claude.model},
        {"id": "b", "runtime": "codex", "model": codex.model},
        {"id": "c", "runtime": "claude-code", "model": claude.model, "depends_on": ["a", "b"]},
        {"id": "d", "runtime": "codex", "model": codex.model, "depends_on": ["a"]},
    ]
    plan = {"steps": [{**one, "task": f"This is part {one['id']}."} for one in steps]}
    (alone.folder / "plan.json").write_text(json.dumps(plan))
    alone.begin()
    done = alone("task", "-d", "--strategy", "parallel", "--plan", "plan.json")
    assert done.returncode == 0, done.stderr
    task = Task(alone, done.stdout.strip())
    shown = task.wait()
    assert shown["state"] == "succeeded", (shown, task.output)
    ran = {one["id"]: (one["runtime"], one["output"]) for one in shown["task"]["steps"]}
    wanted = {one["id"]: (one["runtime"], f"Outcome-{one['id']}.") for one in steps}
    assert ran == wanted

    def prompt(name: str) -> Seen:
        return next(one for one in model.seen if f"This is part {name}." in one.text)

    assert "Outcome-a." in prompt("c").text and "Outcome-b." in prompt("c").text
    assert "Outcome-a." in prompt("d").text and "Outcome-b." not in prompt("d").text
    started = {
        one["step"]: n for n, one in enumerate(task.events()) if one["type"] == "step_started"
    }
    ended = {
        one["step"]: n for n, one in enumerate(task.events()) if one["type"] == "step_finished"
    }
    assert max(started["a"], started["b"]) < min(ended.values())  # both at once, nobody waited
    alone.balanced(task)


@pytest.mark.full
@pytest.mark.promise("R3")
@pytest.mark.runtimes("claude-code", "open-code")
def test_another_of_the_family_takes_over_and_says_so_but_never_after_a_refused_key(
    alone: World,
) -> None:
    alone.begin()
    real = alone.programs["claude-code"]
    alone.programs["claude-code"] = str(alone.base / "not-there")
    alone.settings()
    alone.model.play("I stood in.")
    done = alone("task", "-d", "--runtime", "claude-code", "Do it.")
    task = Task(alone, done.stdout.strip())
    shown = task.wait()
    assert shown["state"] == "succeeded", (shown, task.output)
    (step,) = shown["task"]["steps"]
    assert (step["runtime"], step["output"]) == ("open-code", "I stood in.")
    (told,) = shown["task"]["fallbacks"]
    assert "claude-code → open-code" in told and "not-there" in told
    assert "open-code takes over" in task.output
    alone.programs["claude-code"] = real
    alone.settings()
    alone.model.play(Fail(401, times=99))
    done = alone("task", "-d", "--runtime", "claude-code", "Do it again.")
    other = Task(alone, done.stdout.strip())
    shown = other.wait()
    assert (shown["state"], shown["reason"]) == ("failed", "auth"), (shown, other.output)
    assert not shown["task"]["fallbacks"]
    alone.balanced(task, other)
