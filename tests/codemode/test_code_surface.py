"""What code in the VM finds: await, values, inputs, console, timers, stdin, and clear errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from code_help import FULL, js, value_of
from engine_help import events_of

from tenuto import Engine
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio


def command_line(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenuto.cli.main", "run", *words],
        cwd=folder, env=dict(os.environ), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.promise("C1")
@pytest.mark.promise("U1")
async def test_the_command_line_awaits_logs_and_returns(folder: Path) -> None:
    code = "const xs = await Promise.all([1,2,3].map(async x => x*x)); console.log(xs); xs.length"
    done = command_line(folder, "--lang", "js", code)
    assert (done.returncode, done.stdout) == (0, "[ 1, 4, 9 ]\n3\n"), done.stderr
    typed = "const xs: number[] = [1, 2]; enum E { A = 4 }; console.log(E.A); xs.length as number"
    done = command_line(folder, "--lang", "ts", typed)
    assert (done.returncode, done.stdout) == (0, "4\n2\n"), done.stderr


@pytest.mark.promise("C9")
async def test_the_answer_says_which_engine_ran_and_what_held_it(folder: Path) -> None:
    done = command_line(folder, "--lang", "js", "--json", "--inputs", '{"n": 4}', "inputs.n + 1")
    document = json.loads(done.stdout)
    assert document["value"] == 5
    assert document["engine"] == "quickjs"
    assert document["confinement"]["level"] == FULL, document["confinement"]


@pytest.mark.promise("C1")
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("const a = 2; a * 3", 6),
        ("await 5", 5),
        ("Promise.resolve(7)", 7),
        ("return 3", 3),
        ("if (true) { 'x' }", "x"),
        ("undefined", None),
        ("null", None),
        ("({a: [1, {b: null}], 'ü': '😀'})", {"a": [1, {"b": None}], "ü": "😀"}),
        ("2 ** 53 - 1", 2**53 - 1),
        ("0.1 + 0.2", 0.1 + 0.2),
        ("10n ** 20n", "100000000000000000000n"),
        ("NaN", "NaN"),
        ("new Map([['a', 1]])", "Map(1) { 'a' => 1 }"),
        ("[undefined]", "[ undefined ]"),
        ("const o = {}; o.o = o; o", "<ref *1> { o: [Circular *1] }"),
        ("inputs", {"n": 1, "deep": {"list": [1, 2]}}),
        ("inputs.deep.list.length", 2),
        ("new TextDecoder().decode(new TextEncoder().encode('hé😀'))", "hé😀"),
        ("atob(btoa('abc'))", "abc"),
        ("structuredClone({d: [1, 2]})", {"d": [1, 2]}),
        ("const m = structuredClone(new Map([[1, {a: 2}]])); m.get(1).a", 2),
        ("await new Promise(r => setTimeout(r, 5, 'late'))", "late"),
        ("await new Promise(r => setImmediate(r, 'soon'))", "soon"),
        ("let n = 0; await new Promise(r => { const t = setInterval(() => { if (++n == 3) { "
         "clearInterval(t); r() } }, 1) }); n", 3),
        ("const o = []; setTimeout(() => o.push('t'), 1); queueMicrotask(() => o.push('m')); "
         "await new Promise(r => setTimeout(r, 20)); o.join('')", "mt"),
    ],
)  # fmt: skip
async def test_values(engine: Engine, code: str, value: Any) -> None:
    inputs = {"n": 1, "deep": {"list": [1, 2]}}
    assert await value_of(engine, code, inputs=inputs) == value


@pytest.mark.promise("C1")
async def test_console_levels_and_streams_keep_their_order(engine: Engine) -> None:
    code = "console.log('a'); console.warn('b'); console.debug('c'); console.error('d', {e: 1})"
    snapshot = await js(engine, code)
    told = [(chunk.level, chunk.stream, chunk.text) for chunk in snapshot.chunks]
    assert told == [
        ("log", "out", "a\n"),
        ("warn", "err", "b\n"),
        ("debug", "out", "c\n"),
        ("error", "err", "d { e: 1 }\n"),
    ]


@pytest.mark.promise("C1")
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("console.log('%s is %d%%', 'x', 5, {a: [1, 2]})", "x is 5% { a: [ 1, 2 ] }\n"),
        ("console.group('g'); console.log('in'); console.groupEnd(); console.log('out')",
         "g\n  in\nout\n"),
        ("console.count(); console.count(); console.count('k')", "default: 1\ndefault: 2\nk: 1\n"),
        ("console.assert(1 === 1, 'no'); console.assert(false, 'yes')", "Assertion failed: yes\n"),
        ("console.log(new Set([1]), [,1], () => 1, class A {}, Symbol('s'), 1n, -0)",
         "Set(1) { 1 } [ <1 empty item>, 1 ] [Function (anonymous)] [class A] Symbol(s) 1n -0\n"),
        ("console.log({get a() { throw 1 }})", "{ a: [Getter] }\n"),
        ("console.table([{a: 1}])",
         "┌─────────┬───┐\n│ (index) │ a │\n├─────────┼───┤\n│ 0       │ 1 │\n└─────────┴───┘\n"),
        ("console.log('half \\ud800 a pair')", "half \ufffd a pair\n"),
        ("console.log('a\\0b')", "a\0b\n"),
    ],
)  # fmt: skip
async def test_what_console_prints(engine: Engine, code: str, text: str) -> None:
    assert (await js(engine, code)).output == text


@pytest.mark.promise("C1")
async def test_a_text_larger_than_a_message_is_logged_whole(engine: Engine) -> None:
    snapshot = await js(engine, "console.log('é😀'.repeat(1500000)); 'done'")
    assert snapshot.value == "done"
    chunks = [chunk async for chunk in engine.follow(snapshot.id)]
    assert b"".join(one.data for one in chunks).decode() == "é😀" * 1_500_000 + "\n"


@pytest.mark.promise("C1")
@pytest.mark.parametrize(
    ("code", "name", "message", "line", "column"),
    [
        ("\nfunction f() {\n  null.x\n}\nf()", "TypeError", "cannot read property 'x' of null",
         3, 3),
        ("await 1\n  undefinedName", "ReferenceError", "undefinedName is not defined", 2, 3),
        ("const a = 1\nlet b = = 2", "SyntaxError", "unexpected token in expression: '='", 2, 9),
        ("import fs from 'fs'", "SyntaxError", "import", 1, 1),
        ("1;\nthrow 'text'", "Error", "text", None, None),
        ("1;\nthrow {a: 1}", "Error", "{ a: 1 }", None, None),
        ("class Mine extends Error { name = 'Mine' }\nthrow new Mine('x')", "Mine", "x", 2, 11),
        ("setTimeout(() => {\n  throw new RangeError('late') }, 1)", "RangeError", "late", 2, 13),
        ("queueMicrotask(() => { throw new Error('soon') })", "Error", "soon", 1, 34),
        ("Promise.reject(new Error('nobody'))\nawait new Promise(r => setTimeout(r, 1e6))",
         "Error", "nobody", 1, 20),
        ("(async () => { throw new Error('lost') })(); 5", "Error", "lost", 1, 26),
        ("require('fs')", "ReferenceError", "require is not defined", 1, 1),
    ],
)  # fmt: skip
async def test_errors_name_what_and_where(
    engine: Engine, project: Project, code: str, name: str, message: str, line: Any, column: Any
) -> None:
    snapshot = await js(engine, code)
    assert (snapshot.state, snapshot.exit_code) == ("failed", 1)
    (raised,) = events_of(project, snapshot.id, "raised")
    assert raised["name"] == name
    assert message in raised["message"]
    assert raised.get("line") == line, raised
    assert column is None or raised.get("column") == column, raised
    assert "tenuto:" not in raised.get("stack", "") + snapshot.output
    assert message in snapshot.stderr.decode()


@pytest.mark.promise("C1")
async def test_a_handled_rejection_is_none(engine: Engine) -> None:
    late = "const p = (async () => { throw 1 })(); await p.catch(() => 'caught')"
    assert await value_of(engine, late) == "caught"


@pytest.mark.promise("C1")
async def test_a_promise_that_nothing_can_settle_fails_instead_of_hanging(engine: Engine) -> None:
    snapshot = await js(engine, "await new Promise(() => {})")
    assert snapshot.state == "failed"
    assert "nothing can settle" in snapshot.output


@pytest.mark.promise("C1", "X7")
async def test_stdin_comes_item_by_item_and_ends_with_null(engine: Engine) -> None:
    code = """
    const got = []
    for (;;) { const x = await readStdin(); got.push(x); console.log(x); if (x === null) break }
    got
    """
    snapshot = await engine.run(code, language="js")
    assert snapshot.needs_input
    assert await engine.send(snapshot.id, "one") == "delivered"
    await engine.wait(snapshot.id, until="one")
    await engine.send(snapshot.id, "two ü")
    await engine.wait(snapshot.id, until="two")
    await engine.send(snapshot.id, "", eof=True)
    ended = await engine.wait(snapshot.id, 60)
    assert ended.value == ["one", "two ü", None]


@pytest.mark.promise("C1", "C2")
async def test_there_is_no_way_to_the_system(engine: Engine) -> None:
    code = """
    const names = ['process', 'require', 'fs', 'std', 'os', 'Deno', 'Bun', 'fetch', 'XMLHttpRequest',
        'WebSocket', 'Worker', 'module', 'exports', '__dirname', 'global', 'scriptArgs', 'print',
        'WebAssembly', 'bjson', 'importScripts', 'open', '__tenuto'];
    const found = names.filter(n => n in globalThis || typeof globalThis[n] !== 'undefined');
    const odd = Reflect.ownKeys(globalThis).filter(n => /tenuto|host|kit|python/i.test(String(n)));
    let imported; try { await import('os') } catch (e) { imported = 'refused' }
    ;[found, odd, imported, console.log.constructor('return typeof process')(), Error.prepareStackTrace]
    """
    value = await value_of(engine, code)
    assert value == "[ [], [], 'refused', 'undefined', undefined ]"


@pytest.mark.promise("C1")
async def test_a_stack_shows_the_users_frames_and_no_others(engine: Engine) -> None:
    code = "function a() { throw new Error('x') }\nconst b = () => a()\nawait 1\nb()"
    snapshot = await js(engine, code)
    lines = snapshot.stderr.decode().splitlines()
    assert lines[0] == "Uncaught Error: x"
    assert [line.strip().rpartition(":")[0] for line in lines[1:]] == [
        "at a (code:1",
        "at b (code:2",
        "at <anonymous> (code:4",
    ]
