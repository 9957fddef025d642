"""The checker inside the VM, held against another implementation of JSON Schema."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import quickjs

import tenuto.codemode
from tenuto import InvalidInput
from tenuto.codemode.schemas import Checker, check_schema

SEEDS = 3000
SURFACE = Path(tenuto.codemode.__file__).parent / "surface"


def load() -> Any:
    context = quickjs.Context()
    context.eval("var kit = {__proto__: null}; var DOMException = globalThis.DOMException ?? Error")
    for part in ("kit", "schema"):
        context.eval((SURFACE / f"{part}.js").read_text(encoding="utf-8").strip().rstrip(";"))(
            context.get("kit")
        )
    context.eval(
        "function held(schema, value) {"
        " return JSON.stringify(kit.check(JSON.parse(schema), JSON.parse(value))) }"
    )
    return context


CONTEXT = load()


def faults(schema: Any, value: Any) -> list[str]:
    return json.loads(CONTEXT.get("held")(json.dumps(schema), json.dumps(value)))


NAMES = ("a", "b", "c", "ab", "__proto__", "constructor", "a/b", "ü")
SCALARS = (None, True, False, -2, 0, 1, 3, 0.5, 1.5, 1e10, "", "a", "ab", "abc", "ü", "😀", "a1")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
NUMBERS = (-2, 0, 1, 1.5, 3)
PATTERNS = ("^a", "b$", "^[a-c]+$", "\\d", "ü")
REFERENCES = ("#/$defs/one", "#/$defs/a~1b", "#/$defs/%C3%BC")


class Maker:
    """Makes schemas and values that have a chance to fit each other."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def pick(self, choices: Any) -> Any:
        return self.dice.choice(choices)

    def value(self, depth: int = 0) -> Any:
        kind = self.dice.random()
        if depth > 2 or kind < 0.6:
            return self.pick(SCALARS)
        if kind < 0.8:
            return [self.value(depth + 1) for _ in range(self.dice.randrange(4))]
        return self.object(depth)

    def object(self, depth: int = 0) -> dict[str, Any]:
        return {self.pick(NAMES): self.value(depth + 1) for _ in range(self.dice.randrange(5))}

    def names(self) -> list[str]:
        return self.dice.sample(NAMES, self.dice.randrange(3))

    def schema(self, depth: int = 0) -> Any:
        if depth > 3 or (depth and self.dice.random() < 0.15):
            return self.dice.random() < 0.8
        makers = self.keywords(depth)
        chosen = self.dice.sample(sorted(makers), self.dice.randrange(4))
        return {name: makers[name]() for name in chosen}

    def keywords(self, depth: int) -> dict[str, Any]:
        inner = lambda: self.schema(depth + 1)  # noqa: E731
        several = lambda: [inner() for _ in range(1 + self.dice.randrange(2))]  # noqa: E731
        named = lambda: {self.pick(NAMES): inner() for _ in range(3)}  # noqa: E731
        small = lambda: self.dice.randrange(4)  # noqa: E731
        number = lambda: self.pick(NUMBERS)  # noqa: E731
        return {
            "type": lambda: self.pick((self.pick(TYPES), self.dice.sample(TYPES, 2))),
            "enum": lambda: [self.value(2), self.value(2)],
            "const": lambda: self.value(2),
            "minimum": number, "maximum": number,
            "exclusiveMinimum": number, "exclusiveMaximum": number,
            "multipleOf": lambda: self.pick((1, 2, 0.5)),
            "minLength": small, "maxLength": small, "pattern": lambda: self.pick(PATTERNS),
            "minItems": small, "maxItems": small, "uniqueItems": lambda: True,
            "items": inner, "prefixItems": several,
            "contains": inner, "minContains": small, "maxContains": small,
            "minProperties": small, "maxProperties": small, "required": self.names,
            "properties": named, "additionalProperties": inner, "dependentSchemas": named,
            "patternProperties": lambda: {self.pick(PATTERNS): inner()}, "propertyNames": inner,
            "dependentRequired": lambda: {self.pick(NAMES): self.names()},
            "allOf": several, "anyOf": several, "oneOf": several, "not": inner,
            "if": inner, "then": inner, "else": inner,
            "$ref": lambda: self.pick(REFERENCES),
        }  # fmt: skip

    def root(self) -> dict[str, Any]:
        plain = {name: {"type": self.pick(TYPES)} for name in ("one", "a/b", "ü")}
        return {**self.schema(), "type": "object", "$defs": plain}


def agree(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    """Compare; return whether there was anything to compare."""
    try:
        check_schema(schema)
    except InvalidInput:
        return False
    theirs = Checker(schema).faults(value)
    ours = faults(schema, value)
    assert bool(ours) == bool(theirs), (schema, value, ours, theirs)
    return True


@pytest.mark.promise("C8")
def test_both_checkers_agree() -> None:
    compared = 0
    for seed in range(SEEDS):
        make = Maker(seed)
        compared += agree(make.root(), make.object())
    assert compared > SEEDS * 0.9


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"__proto__": {"type": "string"}}}, {"__proto__": 5}),
        ({"type": "object", "required": ["constructor"]}, {}),
        ({"type": "object", "properties": {"a": {"enum": [1, "1", None]}}}, {"a": 1.0}),
        ({"type": "object", "properties": {"a": {"maxLength": 1}}}, {"a": "😀"}),
    ],
)
def test_they_agree_at_the_edges(schema: dict[str, Any], value: dict[str, Any]) -> None:
    assert agree(schema, value)


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"properties": {"a": {"type": "string"}}}, {"a": 5}, 'a: 5 is not of type "string"'),
        ({"required": ["name"]}, {}, '"name" is a required property'),
        ({"additionalProperties": False}, {"x": 1}, '"x" was unexpected'),
        ({"properties": {"a": {"items": {"minimum": 3}}}}, {"a": [1]}, "a.0: 1 is less than"),
        ({"properties": {"a": {"enum": ["x", "y"]}}}, {"a": "z"}, 'a: "z" is not one of ["x","y"]'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(schema: Any, value: Any, fault: str) -> None:
    assert [one[: len(fault)] for one in faults(schema, value)] == [fault]


def test_a_schema_may_refer_to_itself() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}, "additionalProperties": False}
    assert faults(tree, {"left": {"left": {}}}) == []
    assert faults(tree, {"left": {"left": {"x": 1}}}) == ['left.left: "x" was unexpected']
    with pytest.raises(quickjs.JSException, match="nested too deep"):
        faults({"type": "object", "$ref": "#"}, {})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object", "unevaluatedProperties": False},
        {"type": "object", "properties": {"a": {"$dynamicRef": "#x"}}},
        {"type": "object", "$ref": "https://example.com/x"},
        {"type": "object", "properties": {"a": {"$ref": "other.json"}}},
        {"type": "object", "properties": {"a": {"$id": "x"}}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object"},
        {"type": "object", "required": "a"},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        "object",
        None,
        5,
    ],
)
def test_what_cannot_be_checked_everywhere_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidInput):
        check_schema(schema)


def test_names_and_data_may_look_like_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {"$id": {"type": "string"}, "unevaluatedItems": {"const": {"$id": 1}}},
    }
    assert check_schema(schema) == schema
