"""Which functions code may call, and how a call is held against what they take."""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest

from tenuto import InvalidInput
from tenuto.codemode.registry import HostFunction, Refused, Registry
from tenuto.codemode.schemas import parameters


def lookup(key: str, limit: int = 10, *, exact: bool = False) -> Any:
    """Find an entry.

    More words.
    """
    return key, limit, exact


def bind(function: Any, *args: Any) -> Any:
    """Bind as a call from JavaScript does, and make the call."""
    plain, named = Registry({"f": function}).get("f").bind(list(args))
    return (
        function.call(*plain, **named)
        if isinstance(function, HostFunction)
        else function(*plain, **named)
    )


def refusal(function: Any, *args: Any) -> str:
    with pytest.raises(Refused) as refused:
        bind(function, *args)
    assert refused.value.error["name"] == "ToolArgumentError"
    return refused.value.error["message"]


@pytest.mark.promise("C3")
def test_a_schema_comes_from_the_annotations() -> None:
    (spec,) = Registry({"lookup": lookup}).specs
    assert spec.name == "lookup"
    assert spec.description == "Find an entry."
    assert spec.schema == {
        "type": "object",
        "properties": {
            "key": {"type": "string"},
            "limit": {"type": "integer", "default": 10},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["key"],
        "additionalProperties": False,
    }


@pytest.mark.promise("C3")
def test_both_ways_of_calling_mean_the_same() -> None:
    for args in (("x", 5), ({"key": "x", "limit": 5},)):
        assert bind(lookup, *args) == ("x", 5, False)
    assert bind(lookup, {"key": "x", "exact": True}) == ("x", 10, True)
    undefined = {"$": "undefined"}
    assert bind(lookup, "x", undefined) == ("x", 10, False)
    assert bind(lookup, {"key": "x", "limit": undefined}) == ("x", 10, False)


def test_one_object_is_names_if_it_can_be_and_else_the_first_argument() -> None:
    def save(record: dict[str, Any]) -> Any:
        return record

    assert bind(save, {"a": 1}) == {"a": 1}
    assert bind(save, {"record": {"a": 1}}) == {"a": 1}
    assert bind(save, {}) == {}
    assert bind(save, {"record": {}, "other": 1}) == {"record": {}, "other": 1}

    def anything(value: Any) -> Any:
        return value

    assert bind(anything, {"value": 1}) == 1
    assert bind(anything, {"other": 1}) == {"other": 1}

    def two(record: dict[str, Any], how: str = "well") -> Any:
        return record, how

    assert bind(two, {"a": 1}, "badly") == ({"a": 1}, "badly")
    assert bind(two, {"record": {"a": 1}, "how": "badly"}) == ({"a": 1}, "badly")


class Item(msgspec.Struct):
    name: str
    count: int = 1


def test_values_are_given_as_the_annotations_want_them() -> None:
    def take(
        item: Item,
        kind: Literal["a", "b"],
        when: datetime | None = None,
        data: bytes = b"",
        share: float = 0.0,
        tags: list[str] = [],  # noqa: B006
        size: Annotated[int, msgspec.Meta(ge=1)] = 1,
    ) -> Any:
        return item, kind, when, data, share, tags, size

    date = {"$": "date", "v": "2026-01-02T03:04:05.678Z"}
    raw = {"$": "bytes", "v": "AP8="}
    found = bind(take, {"item": {"name": "x"}, "kind": "a", "when": date, "data": raw, "share": 1})
    assert found[0] == Item("x")
    assert found[2].isoformat() == "2026-01-02T03:04:05.678000+00:00"
    assert (found[3], found[4]) == (b"\0\xff", 1.0)
    assert isinstance(found[4], float)
    assert "kind: " in refusal(take, {"item": {"name": "x"}, "kind": "c"})
    assert "size" in refusal(take, {"item": {"name": "x"}, "kind": "a", "size": 0})
    text = refusal(take, {"item": {"name": 5}, "kind": "a"})
    assert "item: expected string, got integer - at `$.name`" in text
    assert 'kind: "a" | "b"' in text


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((), "missing key"),
        ((5,), "key: expected string, got integer"),
        ((None,), "key: expected string, got null"),
        (("x", "5"), "limit: expected integer, got string"),
        (("x", True), "limit: expected integer, got boolean"),
        (("x", 1, True), "it takes 2 arguments at the most by place, and 3 were given"),
        (({"kee": "x"},), "missing key; unexpected 'kee'"),
        (({"key": "x", "a": 1, "b": 2},), "unexpected 'a'; unexpected 'b'"),
        (({"key": "x", "__proto__": 1},), "unexpected '__proto__'"),
        (({},), "missing key"),
        (([],), "key: expected string, got array"),
        (({"$": "date", "v": "x"},), "no date that can be passed on"),
    ],
)
@pytest.mark.promise("C3")
def test_a_call_that_does_not_fit_says_why_and_what_would(args: Any, why: str) -> None:
    text = refusal(lookup, *args)
    assert why in text
    assert text.endswith(
        "Valid parameters: key: string, limit?: integer = 10, exact?: boolean = false"
    )


