"""Agent tasks over MCP: done in time, handed over, as tasks of the extension; what they ask."""

from __future__ import annotations

import json
import re

import pytest
from agents_help import done, with_agents
from mcp_help import HANDSHAKE, MODERN, TASKS, Place, Wire, text

GRAPH = [
    {"id": "a", "task": "one"},
    {"id": "b", "task": "two [[fail:auth]]"},
    {"id": "c", "task": "three", "depends_on": ["b"]},
    {"id": "d", "task": "four", "depends_on": ["a"]},
]
BASH = "[[say:it ran]] [[ask:Bash]]"


@pytest.fixture
def agents(place: Place) -> Place:
    return with_agents(place)


@pytest.mark.promise("M2", "M3")
@pytest.mark.parametrize("version", [HANDSHAKE[2], MODERN])
def test_a_task_that_is_done_in_time_is_answered_whole(agents: Place, version: str):
    wire = agents.wire(version)
    shown, data, result = done(wire, task="Say hello [[use:1000,50]]", force_agent="reviewer")
    assert not result.get("isError") and shown.startswith("# Task Say hello\n")
    assert (data["status"], data["success"], data["output"]) == ("completed", True, data["output"])
    assert data["output"] == "# Task Say hello" and "value" not in data
    assert (data["tokens_in"], data["tokens_out"]) == (1000, 50)
    assert (data["strategy"], data["runtime"], data["runtimes"]) == ("single", "echo", ["echo"])
    (step,) = data["steps"]
    assert (step["status"], step["role"], step["runtime"]) == ("completed", "reviewer", "echo")
    assert f"Task {data['execution_id']} completed" in shown
    assert "Tokens: 1000 in, 50 out" in shown and "completed (reviewer, echo)" in shown
    assert data["asks"] == data["warnings"] == data["fallbacks"] == []


@pytest.mark.promise("M2", "R3")
def test_what_fails_is_an_error_and_what_is_partly_done_is_called_partial(agents: Place):
    wire = agents.wire()
    shown, data, result = done(wire, task="x [[fail:auth]]")
    assert result["isError"] is True and shown.startswith(f"Error: task {data['execution_id']}")
    assert (data["status"], data["success"], data["reason"]) == ("failed", False, "auth")
    assert "it was told to fail: auth" in data["steps"][0]["error"]
    look, again = data["next"]
    assert look == "engine_status() for the runtimes that work here, and what the others lack"
    assert again.startswith('to do task again in a new task: engine_resume(execution_id="')
    shown, data, result = done(wire, plan=GRAPH)
    assert result["isError"] is True and (data["status"], data["success"]) == ("partial", False)
    assert {one["id"]: one["status"] for one in data["steps"]} == {
        "a": "completed", "b": "failed", "c": "skipped_dependency_failed", "d": "completed",
    }  # fmt: skip
    assert "Partial: task" in shown and "2 of 4 steps completed" in shown
    assert "- c: skipped_dependency_failed: b failed" in shown
    assert data["output"].startswith("=== a (") and "=== d (" in data["output"]
    assert data["output"] in shown


@pytest.mark.promise("M2", "R4")
def test_unknown_names_and_plans_that_cannot_run_are_refused_with_what_is_known(agents: Place):
    wire = agents.wire()
    for name, known in (
        ("strategy", "auto, multi, parallel, single"),
        ("force_agent", "architect, developer"),
        ("force_runtime", "claude-code, open-code, cli, codex, gemini, echo"),
        ("task_type", "bugfix"),
    ):
        shown, data, result = done(wire, task="x", **{name: "nope"})
        assert result["isError"] and "nope" in shown and known in shown, shown
        assert data["code"] == "unknown_name" and data["running"] == []
    cycle = [{"id": "a", "task": "x", "depends_on": ["b"]}, {"id": "b", "task": "x",
             "depends_on": ["a"]}]  # fmt: skip
    for given, wrong in (
        ({}, "there is no task"),
        ({"plan": cycle}, "a → b → a"),
        ({"plan": [{"id": "a", "task": "x", "depends_on": ["q"]}]}, "'q'"),
        ({"plan": [{"id": "a", "task": "x", "who": "me"}]}, "who"),
        ({"plan": "no json"}, "plan: "),
        ({"task": "x", "force": "y"}, "force_runtime"),
    ):
        shown, data, result = done(wire, **given)
        assert result["isError"] and wrong in shown, shown
        assert data["next"]
    assert agents.document("ps", "-a") == []


@pytest.mark.promise("M2")
def test_a_plan_and_the_other_arguments_may_be_given_as_models_write_them(agents: Place):
    wire = agents.wire()
    plan = {"tasks": [{"id": "one", "task": "x [[recall]]"}], "concurrency": 1}
    _, data, _ = done(
        wire, plan=json.dumps(plan), context={"ticket": 7}, path=str(agents.folder), wait="20s"
    )
    assert data["status"] == "completed" and '"ticket": 7' in data["output"]
    (agents.folder / "a.txt").write_text("the file's text")
    _, data, _ = done(
        wire, prompt="y [[recall]]", runtime="second", role="ops", files="a.txt", maxTokens="5"
    )
    assert data["runtime"] == "second" and "the file's text" in data["output"]
    assert data["steps"][0]["role"] == "ops"


