"""Whatever program is put together: prepared, it is as valid as before, and gives what it gave."""

from __future__ import annotations

from typing import Any

import _quickjs
import pytest
from evaluating import Machine, Raised
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.promise("C1")

_NAMES = st.sampled_from(["a", "b", "c", "é", "$x"])
_EXPRESSIONS = st.recursive(
    st.sampled_from(
        ["1", "'s'", "a", "b", "[1, 2]", "{k: 1}.k", "`t${a}`", "(b)", "[a]", "-1", "/x/.source"]
    )
    | st.sampled_from(
        ["null", "(() => { return 1 })()", "(function f() { return b })()", "+a", "typeof c"]
    ),
    lambda inner: (
        st.builds("{} + {}".format, inner, inner)
        | st.builds("({}, {})".format, inner, inner)
        | st.builds("[{}].map(x => x)".format, inner)
        | st.builds("({} ? {} : {})".format, inner, inner, inner)
    ),
    max_leaves=4,
)
_STATEMENTS = st.recursive(
    st.builds("let {} = {}".format, _NAMES, _EXPRESSIONS)
    | st.builds("const {} = {}".format, _NAMES, _EXPRESSIONS)
    | st.builds("var {} = {}".format, _NAMES, _EXPRESSIONS)
    | st.builds("let {}".format, _NAMES)
    | st.builds("let {{k: {} = 2, ...{}}} = {{j: {}}}".format, _NAMES, _NAMES, _EXPRESSIONS)
    | st.builds("const [{},, {}] = [1, 2, {}]".format, _NAMES, _NAMES, _EXPRESSIONS)
    | st.builds("class {} {{ m() {{ return {} }} }}".format, _NAMES, _EXPRESSIONS)
    | st.builds("function {}() {{ return {} }}".format, _NAMES, _EXPRESSIONS)
    | st.builds("{} = {}".format, _NAMES, _EXPRESSIONS)
    | st.builds("/* c\n */ {} // d".format, _EXPRESSIONS)
    | _EXPRESSIONS,
    lambda inner: (
        st.builds("if ({}) {{ {} }}".format, _EXPRESSIONS, inner)
        | st.builds("{{ {}\n{} }}".format, inner, inner)
        | st.builds("for (var {} of [1]) {{ {} }}".format, _NAMES, inner)
        | st.builds("for (let {} = 0; false;) {{ {} }}".format, _NAMES, inner)
        | st.builds("try {{ {} }} finally {{ }}".format, inner)
    ),
    max_leaves=3,
)
_ENDS = st.sampled_from([";", "\n", ";\n", "\n\n", " // e\n", ";;"])
_PROGRAMS = st.lists(st.tuples(_STATEMENTS, _ENDS), min_size=1, max_size=6).map(
    lambda parts: "".join(statement + end for statement, end in parts)
)
_START = "var a = 1, b = (x => x), c = 3, é = 4, $x = 5\n"


def _outcome(machine: Machine, code: str) -> tuple[str, Any]:
    try:
        return "value", machine.run(code)
    except Raised as raised:
        return "raised", (str(raised).split(":")[0], raised.line)


def _raw(code: str) -> tuple[str, Any]:
    """What the engine makes of the program as it is, in a scope where it may declare what it likes."""
    machine = Machine()
    machine.context.eval(_START)
    try:
        compiled = machine.context.eval("(text) => Function(text)")
        compiled(code)
    except _quickjs.JSException:
        return "invalid", None
    try:
        # Indirect eval has a scope of its own for let, const and class, and a completion value.
        run = machine.context.eval("(text) => (0, eval)(text)")
        return "value", machine._plain(run(code))
    except _quickjs.JSException as error:
        return "raised", str(error).split(":")[0]


@settings(max_examples=150, deadline=None)
@given(_PROGRAMS)
def test_a_session_gives_what_the_engine_gives(code: str) -> None:
    kind, expected = _raw(code)
    assume(kind != "invalid")
    machine = Machine(session=True)
    machine.context.eval(_START)
    got, value = _outcome(machine, code)
    if kind == "value":
        assert (got, value) == (kind, expected)
    else:
        # `let` before its line and `const` again are errors in a plain script only.
        assert got == "value" or value[0] == expected or expected in ("TypeError", "ReferenceError")


@settings(max_examples=150, deadline=None)
@given(_PROGRAMS, st.sampled_from([False, True]))
def test_a_program_that_awaits_is_valid_when_it_was_before(code: str, session: bool) -> None:
    kind, expected = _raw(code)
    assume(kind != "invalid")
    machine = Machine(session=session)
    machine.context.eval(_START)
    got, value = _outcome(machine, "await 0\n;" + code)
    assert value != ("SyntaxError", 0), value
    if got == "raised":
        assert value[0] != "SyntaxError" or expected == "SyntaxError"
