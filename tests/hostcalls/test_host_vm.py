"""Functions of the caller's, called by JavaScript in the real VM."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from engine_help import PATIENCE, ended, events_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_wire import VALUES, same

from tenuto import Engine, HostFunction, InvalidInput, Limits
from tenuto.core.states import State, WaitingFor
from tenuto.stores.layout import Project

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # each example is an execution: no shrinking


async def echo(value: Any = None) -> Any:
    return value


@pytest.mark.promise("C3")
@pytest.mark.asyncio
async def test_a_function_of_python_is_an_async_function_in_javascript(engine: Engine) -> None:
    async def lookup(key: str, limit: int = 3) -> dict[str, Any]:
        return {"key": key, "limit": limit}

    def prs(owner: str) -> list[str]:
        return [f"{owner}/1", f"{owner}/2"]

    code = """
    const one = lookup('x');
    [one instanceof Promise, await one, await lookup({key: 'y', limit: 5}), await github.list_prs('me')]
    """
    functions = {"lookup": lookup, "github.list_prs": prs}
    snapshot = await engine.code(code, functions=functions, inputs={"q": 1}, wait=PATIENCE)
    assert snapshot.state is State.SUCCEEDED, snapshot.output
    x, y = {"key": "x", "limit": 3}, {"key": "y", "limit": 5}
    assert snapshot.value == [True, x, y, ["me/1", "me/2"]]


@pytest.mark.promise("C3")
@pytest.mark.asyncio
async def test_only_what_is_on_the_list_exists(engine: Engine) -> None:
    code = """
    const seen = [];
    for (const name of ['secret', 'echo2', 'fetch', 'require', 'process', 'Deno', 'std', 'os']) {
      seen.push(typeof globalThis[name]);
    }
    let told;
    try { await secret('x'); } catch (error) { told = `${error.name}: ${error.message}`; }
    return [seen.filter((one) => one !== 'undefined'), told];
    """
    snapshot = await engine.code(code, functions={"echo": echo})
    assert snapshot.value == [[], "ReferenceError: secret is not defined"]


@pytest.mark.promise("C3")
@pytest.mark.asyncio
async def test_wrong_arguments_can_be_caught_and_show_the_right_ones(engine: Engine) -> None:
    called: list[Any] = []

    def lookup(key: str, limit: int = 3) -> None:
        called.append(key)

    code = """
    const told = [];
    for (const args of [[], [5], [{kee: 'x'}], ['x', 'y'], [undefined], [null], [{key: 'x', z: 1}]]) {
      try { await lookup(...args); } catch (error) {
        told.push([error.name, error.message, error instanceof Error, error.detail.parameters.required]);
      }
    }
    return told;
    """
    told = (await engine.code(code, functions={"lookup": lookup})).value
    assert len(told) == 7
    assert not called
    for name, message, is_error, required in told:
        assert (name, is_error, required) == ("ToolArgumentError", True, ["key"])
        assert message.endswith("Valid parameters: key: string, limit?: integer = 3")


@pytest.mark.asyncio
async def test_an_uncaught_error_of_the_host_fails_the_code_where_it_called(engine: Engine) -> None:
    def fails() -> None:
        raise LookupError("no such entry")

    snapshot = await engine.code("1;\n\nawait fails();", functions={"fails": fails})
    assert snapshot.state is State.FAILED
    assert "Uncaught LookupError: no such entry" in snapshot.output
    assert "code:3:" in snapshot.output
    assert "hosting.py" not in snapshot.output
    assert "Traceback" not in snapshot.output


@pytest.mark.promise("C3")
def test_every_value_goes_into_the_vm_and_comes_back_as_it_was(folder: Path) -> None:
    runner = asyncio.Runner()
    there: list[Any] = []
    back: list[Any] = []

    def give() -> list[Any]:
        return there

    def take(value: Any) -> None:
        back.append(value)

    engine = runner.run(Engine(str(folder)).__aenter__())

    @settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow], phases=PHASES)
    @given(st.lists(VALUES, min_size=20, max_size=40))
    def check(values: list[Any]) -> None:
        there[:] = values
        back.clear()
        code = "for (const value of await give()) await take(value); 'done'"
        work = engine.code(code, functions={"give": give, "take": take}, wait=PATIENCE)
        assert runner.run(work).value == "done"
        for here, found in zip(there, back, strict=True):
            assert same(found, here), (found, here)

    try:
        check()
    finally:
        runner.run(engine.__aexit__())
        runner.close()


@pytest.mark.promise("C3")
@pytest.mark.asyncio
async def test_the_edges_of_numbers_text_dates_and_bytes_are_exact(engine: Engine) -> None:
    got: list[Any] = []

    def take(*values: Any) -> list[Any]:
        got.extend(values)
        return list(values)

    code = r"""
    const values = [2**53 - 1, -(2**53 - 1), 2n**64n, -5n, 1e21, 2**60, -0, NaN, Infinity, 0.1 + 0.2,
      'é\u0000😀\ud800', '\u2028', new Date(0), new Uint8Array([0, 255]), null, [undefined],
      {'$': 1, __proto__: null, ['__proto__']: 2}, [], {}];
    const back = await take(...values);
    const kinds = back.map((one) => Object.is(one, -0) ? '-0' : typeof one);
    return [kinds.join(), back[2] === 2n ** 64n, back[10] === values[10], back[12].getTime(),
      back[13] instanceof Uint8Array && back[13][1], Object.hasOwn(back[16], '__proto__'), back[16].$];
    """
    snapshot = await engine.code(code, functions={"take": take})
    assert snapshot.state is State.SUCCEEDED, snapshot.output
    kinds = "number,number,bigint,number,number,number,-0,number,number,number,"
    kinds += "string,string,object,object,object,object,object,object,object"
    assert snapshot.value == [kinds, True, True, 0, 255, True, 1]
    assert got[:6] == [2**53 - 1, -(2**53 - 1), 2**64, -5, 1e21, 2.0**60]
    assert isinstance(got[4], float)
    assert isinstance(got[5], float)
    assert math.copysign(1, got[6]) == -1
    assert math.isnan(got[7])
    assert got[8:12] == [math.inf, 0.1 + 0.2, "é\0😀\ud800", "\u2028"]
    assert got[12:15] == [datetime(1970, 1, 1, tzinfo=UTC), b"\0\xff", None]
    assert got[15:] == [[None], {"$": 1, "__proto__": 2}, [], {}]


@pytest.mark.asyncio
async def test_what_cannot_travel_is_an_error_in_the_code(engine: Engine) -> None:
    code = """
    const loop = {}; loop.self = loop;
    let deep = []; for (let i = 0; i < 300; i++) deep = [deep];
    const told = [];
    const values = [loop, deep, () => 1, Symbol('x'), new Map(), Promise.resolve(1),
      {get a() { throw new Error('mine') }}, 'x'.repeat(17 * 2 ** 20), {'\\ud800': 1}];
    for (const value of values) {
      try { await echo(value); told.push('passed') } catch (error) { told.push(error.message) }
    }
    return told;
    """
    snapshot = await engine.code(code, functions={"echo": echo})
    told = snapshot.value
    for text, part in zip(
        told,
        ["itself", "deeper than 200", "a function", "a symbol", "a Map", "await it first", "mine",
         "larger than 16 MB", "surrogate"],
        strict=True,
    ):  # fmt: skip
        assert part in text


@pytest.mark.promise("C2", "C3")
@pytest.mark.asyncio
async def test_values_of_the_host_pollute_no_prototype(engine: Engine) -> None:
    def evil() -> Any:
        return {"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 2}},
                "toString": 5, "then": 6}  # fmt: skip

    code = """
    const value = await evil();
    return [({}).polluted, value.polluted, Object.keys(value).join(), value.__proto__.polluted,
      Object.getPrototypeOf(value) === Object.prototype, inputs.__proto__.q, ({}).q];
    """
    snapshot = await engine.code(code, functions={"evil": evil}, inputs={"__proto__": {"q": 1}})
    keys = "__proto__,constructor,toString,then"
    assert snapshot.output == ""
    assert snapshot.has_value
    found = " ".join(str(snapshot.value).split())  # undefined makes it a printed form
    assert found == f"[ undefined, undefined, '{keys}', 1, true, 1, undefined ]"


TAMPER = {
    "prototypes": """
      Array.prototype.push = Array.prototype.join = () => 'x';
      JSON.stringify = () => '{}'; JSON.parse = () => 1;
      Object.defineProperty = Object.getOwnPropertyDescriptor = Reflect.ownKeys = () => { throw 1 };
      String.prototype.split = String.prototype.slice = () => 'y';
      Promise.prototype.then = undefined; Map.prototype.get = () => 5; Array.isArray = () => false;""",
    "setters": """
      const names = 'n name args type ok value v $ 0 1 resolve reject call trace get set'.split(' ');
      for (const name of names) Object.defineProperty(Object.prototype, name,
        {__proto__: null, get() { return 'forged' }, set(x) { throw 2 }, configurable: true});""",
    "toJSON": """
      Object.prototype.toJSON = String.prototype.toJSON = Array.prototype.toJSON = () => 'forged';""",
    "globals": """
      for (const name of ['Promise', 'JSON', 'Object', 'Array', 'Error']) globalThis[name] = null;""",
}


@pytest.mark.promise("C2", "C3")
@pytest.mark.parametrize("how", TAMPER)
@pytest.mark.asyncio
async def test_code_that_changes_the_language_forges_no_call(
    engine: Engine, project: Project, how: str
) -> None:
    names: list[Any] = []

    def take(value: Any) -> Any:
        names.append(value)
        return value

    def secret(value: Any = None) -> Any:
        raise AssertionError

    code = f"const take2 = take; {TAMPER[how]}\ntake2('x'); take2(['y', 1]);"
    functions = {"take": take, "other.secret": secret}
    snapshot = await engine.code(code, functions=functions)
    assert snapshot.reason != "protocol", snapshot.detail
    called = events_of(project, snapshot.id, "host_called")
    assert [(one["n"], one["name"]) for one in called] == [(1, "take"), (2, "take")]
    assert names == ["x", ["y", 1]]
    assert (await engine.code("await take(3)", functions={"take": take})).value == 3


@pytest.mark.promise("C2", "C3")
@pytest.mark.asyncio
async def test_getters_and_proxies_in_arguments_are_read_once(engine: Engine) -> None:
    code = """
    let reads = 0;
    const shape = new Proxy({}, {
      ownKeys: () => ['a', 'b'],
      getOwnPropertyDescriptor: (t, k) => ({value: 1, enumerable: true, configurable: true}),
      get: (t, k) => typeof k === 'symbol' ? undefined : `${k}${++reads}`,
    });
    const back = await echo(shape);
    let second = 0;
    const getter = {get a() { return ++second }};
    return [back, await echo(getter), second];
    """
    snapshot = await engine.code(code, functions={"echo": echo})
    assert snapshot.value == [{"a": "a1", "b": "b2"}, {"a": 1}, 1], snapshot.output


@pytest.mark.promise("C3")
@pytest.mark.asyncio
async def test_ten_thousand_calls_at_once_are_all_answered(
    engine: Engine, project: Project
) -> None:
    most = open_now = 0

    async def slow(value: int) -> int:
        nonlocal most, open_now
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0)
        open_now -= 1
        return value + 1

    code = """
    const all = await Promise.all(Array.from({length: 10_000}, (_, i) => slow(i)));
    all.every((value, i) => value === i + 1) && all.length
    """
    snapshot = await engine.code(code, functions={"slow": slow}, wait=PATIENCE)
    assert snapshot.value == 10_000, (snapshot.state, snapshot.detail, snapshot.output)
    assert 1 < most <= 1000
    numbers = [one["n"] for one in events_of(project, snapshot.id, "host_called")]
    assert numbers == list(range(1, 10_001))


@pytest.mark.asyncio
async def test_many_large_arguments_take_turns(engine: Engine) -> None:
    def size(text: str) -> int:
        return len(text)

    code = """
    const text = 'x'.repeat(2 ** 20);
    const sizes = await Promise.all(Array.from({length: 100}, (_, i) => size(text + i)));
    sizes.length
    """
    snapshot = await engine.code(code, functions={"size": size}, wait=PATIENCE)
    assert snapshot.value == 100, (snapshot.state, snapshot.detail, snapshot.output)


@pytest.mark.promise("C3", "X11")
@pytest.mark.asyncio
async def test_the_vm_goes_on_with_another_host_after_the_caller_was_killed(
    engine: Engine, folder: Path
) -> None:
    script = """
