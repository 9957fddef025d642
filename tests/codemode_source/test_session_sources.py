"""Sources of a session: what one declares, the next ones see."""

from __future__ import annotations

import pytest
from evaluating import Machine, Raised

pytestmark = pytest.mark.promise("C3")

AWAIT = ("", "await 0; ")

DECLARED = [
    ("let x = 1", "x", 1),
    ("const x = 1", "x", 1),
    ("var x = 1", "x", 1),
    ("x = 1", "x", 1),
    ("let x = 1, y = 2", "x + y", 3),
    ("let x", "x === undefined", True),
    ("const {a, b: {c = 3}, ...rest} = {a: 1, b: {}, d: 4}", "[a, c, rest]", [1, 3, {"d": 4}]),
    ("const [p,, q = 5, ...r] = [1, 2, undefined, 4]", "[p, q, r]", [1, 5, [4]]),
    ("const {['k' + 1]: v} = {k1: 7}", "v", 7),
    ("function f(n) { return n ? f(n - 1) : 'end' }", "f(3) + f.name", "endf"),
    ("async function f() { return 1 }", "f.name", "f"),
    ("function* g() { yield 1 }", "[...g()]", [1]),
    ("class A { static make() { return new A() } one = 1 }", "A.make().one + A.name", "1A"),
    ("class A { one() { return 1 } }\nclass B extends A {}", "new B().one()", 1),
    ("for (var i = 0; i < 3; i++);", "i", 3),
    ("for (var k in {q: 1});", "k", "q"),
    ("for (var {m} of [{m: 4}]);", "m", 4),
    ("if (true) var z = 2; else var y = 3", "z", 2),
    ("do var z = 2; while (false)", "z", 2),
    ("{ var z = 2 }", "z", 2),
    ("switch (1) { case 1: var z = 2 }", "z", 2),
    ("const f = () => 1", "f.name", "f"),
    ("let a = 1\nlet b = 2\n;[a, b] = [b, a]", "[a, b]", [2, 1]),
    ("export const x = 1", "x", 1),
    ("export default function f() { return 1 }", "f()", 1),
    ("'use strict'; let x = 1", "x", 1),
    ("const é = 1", "é", 1),
]


@pytest.mark.parametrize("second", AWAIT)
@pytest.mark.parametrize("first", AWAIT)
@pytest.mark.parametrize(("code", "later", "value"), DECLARED)
def test_later_sources_see_what_was_declared(
    first: str, second: str, code: str, later: str, value: object
) -> None:
    machine = Machine(session=True)
    strict = code.startswith("'use strict'")
    machine.run(code + "\n" + first if strict else first + code)
    assert machine.run(second + later) == value


@pytest.mark.parametrize("again", AWAIT)
@pytest.mark.parametrize("code", ["let x = 2", "const x = 2", "var x = 2", "function x() {} x = 2"])
@pytest.mark.parametrize(
    "first", ["let x = 1", "const x = 1", "class x {}", "function x() {}", "var x"]
)
def test_names_may_be_declared_again(first: str, code: str, again: str) -> None:
    machine = Machine(session=True)
    machine.run(again + first)
    machine.run(code)
    assert machine.run("x") == 2
    machine.run(again + first)
    machine.run("let x")
    assert machine.run("x === undefined")


@pytest.mark.parametrize("first", AWAIT)
def test_functions_are_there_before_their_line_and_call_what_is_declared_later(first: str) -> None:
    machine = Machine(session=True)
    assert machine.run(f"{first}const r = twice(2)\nfunction twice(x) {{ return once(x) * 2 }}\n"
                       "function once(x) { return x }\nr") == 4  # fmt: skip
    machine.run("function once(x) { return x + 100 }")
    assert machine.run("twice(1)") == 202


@pytest.mark.parametrize("first", AWAIT)
def test_what_is_inside_stays_inside(first: str) -> None:
    machine = Machine(session=True)
    machine.run(first + "{ let a = 1; const b = 2; class C {} } for (let i = 0; i < 1; i++) {}")
    machine.run(first + "function f() { var inner = 1; let other = 2 } f()")
    for name in ("a", "b", "C", "i", "inner", "other"):
        assert machine.run(f"typeof {name}") == "undefined", name


@pytest.mark.parametrize("first", AWAIT)
def test_a_name_declared_twice_in_one_source_is_an_error(first: str) -> None:
    for code in ("let x = 1; let x = 2", "const x = 1; class x {}", "let x; var x"):
        with pytest.raises(Raised, match="SyntaxError"):
            Machine(session=True).run(first + code)


@pytest.mark.parametrize("first", AWAIT)
def test_lines_end_where_they_ended(first: str) -> None:
    machine = Machine(session=True)
    assert machine.run(first + "let log = []\nlog.push(1)\nlet y = log\n[0]\nclass A {}\n(y)") == 1
    assert machine.prepare(first + "let {a, b} = c; class D {}; var e; function f() {}").names == [
        "a", "b", "D", "e", "f",
    ]  # fmt: skip


def test_errors_tell_their_line() -> None:
    machine = Machine(session=True)
    with pytest.raises(Raised) as caught:
        machine.run("let a = await 1\nconst b = 2\nfunction f() {}\n\nmissing()")
    assert caught.value.line == 5
