"""What a client gets: results, handovers, actions, the same in every protocol version."""

from __future__ import annotations

import json
import re
import time

import pytest
from mcp_help import VERSIONS, Place, slow, text

from tenuto.engine.reports import ReportLine
from tenuto.mcp.replies import listed

COUNT = "import time\nfor i in range(%d):\n    print('line', i, flush=True)\n    time.sleep(%s)"
ASK = "name = input('name? ')\nprint('Hello, ' + name + '!')"
SLEEP = "import sys, time; sys.stdout.write('up\\n'); time.sleep(600)"  # one write, one chunk


@pytest.mark.promise("M1", "M3")
@pytest.mark.parametrize("version", (VERSIONS[0], *map(slow, VERSIONS[1:-1]), VERSIONS[-1]))
def test_code_is_run_and_answered_in_every_version(place: Place, version: str):
    wire = place.wire(version)
    names = [tool["name"] for tool in wire.request("tools/list")["tools"]]
    assert names[0] == "execute" and {"output", "send_input", "list", "kill"} <= set(names)
    result = wire.call("execute", code="print('out'); 6 * 7", language="python")
    assert not result.get("isError")
    data = result["structuredContent"]
    assert (data["output"], data["value"], data["exit_code"]) == ("out", 42, 0)
    assert data["state"] == "succeeded" and data["running"] == []
    shown = text(result)
    assert "out\n" in shown and "Value: 42" in shown and data["execution_id"] in shown
    assert "Running now: nothing." in shown


@pytest.mark.promise("C9", "M1")
@pytest.mark.parametrize("engine", ["quickjs", "deno"])
def test_code_runs_in_the_engine_that_is_asked_for_and_the_answer_names_it(place: Place, engine):
    wire = place.wire()
    result = wire.call("execute", code="const n: number = 6; n * 7", language="ts", engine=engine)
    data = result["structuredContent"]
    assert (data["value"], data["engine"]) == (42, engine)
    assert f" in {engine} (exit code 0)" in text(result)
    assert "seccomp" in data["confinement"]


@pytest.mark.promise("X14", "M3")
def test_a_session_that_is_new_again_says_so(place: Place):
    wire = place.wire()
    wire.call("execute", code="x = 1", language="python", session="s")
    wire.call("execute", code="import os; os._exit(3)", language="python", session="s")
    result = wire.call("execute", code="1", language="python", session="s")
    assert "session s is new" in result["structuredContent"]["session_note"]
    assert "Note: session s is new" in text(result)


@pytest.mark.promise("M1", "C9")
def test_the_engine_can_be_chosen_and_the_answer_says_which_ran(place: Place):
    wire = place.wire()
    first = wire.call("execute", code="6 * 7")
    assert first["structuredContent"]["engine"] == "quickjs" and "in quickjs" in text(first)
    code = "namespace A { export const x: number = 42 }\nA.x"
    refused = wire.call("execute", code=code, language="ts")
    assert refused["isError"] and "deno" in text(refused)
    second = wire.call("execute", code=code, language="ts", engine="deno")
    assert second["structuredContent"]["value"] == 42
    assert second["structuredContent"]["engine"] == "deno" and "in deno" in text(second)
    assert wire.call("execute", code="1", language="python", engine="deno")["isError"]


@pytest.mark.promise("M3", "X3")
@pytest.mark.parametrize("version", ("2025-06-18", VERSIONS[-1]))
def test_long_work_is_handed_over_and_read_on_to_its_end(place: Place, version: str):
    wire = place.wire(version)
    result = wire.call("execute", code=COUNT % (6, 0.4), language="python", wait=1)
    shown, data = text(result), result["structuredContent"]
    opening = re.compile(r"Execution moved to async mode after 1(\.\d)? seconds\.")
    assert opening.match(shown)
    assert not result.get("isError")
    assert opening.fullmatch(data["message"])
    assert re.search(r"\[20\d\d-\d\d-\d\dT[\d:.]+Z\] line 0", shown)
    assert re.search(r"\[20\d\d-\d\d-\d\dT[\d:.]+Z\] line 0", data["output"])
    execution_id = data["execution_id"]
    assert f'[Execution ID: {execution_id} - Use \'action: "get_async_log"' in shown
    assert [one["execution_id"] for one in data["running"]] == [execution_id]
    assert any(step.startswith("output(") for step in data["next"])
    rest = wire.data("output", execution_id=execution_id, cursor=data["cursor"], wait_s=30)
    assert rest["state"] == "succeeded"
    both = data["output"] + "\n" + rest["output"]
    assert re.findall(r"line (\d)", both) == list("012345")