import asyncio
from tenuto import Engine

async def slow(text: str) -> str:
    print("called", flush=True)
    await asyncio.Event().wait()

async def main():
    async with Engine() as engine:
        await engine.code("const here = 40; here + (await slow('x')).length", functions={"slow": slow})

asyncio.run(main())
"""
    caller = subprocess.Popen([sys.executable, "-c", script], cwd=folder, stdout=subprocess.PIPE)
    try:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"called\n"
        (running,) = await engine.list(running=True)
        os.kill(caller.pid, signal.SIGKILL)
        waits = await engine.wait(running.id, PATIENCE)
        assert waits.waiting_for is WaitingFor.HOST

        async def slow(text: str) -> str:
            return text * 2

        await engine.serve(running.id, {"slow": slow})
        assert (await ended(engine, running.id)).value == 42
    finally:
        caller.kill()
        caller.communicate()


@pytest.mark.asyncio
async def test_a_busy_vm_takes_its_answers_when_it_comes_to_them(engine: Engine) -> None:
    code = """
    const early = echo('first');
    const end = Date.now() + 150; while (Date.now() < end);
    return [await early, await echo('second')];
    """
    assert (await engine.code(code, functions={"echo": echo})).value == ["first", "second"]


@pytest.mark.asyncio
async def test_a_schema_given_by_hand_holds_in_the_vm_too(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
    function = HostFunction(lambda n=1: n * 2, schema, "Doubles.")
    code = (
        "try { await double({n: 0}) } catch (error) { console.log(error.message) }\nawait double(4)"
    )
    snapshot = await engine.code(code, functions={"double": function})
    assert snapshot.value == 8
    assert "n: 0 is less than the minimum of 1. Valid parameters: n?: integer" in snapshot.output


@pytest.mark.asyncio
async def test_functions_are_for_code_mode(engine: Engine) -> None:
    for language in ("bash", "python"):
        with pytest.raises(InvalidInput, match="code-mode"):
            await engine.code("1", language=language, functions={"echo": echo})
    with pytest.raises(InvalidInput, match="taken by JavaScript"):
        await engine.code("1", functions={"console": echo})


@pytest.mark.promise("C3")
@pytest.mark.asyncio
async def test_more_values_than_their_reader_has_room_for_are_refused_in_the_code(
    engine: Engine,
) -> None:
    code = """
    const told = [];
    for (const one of [[], {}, 'ab', undefined, 1n]) {
      try { await echo(Array(600000).fill(one)) } catch (error) { told.push(error.name) }
    }
    told.push((await echo(Array(10000).fill({a: [1]}))).length);
    told
    """
    limits = Limits(memory=1 << 30)
    snapshot = await engine.code(code, functions={"echo": echo}, limits=limits, wait=PATIENCE)
    assert snapshot.value == [*["RangeError"] * 5, 10000], (snapshot.detail, snapshot.output)


@pytest.mark.promise("C3")
@pytest.mark.asyncio
async def test_a_function_that_leaves_python_does_not_take_us_along(engine: Engine) -> None:
    def leave() -> None:
        raise SystemExit(3)

    async def leave_too() -> None:
        raise SystemExit(4)

    code = """
    const told = [];
    for (const f of [leave, leave_too]) {
      await f().catch((error) => told.push([error.name, error.message]));
    }
    told
    """
    functions = {"leave": leave, "leave_too": leave_too}
    snapshot = await engine.code(code, functions=functions, wait=PATIENCE)
    assert snapshot.value == [["SystemExit", "3"], ["SystemExit", "4"]], snapshot.output
