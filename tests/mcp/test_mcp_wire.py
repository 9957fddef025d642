"""The wire: cancels and disconnects, progress, notices, purity of stdout, the first answers."""

from __future__ import annotations

import json
import re
import time

import pytest
from mcp_help import HANDSHAKE, META, MODERN, VERSIONS, Place, Wire, slow, text

from tenuto.mcp.catalogue import tools
from tenuto.mcp.greeting import Greeter

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
TICK = "import time\nfor i in range(40):\n    print('tick', i, flush=True)\n    time.sleep(0.3)"


def started(wire: Wire, place: Place) -> str:
    """Return the one execution that runs, once it has said something."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        running = place.document("ps")
        if running and running[0]["output_lines"]:
            return running[0]["id"]
    raise AssertionError("nothing was started")


@pytest.mark.promise("M3")
@pytest.mark.parametrize("version", ["2025-06-18", MODERN])
def test_a_cancelled_call_leaves_the_work_running(place: Place, version: str):
    wire = place.wire(version)
    number = wire.ask(
        "tools/call", name="execute", arguments={"code": SLEEP, "language": "python", "wait": 500}
    )
    execution_id = started(wire, place)
    wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled",
               "params": {"requestId": number, "reason": "timeout"}})  # fmt: skip
    data = wire.data("list", which="running")
    assert [one["execution_id"] for one in data["executions"]] == [execution_id]
    events = place.document("history", execution_id)
    assert events
    shown = wire.data("output", execution_id=execution_id)
    assert shown["state"] == "running" and shown["output"].endswith("up")


@pytest.mark.promise("M3")
def test_on_cancel_kill_is_a_setting(place: Place):
    place.env["TENUTO_ON_CANCEL"] = "kill"
    wire = place.wire()
    number = wire.ask(
        "tools/call", name="execute", arguments={"code": SLEEP, "language": "python", "wait": 500}
    )
    execution_id = started(wire, place)
    wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled",
               "params": {"requestId": number}})  # fmt: skip
    ended = wire.data("output", execution_id=execution_id, wait_s=30)
    assert ended["state"] == "killed"


@pytest.mark.promise("M3", "X8")
def test_on_cancel_kill_kills_when_the_client_leaves_and_only_what_it_waits_for(place: Place):
    place.env["TENUTO_ON_CANCEL"] = "kill"
    wire = place.wire()
    other = wire.data("execute", command=["sleep", "600"], wait=0)["execution_id"]
    wire.ask(
        "tools/call", name="execute", arguments={"code": SLEEP, "language": "python", "wait": 500}
    )
    limit = time.monotonic() + 60
    while len(said := [one for one in place.document("ps") if one["output_lines"]]) != 1:
        assert time.monotonic() < limit
    assert wire.leave() == 0
    assert place.document("show", said[0]["id"])["state"] == "killed"
    assert place.document("show", other)["state"] == "running"


@pytest.mark.promise("M3", "X11")
def test_a_client_that_leaves_ends_the_server_and_not_the_work(place: Place):
    wire = place.wire()
    wire.ask(
        "tools/call", name="execute", arguments={"code": SLEEP, "language": "python", "wait": 500}
    )
    execution_id = started(wire, place)
    began = time.monotonic()
    assert wire.leave() == 0
    assert time.monotonic() - began < 20
    shown = place.document("show", execution_id)
    assert shown["state"] == "running" and shown["async"] is True


@pytest.mark.promise("M3")
@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
def test_progress_carries_the_new_lines_in_increasing_steps(place: Place, version: str):
    wire = place.wire(version)
    number = wire.ask(
        "tools/call",
        name="execute",
        arguments={"code": TICK, "language": "python", "wait": 3},
        _meta={"progressToken": "p1"},
    )
    result = wire.answer(number)
    assert re.match(r"Execution moved to async mode after 3(\.\d)? seconds\.", text(result))
    told = []
    while not wire.notices.empty():
        message = wire.notices.get()
        if message["method"] == "notifications/progress":
            told.append(message["params"])
    assert len(told) >= 2 and {one["progressToken"] for one in told} == {"p1"}
    steps = [one["progress"] for one in told]
    assert steps == sorted(set(steps))
    lines = "\n".join(one["message"] for one in told).split("\n")
    assert lines == [f"tick {n}" for n in range(len(lines))]
    wire.call("execute", action="kill")


@pytest.mark.full
@pytest.mark.promise("M3")
def test_silent_work_is_told_of_soon_and_then_every_five_seconds(place: Place):
    wire = place.wire()
    wire.call("execute", command=["true"])  # the SDK is there now
    number = wire.ask(
        "tools/call",
        name="execute",
        arguments={"code": "import time; time.sleep(600)", "language": "python", "wait": 11},
        _meta={"progressToken": 7},
    )
    began = time.monotonic()
    first = wire.notice("notifications/progress")
    assert time.monotonic() - began < 4
    wire.notice("notifications/progress")
    assert 5 < time.monotonic() - began < 10
    assert "no new output" in first["message"]
    wire.answer(number)
    wire.call("execute", action="kill")


@pytest.mark.promise("M4", "X10")
def test_ends_updates_and_reports_reach_a_client_of_the_handshake_era(place: Place):
    place.env["TENUTO_REPORT_EVERY"] = "1s"
    wire = place.wire("2025-06-18")
    code = "import time\nprint('a', flush=True)\ninput()\nprint('b'); time.sleep(2)"
    one = wire.data("execute", code=code, language="python", wait=20)["execution_id"]
    for part in ("log", "state"):
        wire.request("resources/subscribe", uri=f"exec://{one}/{part}")
    report = wire.notice("notifications/message")
    while not report["data"].get("report"):
        report = wire.notice("notifications/message")
    assert one in report["data"]["message"] or one[:18] in report["data"]["message"]
    wire.data("send_input", execution_id=one, text="go", wait_s=0)
    assert wire.notice("notifications/resources/updated")["uri"].startswith(f"exec://{one}/")
    while True:
        message = wire.notice("notifications/message")["data"]
        if message.get("state"):
            break
    assert message["state"] == "succeeded" and message["last_lines"].endswith("b\n")
    contents = wire.request("resources/read", uri=f"exec://{one}/log")["contents"]
    assert contents[0]["text"].endswith("b")
    state = json.loads(
        wire.request("resources/read", uri=f"exec://{one}/state")["contents"][0]["text"]
    )
    assert state["state"] == "succeeded" and state["exit_code"] == 0
    wire.leave()
    assert b"[Execution report" in b"".join(wire.errors)


@pytest.mark.promise("M4")
def test_a_modern_client_hears_of_updates_on_its_stream(place: Place):
    wire = place.wire()
    one = wire.data("execute", code="input()", language="python", wait=20)["execution_id"]
    wire.ask(
        "subscriptions/listen",
        notifications={"resourceSubscriptions": [f"exec://{one}/state"]},
    )
    wire.notice("notifications/subscriptions/acknowledged")
    wire.data("send_input", execution_id=one, text="go")
    assert wire.notice("notifications/resources/updated")["uri"] == f"exec://{one}/state"
    templates = wire.request("resources/templates/list")["resourceTemplates"]
    assert {each["uriTemplate"] for each in templates} == {"exec://{id}/log", "exec://{id}/state"}


@pytest.mark.promise("M3")
def test_stdout_is_json_rpc_whatever_children_do(place: Place):
    wire = place.wire()
    noisy = "import os, subprocess, sys\nfor fd in (0, 1, 2):\n    os.write(fd if fd else 1, b'noise')\n"
    wire.data("execute", code=noisy, language="python")
    wire.data("execute", command=["sh", "-c", "echo noise > /dev/stdout; echo noise >&2"])
    parent = (
        "import os\n"
        "parent = os.getppid()\n"
        "for fd in ('1', '2'):\n"
        "    try: open(f'/proc/{parent}/fd/{fd}', 'w').write('noise')\n"
        "    except OSError: pass\n"
    )
    wire.data("execute", code=parent, language="python")
    wire.leave()
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in wire.lines)


@pytest.mark.promise("M3")
@pytest.mark.parametrize("version", (VERSIONS[0], *map(slow, VERSIONS[1:-1]), VERSIONS[-1]))
def test_what_is_answered_at_once_is_what_the_sdk_answers(place: Place, version: str):
    wire = place.wire(version)
    wire.call("execute", command=["true"])  # the SDK is there now
    greeter = Greeter()
    if version == MODERN:
        questions = ["server/discover", "tools/list", "resources/list"]
        params = {"_meta": wire.meta()}
    else:
        second = place.wire(version)
        second.call("execute", command=["true"])
        hello = {"protocolVersion": version, "capabilities": {},
                 "clientInfo": {"name": "t", "version": "1"}}  # fmt: skip
        early = greeter.answer({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        # the SDK answers a second handshake on the same connection as it did the first
        assert second.request("initialize", **hello) == early
        questions, params = ["tools/list", "resources/list", "ping"], {}
    for method in questions:
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        assert greeter.answer(asked) is not None
        import os

        os.environ["TENUTO_HOME"] = str(place.home)
        try:
            assert wire.request(method) == greeter.answer(asked), method
        finally:
            del os.environ["TENUTO_HOME"]


@pytest.mark.promise("M3")
def test_the_first_answers_come_before_the_sdk_is_loaded_and_only_once(place: Place):
    for version in (*HANDSHAKE[-1:], MODERN):
        wire = place.wire(version)
        asked = [wire.ask("tools/list") for _ in range(3)]
        for number in asked:
            assert len(wire.answer(number)["tools"]) == len(tools("32K"))
        wire.call("execute", command=["true"])
        assert wire.leave() == 0
        answered = [json.loads(line).get("id") for line in wire.lines]
        assert len(answered) == len(set(answered))


@pytest.mark.promise("M3", "M4")
def test_a_stream_of_changes_is_opened_before_the_sdk_is_loaded_and_only_once(place: Place):
    """Claude Code asks for the tools only once its stream is there."""
    wanted = {"toolsListChanged": True, "resourcesListChanged": True}
    wire = place.wire()
    opened = wire.ask("subscriptions/listen", notifications=wanted)
    listed = wire.ask("tools/list")
    early = wire.notice("notifications/subscriptions/acknowledged")
    assert len(wire.answer(listed)["tools"]) == len(tools("32K"))
    wire.call("execute", command=["true"])  # the SDK is there now
    again = wire.ask("subscriptions/listen", notifications=wanted)
    late = wire.notice("notifications/subscriptions/acknowledged")
    number = META + "subscriptionId"
    assert early["_meta"][number] == opened and late["_meta"][number] == again
    assert early["notifications"] == late["notifications"] == wanted
    # a resource's stream is the SDK's from the start, and is there once, too
    updates = {"resourceSubscriptions": ["exec://report"]}
    second = place.wire()
    second.ask("subscriptions/listen", notifications=updates)
    assert second.notice("notifications/subscriptions/acknowledged")["notifications"] == updates
    for one in (wire, second):
        assert one.leave() == 0
    told = [json.loads(line) for line in wire.lines]
    said = [one for one in told if one.get("method", "").endswith("acknowledged")]
    assert len(said) == 2 and "tools" in told[1]["result"]  # all before the SDK said anything


@pytest.mark.promise("M3")
def test_everyday_verbs_load_nothing_of_mcp(place: Place):
    import subprocess
    import sys

    program = (
        "import sys\nfrom tenuto.cli.main import main\nmain(sys.argv[1:])\n"
        "print(' '.join(sys.modules))"
    )
    for words in (["ps"], ["run", "--", "true"], ["logs", "--help"], ["kill", "--all"]):
        done = subprocess.run([sys.executable, "-c", program, *words], cwd=place.folder,
                              env=place.env, capture_output=True, text=True, check=True)  # fmt: skip
        loaded = {name.partition(".")[0] for name in done.stdout.split()}
        assert not loaded & {"mcp", "mcp_types", "pydantic", "starlette", "uvicorn", "anyio"}, words