@pytest.mark.promise("X3")
def test_a_busy_loop_is_handed_over_too(place: Place):
    wire = place.wire()
    began = time.monotonic()
    data = wire.data("execute", code="while True: pass", language="python", wait=0.5)
    assert time.monotonic() - began < 20
    assert data["state"] == "running"
    killed = wire.data("execute", action="kill", executionId=data["execution_id"])
    assert killed["state"] == "killed"


@pytest.mark.promise("M3", "X7")
def test_a_wait_ends_when_input_is_wanted_and_stdin_answers_it(place: Place):
    wire = place.wire()
    result = wire.call("execute", code=ASK, language="python", wait=50)
    data = result["structuredContent"]
    assert data["waiting_for"] == "input"
    assert "It waits for input on stdin." in text(result)
    answer = wire.data(
        "execute", action="send_stdin", executionId=data["execution_id"], stdinData="Alice"
    )
    assert answer["input"] == "delivered"
    assert "Hello, Alice!" in answer["output"]
    assert answer["state"] == "succeeded"


@pytest.mark.promise("M1")
def test_every_action_answers_what_it_promises(place: Place):
    wire = place.wire()
    one = wire.data("execute", code=SLEEP, language="python", wait=0)["execution_id"]
    wire.data("output", execution_id=one, until="up", wait_s=30)
    listed = wire.data("execute", action="list_async_executions")
    assert [each["execution_id"] for each in listed["executions"]] == [one]
    log = wire.data("execute", action="get_async_log", executionId=one)
    assert log["output"].endswith("] up")
    progress = wire.data("execute", action="get_progress", executionId=one, cursor=log["cursor"])
    assert progress["output"] == ""
    everything = wire.data("execute", action="get_progress", executionId=one)
    assert everything["output"] == log["output"]
    moment = re.match(r"\[(.*?)\]", log["output"])
    assert moment is not None
    since = wire.data("execute", action="get_progress", executionId=one, since=moment.group(1))
    assert since["output"] == ""
    earlier = wire.data(
        "execute", action="get_progress", executionId=one, since="2020-01-01T00:00:00Z"
    )
    assert earlier["output"] == log["output"]
    looked = wire.data("execute", action="clear_history", executionId=one, clearHistory=False)
    assert looked["message"].startswith("Nothing cleared")
    wire.data("execute", action="clear_history", executionId=one)
    assert wire.data("execute", action="get_async_log", executionId=one)["output"] == ""
    two = wire.data("execute", code=SLEEP, language="python", wait=0)["execution_id"]
    killed = wire.data("execute", action="kill")
    assert set(killed["killed"]) == {one, two}
    assert killed["running"] == []


@pytest.mark.promise("M2.status", "M2.interrupt", "X17")
def test_status_tells_health_and_interrupt_stops(place: Place):
    wire = place.wire()
    one = wire.data("execute", code=SLEEP, language="python", wait=0)["execution_id"]
    wire.data("output", execution_id=one, until="up", wait_s=30)
    status = wire.data("engine_status")
    assert status["healthy"], status["health"]
    names = {check["name"] for check in status["health"]}
    assert {"disk", "index", "keepers", "zygote", "language python"} <= names
    assert [each["execution_id"] for each in status["running"]] == [one]
    assert status["counts"]["running"] == 1
    assert wire.data("engine_status", execution_id=one[:18])["state"] == "running"
    stopped = wire.data("engine_interrupt", execution_id=one)
    assert stopped["state"] == "interrupted"
    assert wire.data("list", which="all")["executions"][0]["state"] == "interrupted"


@pytest.mark.promise("M1")
def test_a_failure_is_an_error_with_a_suggestion(place: Place):
    wire = place.wire()
    result = wire.call("execute", code="import nothing_of_that_name", language="python")
    assert result["isError"] is True
    assert "Suggestions:\n- a module is missing" in text(result)
    assert "ModuleNotFoundError" in text(result)
    data = result["structuredContent"]
    assert data["suggestion"].startswith("a module is missing")
    assert "ModuleNotFoundError" in data["output"]


