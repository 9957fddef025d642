"""Durable state over MCP: checkpoints, forks, other folders, history; each obstacle with its way on."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from mcp_help import HANDSHAKE, MODERN, Place, Wire, text
from test_mcp_tasks_whole import until_runs

from tenuto.core.history import BY, Totals
from tenuto.core.ids import new_id
from tenuto.core.state import checksum
from tenuto.mcp import catalogue
from tenuto.mcp.spoken import spoken
from tenuto.mcp.state_tools import total_words
from tenuto.mcp.task_catalogue import GROUPS

STATE = Path(__file__).parent.parent / "state"
SETTINGS = """
[runtime]
preferred = "side"
order = ["side"]
[interrupt]
grace = 1
[runners]
side = "state_runners:SideRunner"
versioned = "state_runners:VersionedRunner"
"""
STEPS: list[dict[str, Any]] = [
    {"id": "a", "task": "[[say:first]] one"},
    {"id": "b", "task": "[[hang]] two", "depends_on": ["a"]},
    {"id": "c", "task": "[[say:third]] three", "depends_on": ["b"]},
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A project whose agent hangs in new sessions only, or until it is let go."""
    place = Place(tmp_path_factory.mktemp("state"))
    (place.folder / "tenuto.toml").write_text(SETTINGS)
    beside = place.folder.parent
    place.env |= {
        "TENUTO_ECHO_HOME": str(beside / "echo"), "TENUTO_TEST_SIDE": str(beside / "side"),
        "TENUTO_TEST_VERSION": str(beside / "version"), "TENUTO_TEST_GO": str(beside / "go"),
        "PYTHONPATH": str(STATE),
    }  # fmt: skip
    yield place
    place.close()


@pytest.fixture
def agents(shared: Place) -> Place:
    """That project, with nothing of another test in it but its history."""
    beside = shared.folder.parent
    for name in ("go", "side"):
        (beside / name).unlink(missing_ok=True)
    (beside / "version").write_text("1.2.3")
    return shared


@pytest.fixture
def wire(agents: Place) -> Wire:
    """A server that tests share: most of their time would go into starting one each."""
    return next((one for one in agents.wires if one.version == MODERN), None) or agents.wire()


def let_go(place: Place) -> None:
    (place.folder.parent / "go").touch()


def begun(wire: Wire, plan: list[dict[str, Any]] = STEPS, **options: Any) -> str:
    """Start a task and return its id once b runs."""
    task = wire.data("engine_execute", plan=plan, wait=0, **options)["execution_id"]
    until_runs(wire, task, "b")
    return task


def stopped(wire: Wire, plan: list[dict[str, Any]] = STEPS, **options: Any) -> str:
    task = begun(wire, plan, **options)
    wire.data("engine_interrupt", execution_id=task)
    return task


def refused(wire: Wire, code: str, tool: str = "engine_resume", **arguments: Any) -> str:
    """Assert that a call is refused with that code; return what it said, the same in both forms."""
    result = wire.call(tool, **arguments)
    data, said = result["structuredContent"], text(result)
    assert result["isError"] is True, said
    assert data["code"] == code, said
    assert said.startswith(f"Error: {data['error']}\nNext: {data['next'][0]}\n")
    assert "tenuto resume" not in said and "tenuto show" not in said
    return said


def at(seq: int) -> dict[str, Any]:
    """Return the argument whose name is a word of the language."""
    return {"from": seq}


# Checkpoints and forks


