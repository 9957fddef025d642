"""Composed tools from Python and from code: run, called, counted, and never saved from inside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engine_help import PATIENCE, events_of

from tenuto import Engine, InvalidInput, State, UnknownTool
from tenuto.core.tools import Tool
from tenuto.stores.composed import FOLDER, ComposedTools
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio

NAME = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "times": {"type": "integer", "minimum": 1}},
    "required": ["name"],
    "additionalProperties": False,
}
GREET = "const hello = await Promise.resolve('Hello, ');\nhello + inputs.name"


@pytest_asyncio.fixture
async def engine(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    async with Engine(str(folder)) as engine:
        yield engine


def edited(project: Project, name: str, code: str) -> None:
    """Put a tool where tools are, as somebody does who writes the file by hand."""
    tool = Tool(name=name, description="", input_schema={"type": "object"}, code=code)
    ComposedTools(os.path.join(project.home, FOLDER), "project").save(tool)


async def uses(engine: Engine, name: str) -> int:
    return (await engine.tools.show(name)).uses


@pytest.mark.promise("C8")
async def test_a_tool_is_saved_run_and_counted(engine: Engine, project: Project) -> None:
    saved = await engine.tools.save("greet", GREET, schema=NAME, description="Greets.")
    assert (saved.version, saved.uses) == (1, 0)
    snapshot = await engine.tools.run("greet", {"name": "Ada"}, wait=PATIENCE)
    assert snapshot.value == "Hello, Ada", snapshot.output
    assert (snapshot.kind, snapshot.title) == ("code", "tool greet")
    assert (await engine.show(snapshot.id)).title == "tool greet"
    tool = await engine.tools.show("greet")
    assert tool.uses == 1
    assert tool.last_used is not None
    assert [one.name for one in await engine.tools.list()] == ["greet"]


@pytest.mark.promise("C8")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, '"name" is a required property'),
        ({"name": 5}, 'name: 5 is not of type "string"'),
        ({"name": "x", "times": 0}, "times: 0 is less than the minimum of 1"),
        ({"name": "x", "z": 1}, "'z' was unexpected"),
    ],
)
async def test_an_input_that_does_not_fit_starts_nothing(
    engine: Engine, given: Any, why: str
) -> None:
    await engine.tools.save("greet", GREET, schema=NAME)
    with pytest.raises(InvalidInput) as refused:
        await engine.tools.run("greet", given)
    assert why in refused.value.message
    assert refused.value.hint == "valid parameters: name: string, times?: integer"
    assert await engine.list() == []
    assert (await engine.tools.show("greet")).uses == 0


@pytest.mark.promise("C8")
async def test_code_calls_tools_as_functions(engine: Engine, project: Project) -> None:
    await engine.tools.save("greet", GREET, schema=NAME)
    await engine.tools.save("typed", "const n: number = inputs.n; n * 2", language="ts")
    await engine.tools.save(
        "both", "const [a, b] = await Promise.all([tools.greet(inputs.who), tools.typed({n: 4})]);\n"
        "({a, b})"
    )  # fmt: skip
    code = """
    const one = tools.greet({name: 'Ada'});
    [one instanceof Promise, await one, await tools.greet('Bob'), await tools.both({who: 'Eve'})]
    """
    snapshot = await engine.code(code, wait=PATIENCE)
    eve = {"a": "Hello, Eve", "b": 8}
    assert snapshot.value == [True, "Hello, Ada", "Hello, Bob", eve], snapshot.output
    (used,) = events_of(project, snapshot.id, "tools_used")
    assert used["tools"] == {"greet": 3, "typed": 1, "both": 1}
    assert (await uses(engine, "greet"), await uses(engine, "both")) == (3, 1)
    (created,) = events_of(project, snapshot.id, "created")
    assert created["spec"]["tools"] == {"greet": 1, "typed": 1, "both": 1}


async def refused(engine: Engine, call: str) -> list[Any]:
    code = f"let told; try {{ await {call} }} catch (e) {{ told = [e.name, e.message] }}\ntold"
    snapshot = await engine.code(code, wait=PATIENCE)
    assert snapshot.state is State.SUCCEEDED, snapshot.output
    return snapshot.value


@pytest.mark.promise("C8", "C3")
async def test_a_call_that_does_not_fit_says_what_would(engine: Engine) -> None:
    await engine.tools.save("greet", GREET, schema=NAME)
    for call, why in (
        ("tools.greet()", '"name" is a required property'),
        ("tools.greet({name: 5, z: 1})", 'name: 5 is not of type "string"; "z" was unexpected'),
        ("tools.greet('a', 1, 2)", "it takes one object, and 3 arguments were given"),
        ("tools.greet(() => 1)", "a function cannot be passed on"),
    ):
        name, message = await refused(engine, call)
        assert why in message
        if name == "ToolArgumentError":
            assert message.endswith("Valid parameters: name: string, times?: integer")
    name, message = await refused(engine, "tools.gret({})")
    assert (name, message) == ("ReferenceError", "there is no composed tool gret; there are: greet")
    assert (await engine.tools.show("greet")).uses == 0


async def test_tools_may_call_themselves_but_not_for_ever(engine: Engine) -> None:
    down = "inputs.n > 0 ? 1 + await tools.down({n: inputs.n - 1}) : 0"
    await engine.tools.save("down", down)
    await engine.tools.save("always", "await tools.always({})")
    assert (await engine.code("await tools.down({n: 20})")).value == 20
    name, message = await refused(engine, "tools.always()")
    assert (name, message) == ("RangeError", "tools call each other more than 32 deep")
    wide = "(await Promise.all(Array.from({length: 200}, () => tools.down({n: 0})))).length"
    assert (await engine.code(wide)).value == 200


async def test_a_tool_that_throws_or_does_not_parse_says_where(
    engine: Engine, project: Project
) -> None:
    await engine.tools.save("throws", "\n\nconst f = () => { throw new TypeError('inside') };\nf()")
    edited(project, "flawed", "let x = ;")
    await engine.tools.save("wrong", "namespace X { export const a = 1 }", language="ts")
    snapshot = await engine.code("1;\nawait tools.throws({})")
    assert "Uncaught TypeError: inside" in snapshot.output
    assert "(tool throws:3:" in snapshot.output
    assert "code:2:" in snapshot.output
    name, message = await refused(engine, "tools.flawed({})")
    assert name == "SyntaxError"
    name, message = await refused(engine, "tools.wrong({})")
    assert name == "SyntaxError"
    assert message.startswith("tool wrong:")
    assert (await engine.code("await tools.throws({}).catch(() => 'next')")).value == "next"


async def test_what_a_tool_is_given_is_its_own_copy(engine: Engine) -> None:
    await engine.tools.save("change", "inputs.list.push(1); const inner = 1; inputs.list.length")
    code = """
    const list = [];
    const sizes = [await tools.change({list}), await tools.change({list})];
    return [sizes, list, typeof inner, inputs.mine];
    """
    snapshot = await engine.code(code, inputs={"mine": True})
    assert snapshot.value == [[1, 1], [], "undefined", True]


@pytest.mark.promise("C8")
async def test_the_list_is_taken_when_the_execution_starts(engine: Engine) -> None:
    await engine.tools.save("version", "'first'")

    async def replace() -> None:
        await engine.tools.save("version", "'second'")
        await engine.tools.save("other", "1")

    code = "await replace(); return [await tools.version(), Object.keys(tools)]"
    snapshot = await engine.code(code, functions={"replace": replace})
    assert snapshot.value == ["first", ["version"]], snapshot.output
    assert (await engine.code("await tools.version()")).value == "second"


@pytest.mark.promise("C8")
async def test_a_project_sees_its_own_tools_before_the_users(
    engine: Engine, tmp_path: Path, folder: Path
) -> None:
    await engine.tools.save("one", "'global'", scope="global")
    await engine.tools.save("two", "'global'", scope="global")
    await engine.tools.save("one", "'project'")
    listed = [(tool.name, tool.scope) for tool in await engine.tools.list()]
    assert listed == [("one", "project"), ("one", "global"), ("two", "global")]
    assert (await engine.tools.show("one", scope="global")).code == "'global'"
    assert (await engine.tools.run("one")).value == "project"
    snapshot = await engine.code("[await tools.one(), await tools.two()]")
    assert snapshot.value == ["project", "global"]
    other = tmp_path / "elsewhere"
    other.mkdir()
    async with Engine(str(other)) as elsewhere:
        assert (await elsewhere.tools.run("one")).value == "global"
        with pytest.raises(UnknownTool):
            await elsewhere.tools.show("one", scope="project")
    assert await engine.tools.delete("one") == "project"
    assert (await engine.tools.run("one")).value == "global"


async def test_versions_can_be_shown_and_unknown_ones_are_named(engine: Engine) -> None:
    await engine.tools.save("greet", "1")
    await engine.tools.save("greet", "2")
    assert (await engine.tools.show("greet", version=1)).code == "1"
    with pytest.raises(UnknownTool, match=r"no version 9.*\[1, 2\]"):
        await engine.tools.show("greet", version=9)
    with pytest.raises(UnknownTool, match="did you mean greet"):
        await engine.tools.show("gret")
    with pytest.raises(UnknownTool):
        await engine.tools.delete("gret")


async def test_a_broken_file_is_a_warning(engine: Engine, project: Project) -> None:
    await engine.tools.save("good", "1")
    broken = Path(project.home) / "composed-tools" / "bad.json"
    broken.write_text("{")
    with pytest.warns(UserWarning, match=r"passed over .*bad\.json"):
        assert [tool.name for tool in await engine.tools.list()] == ["good"]
    with pytest.raises(InvalidInput, match="is broken"):
        await engine.tools.run("bad")
    assert (await engine.code("await tools.good()")).value == 1
    assert broken.read_text() == "{"


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"code": " "}, "no code"),
        ({"code": "x" * (1 << 21)}, "too large"),
        ({"code": "1\0"}, "NUL"),
        ({"code": "1", "language": "python"}, "js or ts"),
        ({"code": "1", "schema": {"type": "array"}}, "object"),
        ({"code": "1", "scope": "world"}, "scope"),
        ({"code": "1", "name": "a-b"}, "name"),
    ],
)
async def test_what_is_no_tool_is_not_saved(engine: Engine, what: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        await engine.tools.save(**{"name": "greet", **what})
    assert await engine.tools.list() == []


@pytest.mark.promise("C8")
@pytest.mark.parametrize(
    ("code", "language", "place"),
    [
        ("let x = ;", "js", r"line 1, column 7 on: '= ;'"),
        ("const a = 1;\nconst ü = 'ä' + ;", "js", r"line 2, column 15 on: '\+ ;'"),
        ("function f() {", "js", r"line 1, column 15 on: something is missing"),
        ("1}); globalThis.was = 1; (async () => {", "js", r"line 1, column 2 on"),
        ("const n: number = 1", "js", r"line 1, column 7 on: 'n: number"),
        ("let x: string = 'a'\nconst b: = 2", "ts", r"line 2, column 10 on: '= 2'"),
        ("1;\nimport x from 'y'", "js", r"line 2, column 1: import of 'y' is not possible"),
        ("import {a} from 'x'; a", "ts", r"line 1, column 1: import of 'x' is not possible"),
    ],
)
async def test_code_that_cannot_be_parsed_is_not_saved_and_the_place_is_named(
    engine: Engine, code: str, language: Any, place: str
) -> None:
    await engine.tools.save("greet", "1")
    with pytest.raises(InvalidInput, match=place):
        await engine.tools.save("greet", code, language=language)
    assert (await engine.tools.show("greet")).version == 1


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("return 5", "js"),
        ("let a = 1\n;[a].map(x => x)\nawait a", "js"),
        ("export const a = /[[a-z]--[aeiou]]/v; a", "js"),
        ("#!/usr/bin/env node\n1", "js"),
        ("import type {A} from 'x'; const n: A = 1; n", "ts"),
        ("namespace X { export const a = 1 }", "ts"),
    ],
)
async def test_code_that_some_engine_takes_is_saved(
    engine: Engine, code: str, language: Any
) -> None:
    assert (await engine.tools.save("greet", code, language=language)).version == 1


@pytest.mark.promise("C8", "X16")
async def test_code_in_the_vm_can_save_no_tool(engine: Engine, project: Project) -> None:
    await engine.tools.save("greet", GREET)
    before = Path(project.home, "composed-tools", "greet.json").read_bytes()
    code = """
    const told = [];
    for (const attempt of [
      () => tools.save('evil', '1'), () => tools['../evil']({}), () => tools.__proto__.evil,
      () => { tools.greet = () => 'evil'; Object.defineProperty(tools, 'evil', {value: 1}); },
      () => { tools.greet.code = 'evil'; },
    ]) { try { await attempt(); told.push('done') } catch (error) { told.push(error.name) } }
    told
    """
    snapshot = await engine.code(code)
    assert snapshot.state is State.SUCCEEDED, snapshot.output
    assert snapshot.value[:2] == ["ReferenceError", "ReferenceError"]
    assert [tool.name for tool in await engine.tools.list()] == ["greet"]
    assert Path(project.home, "composed-tools", "greet.json").read_bytes() == before
    assert (await engine.code("await tools.greet({name: 'Ada'})")).value == "Hello, Ada"


ATTEMPT = """
import os, subprocess, sys
tool = '{"schema": 1, "name": "evil", "code": "1", "input_schema": {}, "version": 1}'
for folder in FOLDERS:
    try:
        os.makedirs(folder, exist_ok=True)
        with open(folder + "/evil.json", "w") as file:
            file.write(tool)
    except OSError as error:
        print("refused", error)
