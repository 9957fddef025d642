"""Agent tasks over MCP: the engine's status, budgets, interrupt and resume, restarts."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import time

import pytest
from agents_help import done, with_agents
from mcp_help import HANDSHAKE, MODERN, TASKS, Place, Wire, text

from tenuto.core.quantities import money
from tenuto.testing.models import Model

STEPS = [
    {"id": "a", "task": "one"},
    {"id": "b", "task": "two [[hang]]", "depends_on": ["a"]},
    {"id": "c", "task": "three", "depends_on": ["b"]},
]


@pytest.fixture
def agents(place: Place) -> Place:
    return with_agents(place)


def until_runs(wire: Wire, task: str, step: str) -> None:
    """Return once a step of a task runs."""
    limit = time.monotonic() + 60
    while True:
        steps = wire.data("engine_status", execution_id=task)["steps"]
        if any(one["id"] == step and one["status"] == "running" for one in steps):
            return
        assert time.monotonic() < limit, steps


@pytest.mark.promise("M2")
def test_status_shows_runtimes_strategies_and_spending(agents: Place):
    agents.env["TENUTO_ECHO_MISSING"] = "it is away"
    wire = agents.wire()
    result = wire.call("engine_status")
    shown, data = text(result), result["structuredContent"]
    found = {one["name"]: one for one in data["runtimes"]}
    assert {"claude-code", "open-code", "cli", "codex", "gemini", "echo"} <= set(found)
    echo = found["echo"]
    assert (echo["available"], echo["why"], echo["family"]) == (False, "it is away", "echo")
    assert "- echo: not usable: it is away (unset TENUTO_ECHO_MISSING)" in shown
    assert (data["preferred_runtime"], data["runtime_order"]) == ("echo", ["echo", "second"])
    assert data["available_strategies"] == ["auto", "single", "multi", "parallel"]
    assert "Strategies: auto, single, multi, parallel" in shown
    assert data["budget"]["daily_spending"] == 0 and "Spent today: $0.00" in shown
    assert data["healthy"] is True and data["tasks"] == []
    refused, _, _ = done(wire, task="x")
    assert "no runtime works here: echo: it is away" in refused


SLOW = """
    import asyncio
    from tenuto.testing.agents import EchoRunner

    class Slow(EchoRunner):
        async def probe(self, environ):
            await asyncio.Event().wait()

    class Broken(EchoRunner):
        async def probe(self, environ):
            raise ValueError("all wrong")