def test_functions_without_annotations_take_anything() -> None:
    assert bind(lambda a, b=2, *rest, **more: (a, b, rest, more), 1, "x", 3, None) == (
        1, "x", (3, None), {},
    )  # fmt: skip
    assert bind(lambda a, **more: (a, more), {"a": 1, "z": 2}) == (1, {"z": 2})
    assert "missing a" in refusal(lambda a: a)


def test_methods_partials_and_objects_are_functions_too() -> None:
    class Thing:
        def method(self, key: str) -> str:
            return key

        async def __call__(self, key: int) -> int:
            return key

    assert bind(Thing().method, "x") == "x"
    assert "expected string" in refusal(Thing().method, 1)
    assert bind(functools.partial(lookup, "x"), {"limit": 2}) == ("x", 2, False)
    registry = Registry({"thing": Thing()})
    assert registry.get("thing").is_async
    assert registry.get("thing").bind([5]) == ([5], {})


SCHEMA = {
    "type": "object",
    "properties": {"owner-name": {"type": "string"}, "limit": {"type": "integer", "default": 5}},
    "required": ["owner-name"],
    "additionalProperties": False,
}


@pytest.mark.promise("C3")
def test_a_given_schema_is_held_against_the_call() -> None:
    function = HostFunction(lambda **names: names, SCHEMA, "List them.")
    (spec,) = Registry({"github.list_prs": function}).specs
    assert (spec.schema, spec.description) == (SCHEMA, "List them.")
    assert bind(function, {"owner-name": "x"}) == {"owner-name": "x"}
    assert bind(function, "x", 3) == {"owner-name": "x", "limit": 3}
    text = refusal(function, {"owner-name": 5, "other": 1})
    assert 'owner-name: 5 is not of type "string"' in text
    assert "'other' was unexpected" in text
    assert "Valid parameters: owner-name: string, limit?: integer = 5" in text
    assert "it takes one object" in refusal(function, 1, 2, 3)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ([], "not a JSON object"),
        ({"type": "array"}, "an input is always an object"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "not a valid JSON schema"),
        ({"type": "object", "$ref": "http://127.0.0.1:1/x"}, "not a valid JSON schema"),
    ],
)
def test_a_schema_that_cannot_be_held_against_anything_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Registry({"f": HostFunction(lambda: 1, schema)})


@pytest.mark.promise("C3")
@pytest.mark.parametrize(
    "name",
    [
        "", "a b", "a-b", "1a", "a.", ".a", "a..b", "é", "a\n", "console", "console.log", "tools",
        "tools.x", "await", "new", "Object", "Promise.all", "globalThis", "inputs", "__proto__",
        "a.__proto__", "a.constructor", "a.then", "then", "a.b.c.d.e", "x" * 65, "eval", "undefined",
    ],
)  # fmt: skip
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        Registry({name: lookup})


def test_names_may_have_dots_and_words_after_them() -> None:
    names = ["a", "b.delete", "b.c", "github.list_prs", "$x", "_y", "b.new"]
    assert [one.name for one in Registry(dict.fromkeys(names, lookup)).specs] == names
    with pytest.raises(InvalidInput, match=r"'b' is a function, and 'b\.c' needs it"):
        Registry({"b.c": lookup, "b": lookup})


def test_only_what_is_named_exists() -> None:
    registry = Registry({"a": lookup})
    with pytest.raises(Refused) as refused:
        registry.get("b")
    assert refused.value.error == {
        "name": "ReferenceError",
        "message": "there is no function b; served are: a",
    }
    assert registry.missing({"a", "b"}) == ["b"]


@pytest.mark.parametrize(
    ("functions", "why"), [([lookup], "by name"), ({"a": 5}, "not a function")]
)
def test_what_is_no_function_is_refused(functions: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Registry(functions)


def test_what_cannot_be_checked_is_refused_at_once() -> None:
    class Unknown:
        pass

    def first(value: Unknown) -> None: ...

    first.__annotations__["value"] = Unknown

    def second(value: "Nowhere") -> None: ...  # type: ignore # noqa: F821, UP037

    with pytest.raises(InvalidInput, match="takes what cannot be checked"):
        Registry({"first": first})
    with pytest.raises(InvalidInput, match="cannot be resolved"):
        Registry({"second": second})


def test_parameters_are_shown_in_one_line() -> None:
    schema = {
        "properties": {
            "a": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "b": {"type": "array", "items": {"type": "integer"}},
            "c": {"$ref": "#/$defs/Item"},
            "d": True,
        },
        "required": ["a"],
    }
    shown = "a: string | null, b?: array of integer, c?: Item, d?: any"
    assert parameters(schema) == shown
    assert parameters({**schema, "additionalProperties": True}) == shown + ", and others"
    assert parameters({"additionalProperties": False}) == "none"
    assert parameters({}) == "any"