@pytest.mark.promise("M2.checkpoint", "D2", "M3")
def test_a_checkpoint_is_made_and_listed_and_a_new_task_begins_at_one(agents: Place, wire: Wire):
    task = begun(wire)
    made = wire.call("engine_checkpoint", execution_id=task)
    shown, data = text(made), made["structuredContent"]
    seq = data["checkpoint"]["seq"]
    assert f"checkpoint {seq}, {data['checkpoint']['path']}" in data["message"]
    assert os.path.getsize(data["checkpoint"]["path"]) and data["message"] in shown
    assert [one["what"] for one in data["checkpoints"]] == [
        "planned: 3 steps", "a completed", "on request",
    ]  # fmt: skip
    assert all(f"- {one['seq']}: {one['what']}, {one['time']}" in shown for one in
               data["checkpoints"])  # fmt: skip
    saved = data["saved"]
    assert (saved["finished"], saved["running"], saved["waiting"]) == (["a"], ["b"], ["c"])
    for known in (saved["sha256"], saved["environment"]["cwd"], saved["sessions"]["b"]["session"]):
        assert known in shown
    status = wire.call("engine_status", execution_id=task)
    assert status["structuredContent"]["checkpoint"]["seq"] == seq
    assert f"Newest checkpoint: {seq} (on request, " in text(status)
    wire.data("engine_interrupt", execution_id=task)
    listed = wire.data("engine_checkpoint", execution_id=task[:18], action="list")
    assert [one["what"] for one in listed["checkpoints"]][3:] == [
        "b interrupted", "the task interrupted",
    ]  # fmt: skip
    assert "checkpoint" not in listed and listed["next"][0].startswith("engine_resume(")
    let_go(agents)
    forked = wire.call("engine_resume", execution_id=task, wait=50, **at(seq))
    data = forked["structuredContent"]
    assert data["forked_from"] == {"execution_id": task, "seq": seq}
    assert data["execution_id"] != task and data["status"] == "completed"
    assert text(forked).startswith(
        f"Task {data['execution_id']} begins at checkpoint {seq} of {task}, which stays as it is."
    )
    assert [one["role"] for one in data["steps"]] == ["developer"] * 3
    assert [one.get("inherited", False) for one in data["steps"]] == [True, False, False]
    assert data["inherited"]["steps"] == 1 and "- a: completed (developer, " in text(forked)
    assert "), inherited\n- b: completed" in text(forked)
    again = wire.data("engine_status", execution_id=task)
    assert again["status"] == "interrupted" and "engine_resume(" in again["next"][0]
    assert wire.data("engine_resume", execution_id=task, wait=50)["status"] == "completed"
    ran = [line.split()[0] for line in (agents.folder.parent / "side").read_text().splitlines()]
    assert ran == ["a", "b", "b", "c", "b", "c"]


@pytest.mark.promise("M2.checkpoint")
def test_a_key_begins_one_task_at_a_checkpoint_whoever_asks_again(agents: Place, wire: Wire):
    task = stopped(wire)
    places = wire.data("engine_checkpoint", execution_id=task, action="list")["checkpoints"]
    first, second = (one["seq"] for one in places[:2])
    known = {one["id"] for one in agents.document("ps", "-a")}
    let_go(agents)
    other = agents.wire()
    given = {"execution_id": task, "wait": 50, "idempotencyKey": "again", **at(first)}
    asked = [one.ask("tools/call", name="engine_resume", arguments=given) for one in (wire, other)]
    answers = [one.answer(number) for one, number in zip((wire, other), asked, strict=True)]
    other.kill()
    answers.append(agents.wire().call("engine_resume", **given))
    (fork,) = {one["structuredContent"]["execution_id"] for one in answers}
    assert {one["structuredContent"]["status"] for one in answers} == {"completed"}
    assert all(text(one).startswith(f"Task {fork} begins at checkpoint {first}") for one in answers)
    tasks = [one for one in agents.document("ps", "-a") if one["id"] not in known]
    assert [one["id"] for one in tasks] == [fork], "one task for three calls"
    said = refused(wire, "bad_input", **(given | at(second)))
    assert "used for other work" in said
    said = refused(wire, "bad_input", execution_id=task, idempotencyKey="more")
    assert "goes with from" in said
    assert wire.data("engine_resume", execution_id=task, wait=50)["status"] == "completed"


@pytest.mark.promise("M2.checkpoint")
def test_a_failed_task_says_how_to_do_the_failed_step_again(agents: Place, wire: Wire):
    plan = [STEPS[0], {"id": "b", "task": "[[fail:failed]]", "depends_on": ["a"]}]
    task = wire.data("engine_execute", plan=plan, wait=50)
    assert task["status"] == "partial" and "engine_checkpoint(" in task["next"][-1]
    assert re.search(r"to do b again .*: engine_resume\(.*, from=\d+\)", task["next"][-2])
    listed = wire.call("engine_checkpoint", execution_id=task["execution_id"], action="list")
    (call,) = listed["structuredContent"]["next"]
    found = re.search(r"from=(\d+)\) to do b again", call)
    assert found is not None and f"- {call}" in text(listed)
    again = wire.data(
        "engine_resume", execution_id=task["execution_id"], wait=50, checkpoint=int(found[1])
    )
    assert {one["id"]: one["attempts"] for one in again["steps"]} == {"a": 1, "b": 1}
    assert again["steps"][1]["error"].startswith("it was told to fail")