@pytest.mark.promise("M1")
def test_a_command_runs_in_its_folder_with_its_environment(place: Place):
    wire = place.wire()
    inner = place.folder / "inner"
    inner.mkdir()
    data = wire.data(
        "execute",
        command=["sh", "-c", 'pwd; echo "$GREETING"'],
        workingDirectory=str(inner),
        env={"GREETING": "hi"},
    )
    assert data["output"].split() == [str(inner), "hi"]
    default = wire.data("execute", command=["pwd"])
    assert default["output"] == str(place.folder)


@pytest.mark.promise("M1")
def test_one_key_starts_the_work_once(place: Place):
    first, second = place.wire(), place.wire("2025-11-25")
    code = "open('runs', 'a').write('x'); import time; time.sleep(1); 'done'"
    asked = [
        wire.ask(
            "tools/call",
            name="execute",
            arguments={"code": code, "language": "python", "idempotencyKey": "k1"},
        )
        for wire in (first, second)
    ]
    ids = {
        wire.answer(number)["structuredContent"]["execution_id"]
        for wire, number in zip((first, second), asked, strict=True)
    }
    assert len(ids) == 1
    first.kill()
    third = place.wire()
    again = third.data("execute", code=code, language="python", idempotencyKey="k1")
    assert {again["execution_id"]} == ids and again["value"] == "done"
    assert (place.folder / "runs").read_text() == "x"
    other = third.call("execute", code="1", language="python", idempotencyKey="k1")
    assert other["isError"] and "other work" in text(other)


@pytest.mark.promise("M1", "X6")
def test_long_output_is_cut_at_the_stated_size_and_read_on_without_a_gap(place: Place):
    wire = place.wire()
    described = wire.request("tools/list")["tools"][0]["description"]
    assert "cut at 32.0 KB or 1500 lines" in described
    code = "for i in range(30000): print(f'{i:06d}', 'ä' * 5)\nprint('x' * 100000)"
    result = wire.call("execute", code=code, language="python")
    data = result["structuredContent"]
    assert data["truncated"] is True
    assert len(data["output"].encode()) < 40_000
    assert "its last lines:]" in text(result)
    page = re.sub(r"\n\[… cut at .*", "", data["output"], flags=re.S)
    pieces, cursor = [page], data["cursor"]
    while True:
        more = wire.data("output", execution_id=data["execution_id"], cursor=cursor)
        assert len(more["output"].encode()) < 40_000
        pieces.append(re.sub(r"\n\[… cut at .*", "", more["output"], flags=re.S))
        cursor = more["cursor"]
        if not more.get("truncated"):
            break
    lines = re.sub(r"\[20[^\]]*Z\] ", "", "\n".join(pieces)).split("\n")
    numbers = [line.split()[0] for line in lines if re.match(r"\d{6} ", line)]
    assert numbers == [f"{i:06d}" for i in range(30000)]
    assert all(line.endswith("äääää") for line in lines if re.match(r"\d{6} ", line))
    assert sum(line.count("x") for line in lines if set(line) == {"x"}) == 100_000


@pytest.mark.promise("M3", "X6")
@pytest.mark.parametrize("line", ['"%d"', r"%d \033[32m\033[0m", "%d" + '"' * 60])
def test_a_page_is_small_in_both_forms_whatever_is_written(place: Place, line: str):
    """Clients cut long answers in their own way, by characters of the data or by lines of the text."""
    wire = place.wire()
    code = f"for i in range(5000): print('{line}' % i)"
    result = wire.call("execute", code=code, language="python")
    numbers: list[str] = []
    while True:
        data = result["structuredContent"]
        assert len(json.dumps(data, ensure_ascii=False)) < 40_000 and len(text(result)) < 40_000
        shown = re.sub(r"\n\[… cut at .*", "", data["output"], flags=re.S)
        assert text(result).count("\n") < 1600
        numbers += re.findall(r"^(?:\[20[^\]]*Z\] )?\"?(\d+)", shown, flags=re.M)
        if not data.get("truncated"):
            break
        result = wire.call("output", execution_id=data["execution_id"], cursor=data["cursor"])
    assert numbers == [str(i) for i in range(5000)]


@pytest.mark.promise("M3", "X10")
def test_a_long_running_list_is_cut_in_both_forms():
    line = ReportLine("an-id", "a title", "running", "2026-01-01", 1.0, 1, True, False)
    told, data = listed([line] * 12)
    assert len(data["running"]) == 10 and data["running_more"] == 2
    assert told.startswith("Running now (12):") and told.endswith("- and 2 more: see list()")
    assert told.count("an-id") == 10
    assert listed([]) == ("Running now: nothing.", {"running": []})


