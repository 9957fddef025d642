"""The deno engine has the surface of the default one, knows all of TypeScript, and says that it ran."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from deno_help import (
    FULL,
    OWN_MEMORY,
    command_line,
    deno,
    raised,
    ready_process,
    value_of,
)
from engine_help import main_pid

from tenuto import Engine, Settings
from tenuto.core.errors import InterpreterMissing
from tenuto.keeper import procfs
from tenuto.stores.layout import Project

pytestmark = [pytest.mark.asyncio, pytest.mark.promise("C9")]

OF_DENO_ONLY = {"Intl", "Temporal"}
OF_QUICKJS_ONLY = {"InternalError"}


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("const a = 2; a * 3", 6),
        ("if (true) { 'x' }", "x"),
        ("await 5", 5),
        ("Promise.resolve(7)", 7),
        ("return 3", 3),
        ("undefined", None),
        ("const xs = await Promise.all([1,2,3].map(async x => x*x)); xs", [1, 4, 9]),
        ("await new Promise(r => setTimeout(() => r('late'), 20))", "late"),
        ("let n = 0; for await (const x of [1, 2]) n += x; n", 3),
        ("({a: [{b: null}], 'é\\u2028': '\\ud83d\\ude00'})", {"a": [{"b": None}], "é\u2028": "😀"}),
        ("let s = 0; for (let i = 0; i < 1e7; i++) s += i % 2; s", 5000000),
        ("structuredClone(new Map([[1, new Date(0)]])).get(1).toJSON()", "1970-01-01T00:00:00.000Z"),
        ("new TextDecoder().decode(new TextEncoder().encode('aé'))", "aé"),
        ("typeof performance.now() + btoa('a')", "numberYQ=="),
        ("new Intl.NumberFormat('de-DE').format(1234.5)", "1.234,5"),
    ],
)  # fmt: skip
async def test_values(engine: Engine, code: str, value: object) -> None:
    assert await value_of(engine, code) == value


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("const x: number = await 4; x as number", 4),
        ("enum E { A = 3, B }\nE.B", 4),
        ("namespace N { export const q: number = 4 }\nN.q + 1", 5),
        (
            "function twice(target: any, context: any) {\n"
            "  return function (this: any) { return target.call(this) * 2 } }\n"
            "class A { @twice m() { return 21 } }\nnew A().m()",
            42,
        ),
        ("class A { static [k: string]: any; x = 1 }\nnew A().x", None),  # runs, without a value
        ("namespace N { export const q = 1 }\nexport default 'of the module'", "of the module"),
        (
            "import type { A } from './nowhere.ts'\nnamespace N { export const q = 1 }\n3 as number",
            3,
        ),
    ],
)
async def test_typescript_whole(engine: Engine, code: str, value: object) -> None:
    assert await value_of(engine, code, "ts") == value


@pytest.mark.parametrize(
    ("code", "language", "name", "line", "column"),
    [
        ("1\n  null.x", "js", "TypeError", 2, 8),
        ("await 1\nfunction f() { throw new RangeError('r') }\nf()", "js", "RangeError", 2, 22),
        ("await 1; throw new Error('q')", "js", "Error", 1, 16),
        ("1\nlet x = ;", "js", "SyntaxError", 2, 9),
        ("await 1\nlet x = ;", "js", "SyntaxError", 2, 9),
        ("await 0\nsetTimeout(() => { throw new TypeError('t') })\n1", "js", "TypeError", 2, 26),
        ("1\nPromise.reject(new Error('nobody'))\n2", "js", "Error", 2, 16),
        ("await 0\nasync function f() { await 1; throw Error('d') }\nawait f()", "js", "Error", 2, 37),
        ("eval('a b')", "js", "SyntaxError", 1, 1),
        ("let x: number = 1\nmissing()", "ts", "ReferenceError", 2, 1),
        ("namespace N { export const q = 1 }\n\nmissing()", "ts", "ReferenceError", 3, 1),
        ("1\nimport fs from 'node:fs'", "js", "SyntaxError", 2, 1),
        ("1\nimport fs from 'node:fs'\nnamespace N { export const q = 1 }", "ts", "SyntaxError", 2, 1),
    ],
)  # fmt: skip
async def test_errors_tell_where(
    engine: Engine, project: Project, code: str, language: str, name: str, line: int, column: int
) -> None:
    snapshot = await deno(engine, code, language)
    assert not snapshot and snapshot.exit_code == 1
    error = raised(project, snapshot.id)
    assert (error["name"], error["line"], error["column"]) == (name, line, column), error
    assert f"code:{line}:{column}" in snapshot.output
    assert "tenuto:" not in snapshot.output and "ext:" not in snapshot.output, snapshot.output


async def test_an_await_that_nothing_can_settle_is_an_error(
    engine: Engine, project: Project
) -> None:
    snapshot = await deno(engine, "console.log('before'); await new Promise(() => {})")
    assert "nothing can settle" in raised(project, snapshot.id)["message"]
    assert snapshot.output.startswith("before\n")


async def test_console_has_levels_in_exact_order(engine: Engine) -> None:
    code = "for (const l of ['log', 'warn', 'info', 'error', 'debug']) console[l](l, [1, {a: 2}])"
    snapshot = await deno(engine, code)
    chunks = [chunk async for chunk in engine.follow(snapshot.id)]
    assert [(one.level, one.text, one.stream) for one in chunks] == [
        (level, f"{level} [ 1, {{ a: 2 }} ]\n", "err" if level in ("warn", "error") else "out")
        for level in ("log", "warn", "info", "error", "debug")
    ]


async def test_what_waits_long_is_there_afterwards(engine: Engine) -> None:
    """Deno does things of its own once it is idle, which the system must not take for an attack."""
    timer = deno(engine, "await new Promise(r => setTimeout(() => r('late'), 2000))")
    reader = await engine.run("await readStdin()", language="js", engine="deno", wait=0)
    assert (await timer).value == "late"
    await engine.send(reader.id, "x\n")
    reader = await engine.wait(reader.id, 60)
    assert reader.value == "x", reader.output


async def test_it_waits_for_input_and_gets_inputs(engine: Engine) -> None:
    code = "const a = await readStdin(), b = await readStdin(); [inputs.n, a, b, await readStdin()]"
    snapshot = await engine.run(code, language="js", engine="deno", inputs={"n": [1]}, wait=0)
    assert (await engine.wait(snapshot.id, 60)).needs_input
    await engine.send(snapshot.id, "one\ntwo", eof=True)
    snapshot = await engine.wait(snapshot.id)
    assert snapshot.value == [[1], "one", "two", None], snapshot.output


async def test_the_same_names_are_there_as_in_the_other_engine(engine: Engine) -> None:
    code = "Object.getOwnPropertyNames(globalThis)"
    there = {*(await engine.run(code, language="js", engine="quickjs")).value}
    here = {*(await value_of(engine, code))}
    assert here - there == OF_DENO_ONLY
    assert there - here == OF_QUICKJS_ONLY


async def test_the_answer_says_which_engine_ran(folder: Path) -> None:
    done = command_line(folder, "--lang", "js", "--json", "1+1")
    document = json.loads(done.stdout)
    assert (document["value"], document["engine"]) == (2, "deno")
    assert document["confinement"] | {"net": None} == {"level": FULL, "missing": [], "net": None}
    done = command_line(folder, "--lang", "ts", "--json", "--engine", "auto", "1 as number")
    assert json.loads(done.stdout)["engine"] == "quickjs"


async def test_the_command_line_passes_stdin_on(folder: Path) -> None:
    done = command_line(folder, "-i", "--lang", "js", "(await readStdin()) + '!'", text="line\n")
    assert (done.returncode, done.stdout) == (0, '"line!"\n'), done.stderr


async def test_without_deno_the_next_step_is_told(folder: Path) -> None:
    settings = Settings(programs={"deno": "/nowhere/deno"})
    async with Engine(str(folder), settings=settings) as engine:
        with pytest.raises(InterpreterMissing, match="/nowhere/deno"):
            await engine.run("1", language="js", engine="deno")
    # An interpreter that has none beside it, nor on its PATH; it finds the packages of this one.
    bare = folder / "python"
    bare.symlink_to(Path(sys.executable).resolve())
    done = command_line(
        folder,
        "--lang",
        "js",
        "1",
        python=str(bare),
        PATH="/nowhere",
        PYTHONPATH=":".join(sys.path),
    )
    assert done.returncode == 2 and "deno cannot run" in done.stderr, done.stderr
    assert "pip install 'tenuto[deno]'" in done.stderr


async def test_the_command_line_tells_limits_errors_and_what_is_not_here(folder: Path) -> None:
    done = command_line(folder, "--lang", "js", "--mem", "64M", "const x = []; for (;;) x.push({})")
    assert done.returncode == 1 and "memory limit 64 MB" in done.stderr, done.stderr
    done = command_line(folder, "--lang", "js", "--cpu", "1", "for (;;);")
    assert done.returncode == 1 and "cpu limit 1 s" in done.stderr, done.stderr
    done = command_line(folder, "--lang", "ts", "const n: number = 1\nmissing()")
    assert done.returncode == 1 and "ReferenceError" in done.stderr and "code:2:1" in done.stderr
    done = command_line(folder, "--lang", "js", "--session", "s", "1")
    assert done.returncode == 2 and "no sessions with the engine deno" in done.stderr
    done = command_line(folder, "--lang", "js", "--inputs", '{"n": 3}', "inputs.n")
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


async def test_sessions_are_refused(engine: Engine) -> None:
    from tenuto import InvalidInput

    with pytest.raises(InvalidInput, match="deno"):
        await engine.run("1", language="js", engine="deno", session="s")


async def test_what_is_too_little_memory_is_refused(engine: Engine) -> None:
    from tenuto import InvalidInput, Limits

    with pytest.raises(InvalidInput, match="16M"):
        await engine.run("1", language="js", engine="deno", limits=Limits(memory=1 << 20))


async def test_the_second_finds_a_process_that_was_ready_before_it(
    folder: Path, project: Project
) -> None:
    async with Engine(str(folder), settings=Settings(code_memory=OWN_MEMORY)) as engine:
        assert await value_of(engine, "1 + 1") == 2
        waiting = await asyncio.wait_for(ready_process(), 20)
        snapshot = await engine.run("await readStdin()", language="js", engine="deno", wait=0)
        assert waiting in procfs.descendants(main_pid(project, snapshot.id))
        await engine.send(snapshot.id, "x")
        assert (await engine.wait(snapshot.id)).value == "x"
        results = await asyncio.gather(*(value_of(engine, f"{n} * 2") for n in range(8)))
        assert results == [n * 2 for n in range(8)]


async def test_leaving_the_engine_ends_what_was_held_ready(folder: Path) -> None:
    async with Engine(str(folder), settings=Settings(code_memory=OWN_MEMORY)) as engine:
        await value_of(engine, "1")
        waiting = await asyncio.wait_for(ready_process(), 20)
    gone = asyncio.get_running_loop().time() + 20
    while procfs.start_time(waiting):
        assert asyncio.get_running_loop().time() < gone
        await asyncio.sleep(0.02)