"""


@pytest.mark.promise("M2")
def test_a_status_does_not_wait_for_a_runtime_that_does_not_answer(place: Place):
    agents = with_agents(place)
    settings = agents.folder / "tenuto.toml"
    settings.write_text(
        settings.read_text() + 'slow = "slows:Slow"\nbroken = "slows:Broken"\ngone = "no:where"\n'
    )
    (agents.folder.parent / "modules" / "slows.py").write_text(textwrap.dedent(SLOW))
    wire = agents.wire()
    wire.call("execute", code="1")  # the server is up
    data = wire.data("engine_status")
    found = {one["name"]: one for one in data["runtimes"]}
    assert (found["slow"]["available"], found["slow"]["why"]) == (None, "not looked at yet")
    assert found["echo"]["available"] is True and data["available_runtimes"] == ["echo", "second"]
    assert "ValueError: all wrong" in found["broken"]["why"]
    assert "cannot be loaded" in found["gone"]["why"] and found["gone"]["hint"]


@pytest.mark.promise("M2", "B1", "B2")
def test_budget_is_told_set_and_reset(agents: Place):
    wire = agents.wire(HANDSHAKE[0])
    done(wire, task="x [[use:1000,50]]", force_model="claude-sonnet-4-5")
    result = wire.call("engine_budget")
    data = result["structuredContent"]
    assert (data["daily_tokens"], data["monthly_tokens"]) == (1050, 1050)
    assert data["daily_spending"] == data["monthly_spending"] == pytest.approx(0.00375)
    assert "Spent today: $0.00375, 1050 tokens, 1 request; limit none" in text(result)
    assert data["executions"][0]["cost"] == pytest.approx(0.00375)
    data = wire.data("engine_budget", daily="10", monthly=200.5, max_cost=2, hard=True)
    limits = (data["daily_limit"], data["monthly_limit"], data["task_limit"], data["hard"])
    assert limits == (10, 200.5, 2, True)
    again = agents.wire().data("engine_budget", remove=["monthly"], reset=True)
    assert (again["daily_limit"], again["monthly_limit"], again["hard"]) == (10, None, True)
    assert (again["daily_tokens"], again["monthly_tokens"]) == (0, 1050)
    for given, wrong in (
        ({"max_tokens": 5}, "engine_execute"),
        ({"daily": -1}, "minimum"),
        ({"reset": "week"}, "week"),
    ):
        refused = wire.call("engine_budget", **given)
        assert refused["isError"] and wrong in text(refused)


@pytest.mark.promise("M2", "B1", "B3")
def test_what_a_real_loop_costs_is_counted_and_the_counter_is_not_listed(place: Place):
    model = "anthropic:claude-haiku-4-5"
    (place.folder / "tenuto.toml").write_text(f'[tiers.cli]\nfast = "{model}"\nmain = "{model}"\n')
    with Model() as provider:
        place.env |= {"ANTHROPIC_API_KEY": "sk-ant-real", "ANTHROPIC_BASE_URL": provider.url}
        wire = place.wire()
        shown, data, _ = done(wire, task="Say something", runtime="cli", wait=50)
        assert data["status"] == "completed", shown
        (billed,) = provider.bill
        tokens = billed.tokens.input + billed.tokens.cache_read + billed.tokens.cache_write
        assert (data["tokens_in"], data["tokens_out"]) == (tokens, billed.tokens.output)
        assert data["cost"] > 0 and f"cost: {money(data['cost'])}" in shown
        assert "not metered" not in shown
        assert data["running"] == [] and "Running now: nothing." in shown
        assert wire.data("list")["executions"] == []
        listed = wire.data("list", which="all")["executions"]  # whoever looks for it finds it
        assert "metering gateway" in [one["title"] for one in listed]
        assert wire.data("engine_budget")["daily_spending"] == pytest.approx(data["cost"])


@pytest.mark.promise("M2", "B2")
def test_a_bound_is_a_warning_over_mcp_and_a_hard_one_stops(agents: Place):
    wire = agents.wire()
    plan = [
        {"id": "a", "task": "one [[use:1000,50]]"},
        {"id": "b", "task": "two [[use:1000,50]]", "depends_on": ["a"]},
    ]
    shown, data, result = done(wire, plan=plan, max_tokens=1000)
    assert data["status"] == "completed" and not result.get("isError")
    assert "1000 tokens" in data["warnings"][0] and f"Warning: {data['warnings'][0]}" in shown
    _, data, result = done(wire, plan=plan, max_tokens=1000, hard=True)
    assert (data["status"], result["isError"]) == ("partial", True)
    assert data["steps"][1]["status"] == "failed" and "1000 tokens" in data["steps"][1]["error"]


@pytest.mark.promise("B2", "M2")
def test_a_task_that_fails_at_a_window_names_the_calls_that_help(agents: Place):
    wire = agents.wire()
    wire.data("engine_budget", daily=0, hard=True)
    shown, data, result = done(wire, task="two")
    assert result["isError"] and data["reason"] == "budget"
    for one in (shown, data["steps"][0]["error"], data["detail"]):
        assert "raise it: engine_budget(daily=AMOUNT)" in one and "tenuto budget" not in one
    (call,) = data["next"]
    again = rf'to do task again in a new task: engine_resume\(execution_id="{ID}", from=\d+\)'
    assert re.fullmatch(again, call)
    assert f"Next:\n- {call}" in shown


ID = r"[0-9a-f-]+"
ELICIT = "budget = { elicit = true }\n"
SPENDING = [
    {"id": "a", "task": "one [[use:1000,50]]"},
    {"id": "b", "task": "two", "depends_on": ["a"]},
]


@pytest.mark.promise("B2", "M2")
def test_where_it_is_set_the_user_is_asked_at_a_bound(place: Place):
    agents = with_agents(place, ELICIT)
    wire = agents.wire(HANDSHAKE[-1], capabilities={"elicitation": {"form": {}}})
    arguments = {"plan": SPENDING, "max_tokens": 1000, "wait": 50}
    number = wire.ask("tools/call", name="engine_execute", arguments=arguments)
    asked = wire.notices.get(timeout=60)
    while asked["method"] != "elicitation/create":
        asked = wire.notices.get(timeout=60)
    assert "1000 tokens" in asked["params"]["message"]
    answer = {"action": "accept", "content": {"approve": True}}
    wire.send({"jsonrpc": "2.0", "id": asked["id"], "result": answer})
    assert wire.answer(number)["structuredContent"]["status"] == "completed"
    modern = agents.wire(MODERN, capabilities={"elicitation": {"form": {}}})
    first = modern.request("tools/call", name="engine_execute", arguments=arguments)
    assert first["resultType"] == "input_required"
    ((key, question),) = first["inputRequests"].items()
    assert "1000 tokens" in question["params"]["message"]
    second = modern.request(
        "tools/call",
        name="engine_execute",
        arguments=arguments,
        inputResponses={key: {"action": "decline"}},
        requestState=first["requestState"],
    )
    assert second["isError"] and second["structuredContent"]["status"] == "partial"
    assert second["structuredContent"]["execution_id"] == first["requestState"]
    nobody = agents.wire(MODERN)
    data = nobody.data("engine_execute", **arguments)
    assert (data["status"], data["waiting_for"]) == ("waiting", "budget")
    assert data["asks"][0]["about"] == "budget" and data["next"][0].startswith("approve(")
    ended = nobody.data("approve", execution_id=data["execution_id"], wait=50)
    assert ended["status"] == "completed"


@pytest.mark.promise("M2", "R3")
def test_an_interrupted_task_says_what_is_saved_and_goes_on_with_resume(agents: Place):
    wire = agents.wire()
    _, data, _ = done(wire, plan=STEPS, wait=0)
    task = data["execution_id"]
    until_runs(wire, task, "b")
    stopped = wire.call("engine_interrupt", execution_id=task)
    assert "Done and saved: a." in text(stopped) and "Not begun: c." in text(stopped)
    assert stopped["structuredContent"]["status"] == "interrupted"
    assert f'engine_resume(execution_id="{task}")' in text(stopped)
    on = wire.call("engine_resume", execution_id=task, wait=1)
    data = on["structuredContent"]
    assert text(on).startswith(f"Resumed {task}.\n\nExecution moved to async mode")
    steps = {one["id"]: one for one in data["steps"]}
    assert (steps["a"]["status"], steps["a"]["attempts"]) == ("completed", 1)
    twice = wire.call("engine_resume", execution_id=task)
    assert twice["isError"] and "still" in text(twice)
    code = wire.data("execute", code="1", language="python")["execution_id"]
    ended = wire.call("engine_resume", execution_id=code)
    assert ended["isError"] and "only interrupted and lost ones resume" in text(ended)


@pytest.mark.promise("M2", "X11")
def test_a_task_is_found_again_by_the_next_server_after_kill_9(agents: Place):
    declared = {"extensions": {TASKS: {}}}
    wire = agents.wire(capabilities=declared)
    task = wire.call("engine_execute", task="x [[delay:3]] [[say:at last]]", wait=1)["taskId"]
    asking = wire.call("engine_execute", task="y [[ask:Bash]]", wait=50)["structuredContent"]
    wire.kill()
    again = agents.wire(capabilities=declared)
    known = {one["execution_id"]: one for one in again.data("engine_status")["tasks"]}
    assert known[asking["execution_id"]]["asks"] == asking["asks"]
    data = again.data("output", execution_id=task, wait_s=50)
    assert (data["status"], data["success"]) == ("completed", True)
    got = again.request("tasks/get", taskId=task)
    assert got["result"]["structuredContent"]["output"] == "at last"
    ended = again.data("approve", execution_id=asking["execution_id"], wait=50)
    assert ended["status"] == "completed"


@pytest.mark.promise("M2", "D2")
def test_a_lost_task_goes_on_with_resume(agents: Place):
    wire = agents.wire()
    _, data, _ = done(wire, plan=[STEPS[0], {**STEPS[1], "in_flight": "skip"}], wait=0)
    task = data["execution_id"]
    until_runs(wire, task, "b")
    events = agents.document("show", "--events", task)
    (started,) = [one for one in events if one["type"] == "started"]
    os.kill(started["keeper_pid"], signal.SIGKILL)
    lost = wire.call("output", execution_id=task, wait_s=50)
    assert lost["structuredContent"]["status"] == "lost"
    assert f'engine_resume(execution_id="{task}")' in text(lost)
    on = wire.data("engine_resume", execution_id=task, wait=50)
    assert on["status"] == "partial" and on["output"].startswith("=== a (")