@pytest.mark.promise("M1", "X9")
def test_the_gateway_is_listed_only_where_all_is_asked_for(place: Place):
    started = place.cli("run", "-d", "--title", "metering gateway", "--", "sleep", "100")
    gateway = started.stdout.strip()
    wire = place.wire()
    ours = wire.call("execute", code=SLEEP, language="python", wait=0)
    ours = ours["structuredContent"]["execution_id"]

    def listed_ids(**given: object) -> set[str]:
        found = wire.call("list", **given)["structuredContent"]["executions"]
        return {one["execution_id"] for one in found}

    assert listed_ids() == listed_ids(limit=1) == listed_ids(which="async") == {ours}
    found = wire.call("execute", action="list_async_executions")["structuredContent"]
    assert {one["execution_id"] for one in found["executions"]} == {ours}
    assert listed_ids(which="all") == {ours, gateway}


@pytest.mark.promise("X16")
def test_known_secrets_are_not_shown(place: Place):
    place.env["SOME_API_KEY"] = "very-secret-value-1"
    wire = place.wire()
    code = "import os; print(os.environ['SOME_API_KEY']); os.environ['SOME_API_KEY']"
    result = wire.call("execute", code=code, language="python")
    assert "very-secret" not in str(result)
    assert "[redacted SOME_API_KEY]" in text(result)


@pytest.mark.promise("C8", "M1")
def test_code_saved_under_a_name_runs_in_later_sessions(place: Place):
    first = place.wire()
    schema = {
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
    }  # fmt: skip
    saved = first.call(
        "composed_tools",
        action="save",
        name="greet",
        description="Greets.",
        code="`Hello, ${inputs.name}!`",
        input_schema=schema,
    )
    assert "Saved greet(name: string) as version 1." in text(saved)
    first.kill()
    second = place.wire("2025-06-18")
    listed = second.data("composed_tools", action="list")
    assert [one["name"] for one in listed["tools"]] == ["greet"]
    ran = second.data("composed_tools", action="run", name="greet", inputs={"name": "Ada"})
    assert ran["value"] == "Hello, Ada!" and ran["state"] == "succeeded"
    flawed = second.call("composed_tools", action="save", name="greet", code="let x =\n  (1 + ;")
    assert flawed["isError"] and "cannot be parsed from line" in text(flawed)
    wrong = second.call("composed_tools", action="run", name="greet", inputs={"nam": "Ada"})
    assert wrong["isError"] and "name: string" in text(wrong)
    assert "inputs.name" in text(second.call("composed_tools", action="show", name="greet"))
    second.data("composed_tools", action="delete", name="greet")
    gone = second.call("composed_tools", action="run", name="greet")
    assert 'composed_tools(action="list")' in text(gone)
    assert gone["isError"] and "greet" in text(gone)


@pytest.mark.promise("M1", "X14")
def test_a_session_keeps_variables_between_calls(place: Place):
    wire = place.wire()
    wire.data("execute", code="x = 20", language="python", session="s")
    assert wire.data("execute", code="x + 1", language="python", session="s")["value"] == 21
    assert wire.call("execute", code="x", language="python", session="other")["isError"]


@pytest.mark.promise("X14", "M1")
def test_a_setting_gives_a_client_a_session_for_all_its_code(place: Place):
    place.env["TENUTO_SESSION"] = "main"
    wire = place.wire()
    wire.data("execute", code="x = 20", language="python")
    wire.data("execute", code="const x = 30")
    assert wire.data("execute", code="x + 1", language="python")["value"] == 21
    assert wire.data("execute", code="let y: number = x + 1; y", language="ts")["value"] == 31
    wire.leave()
    again = place.wire()  # it is the project's, not the connection's
    assert again.data("execute", code="x + 2", language="python")["value"] == 22
    assert again.call("execute", code="x", language="python", session="")["isError"]
    assert again.call("execute", code="x", language="python", session="other")["isError"]
    assert again.call("execute", code="x", language="python", limits={"memory": "1G"})["isError"]
    assert again.data("execute", code="echo up", language="bash")["output"] == "up"
    assert again.data("execute", command=["echo", "up"])["output"] == "up"
    names = {one["name"] for one in place.document("sessions")}
    assert names == {"main-js", "main-python", "other"}
