"""Long work as tasks, for clients that declare the extension in the request itself."""

from __future__ import annotations

import time

import pytest
from mcp_help import TASKS, Failed, Place, text

DECLARED = {"extensions": {TASKS: {}}, "elicitation": {"form": {}}}
ASK = "name = input('name? ')\nprint('Hello, ' + name + '!')"
LATER = "import time; print('up', flush=True); time.sleep(1.5); 'done'"
SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def settled(wire, task_id: str, *wanted: str) -> dict:
    limit = time.monotonic() + 60
    while True:
        task = wire.request("tasks/get", taskId=task_id)
        if task["status"] in wanted:
            return task
        assert time.monotonic() < limit, task
        time.sleep(min(task["pollIntervalMs"] / 1000, 0.2))


@pytest.mark.promise("M3")
def test_what_is_not_done_is_a_task_only_for_those_who_declare_it(place: Place):
    wire = place.wire(capabilities=DECLARED)
    discovered = wire.request("server/discover")
    assert discovered["capabilities"]["extensions"] == {TASKS: {}}
    quick = wire.call("execute", code="1 + 1", language="python")
    assert quick["resultType"] == "complete" and quick["structuredContent"]["value"] == 2
    task = wire.call("execute", code=LATER, language="python", wait=0.3)
    assert task["resultType"] == "task" and task["status"] == "working"
    assert "content" not in task and task["ttlMs"] is None
    done = settled(wire, task["taskId"], "completed")
    assert done["resultType"] == "complete"
    assert done["result"]["structuredContent"]["value"] == "done"
    assert "up" in text(done["result"])
    wire.capabilities = {}
    plain = wire.call("execute", code=SLEEP, language="python", wait=0.3)
    assert plain["resultType"] == "complete"
    assert text(plain).startswith("Execution moved to async mode")
    with pytest.raises(Failed) as refused:
        wire.request("tasks/get", taskId=task["taskId"])
    assert refused.value.code == -32021


@pytest.mark.promise("M3", "X11")
def test_a_task_is_answered_by_the_next_server_after_kill_9(place: Place):
    wire = place.wire(capabilities=DECLARED)
    task = wire.call("execute", code=LATER, language="python", wait=0.2)
    wire.kill()
    again = place.wire(capabilities=DECLARED)
    done = settled(again, task["taskId"], "completed")
    assert done["result"]["structuredContent"]["value"] == "done"


@pytest.mark.promise("M3", "X7")
def test_a_task_that_waits_for_stdin_asks_and_takes_the_answer(place: Place):
    wire = place.wire(capabilities=DECLARED)
    task = wire.call("execute", code=ASK, language="python", wait=30)
    asking = settled(wire, task["taskId"], "input_required")
    ((key, asked),) = asking["inputRequests"].items()
    assert asked["method"] == "elicitation/create" and "name?" in asked["params"]["message"]
    assert wire.request("tasks/get", taskId=task["taskId"])["inputRequests"].keys() == {key}
    wire.request("tasks/update", taskId=task["taskId"], inputResponses={"other": {}})
    answer = {"action": "accept", "content": {"text": "Alice"}}
    ack = wire.request("tasks/update", taskId=task["taskId"], inputResponses={key: answer})
    assert ack["resultType"] == "complete" and "taskId" not in ack
    done = settled(wire, task["taskId"], "completed")
    assert "Hello, Alice!" in text(done["result"])


@pytest.mark.promise("M3", "X8")
def test_cancel_of_a_task_kills_and_ended_ones_stay_as_they_are(place: Place):
    wire = place.wire(capabilities=DECLARED)
    task = wire.call("execute", code=SLEEP, language="python", wait=0)["taskId"]
    wire.request("tasks/cancel", taskId=task)
    assert settled(wire, task, "cancelled")["taskId"] == task
    assert wire.request("tasks/cancel", taskId=task)["resultType"] == "complete"
    failing = wire.call(
        "execute", code="import time; time.sleep(.5); 1/0", language="python", wait=0
    )
    failed = settled(wire, failing["taskId"], "completed")
    assert failed["result"]["isError"] is True
    for method in ("tasks/get", "tasks/cancel"):
        with pytest.raises(Failed) as unknown:
            wire.request(method, taskId="01930000-0000-7000-8000-000000000000")
        assert unknown.value.code == -32602
    for method in ("tasks/list", "tasks/result"):
        with pytest.raises(Failed) as missing:
            wire.request(method, taskId=task)
        assert missing.value.code == -32601


@pytest.mark.promise("M3")
def test_old_clients_have_no_tasks(place: Place):
    wire = place.wire("2025-11-25", capabilities=DECLARED)
    data = wire.data("execute", code=SLEEP, language="python", wait=0.2)
    with pytest.raises(Failed) as missing:
        wire.request("tasks/get", taskId=data["execution_id"])
    assert missing.value.code == -32601
