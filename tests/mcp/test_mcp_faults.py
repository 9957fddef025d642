"""How it fails: bad messages, bad values, deaf clients, other projects, kill -9."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_help import MODERN, TASKS, Failed, Place, text

from tenuto.mcp.catalogue import tools

SLEEP = "import time; print('up', flush=True); time.sleep(600)"


@pytest.mark.promise("M3")
@pytest.mark.parametrize("version", ["2025-06-18", MODERN])
def test_malformed_messages_are_refused_and_nothing_else_is_disturbed(place: Place, version: str):
    wire = place.wire(version)
    one = wire.data("execute", code=SLEEP, language="python", wait=0)["execution_id"]
    for line in (
        b"not json\n",
        b"{\n",
        b'"text"\n',
        b"[]\n",
        b"null\n",
        b'{"jsonrpc":"1.0","id":900,"method":"ping"}\n',
        b'{"jsonrpc":"2.0","method":5,"id":901}\n',
        b"\xff\xfe\x00\n",
        b"\n\n",
        b"[" * 100_000 + b"\n",
    ):
        wire.send_raw(line)
    for method, params in (
        ("no/such/method", {}),
        ("tools/call", {"name": 5}),
        ("tools/call", {"name": "no_such_tool", "arguments": {}}),
        ("tools/call", {"name": "execute", "arguments": "text"}),
        ("resources/read", {"uri": "exec://nothing/log"}),
        ("resources/read", {"uri": "file:///etc/passwd"}),
    ):
        with pytest.raises(Failed) as refused:
            wire.request(method, **params)
        assert refused.value.code < 0
    for number in (900, 901):
        with pytest.raises(Failed) as refused:  # who sent it waits for an answer
            wire.answer(number)
        assert refused.value.code == -32600
    assert wire.data("engine_status", execution_id=one)["state"] == "running"


@pytest.mark.promise("M3")
def test_half_a_character_in_a_request_is_replaced_and_the_request_answered(place: Place):
    """As text has it that a program cut in the middle of an emoji: nobody waits for ever for that."""
    wire = place.wire()
    found = wire.data("execute", code="print('\ud83d' + '\U0001f600')", language="python", wait=30)
    assert found["output"].strip() == "\ufffd\U0001f600", found
    assert "\ufffd" in text(wire.call("engine_history", execution_id="\ud83d"))


@pytest.mark.promise("M1")
def test_wrong_values_get_an_error_that_says_what_is_valid(place: Place):
    wire = place.wire()
    for arguments, words in (
        ({}, "No code provided. Either provide code to execute"),
        ({"action": "explode"}, "Unknown action: explode"),
        ({"action": "get_async_log"}, "executionId is required"),
        ({"action": "send_stdin", "executionId": "0193"}, "stdinData is required"),
        ({"action": "get_async_log", "executionId": "zz"}, "is not an execution id"),
        ({"action": "get_async_log", "executionId": "0"}, "there is no execution 0"),
        ({"code": [5]}, "code: [5] is not of type"),
        ({"code": "1", "language": "cobol"}, "cobol"),
        ({"code": "1", "colour": "red"}, "colour"),
        ({"code": "1", "wait": "soon"}, 'wait: "soon" is not of type "number"'),
        ({"code": "1", "wait": -1}, "wait: -1 is less than the minimum of 0"),
        ({"code": "1", "language": "python", "workingDirectory": "/no/such"}, "does not exist"),
        ({"code": "1", "language": "python", "limits": {"memory": "lots"}}, "is not a size"),
        ({"code": "\0", "language": "python"}, "NUL"),
        ({"code": "1", "command": ["true"]}, "both code and a command"),
        ({"command": ["no-such-program-here"]}, "no-such-program-here"),
        ({"command": "ls -l | wc"}, "command is a list of words, not one text: 'ls -l | wc'"),
    ):
        result = wire.call("execute", **arguments)
        assert result["isError"] is True, arguments
        assert words in text(result), (arguments, text(result))
        data = result["structuredContent"]
        assert words in data["error"] and data["running"] == []
    assert wire.data("execute", command='["echo", "a b"]')["output"] == "a b"
    bad = wire.call("output", execution_id="0193", cursor="x+y")
    assert "is not a cursor" in text(bad)


@pytest.mark.promise("M1")
def test_ten_megabytes_of_arguments_are_taken_or_refused_clearly(place: Place):
    wire = place.wire()
    data = wire.data("execute", code="import sys; len(sys.stdin.read())", language="python", wait=0)
    one = data["execution_id"]
    sent = wire.data("send_input", execution_id=one, text="x" * 10_000_000, eof=True, wait_s=0)
    assert sent["input"] in ("delivered", "queued")
    ended = wire.data("output", execution_id=one, wait_s=50)
    assert ended["value"] == 10_000_001
    result = wire.call("execute", code="#" + "x" * 10_000_000, language="python")
    assert result["isError"] and "larger than 5 MiB" in text(result)


@pytest.mark.promise("M3")
def test_a_client_that_never_reads_disturbs_nobody(place: Place):
    deaf = subprocess.Popen(
        [sys.executable, "-m", "tenuto.cli.main", "mcp"],
        cwd=place.folder, env=place.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert deaf.stdin is not None
        meta = {"io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {}}  # fmt: skip
        arguments = {"code": "print('x' * 30000)", "language": "python"}
        for number in range(20):
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call",
                       "params": {"name": "execute", "arguments": arguments, "_meta": meta}}  # fmt: skip
            deaf.stdin.write(json.dumps(message).encode() + b"\n")
        deaf.stdin.flush()
        wire = place.wire()
        limit = time.monotonic() + 60
        while True:
            found = wire.data("list", which="all")["executions"]
            if sum(one["state"] == "succeeded" for one in found) == 20:
                break
            assert time.monotonic() < limit, found
        assert all(one["output_bytes"] == 30001 for one in found)
    finally:
        deaf.kill()
        deaf.communicate()


@pytest.mark.promise("M3", "X16")
def test_two_clients_share_a_project_and_no_one_elses(place: Place, tmp_path: Path):
    first, second = place.wire(), place.wire("2025-06-18")
    one = first.data("execute", code="print(input())", language="python", wait=20)["execution_id"]
    assert second.data("list")["executions"][0]["execution_id"] == one
    assert "hi" in second.data("send_input", execution_id=one, text="hi")["output"]
    assert first.data("output", execution_id=one, wait_s=20)["state"] == "succeeded"
    elsewhere = Place(tmp_path / "elsewhere")
    try:
        del elsewhere.env["TENUTO_HOME"], place.env["TENUTO_HOME"]
        elsewhere.env["XDG_STATE_HOME"] = place.env["XDG_STATE_HOME"] = str(tmp_path / "states")
        theirs = elsewhere.wire().data("execute", code=SLEEP, language="python", wait=0)
        ours = place.wire(capabilities={"extensions": {TASKS: {}}})
        for tool in ("output", "kill", "engine_interrupt", "engine_status", "send_input"):
            extra = {"text": "x"} if tool == "send_input" else {}
            refused = ours.call(tool, execution_id=theirs["execution_id"], **extra)
            assert refused["isError"] and "belongs to another project" in text(refused)
        with pytest.raises(Failed):
            ours.request("tasks/cancel", taskId=theirs["execution_id"])
        with pytest.raises(Failed):
            ours.request("resources/read", uri=f"exec://{theirs['execution_id']}/log")
        still = elsewhere.wires[0].data("engine_status", execution_id=theirs["execution_id"])
        assert still["state"] == "running"
        elsewhere.wires[0].call("execute", action="kill")
    finally:
        elsewhere.close()


@pytest.mark.promise("M3", "X11")
def test_kill_9_in_the_middle_of_fifty_executions_loses_nothing(place: Place):
    wire = place.wire(capabilities={"extensions": {TASKS: {}}})
    code = "for i in {1..20}; do echo $i; sleep 0.4; done; echo end"
    numbers = [
        wire.ask(
            "tools/call",
            name="execute",
            arguments={"code": code, "language": "bash", "wait": 0 if n % 2 else 60},
        )
        for n in range(50)
    ]
    tasks = [wire.answer(number)["taskId"] for number in numbers[1::2]]
    limit = time.monotonic() + 60
    while len(list(place.home.glob("executions/*/*/control.sock"))) < 50:
        assert time.monotonic() < limit
        time.sleep(0.01)
    wire.kill()
    again = place.wire(capabilities={"extensions": {TASKS: {}}})
    found = again.data("list", which="all", limit=100)["executions"]
    assert len(found) == 50
    assert {one["state"] for one in found} <= {"running", "succeeded"}
    wanted = [str(n) for n in range(1, 21)] + ["end"]
    for one in found:
        ended = again.data("output", execution_id=one["execution_id"], wait_s=50)
        assert ended["state"] == "succeeded", ended
        assert re.sub(r"\[20[^\]]*Z\] ", "", ended["output"]).split("\n") == wanted
    for task in tasks:
        done = again.request("tasks/get", taskId=task)
        assert done["status"] == "completed"
        assert done["result"]["structuredContent"]["output"].split("\n") == wanted


# Any arguments that fit, and many that do not, are answered.

_WORDS = st.sampled_from(["", "0", "01930000", "zz", "1", "\0", "ä" * 50, "-1", "1+1", "x" * 3000])


def _value(schema: dict):
    if "enum" in schema:
        return st.sampled_from([*schema["enum"], "other", None])
    kinds = schema.get("type", "string")
    options = {
        "string": _WORDS,
        "integer": st.integers(-5, 2**70),
        "number": st.sampled_from([0, 0.01, -1, 1e308, 10**30]),
        "boolean": st.booleans(),
        "object": st.dictionaries(_WORDS, _WORDS | st.integers(), max_size=2),
        "array": st.lists(_WORDS, max_size=2),
    }
    chosen = [options[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return st.one_of(*chosen, st.none(), st.integers(), st.lists(st.none(), max_size=1))


def _calls():
    def arguments(tool: dict):
        known = {name: _value(one) for name, one in tool["inputSchema"]["properties"].items()}
        for name in ("wait", "wait_s"):  # the test itself should end
            if name in known:
                known[name] = st.sampled_from([0, "0", 0.01, -1, "x", None, [], 1e400])
        given = st.fixed_dictionaries({}, optional=known)
        strange = st.dictionaries(_WORDS, st.none() | st.integers(), max_size=1)
        return st.tuples(
            st.just(tool["name"]), st.tuples(given, strange).map(lambda x: {**x[1], **x[0]})
        )

    return st.one_of([arguments(tool) for tool in tools("32 KB")])


class Silent:
    """A caller that is told nothing and cannot be asked."""

    can_be_asked = asks_by_result = False

    async def progress(self, message: str) -> None:
        return None

    async def asked(self, message: str) -> bool | None:
        return None


@pytest.mark.promise("M1", "M3")
def test_no_arguments_at_all_make_it_stumble(place: Place, monkeypatch: pytest.MonkeyPatch):
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(place.folder)
    from tenuto.engine.engine import Engine
    from tenuto.mcp.opening import settings_here
    from tenuto.mcp.service import Service
    from tenuto.mcp.surface import as_result

    caller = Silent()
    loop = asyncio.new_event_loop()
    engine = Engine(settings=settings_here())
    loop.run_until_complete(engine.__aenter__())
    service = Service(engine)

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(_calls())
    def any_call(call: tuple[str, dict]) -> None:
        name, arguments = call
        if not arguments.get("executionId") and arguments.get("action") == "kill":
            return
        reply = loop.run_until_complete(service.call(name, arguments, caller))
        result = as_result(reply)
        json.dumps(result, allow_nan=False).encode()
        assert result["content"][0]["text"] and result["structuredContent"]["running"] is not None

    try:
        any_call()
        loop.run_until_complete(service.close())
    finally:
        loop.run_until_complete(engine.__aexit__())
        loop.close()


@pytest.mark.asyncio
async def test_input_is_sent_without_reading_all_that_was_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    """Somebody who answers a program that wrote gigabytes would wait for minutes."""
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(place.folder)
    from tenuto.engine.engine import Engine
    from tenuto.mcp.opening import settings_here
    from tenuto.mcp.service import Service

    read: list[int] = []
    whole = Engine.read

    async def counted(self: Engine, *words: Any, **given: Any) -> Any:
        found = await whole(self, *words, **given)
        read.append(sum(len(chunk.data) for chunk in found.chunks))
        return found

    monkeypatch.setattr(Engine, "read", counted)
    code = "print(('x' * 99 + '\\n') * 40000)\nprint(input())"
    async with Engine(settings=settings_here()) as engine:
        service = Service(engine)
        asking = {"code": code, "language": "python", "wait": 50}
        found = (await service.call("execute", asking, Silent())).data
        assert found["waiting_for"] == "input" and found["output_bytes"] > 4_000_000
        sent = {"execution_id": found["execution_id"], "text": "Ada"}
        reply = await service.call("send_input", sent, Silent())
        assert reply.data["input"] == "delivered" and "Ada" in reply.text
        assert sum(read) < 100_000, read
        await service.close()


def test_the_end_of_a_line_without_end_is_shown(place: Place):
    wire = place.wire()
    code = "print('x' * 3_000_000 + 'the end', end='')"
    done = wire.data("execute", code=code, language="python", wait=50)
    assert done["truncated"]
    tail = wire.data("output", execution_id=done["execution_id"], tail=5)
    assert tail["output"].endswith("xxx" + "the end") and len(tail["output"]) > 30_000