environ = {**os.environ, **ENVIRON}
for more in [], ["--global"]:
    words = [sys.executable, "-m", "tenuto.cli.main", "tools", "save", "evil", "--file", "-", *more]
    done = subprocess.run(words, input=b"1", capture_output=True, env=environ)
    print("tenuto tools save", done.returncode)
"""


@pytest.mark.promise("C8", "X16")
async def test_sandboxed_code_can_save_no_tool(
    engine: Engine, project: Project, tmp_path: Path
) -> None:
    await engine.tools.save("greet", GREET)
    await engine.tools.save("everywhere", GREET, scope="global")
    data = os.environ["XDG_DATA_HOME"]
    folders = [f"{project.home}/composed-tools", f"{data}/tenuto/composed-tools"]
    environ = {"TENUTO_HOME": project.home, "XDG_DATA_HOME": data}
    code = ATTEMPT.replace("FOLDERS", repr(folders)).replace("ENVIRON", repr(environ))
    snapshot = await engine.run(code, language="python", sandbox="require", wait=PATIENCE)
    assert snapshot.state is State.SUCCEEDED, snapshot.output
    assert [(tool.name, tool.version) for tool in await engine.tools.list()] == [
        ("everywhere", 1), ("greet", 1),
    ], snapshot.output  # fmt: skip
    for folder in folders:
        assert not list(Path(folder).rglob("evil*")), snapshot.output


@pytest.mark.promise("C8")
async def test_a_pipe_where_uses_are_counted_holds_nobody_up(
    engine: Engine, project: Project
) -> None:
    await engine.tools.save("one", "1")
    counted = Path(project.home) / "composed-tools" / ".usage"
    counted.mkdir(exist_ok=True)
    os.mkfifo(counted / "one")
    snapshot = await engine.run("await tools.one()", language="js", wait=PATIENCE)
    assert snapshot.state is State.SUCCEEDED and snapshot.value == 1
    assert await uses(engine, "one") == 0


@pytest.mark.promise("C8")
async def test_a_file_that_was_edited_is_told_as_broken(engine: Engine, project: Project) -> None:
    await engine.tools.save("one", "1")
    path = Path(project.home) / "composed-tools" / "one.json"
    right = path.read_text()
    path.write_text(right.replace('"type": "object"', '"type": "object", "properties": 7'))
    with pytest.raises(InvalidInput, match="the schema of one"):
        await engine.tools.run("one", {}, wait=PATIENCE)
    path.write_text(right.replace('"version": 1', f'"version": {10**400}'))
    with pytest.raises(InvalidInput, match="version"):
        await engine.tools.show("one")
    assert (await engine.tools.save("one", "2")).code == "2"


@pytest.mark.promise("C8")
async def test_code_that_closes_what_is_put_around_it_is_a_syntax_error(
    engine: Engine, project: Project
) -> None:
    edited(project, "out", "1}); globalThis.was = 1; (async () => {")
    snapshot = await engine.run("await tools.out()", language="js", wait=PATIENCE)
    assert snapshot.state is State.FAILED
    assert "SyntaxError: tool out" in snapshot.output, snapshot.output