@pytest.mark.promise("M2", "R1")
def test_a_bound_on_turns_reaches_the_runtime_and_is_warned_of_where_it_takes_none(agents: Place):
    wire = agents.wire()
    shown, data, _ = done(wire, task="x", maxTurns="3")
    assert agents.document("show", data["execution_id"])["spec"]["task"]["max_turns"] == 3
    (told,) = data["warnings"]
    assert "echo takes no bound on its turns" in told and told in shown
    shown, data, result = done(wire, task="x", max_turns=0)
    assert result["isError"] and "max_turns" in shown, shown


@pytest.mark.promise("M2", "M3")
def test_a_task_that_takes_long_is_handed_over_and_read_on(agents: Place):
    wire = agents.wire(HANDSHAKE[-1])
    plan = [
        {"id": "a", "task": "quick"},
        {"id": "b", "task": "slow [[delay:2.5]]", "depends_on": ["a"]},
    ]
    number = wire.ask(
        "tools/call",
        name="engine_execute",
        arguments={"plan": plan, "wait": 2.4},
        _meta={"progressToken": 1},
    )
    assert "[a] # Task quick" in wire.notice("notifications/progress")["message"]
    result = wire.answer(number)
    shown, data = text(result), result["structuredContent"]
    assert not result.get("isError")
    assert re.match(r"Execution moved to async mode after [23](\.\d)? seconds\.", shown)
    assert (data["status"], data["success"]) == ("running", False)
    assert "- a: completed" in shown and "- b: running" in shown
    where = f'execution_id="{data["execution_id"]}", cursor="{data["cursor"]}"'
    assert data["next"][0].startswith(f"output({where}, wait_s=50)") and data["next"][0] in shown
    rest = wire.call("output", execution_id=data["execution_id"], cursor=data["cursor"], wait_s=50)
    ended = rest["structuredContent"]
    assert ended["status"] == "completed" and "[b] " in ended["output"]
    assert "[a]" not in ended["output"] and "completed" in text(rest)
    whole = wire.data("output", execution_id=data["execution_id"], cursor="r0")
    assert re.findall(r"=== (\w)", whole["output"]) == ["a", "b"]


@pytest.mark.promise("M2", "R1")
def test_a_wait_ends_when_a_task_asks_and_approve_goes_on_with_it(agents: Place):
    wire = agents.wire()
    shown, data, _ = done(wire, task=BASH, wait=50)
    assert (data["status"], data["waiting_for"]) == ("waiting", "approval")
    (asked,) = data["asks"]
    assert (asked["n"], asked["about"], asked["detail"]["tool"]) == (1, "permission", "Bash")
    assert "It waits for approval." in shown and "#1 (permission): task wants to use Bash" in shown
    assert '"command":"echo"' in shown
    where = f'execution_id="{data["execution_id"]}"'
    assert f"- approve({where}, n=1)" in shown and f"- deny({where}, n=1" in shown
    (task,) = wire.data("engine_status")["tasks"]
    assert task["asks"] == data["asks"]
    missing = wire.call("approve", execution_id=data["execution_id"], n=7)
    assert missing["isError"] and "no question 7" in text(missing)
    answer = wire.call("approve", execution_id=data["execution_id"], n=1, wait=50)
    assert text(answer).startswith("Approved #1: task wants to use Bash.\n\nit ran\n")
    assert answer["structuredContent"]["status"] == "completed"
    late = wire.call("approve", execution_id=data["execution_id"])
    assert late["isError"] and "asks nothing" in text(late)


@pytest.mark.promise("M2", "R1")
def test_deny_tells_the_agent_why_and_every_question_is_put(agents: Place):
    wire = agents.wire()
    _, data, _ = done(wire, task="[[ask:Bash]] [[ask:Curl]]", wait=50)
    second = wire.data("deny", execution_id=data["execution_id"][:18], why="too dear", wait=50)
    assert (second["status"], second["asks"][0]["n"]) == ("waiting", 2)
    assert second["asks"][0]["text"] == "task wants to use Curl"
    assert second["message"].startswith("Denied #1: task wants to use Bash. Execution moved")
    last = wire.data("deny", execution_id=data["execution_id"], n=2, wait=50)
    assert last["status"] == "completed"
    events = agents.cli("show", "--events", data["execution_id"], "--json").stdout
    assert "refused: too dear" in events
    code = wire.data("execute", code="1", language="python")["execution_id"]
    no_task = wire.call("approve", execution_id=code)
    assert no_task["isError"] and "no task" in text(no_task)


