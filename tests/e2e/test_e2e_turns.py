"""Text, tools and permissions: what every runtime does with a task, as its user sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtimes import MAIN
from world import KEYS, Runtime, World

from tenuto.testing.models import Call, Model

_KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key")


@pytest.mark.promise("R1", "R2", "B1", "B3")
@pytest.mark.runtimes(*MAIN, slow=("cli-chat", "cli-google", "cli-responses"))
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
    # the gateway alone has the real key: nothing that the runtime was given is one
    sent = {one.headers.get(name, "") for one in model.seen for name in _KEY_HEADERS} - {""}
    assert {one.removeprefix("Bearer ") for one in sent} <= set(KEYS.values()) and len(sent) == 1
    assert world.is_closed(task), "what it was given to reach the gateway serves nobody any more"
    for one in (task.id, *task.below()):
        told = world("export", one).stdout + world("show", one, "--events").stdout
        assert not [key for key in KEYS.values() if key in told]
    world.balanced(task)


@pytest.mark.promise("B3", "X16")
@pytest.mark.runtimes("claude-code", "cli-anthropic", slow=("codex",))
def test_no_real_key_is_where_an_agent_finds_it(
    world: World, model: Model, runtime: Runtime
) -> None:
    look = "env; tr '\\0' '\\n' < /proc/$PPID/environ; ps axww -o args; echo looked"
    model.play(*runtime.opens, runtime.shell(look), "I looked around.")
    task = world.run(runtime, "Look around.", "--permissions", "allow")
    assert task.state == "succeeded", task.output
    seen = model.shown.last
    assert "looked" in seen and "TENUTO_EXECUTION" in seen
    assert not [name for name, key in KEYS.items() if key in seen]
    for path in (*world.folder.rglob("*"), *Path(world.project.home).rglob("*")):
        if path.is_file() and path.stat().st_size < 64 << 20:
            found = path.read_bytes()
            assert not [name for name, key in KEYS.items() if key.encode() in found], path


def _after_a_refusal(runtime: Runtime) -> tuple[str, str]:
    """Codex ends its turn when a tool is refused; the others tell their model, and go on."""
    return ("failed", "permission") if runtime.name == "codex" else ("succeeded", "")


@pytest.mark.promise("R2", "U1")
@pytest.mark.runtimes("claude-code", "codex")
def test_what_policy_leaves_open_is_decided_from_another_process(
    world: World, model: Model, runtime: Runtime
) -> None:
    made = world.folder / f"{runtime.name}.asked"
    model.play(runtime.asks(str(made), "first"), runtime.asks(str(made), "second"), "I tried both.")
    task = world.run(runtime, "Write a file twice.", "--permissions", "ask")
    shown = task.shown
    assert (shown["state"], shown["waiting_for"]) == ("waiting", "approval"), (shown, task.output)
    (asked,) = shown["task"]["asks"]
    assert "wants to use" in asked["text"] and "first" in str(asked["detail"])
    assert not made.exists()
    assert f"approved #{asked['n']}" in world("approve", task.id).stderr
    model.until(lambda seen: seen.spoken == 1)
    task.wait()
    assert made.read_text() == "first"
    done = world("deny", task.id, "--why", "once is enough")
    assert done.returncode == 0 and "denied #" in done.stderr
    end = task.wait()
    assert (end["state"], end["reason"]) == _after_a_refusal(runtime), task.output
    assert made.read_text() == "first"
    decided = [(one["allow"], one.get("why", "")) for one in task.events("decided")]
    assert decided == [(True, ""), (False, "once is enough")]
    world.balanced(task)


@pytest.mark.promise("R2")
@pytest.mark.runtimes("codex")
def test_a_policy_refuses_without_asking(world: World, model: Model, runtime: Runtime) -> None:
    made = world.folder / f"{runtime.name}.refused"
    model.play(runtime.asks(str(made), "no"), "I was not allowed to.")
    task = world.run(runtime, "Write a file.", "--permissions", "deny")
    assert (task.state, task.shown["reason"]) == _after_a_refusal(runtime), task.output
    assert not made.exists()
    assert [one["by"] for one in task.said("permission_refused")] == ["permissions=deny"]
    assert not task.events("asked")
    world.balanced(task)
