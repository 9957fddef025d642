"""The keeper's part in host calls, with a stand-in for the VM that can break every rule."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from engine_help import PATIENCE, ended, events_of, tape_events
from host_help import run_fake, start_alone

from tenuto import Engine, InvalidInput, NotRunning
from tenuto.core.states import State, WaitingFor
from tenuto.dispatch import control
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio


async def echo(value: Any = None) -> Any:
    return value


@pytest.mark.promise("C3")
async def test_a_call_goes_out_and_its_answer_comes_back(engine: Engine, project: Project) -> None:
    async def lookup(key: str, limit: int = 3) -> dict[str, Any]:
        return {"key": key, "limit": limit}

    snapshot = await run_fake(engine, 'value(call("lookup", "x"))', {"lookup": lookup})
    assert snapshot.value == {"key": "x", "limit": 3}
    assert snapshot.state is State.SUCCEEDED
    assert events_of(project, snapshot.id, "host_called") == [
        {"type": "host_called", "n": 1, "name": "lookup", "args": ["x"]}
    ]
    assert events_of(project, snapshot.id, "host_answered") == [
        {"type": "host_answered", "n": 1, "ok": True, "value": {"key": "x", "limit": 3}}
    ]
    assert not events_of(project, snapshot.id, "waited")


@pytest.mark.promise("C3")
async def test_calls_run_side_by_side_and_answers_come_in_any_order(
    engine: Engine, project: Project
) -> None:
    last = asyncio.Event()

    async def first() -> str:
        await last.wait()
        return "first"

    async def second() -> str:
        last.set()
        return "second"

    code = 'a = ask("first"); b = ask("second"); value([answer(a)["value"], answer(b)["value"]])'
    snapshot = await run_fake(engine, code, {"first": first, "second": second})
    assert snapshot.value == ["first", "second"]
    assert [one["n"] for one in events_of(project, snapshot.id, "host_answered")] == [2, 1]


async def test_functions_that_block_run_in_threads_side_by_side(engine: Engine) -> None:
    both = threading.Barrier(2)

    def meet() -> int:
        both.wait(PATIENCE)
        return threading.get_ident()

    code = 'value([answer(n)["value"] for n in [ask("meet"), ask("meet")]])'
    snapshot = await run_fake(engine, code, {"meet": meet})
    here = threading.get_ident()
    assert here not in snapshot.value
    assert len(set(snapshot.value)) == 2


@pytest.mark.promise("C3")
async def test_an_error_arrives_with_name_and_message_but_without_secrets(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "the-hidden-value")

    def fails() -> None:
        raise LookupError(f"no entry, tried with {os.environ['SERVICE_TOKEN']}")

    async with Engine(str(folder)) as fresh:
        snapshot = await run_fake(fresh, 'value(error("fails"))', {"fails": fails})
    told = snapshot.value
    assert told["name"] == "LookupError"
    assert told["message"] == "no entry, tried with [redacted SERVICE_TOKEN]"
    assert "Traceback" not in str(told)


@pytest.mark.promise("C3")
async def test_wrong_arguments_are_refused_before_the_call_and_told_the_right_ones(
    engine: Engine,
) -> None:
    called: list[Any] = []

    async def lookup(key: str, limit: int = 3) -> None:
        called.append((key, limit))

    code = 'value([error("lookup"), error("lookup", 5), error("lookup", {"kee": "x"})])'
    snapshot = await run_fake(engine, code, {"lookup": lookup})
    assert not called
    for told in snapshot.value:
        assert told["name"] == "ToolArgumentError"
        assert "key: string, limit?: integer = 3" in told["message"]
        assert told["detail"]["parameters"]["required"] == ["key"]
    missing, wrong, unexpected = (told["message"] for told in snapshot.value)
    assert "missing key" in missing
    assert "key: expected string, got integer" in wrong
    assert "missing key; unexpected 'kee'" in unexpected


async def test_a_slow_function_does_not_end_the_wait_of_its_own_server(engine: Engine) -> None:
    async def slow() -> str:
        await asyncio.sleep(0.3)  # the time that must pass is the point
        return "done"

    snapshot = await run_fake(engine, 'value(call("slow"))', {"slow": slow})
    assert snapshot.value == "done"
    assert not snapshot.handed_over


async def test_what_is_handed_over_is_served_on(engine: Engine, project: Project) -> None:
    gate = asyncio.Event()

    async def slow() -> str:
        await gate.wait()
        return "late"

    snapshot = await run_fake(engine, 'value(call("slow"))', {"slow": slow}, wait=0.1)
    assert snapshot.handed_over
    assert snapshot.waiting_for is None
    gate.set()
    assert (await ended(engine, snapshot.id)).value == "late"


@pytest.mark.promise("C3", "X2")
async def test_with_nobody_to_serve_it_waits_for_a_host_and_goes_on_with_one(
    engine: Engine, project: Project
) -> None:
    execution_id = start_alone(engine, 'value(call("echo", 5))', {"echo": echo})
    waits = await engine.wait(execution_id, PATIENCE)
    assert waits.waiting_for is WaitingFor.HOST
    assert "echo" in waits.detail
    await engine.serve(execution_id, {"echo": echo})
    done = await ended(engine, execution_id)
    assert done.value == 5
    kinds = [one["type"] for one in tape_events(project, execution_id)]
    order = ["host_called", "waited", "host_attached", "continued", "host_answered"]
    assert [kind for kind in kinds if kind in order] == order


async def test_a_starter_that_dies_before_it_serves_is_noticed(engine: Engine) -> None:
    execution_id = start_alone(engine, 'value(call("echo", 5))', {"echo": echo}, served=True)
    assert (await engine.wait(execution_id, PATIENCE)).waiting_for is WaitingFor.HOST
    await engine.kill(execution_id)


@pytest.mark.promise("C3", "X11")
async def test_another_process_serves_on_after_the_caller_was_killed(
    engine: Engine, folder: Path, project: Project
) -> None:
    here = os.path.dirname(__file__)
    caller = subprocess.Popen(
        [sys.executable, os.path.join(here, "serving_caller.py")],
        cwd=folder,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": here},
    )
    try:
        assert caller.stdout is not None
        said = {caller.stdout.readline(), caller.stdout.readline()}
        assert said == {b"called=a;\n", b"called=b;\n"}
        (running,) = await engine.list(running=True)
        caller.send_signal(signal.SIGKILL)
        caller.wait()
        waits = await engine.wait(running.id, PATIENCE)
        assert waits.waiting_for is WaitingFor.HOST
        again: list[str] = []

        async def slow(text: str) -> str:
            again.append(text)
            return text.upper()

        await engine.serve(running.id, {"slow": slow})
        assert (await ended(engine, running.id)).value == ["A", "B"]
        assert sorted(again) == ["a", "b"]
        attached = events_of(project, running.id, "host_attached")
        assert [one["again"] for one in attached] == [0, 2]
        assert [one["pid"] for one in attached] == [caller.pid, os.getpid()]
    finally:
        caller.kill()
        caller.communicate()


async def test_the_latest_server_serves_and_the_one_before_stops(
    engine: Engine, folder: Path
) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def answers() -> str:
        return "second"

    running = asyncio.create_task(run_fake(engine, 'value(call("f"))', {"f": hangs}))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    (snapshot,) = await engine.list(running=True)
    async with Engine(str(folder)) as other:
        await other.serve(snapshot.id, {"f": answers})
        assert (await running).value == "second"
    await asyncio.wait_for(cancelled.wait(), PATIENCE)


@pytest.mark.promise("X8")
async def test_a_kill_cancels_what_runs_for_it(engine: Engine) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    running = asyncio.create_task(run_fake(engine, 'call("hangs")', {"hangs": hangs}))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    (snapshot,) = await engine.list(running=True)
    await engine.kill(snapshot.id)
    await asyncio.wait_for(cancelled.wait(), PATIENCE)
    assert (await running).state is State.KILLED


async def test_leaving_the_engine_leaves_the_calls_to_the_next(folder: Path) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async with Engine(str(folder)) as first:
        snapshot = await run_fake(first, 'value(call("f"))', {"f": never}, wait=0.2)
    async with Engine(str(folder)) as second:
        assert (await second.wait(snapshot.id, PATIENCE)).waiting_for is WaitingFor.HOST
        await second.serve(snapshot.id, {"f": echo})
        assert (await ended(second, snapshot.id)).value is None


async def test_only_who_has_all_functions_may_serve(engine: Engine) -> None:
    execution_id = start_alone(engine, 'call("a")', {"a": echo, "b.c": echo})
    with pytest.raises(InvalidInput, match=r"may also call b\.c"):
        await engine.serve(execution_id, {"a": echo})
    await engine.kill(execution_id)
    with pytest.raises(NotRunning):
        await engine.serve(execution_id, {"a": echo, "b.c": echo})
    plain = await engine.run("1", language="python")
    with pytest.raises(InvalidInput, match="without functions"):
        await engine.serve(plain.id, {"a": echo})


async def test_megabytes_go_both_ways(engine: Engine) -> None:
    code = 'text = "x" * 10_000_000; value(call("echo", text) == text)'
    assert (await run_fake(engine, code, {"echo": echo})).value is True


async def test_a_value_too_large_or_of_no_known_kind_is_an_error_for_the_code(
    engine: Engine,
) -> None:
    def large() -> str:
        return "x" * (17 << 20)

    def strange() -> object:
        return object()

    code = 'value([error("large"), error("strange")])'
    first, second = (await run_fake(engine, code, {"large": large, "strange": strange})).value
    assert first["name"] == "RangeError"
    assert "at most 16777216" in first["message"]
    assert second == {
        "name": "TypeError",
        "message": "strange returned what cannot be passed on: "
        "a value of type object cannot be passed on",
    }


BROKEN = {
    "a number out of turn": 'send(type="call", n=2, name="echo", args=[])',
    "a number again": 'ask("echo"); send(type="call", n=1, name="echo", args=[])',
    "no number": 'send(type="call", name="echo", args=[])',
    "true for a number": 'send(type="call", n=True, name="echo", args=[])',
    "a name not on the list": 'ask("secret")',
    "a name that is none": 'send(type="call", n=1, name=["echo"], args=[])',
    "a part of a name": 'ask("ech")',
    "arguments that are no list": 'send(type="call", n=1, name="echo", args={"a": 1})',
    "not a number": 'raw(b\'{"type":"call","n":1,"name":"echo","args":[NaN]}\\n\')',
}


@pytest.mark.promise("C2", "C3")
@pytest.mark.parametrize("how", BROKEN)
async def test_a_child_that_breaks_the_rules_is_ended(
    engine: Engine, project: Project, how: str
) -> None:
    called: list[Any] = []

    async def note(value: Any = None) -> None:
        called.append(value)
        await asyncio.Event().wait()

    code = f"{BROKEN[how]}\nline.read()"
    snapshot = await run_fake(engine, code, {"echo": note})
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "protocol")
    assert len(called) <= 1
    assert (await run_fake(engine, 'value(call("echo", 1))', {"echo": echo})).value == 1


LIMITS = {
    "giant arguments": (
        'raw(b\'{"type":"call","n":1,"name":"echo","args":["\' + b"x" * (17 << 20) + b\'"]}\\n\')',
        "arguments of a call limit 16777216 bytes",
    ),
    "a line without an end": (
        'raw(b\'{"type":"call","n":1,"name":"echo","args":["\' + b"x" * (21 << 20))',
        "message limit 20971520 bytes",
    ),
    "too many open": ('[ask("echo") for _ in range(1001)]', "open calls limit 1000"),
    "too much open": (
        'text = "x" * (8 << 20); [ask("echo", text) for _ in range(9)]',
        "arguments of open calls limit 67108864 bytes",
    ),
}


@pytest.mark.promise("C2", "C3")
@pytest.mark.parametrize("how", LIMITS)
async def test_a_child_that_asks_for_too_much_is_ended(engine: Engine, how: str) -> None:
    async def never(_: Any = None) -> None:
        await asyncio.Event().wait()

    code, detail = LIMITS[how]
    snapshot = await run_fake(engine, f"{code}\nline.read()", {"echo": never})
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "limit")
    assert snapshot.detail == detail


async def test_ten_thousand_calls_in_turn_are_all_answered(
    engine: Engine, project: Project
) -> None:
    code = """
    numbers, total = [], 0
    for i in range(10_000):
        numbers.append((i, ask("echo", i)))
        if len(numbers) == 500:
            total += sum(answer(n)["value"] == i for i, n in numbers)
            numbers.clear()
    value(total)
    """
    snapshot = await run_fake(engine, code, {"echo": echo})
    assert snapshot.value == 10_000
    called = [one["n"] for one in events_of(project, snapshot.id, "host_called")]
    assert called == list(range(1, 10_001))
    assert len(events_of(project, snapshot.id, "host_answered")) == 10_000


@pytest.mark.promise("X16")
async def test_answers_that_fit_no_call_are_refused_and_change_nothing(
    engine: Engine, project: Project
) -> None:
    gate = asyncio.Event()

    async def waits() -> str:
        await gate.wait()
        return "the right one"

    snapshot = await run_fake(engine, 'value(call("waits"))', {"waits": waits}, wait=0.2)
    where = project.folder(snapshot.id)

    def forge() -> list[str]:
        said: list[str] = []
        for n in (1, 2, -1, "1", None, True, 1.0):
            with pytest.raises(InvalidInput) as refused:
                control.request(where, "answer", n=n, ok=True, value="forged")
            said.append(refused.value.message)
        return said

    said = await asyncio.to_thread(forge)
    assert all("another one serves now" in one for one in said)
    gate.set()
    assert (await ended(engine, snapshot.id)).value == "the right one"
