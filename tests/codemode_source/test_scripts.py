"""JavaScript for the default engine: values, lines of errors, and what is refused."""

from __future__ import annotations

import pytest
from evaluating import Machine, Raised

from tenuto.codemode.grammar import BadSourceError
from tenuto.codemode.source import prepare

pytestmark = pytest.mark.promise("C1")

PLAIN = {
    "1+1": 2,
    "let x = 5; x * 2": 10,
    "const {a, b: [c]} = {a: 1, b: [2]}; a + c": 3,
    "if (true) { 7 }": 7,
    "try { 8 } finally { }": 8,
    "function f() { return 3 }\nf()": 3,
    "[1,2].map(x => { return x + 1 })": [2, 3],
    "const s = 'await return import export'; s.length": 26,
    "// await x\n/* return */ 4": 4,
    "`await ${1}`": "await 1",
    "/await/.test('await')": True,
    "({await: 1, return: 2}).return": 2,
    "async function f() { await 1; return 2 }\ntypeof f": "function",
    "const f = async x => await x; typeof f": "function",
    "class A { async m() { return await 1 } static { var q = 1 } } typeof new A().m": "function",
    "#!/usr/bin/env node\n6": 6,
    "\ufeff9": 9,
    "": None,
    "export const a = 4; a": 4,
    "export default 5": 5,
    "export default function f() { return 1 }\nf()": 1,
    "export function g() { return 2 }; export class B {}; export { g as h }; g()": 2,
    "const important = 1; important": 1,
}

AWAITING = {
    "await 5": 5,
    "await 5;": 5,
    "await 5 // the end": 5,
    "const x = await 5\nx + 1": 6,
    "const xs = await Promise.all([1,2,3].map(async x => x*x)); xs.length": 3,
    "let n = 0\nfor await (const x of [1, 2]) n += x\nn": 3,
    "return 4": 4,
    "if (1) { return 4 }\n5": 4,
    "{ return 4 }": 4,
    "await 1; function f() { return 2 }": 1,
    "await 1; f(); function f() { return 2 }": 2,
    "await 1; ({a: 1})": {"a": 1},
    "await 1; 1, 2": 2,
    "await 1; let y = 2": None,
    "await 1; if (true) { 7 }": None,
    "const a = [await 1, await 2]; a": [1, 2],
    "`${await 3}`": "3",
    "class A { [await 'm']() { return 1 } }\nnew A().m()": 1,
    "({ [await 'k']: 1 }).k": 1,
    "#!/bin/x\nawait 6": 6,
    "'use strict'; await 1; (function () { return this === undefined })()": True,
    "await 1; this === globalThis": True,
    "export default await 5": 5,
    "export const a = await 5; a": 5,
    "await 1\n/* é\u2028 */; 'é\u2028'": "é\u2028",
    "await 1;;;": 1,
    "label: for (;;) { break label }\nawait 2": 2,
    "await 1; x => x": None,
}


@pytest.mark.parametrize("code", PLAIN)
def test_a_script_that_does_not_await_has_its_completion_value(code: str) -> None:
    assert Machine().run(code) == PLAIN[code]
    assert not prepare(code).is_async


@pytest.mark.parametrize("code", AWAITING)
def test_a_script_that_awaits_has_the_value_of_its_last_expression(code: str) -> None:
    assert Machine().run(code) == AWAITING[code]
    assert prepare(code).is_async


@pytest.mark.parametrize(
    ("code", "line", "column"),
    [
        ("1\n2\nthrow new Error('x')", 3, 11),
        ("await 1\n2\nthrow new Error('x')", 3, 11),
        ("await 1; throw new Error('x')", 1, 20),
        ("await 1;\nmissing.thing", 2, 1),
        ("await 1;\n  missing()", 2, 3),
        ("export const a = 1;\nmissing", 2, 1),
    ],
)
def test_errors_tell_where_in_the_source(code: str, line: int, column: int) -> None:
    with pytest.raises(Raised) as caught:
        Machine().run(code)
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize("code", ["let x = ;", "await 1;\nlet x = ;", "if (", "await f(;", "}"])
def test_what_is_wrong_is_left_to_the_engine(code: str) -> None:
    with pytest.raises(Raised, match="SyntaxError") as caught:
        Machine().run(code)
    assert 1 <= caught.value.line <= code.count("\n") + 2


@pytest.mark.parametrize(
    "code",
    ["import x from 'fs'", "1;\nimport 'fs'", "export * from 'x'", "export {a} from 'x'"],
)
def test_modules_are_refused_with_a_reason(code: str) -> None:
    with pytest.raises(BadSourceError, match="no modules") as caught:
        prepare(code)
    assert caught.value.line == code.count("\n") + 1


def test_deep_nesting_and_large_sources_are_prepared() -> None:
    deep = "await 1;" + "[" * 50_000 + "]" * 50_000
    assert prepare(deep).is_async
    blocks = "{" * 20_000 + "await 1" + "}" * 20_000
    assert prepare(blocks).is_async
    functions = "async function f() { await 1; return 2 }\n" * 20_000
    assert not prepare(functions).is_async
    assert prepare(functions, session=True).names == ["f"]
