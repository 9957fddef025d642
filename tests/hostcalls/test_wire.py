"""Values between JavaScript and Python: nothing changes on the way, and nothing strange gets in."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenuto.codemode import wire

EAST = timezone(timedelta(hours=2))
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
MOMENTS = st.datetimes(
    min_value=datetime(1000, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)
).map(lambda one: one.replace(microsecond=one.microsecond // 1000 * 1000))
TEXT = st.text(st.characters(), max_size=20)
LONE = st.text(st.characters(categories=["Cs", "Lu"]), max_size=6)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | TEXT
    | LONE
    | MOMENTS
    | st.binary(max_size=40)
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9) | st.sampled_from(
    ["$", "v", "__proto__", "constructor", "toJSON", ""]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Compare as JavaScript would: 1 and 1.0 are one number, 0 and -0 are two."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()  # JavaScript puts numbers first
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, str) and isinstance(other, str):  # two halves side by side are a pair
        return units(one) == units(other)
    return type(one) is type(other) and one == other


def units(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")


@pytest.mark.promise("C3")
@given(VALUES)
@example({"$": "bigint", "v": "5"})
@example({"$": {"$": {"$": None}}})
@example([2**53 - 1, -(2**53 - 1), 2**53, -(2**53), 2**80, 1e300, -0.0, 5e-324])
@example({"__proto__": {"a": 1}})
@example("\ud800 and \udfff")
@example("x" * 100_000)
@example([math.inf, -math.inf])
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    assert same(wire.loads(wire.dumps(value)), value)


@given(VALUES)
def test_what_travels_can_be_read_by_any_json_reader(value: Any) -> None:
    assert msgspec.json.decode(wire.dumps(value)) == json.loads(wire.dumps(value))


def test_what_is_no_number_stays_none() -> None:
    assert math.isnan(wire.loads(wire.dumps(math.nan)))


@pytest.mark.parametrize(
    ("value", "travels"),
    [
        (2**53, {"$": "bigint", "v": "9007199254740992"}),
        (2**53 - 1, 2**53 - 1),
        (-0.0, {"$": "number", "v": "-0"}),
        (datetime(2026, 1, 2, 3, 4, 5, 678999, UTC), {"$": "date", "v": "2026-01-02T03:04:05.678Z"}),
        (datetime(2026, 1, 2, 3, tzinfo=EAST), {"$": "date", "v": "2026-01-02T01:00:00.000Z"}),
        (b"\0\xff", {"$": "bytes", "v": "AP8="}),
        (bytearray(b"a"), {"$": "bytes", "v": "YQ=="}),
        ({"$": 1}, {"$": "object", "v": {"$": 1}}),
        ({1: "a"}, {"1": "a"}),
        ((1, 2), [1, 2]),
    ],
)  # fmt: skip
def test_the_forms_are_those_of_the_surface(value: Any, travels: Any) -> None:
    assert wire.to_wire(value) == travels


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int
    at: datetime


@dataclasses.dataclass
class Pair:
    left: int
    right: bytes


Named = namedtuple("Named", "a b")


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (Colour.RED, "red"),
        (Point(2**60, MOMENT), {"x": 2**60, "at": MOMENT}),
        (Pair(1, b"x"), {"left": 1, "right": b"x"}),
        (Named(1, 2), [1, 2]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Decimal("1.50"), "1.50"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (date(2026, 1, 2), "2026-01-02"),
        (frozenset({1}), [1]),
    ],
)  # fmt: skip
def test_what_python_has_besides_arrives_in_its_plain_form(value: Any, arrives: Any) -> None:
    assert wire.loads(wire.dumps(value)) == arrives


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def itself() -> list[Any]:
    value: list[Any] = [1]
    value += [value, value]
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (itself(), "holds itself"),
        (nested(201), "deeper than 200"),
        (object(), "type object"),
        (lambda: 1, "type function"),
        ((one for one in ()), "type generator"),
        ({(1, 2): 3}, "a key must be text, not tuple"),
        ({None: 3}, "a key must be text"),
        ({1: 2, "1": 3}, "there twice"),
        ({"\ud800": 1}, "half of a surrogate pair"),
        ([10**5000], "so many digits"),
    ],
)
def test_what_cannot_travel_is_refused_with_the_reason(value: Any, why: str) -> None:
    with pytest.raises(wire.WireError, match=why):
        wire.dumps(value)


def test_two_hundred_levels_travel() -> None:
    assert wire.loads(wire.dumps(nested(200))) == nested(200)


@pytest.mark.promise("C3")
@pytest.mark.parametrize(
    "text",
    [
        '{"$": "bigint", "v": "1x"}',
        '{"$": "bigint", "v": 5}',
        '{"$": "bigint"}',
        '{"$": "bigint", "v": "' + "9" * 5000 + '"}',
        '{"$": "number", "v": "5"}',
        '{"$": "date", "v": "yesterday"}',
        '{"$": "date", "v": "+275760-09-13T00:00:00.000Z"}',
        '{"$": "bytes", "v": "?"}',
        '{"$": "utf16", "v": "AA"}',
        '{"$": "object", "v": 5}',
        '{"$": "object"}',
        '{"$": "function", "v": "x"}',
        '{"$": null}',
        '{"$": ["bigint"], "v": "5"}',
        "[" * 150_000,
        '{"$":1,"a":' + "[" * 300 + "]" * 300 + "}",
        "1" * 5000,
        "",
        "{",
    ],
)
def test_forged_values_are_refused(text: str) -> None:
    with pytest.raises(wire.WireError):
        wire.loads(text.encode())


def test_a_large_number_of_javascript_is_no_bigint() -> None:
    assert wire.loads(b"[9007199254740993]") == [9007199254740992.0]
    assert isinstance(wire.loads(b"9007199254740993"), float)


@given(st.binary(max_size=60))
@example(b'{"$":')
@example(b'"\\ud800"')
def test_garbage_gives_a_value_or_a_wire_error(data: bytes) -> None:
    try:
        wire.loads(data)
    except wire.WireError:
        return


def test_arguments_left_undefined_are_not_given() -> None:
    given_args = json.loads(
        '[1, {"$":"undefined"}, {"a": {"$":"undefined"}, "b": [{"$":"undefined"}]}]'
    )
    first, second, third = wire.load_arguments(given_args)
    assert first == 1
    assert second is wire.NOT_GIVEN
    assert third == {"a": wire.NOT_GIVEN, "b": [None]}