@pytest.mark.promise("M2.interrupt", "D3")
def test_an_interrupt_says_what_was_stopped_and_is_saved_and_says_it_again(
    agents: Place, wire: Wire
):
    task = begun(wire)
    first = wire.call("engine_interrupt", execution_id=task)
    data = first["structuredContent"]
    assert data["stopped"] == {"stopped": ["b"], "completed": ["a"], "failed": [], "pending": ["c"]}
    assert data["checkpoint"]["what"] == "the task interrupted" and data["message"] in text(first)
    assert f"is interrupted. Stopped: b. Done and saved: a. Not begun: c. Newest checkpoint: "\
           f"{data['checkpoint']['seq']} (" in text(first)  # fmt: skip
    second = wire.call("engine_interrupt", execution_id=task)
    assert "is interrupted since an earlier call. Stopped: b." in text(second)
    assert not second.get("isError")
    overview = wire.call("engine_status")
    (known,) = overview["structuredContent"]["resumable"]
    assert (known["execution_id"], known["state"]) == (task, "interrupted")
    assert f"- {task} interrupted since {known['ended_at']}: plan: a, b, c" in text(overview)


# What is in the way of an interrupt


@pytest.mark.promise("M2.interrupt", "D3")
def test_an_interrupt_of_what_has_ended_is_unknown_or_lost(agents: Place, wire: Wire):
    done = wire.data("engine_execute", plan=STEPS[:1], wait=50)["execution_id"]
    said = refused(wire, "not_running", "engine_interrupt", execution_id=done)
    assert "has ended already: succeeded" in said and "output(" in said
    said = refused(wire, "unknown_id", "engine_interrupt", execution_id=new_id())
    assert "the nearest is" in said and 'list(which="all")' in said
    lost = begun(wire)
    kill_keeper(agents, lost)
    said = refused(wire, "not_running", "engine_interrupt", execution_id=lost)
    assert "has ended already: lost" in said
    assert f'what it had done is saved; to go on: engine_resume(execution_id="{lost[:18]}")' in said
    assert wire.data("engine_resume", execution_id=lost, wait=50)["status"] == "completed"


def kill_keeper(place: Place, task: str, number: signal.Signals = signal.SIGKILL) -> int:
    events = place.document("show", "--events", task)
    keeper = [one for one in events if one["type"] == "started"][-1]["keeper_pid"]
    os.kill(keeper, number)
    return keeper


@pytest.mark.full  # it takes patience; tests/state has the rest of it
@pytest.mark.promise("M2.interrupt", "D3")
def test_a_keeper_that_does_not_answer_is_ended_too(agents: Place, wire: Wire):
    task = begun(wire)
    kill_keeper(agents, task, signal.SIGSTOP)
    ended = wire.call("engine_interrupt", execution_id=task)
    assert ended["structuredContent"]["state"] == "interrupted"
    assert "its keeper did not answer and was ended too" in ended["structuredContent"]["detail"]
    assert f'engine_resume(execution_id="{task}")' in text(ended)
    assert wire.data("engine_resume", execution_id=task, wait=50)["status"] == "completed"


# What is in the way of a resume


@pytest.mark.promise("M2.resume", "D4")
def test_a_resume_of_what_runs_has_ended_or_is_unknown(agents: Place, wire: Wire):
    task = begun(wire)
    said = refused(wire, "not_finished", execution_id=task)
    assert "is still running" in said and f'output(execution_id="{task[:18]}")' in said
    assert f'engine_resume(execution_id="{task[:18]}", force=true)' in said
    said = refused(wire, "not_finished", execution_id=task, force=True)
    assert "its driver answers" in said and f'engine_interrupt(execution_id="{task[:18]}")' in said
    done = wire.data("engine_execute", plan=STEPS[:1], wait=50)["execution_id"]
    said = refused(wire, "not_running", execution_id=done)
    assert "only interrupted and lost ones resume" in said
    assert f'engine_checkpoint(execution_id="{done[:18]}", action="list")' in said
    refused(wire, "unknown_id", execution_id=new_id())
    code = wire.data("execute", code="1")["execution_id"]
    assert "no task" in refused(wire, "bad_input", execution_id=code, **at(3))
    assert "no task" in refused(wire, "bad_input", "engine_checkpoint", execution_id=code)
    said = refused(wire, "unknown_checkpoint", execution_id=done, **at(10_000))
    assert "a completed" in said and 'action="list")' in said