@pytest.mark.promise("M2")
def test_a_client_that_does_not_wait_is_told_that_a_task_asks(agents: Place):
    wire = agents.wire(HANDSHAKE[1])
    task = done(wire, task=BASH, wait=0)[1]["execution_id"]
    told = wire.notice("notifications/message")["data"]
    while "waits for approval" not in told["message"]:
        told = wire.notice("notifications/message")["data"]
    assert told["execution_id"] == task and "wants to use Bash" in told["message"]
    decided = wire.data("approve", execution_id=task, wait=0)
    assert decided["status"] in ("running", "completed") and decided["asks"] == []


@pytest.mark.promise("M2")
def test_agents_of_a_task_do_not_decide_for_it(agents: Place):
    wire = agents.wire()
    task = done(wire, task=BASH, wait=50)[1]["execution_id"]
    agents.env["TENUTO_EXECUTION"] = task
    inside = agents.wire()
    refused = inside.call("approve", execution_id=task)
    assert refused["isError"] and "its user does" in text(refused)
    refused = inside.call("engine_budget", daily=1000)
    assert refused["isError"] and "daily_limit" not in refused["structuredContent"]
    del agents.env["TENUTO_EXECUTION"]
    assert wire.data("engine_status", execution_id=task)["status"] == "waiting"


@pytest.mark.promise("M2", "M3")
def test_a_task_is_a_task_of_the_extension_and_asks_its_user_there(agents: Place):
    wire = agents.wire(capabilities={"extensions": {TASKS: {}}, "elicitation": {"form": {}}})
    task = wire.call("engine_execute", task=BASH, wait=50)
    assert task["resultType"] == "task" and task["status"] == "working"
    shown = wire.request("tasks/get", taskId=task["taskId"])
    assert shown["status"] == "input_required" and "wants to use Bash" in shown["statusMessage"]
    ((key, asked),) = shown["inputRequests"].items()
    assert asked["method"] == "elicitation/create"
    assert "wants to use Bash" in asked["params"]["message"]
    assert asked["params"]["requestedSchema"]["properties"]["approve"]["type"] == "boolean"
    ignored = {"action": "cancel"}
    wire.request("tasks/update", taskId=task["taskId"], inputResponses={key: ignored})
    assert wire.request("tasks/get", taskId=task["taskId"])["status"] == "input_required"
    yes = {"action": "accept", "content": {"approve": True}}
    wire.request("tasks/update", taskId=task["taskId"], inputResponses={key: yes})
    wire.data("output", execution_id=task["taskId"], wait_s=50)
    ended = wire.request("tasks/get", taskId=task["taskId"])
    assert ended["status"] == "completed"
    assert ended["result"]["structuredContent"]["output"] == "it ran"
    wire.capabilities = {"extensions": {TASKS: {}}}  # nobody can be asked: the model is told
    plain = wire.call("engine_execute", task=BASH, wait=50)
    assert plain["resultType"] == "complete" and plain["structuredContent"]["asks"]
    hanging = wire.call("engine_execute", task="x [[hang]]", wait=0)
    assert hanging["resultType"] == "task"
    wire.request("tasks/cancel", taskId=hanging["taskId"])
    assert wire.request("tasks/get", taskId=hanging["taskId"])["status"] == "cancelled"
    status = wire.data("engine_status", execution_id=hanging["taskId"])
    assert status["status"] == "interrupted" and "engine_resume(" in status["next"][0]


@pytest.mark.promise("M2", "R2")
def test_a_fallback_is_told_in_text_and_data(agents: Place):
    wire = agents.wire()
    plan = [{"id": "a", "task": "x [[fail:crash]]", "retry": {"times": 0}}]
    shown, data, _ = done(wire, plan=plan)
    assert data["fallbacks"] and "echo → second" in data["fallbacks"][0]
    assert f"Fallback: {data['fallbacks'][0]}" in shown


@pytest.mark.promise("M2")
def test_a_long_result_is_cut_and_goes_on_from_its_cursor(agents: Place):
    lines = [f"line {number:04d} of the answer" for number in range(3000)]
    (agents.folder / "long.txt").write_text("\n".join(lines))
    wire = agents.wire()
    _, data, _ = done(wire, plan=[{"id": "a", "task": "x [[recall]]", "files": ["long.txt"]}])
    assert data["truncated"] and data["cursor"].startswith("r")
    found, cursor = data["output"], data["cursor"]
    for _ in range(20):
        page = wire.data("output", execution_id=data["execution_id"], cursor=cursor)
        found, cursor = found + "\n" + page["output"], page["cursor"]
        if not page.get("truncated"):
            break
    assert re.findall(r"line (\d{4})", found) == [f"{number:04d}" for number in range(3000)]


@pytest.mark.promise("M2")
def test_a_key_starts_a_task_once(agents: Place):
    def started(wire: Wire) -> str:
        return done(wire, task="x [[delay:1]]", wait=0, idempotencyKey="k")[1]["execution_id"]

    first = started(agents.wire())
    wire = agents.wire()
    assert started(wire) == first
    other = wire.call("engine_execute", task="other", idempotencyKey="k")
    assert other["isError"] and "used for other work" in text(other)
