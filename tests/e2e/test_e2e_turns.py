"""Text, tools and permissions: what every runtime does with a task, as its user sees it."""

from __future__ import annotations

import pytest
from world import Runtime, World

from tenuto.testing.models import Call, Model


@pytest.mark.promise("R1", "R2", "B1", "B3")
def test_a_task_uses_its_own_tools_and_ours(world: World, model: Model, runtime: Runtime) -> None:
    model.play(
        runtime.write(str(world.folder / f"{runtime.name}.txt"), "made by an agent\n"),
        *runtime.opens,
        Call("execute", code="echo $((6 * 7)) in a child", language="bash"),
        "All is done.",
    )
    task = world.run(runtime, "Make a file, then count.", "--permissions", "allow")
    shown = task.shown
    assert shown["state"] == "succeeded", (shown, task.output)
    assert "42 in a child" in model.shown.last
    assert (world.folder / f"{runtime.name}.txt").read_text() == "made by an agent\n"
    assert task.output.rstrip().endswith("All is done.")
    (step,) = shown["task"]["steps"]
    assert (step["status"], step["runtime"]) == ("completed", runtime.runtime)
    assert step["output"] == "All is done." and step["session"]
    assert ("step", "task") in task.tree() and task.tree()[1:] == [("code", "step")]
    assert [one["ok"] for one in task.said("tool_ended")] == [True] * 2
    # the real key is the gateway's alone, and the model's server saw no other
    sent = {key for one in model.seen for key in one.headers.values() if "tenuto" in key.lower()}
    assert not sent
    world.balanced(task)


@pytest.mark.promise("R2", "U1")
def test_what_policy_leaves_open_is_decided_from_another_process(
    world: World, model: Model, runtime: Runtime
) -> None:
    outside = (
        world.base / f"{runtime.name}.outside"
    )  # beyond what any runtime lets its agent do unasked
    model.play(
        runtime.asks(f"echo first > {outside}"),
        runtime.asks(f"echo second > {outside}"),
        "I tried both.",
    )
    task = world.run(runtime, "Write outside.", "--permissions", "ask")
    shown = task.shown
    assert (shown["state"], shown["waiting_for"]) == ("waiting", "approval"), (shown, task.output)
    (asked,) = shown["task"]["asks"]
    assert "wants to use" in asked["text"] and "echo first" in str(asked["detail"])
    assert not outside.exists()
    assert f"approved #{asked['n']}" in world("approve", task.id).stderr
    model.until(lambda seen: seen.spoken == 1)
    task.wait()
    assert outside.read_text() == "first\n"
    done = world("deny", task.id, "--why", "not outside the project")
    assert done.returncode == 0 and "denied #" in done.stderr
    assert task.wait()["state"] == "succeeded", task.output
    assert outside.read_text() == "first\n"
    decided = [(one["allow"], one.get("why", "")) for one in task.events("decided")]
    assert decided == [(True, ""), (False, "not outside the project")]
    world.balanced(task)


@pytest.mark.promise("R2")
@pytest.mark.runtimes("claude-code", "cli-anthropic", "codex", "open-code", "gemini")
def test_a_policy_refuses_without_asking(world: World, model: Model, runtime: Runtime) -> None:
    outside = world.base / f"{runtime.name}.refused"
    model.play(runtime.asks(f"echo no > {outside}"), "I was not allowed to.")
    task = world.run(runtime, "Write outside.", "--permissions", "deny")
    assert task.state == "succeeded", task.output
    assert not outside.exists()
    assert [one["by"] for one in task.said("permission_refused")] == ["permissions=deny"]
    assert not task.events("asked")
    world.balanced(task)