@pytest.mark.promise("M2.resume", "D3")
def test_of_two_resumes_at_once_one_is_told_of_the_other(agents: Place, wire: Wire):
    wires = [wire, agents.wire(HANDSHAKE[2])]
    task = stopped(wire)
    results: list[dict[str, Any]] = []
    threads = [
        threading.Thread(
            target=lambda one=one: results.append(
                one.call("engine_resume", execution_id=task, wait=50)
            )
        )
        for one in wires
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (lost,) = [one for one in results if one.get("isError")]
    assert re.search(r"somebody else has resumed it|is still|only interrupted", text(lost))
    assert lost["structuredContent"]["next"]
    ran = [line.split()[0] for line in (agents.folder.parent / "side").read_text().splitlines()]
    assert ran == ["a", "b", "b", "c"]


@pytest.mark.promise("M2.resume", "D4")
def test_a_folder_that_is_gone_names_the_way_to_another(agents: Place, wire: Wire, tmp_path: Path):
    place = tmp_path / "elsewhere"
    place.mkdir()
    task = stopped(wire, workingDirectory=str(place))
    place.rmdir()
    said = refused(wire, "folder_gone", execution_id=task)
    assert f'engine_resume(execution_id="{task[:18]}", workingDirectory="DIR")' in said
    said = refused(wire, "bad_input", execution_id=task, workingDirectory=str(place))
    assert "does not exist" in said and "workingDirectory" in said
    let_go(agents)
    data = wire.data("engine_resume", execution_id=task, cwd=str(tmp_path), wait=50)
    assert data["status"] == "completed"
    saved = wire.data("engine_checkpoint", execution_id=task, action="list")["saved"]
    assert saved["environment"]["cwd"] == str(tmp_path)


@pytest.mark.promise("M2.resume", "D4")
def test_a_runtime_that_is_gone_or_changed(agents: Place, wire: Wire):
    task = stopped(wire, [STEPS[0], {**STEPS[1], "runtime": "versioned"}])
    version = agents.folder.parent / "version"
    version.unlink()
    said = refused(wire, "runtime_gone", execution_id=task)
    assert "it was taken away" in said and "put it back" in said and "force=true)" in said
    version.write_text("2.0")
    said = refused(wire, "environment_changed", execution_id=task)
    assert "of version 2.0" in said and "force=true)" in said


@pytest.mark.promise("M2.resume", "D4", "D5")
def test_state_that_is_damaged_or_newer(agents: Place, wire: Wire):
    task = stopped(wire)
    (folder,) = agents.home.glob(f"executions/*/{task}")
    state, tape = folder / "state.json", folder / "tape"
    good, document = tape.read_bytes(), json.loads(state.read_text())
    newer = {**document, "schema": 2}
    state.write_text(json.dumps({**newer, "sha256": checksum(newer)}))
    said = refused(wire, "newer_state", execution_id=task)
    assert "saved by a newer Tenuto" in said and "(from=SEQ)" in said and "force=true)" in said
    state.write_text(json.dumps(document)[:200])
    tape.write_bytes(good.replace(b'"step_finished","step":"a"', b'"step_finishee","step":"a"'))
    said = refused(wire, "state_damaged", execution_id=task)
    assert "cannot be read" in said and 'action="list")' in said and "force=true)" in said
    tape.write_bytes(good)
    state.write_text("{")
    data = wire.data("engine_resume", execution_id=task, wait=50)
    assert data["status"] == "completed"
    assert any("put aside" in one for one in data["warnings"])


@pytest.mark.promise("M2.checkpoint", "D2")
def test_a_checkpoint_that_cannot_be_written_says_what_is_safe(agents: Place, wire: Wire):
    task = begun(wire)
    (folder,) = agents.home.glob(f"executions/*/{task}")
    state = folder / "state.json"
    state.unlink()
    (state / "in the way").mkdir(parents=True)
    said = refused(wire, "disk_full", "engine_checkpoint", execution_id=task)
    assert "safe on its tape" in said and "make room" in said
    (state / "in the way").rmdir()
    state.rmdir()
    assert wire.data("engine_checkpoint", execution_id=task)["checkpoint"]["seq"] > 0
    wire.data("engine_interrupt", execution_id=task)


# History


@pytest.mark.promise("M2.history", "D6")
def test_history_adds_up_and_is_read_page_by_page(agents: Place, wire: Wire):
    plan = [
        {"id": f"s{n}", "task": f"[[use:{n},1]]" + ("[[fail:failed]]" if n == 4 else "")}
        for n in range(1, 6)
    ]
    task = wire.data("engine_execute", plan=plan, strategy="parallel", wait=50)["execution_id"]
    other = wire.data("engine_execute", plan=STEPS[:1], wait=50)["execution_id"]
    begin = {"since": wire.data("engine_status", execution_id=task)["started_at"]}
    first = wire.call("engine_history", limit=4, **begin)
    shown, data = text(first), first["structuredContent"]
    assert data["totals"]["count"] == 6 and data["totals"]["failed"] == 1
    assert (data["totals"]["tokens_in"], data["totals"]["tokens_out"]) == (15, 5)
    assert shown.startswith(
        "Steps: 6 (5 completed, 1 failed), 83% of those that ran succeeded; 15 "
    )
    assert len(data["steps"]) == 4 and data["truncated"] and data["cursor"] in shown
    assert all(one["step"] in shown and one["executed_at"] in shown for one in data["steps"])
    second = wire.data("engine_history", limit=4, cursor=data["cursor"], **begin)
    assert len(second["steps"]) == 2 and "cursor" not in second
    seen = [(one["execution_id"], one["step"]) for one in data["steps"] + second["steps"]]
    assert len(set(seen)) == 6 and seen[0] == (other, "a")
    assert second["totals"] == data["totals"]
    failed = wire.data("engine_history", failed=True, execution_id=task[:18])
    assert [one["error_kind"] for one in failed["steps"]] == ["failed"]
    grouped = wire.call("engine_history", group_by="task", **begin)
    keys = [(one["key"], one["count"]) for one in grouped["structuredContent"]["groups"]]
    assert keys == [(task, 5), (other, 1)] and f"- {task}: 5 (4 completed" in text(grouped)
    cut = wire.data("engine_history", by="task", limit=1, **begin)
    assert cut["groups_total"] == 2 and len(cut["groups"]) == 1 and cut["next"]
    none = wire.call("engine_history", until="1h")
    assert text(none).startswith("Steps: none\n(none)\n")
    assert none["structuredContent"]["steps"] == []


@pytest.mark.promise("M2.history", "D6")
def test_a_task_is_named_for_the_history_and_told_to_go_on_by_itself(agents: Place, wire: Wire):
    names = {"change": "CH-7", "task_id": "T-7", "workflow": "nightly"}
    done = wire.data("engine_execute", task="[[say:x]]", wait=50, resume="auto", **names)
    assert done["status"] == "completed"
    (record,) = wire.data("engine_history", change="CH-7", task_id="T-7")["steps"]
    assert {name: record[name] for name in names} == names
    groups = wire.data("engine_history", by="workflow")["groups"]
    assert "nightly" in {one["key"] for one in groups}
    shown = agents.document("show", done["execution_id"])
    assert shown["spec"]["task"] == {
        **names,
        "text": "[[say:x]]",
        "resume": "auto",
        "budget_mode": "warn",
    }
    told = ("--workflow", "weekly", "--wait", "60s")
    assert agents.cli("task", "[[say:x]]", *told).returncode == 0
    groups = wire.data("engine_history", by="workflow")["groups"]
    assert {one["key"] for one in groups} >= {"nightly", "weekly"}
    refused(wire, "bad_input", "engine_execute", task="x", resume="always")


@pytest.mark.promise("M2.history")
def test_what_is_asked_wrongly_of_the_history_is_refused_with_what_is_right(
    agents: Place, wire: Wire
):
    code = wire.data("execute", code="1")["execution_id"]
    for given, wrong in (
        ({"cursor": "12"}, "no cursor of engine_history"),
        ({"since": "yesterday"}, "not a time"),
        ({"since": "1h", "until": "2h"}, "ends before it begins"),
        ({"by": "moon"}, '"moon" is not one of "model", "runtime", "day", "change", "workflow"'),
        ({"limit": 1000}, "200"),
        ({"execution_id": code}, "only tasks have steps"),
    ):
        said = refused(wire, "bad_input", "engine_history", **given)
        assert wrong in said and "--" not in said
    refused(wire, "unknown_id", "engine_history", execution_id=new_id())


@pytest.mark.promise("M2.history")
def test_a_large_page_of_history_is_cut_and_goes_on(agents: Place, wire: Wire):
    plan = [{"id": f"step-{n:03}", "task": "[[say:x]]"} for n in range(120)]
    task = wire.data("engine_execute", plan=plan, strategy="parallel", wait=50)["execution_id"]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        data = wire.data("engine_history", execution_id=task, limit=200, **cursor)
        assert 0 < len(json.dumps(data["steps"])) < 36_000
        seen += [one["step"] for one in data["steps"]]
        if "cursor" not in data:
            break
        assert len(seen) > 50 and not cursor
        cursor = {"cursor": data["cursor"]}
    assert cursor and sorted(seen) == [one["id"] for one in plan]


# Words


def test_the_groups_are_those_of_the_engine():
    assert GROUPS == BY


def test_descriptions_are_in_plain_characters():
    for one in catalogue.tools("32K"):
        assert one["description"].isascii(), one["name"]


@pytest.mark.parametrize(
    ("cost", "unpriced", "words"),
    [
        (None, 2, "cost unknown;"),
        (Decimal(0), 2, "cost $0.00 and 2 steps of unknown cost;"),
        (Decimal("1.5"), 0, "cost $1.50;"),
    ],
)
def test_totals_say_what_they_do_not_know(cost: Decimal | None, unpriced: int, words: str):
    totals = Totals(count=3, completed=3, cost=cost, unpriced=unpriced, p50_s=1, p95_s=1)
    assert words in total_words(totals)


@pytest.mark.parametrize(
    ("hint", "call"),
    [
        ("tenuto resume 01a1e3da-9d41-79fa", 'engine_resume(execution_id="01a1e3da-9d41-79fa")'),
        (
            "do: tenuto resume --force 01a1e3da-9d41-79fa --cwd '/a b/c'; or else",
            'do: engine_resume(execution_id="01a1e3da-9d41-79fa", force=true, '
            'workingDirectory="/a b/c"); or else',
        ),
        (
            "tenuto resume --from 7 01a1e3da-9d41-79fa --cwd DIR",
            'engine_resume(execution_id="01a1e3da-9d41-79fa", from=7, workingDirectory="DIR")',
        ),
        ("tenuto show 01a1e3da --checkpoints", 'engine_checkpoint(execution_id="01a1e3da", '
         'action="list")'),
        (
            "to go on all the same: tenuto resume --force 01a1e3da; in another folder, add --cwd DIR",
            'to go on all the same: engine_resume(execution_id="01a1e3da", force=true); in another '
            'folder, add workingDirectory="DIR"',
        ),
        ("follow it: tenuto logs -f 01a1e3da", 'follow it: see output(execution_id="01a1e3da")'),
        ("list them with: tenuto ps -a", 'see list(which="all")'),
        ("see: tenuto show 01a1e3da", 'see engine_status(execution_id="01a1e3da")'),
        ("tenuto kill 01a1e3da", 'kill(execution_id="01a1e3da")'),
        ("its disk full (tenuto doctor)", "its disk full (see engine_status())"),
        ("one of these: tenuto doctor shows them", "one of these: engine_status() shows them"),
        ("install it, see `tenuto doctor`, or", "install it, see engine_status(), or"),
        ("put them aside with: tenuto doctor --rebuild", "put them aside with: tenuto doctor --rebuild"),
        ("make room with: tenuto clean --older 7d", "make room with: tenuto clean --older 7d"),
    ],
)  # fmt: skip
def test_hints_name_calls_instead_of_commands(hint: str, call: str):
    assert spoken(hint) == call
