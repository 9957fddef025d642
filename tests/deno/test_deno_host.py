"""Functions of the caller's and composed tools, called from the deno engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenuto import Engine, Snapshot
from tenuto.core.states import State, WaitingFor
from tenuto.keeper.frames import EVENT
from tenuto.stores.layout import Project
from tenuto.stores.tape import TapeReader

pytestmark = [pytest.mark.asyncio, pytest.mark.promise("C3", "C9")]

NAME = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


async def code(engine: Engine, text: str, **functions: Callable[..., Any]) -> Snapshot:
    snapshot = await engine.code(text, engine="deno", functions=functions, wait=60)
    assert snapshot.done, (snapshot.state, snapshot.detail, snapshot.output)
    assert snapshot.engine == "deno"
    return snapshot


def events_of(project: Project, execution_id: str, kind: str) -> list[dict[str, Any]]:
    with TapeReader(project.folder(execution_id)) as reader:
        told = [msgspec.json.decode(f.body) for f in reader.frames() if f.stream == EVENT]
    return [one for one in told if one["type"] == kind]


async def test_functions_are_called_with_checked_arguments(engine: Engine) -> None:
    called: list[Any] = []

    async def lookup(key: str, limit: int = 3) -> dict[str, Any]:
        called.append((key, limit))
        return {"key": key, "limit": limit}

    text = """
    const told = [];
    for (const args of [['x'], [{key: 'y', limit: 5}], [], [5], [{kee: 'x'}]]) {
      try { told.push(await lookup(...args)) } catch (error) {
        told.push([error.name, error.message, error instanceof Error]);
      }
    }
    told
    """
    *good, empty, number, misspelt = (await code(engine, text, lookup=lookup)).value
    assert good == [{"key": "x", "limit": 3}, {"key": "y", "limit": 5}]
    assert called == [("x", 3), ("y", 5)]
    for name, message, is_error in (empty, number, misspelt):
        assert (name, is_error) == ("ToolArgumentError", True)
        assert message.endswith("Valid parameters: key: string, limit?: integer = 3")


async def test_errors_of_functions_are_exceptions_where_they_were_called(engine: Engine) -> None:
    def fails() -> None:
        raise LookupError("no such entry")

    snapshot = await code(engine, "1;\n\nawait fails();", fails=fails)
    assert snapshot.state is State.FAILED
    assert "Uncaught LookupError: no such entry" in snapshot.output
    assert "code:3:" in snapshot.output and "Traceback" not in snapshot.output
    snapshot = await code(engine, "await fails().catch((e) => e.name)", fails=fails)
    assert snapshot.value == "LookupError"


async def test_calls_run_at_once_and_each_is_on_the_tape(engine: Engine, project: Project) -> None:
    gate = asyncio.Event()
    open_now: list[int] = []

    async def meet(value: int) -> int:
        open_now.append(value)
        if len(open_now) == 20:
            gate.set()
        await gate.wait()
        return value + 1

    text = "await Promise.all(Array.from({length: 20}, (_, i) => meet(i)))"
    snapshot = await code(engine, text, meet=meet)
    assert snapshot.value == list(range(1, 21))
    assert [one["n"] for one in events_of(project, snapshot.id, "host_called")] == [*range(1, 21)]

    def add(value: int) -> int:
        return value + 1

    text = "(await Promise.all(Array.from({length: 2000}, (_, i) => add(i)))).at(-1)"
    assert (await code(engine, text, add=add)).value == 2000


async def test_values_travel_exactly(engine: Engine) -> None:
    got: list[Any] = []

    def take(*values: Any) -> list[Any]:
        got.extend(values)
        return list(values)

    text = r"""
    const values = [2**53 - 1, 2n**64n, -0, 'é\u0000😀', new Date(0), new Uint8Array([0, 255]), null,
      [], {'$': 1, ['__proto__']: 2}];
    const back = await take(...values);
    [back[1] === 2n ** 64n, Object.is(back[2], -0), back[3] === values[3], back[4].getTime(), back[5][1],
      Object.hasOwn(back[8], '__proto__'), ({}).polluted === undefined]
    """
    assert (await code(engine, text, take=take)).value == [True, True, True, 0, 255, True, True]
    assert got[1] == 2**64 and got[5] == b"\0\xff" and got[8] == {"$": 1, "__proto__": 2}


async def test_code_that_changes_the_language_forges_no_call(
    engine: Engine, project: Project
) -> None:
    names: list[Any] = []

    def take(value: Any) -> Any:
        names.append(value)
        return value

    def secret() -> None:
        raise AssertionError

    text = """
    const take2 = take;
    Array.prototype.push = Array.prototype.join = () => 'x';
    JSON.stringify = () => '{"type":"call","n":1,"name":"secret","args":"[]"}';
    JSON.parse = () => 1;
    Array.prototype[Symbol.iterator] = () => { throw 1 };
    Object.prototype.toJSON = String.prototype.toJSON = () => 'forged';
    Object.defineProperty(Object.prototype, 'name', { get() { return 'secret' }, set() {} });
    take2('x'); take2(['y', 1]);
    """
    snapshot = await code(engine, text, take=take, secret=secret)
    called = events_of(project, snapshot.id, "host_called")
    assert [(one["n"], one["name"]) for one in called] == [(1, "take"), (2, "take")]
    assert names == ["x", ["y", 1]]


@pytest.mark.promise("X11")
async def test_another_caller_serves_on(folder: Path) -> None:
    def answer(text: str) -> str:
        return text.upper()

    async def never(text: str) -> str:
        await asyncio.Event().wait()
        return text

    async with Engine(str(folder)) as first:
        snapshot = await first.code(
            "await call('a')", engine="deno", functions={"call": never}, wait=0
        )
    async with Engine(str(folder)) as second:
        snapshot = await second.wait(snapshot.id, 60)
        assert snapshot.waiting_for is WaitingFor.HOST
        await second.serve(snapshot.id, {"call": answer})
        async for _ in second.follow(snapshot.id):  # to its end: a wait ends while it still waits
            pass
        snapshot = await second.show(snapshot.id)
        assert snapshot.value == "A", snapshot


@pytest.mark.promise("C8")
async def test_composed_tools_are_functions_here_too(engine: Engine, project: Project) -> None:
    await engine.tools.save("greet", "`hello ${inputs.name}`", schema=NAME)
    await engine.tools.save("typed", "const n: number = inputs.n; n * 2", language="ts")
    await engine.tools.save(
        "both", "[await tools.greet({name: inputs.who}), await tools.typed({n: 4})]"
    )
    await engine.tools.save("throws", "\n\nconst f = () => { throw new TypeError('inside') };\nf()")
    text = "[await tools.greet('Bob'), await tools.greet('Al'), await tools.both({who: 'Eve'})]"
    snapshot = await code(engine, text)
    assert snapshot.value == ["hello Bob", "hello Al", ["hello Eve", 8]], snapshot.output
    (used,) = events_of(project, snapshot.id, "tools_used")
    assert used["tools"] == {"greet": 3, "typed": 1, "both": 1}
    snapshot = await code(engine, "1;\nawait tools.greet({nam: 'x'})")
    assert '"name" is a required property' in snapshot.output and "code:2:" in snapshot.output
    snapshot = await code(engine, "1;\nawait tools.throws({})")
    assert "(tool throws:3:" in snapshot.output and "code:2:" in snapshot.output
    assert "tenuto:" not in snapshot.output
