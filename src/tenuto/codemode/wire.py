"""Values on their way between JavaScript and Python: plain JSON, and a form for what JSON lacks.

undefined          {"$": "undefined"}                        None in Python (None itself is null)
BigInt             {"$": "bigint", "v": "123"}               int; Python's beyond 2^53−1 are BigInt
NaN, ±Infinity, −0 {"$": "number", "v": "NaN"}               float
Date               {"$": "date", "v": "2026-01-31T…Z"}       datetime with its zone, UTC
bytes              {"$": "bytes", "v": "base64"}             bytes (Uint8Array)
half a pair        {"$": "utf16", "v": "base64"}             str with a lone surrogate
a key "$"          {"$": "object", "v": {…}}                 dict

The same stands in surface.js. What arrives is of hostile making: whatever does not fit is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from datetime import UTC, datetime
from enum import Enum
from typing import Any, cast

import msgspec

MOST_BYTES = 16 * 1024 * 1024
DEPTH = 200
SAFE = 2**53 - 1
_TAG = "$"
_UNUSUAL = re.compile(rb'"\$"|[0-9]{16}')  # what plain JSON cannot tell; else it is taken as it is
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_NATIVE = (bytes, bytearray, memoryview, datetime)


NOT_GIVEN: Any = object()
"""Stands for an argument that JavaScript left undefined."""


class WireError(ValueError):
    """A value that cannot be passed on, with the reason."""


def dumps(value: Any) -> bytes:
    """Return a Python value as it travels."""
    return _json(to_wire(value)).encode()


def loads(data: bytes) -> Any:
    """Return the JSON that came, its values as Python has them."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise WireError("it is not JSON") from None
    return from_wire(value) if _UNUSUAL.search(data) else value


def load_arguments(args: Any) -> list[Any]:
    """Return a call's arguments; those left undefined, by place or by name, are NOT_GIVEN."""
    if not isinstance(args, list):
        raise WireError("the arguments are not a list")
    return [_argument(one, named=True) for one in cast("list[Any]", args)]


def _argument(value: Any, named: bool) -> Any:
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        if found.get(_TAG) == "undefined":
            return NOT_GIVEN
        if named and _TAG not in found:
            return {key: _argument(one, named=False) for key, one in found.items()}
    return from_wire(value)


def to_wire(value: Any) -> Any:
    """Return what JSON can hold for a Python value, or raise WireError."""
    return _encode(value, set())


def _encode(value: Any, above: set[int]) -> Any:
    kind = cast("Any", type(value))
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if value.isascii() else _text(value)
    if kind is int:
        return value if -SAFE <= value <= SAFE else {_TAG: "bigint", "v": _digits(value)}
    if kind is float:
        return _number(value)
    if kind is dict or kind is list or kind is tuple:
        if id(value) in above:
            raise WireError("a value that holds itself cannot be passed on")
        if len(above) >= DEPTH:
            raise WireError(f"a value nested deeper than {DEPTH} cannot be passed on")
        above.add(id(value))
        try:
            if kind is dict:
                return _object(value, above)
            return [_encode(one, above) for one in value]
        finally:
            above.discard(id(value))
    return _encode_other(value, above)


def _encode_other(value: Any, above: set[int]) -> Any:
    """Encode what is not one of the six kinds that JSON has, or a subclass of one."""
    if isinstance(value, datetime):
        return {_TAG: "date", "v": _moment(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {_TAG: "bytes", "v": base64.b64encode(cast("bytes", value)).decode()}
    if isinstance(value, Enum):
        return _encode(value.value, above)
    for base in (str, int, float, dict, list, tuple):
        if isinstance(value, base):
            return _encode(base(cast("Any", value)), above)
    try:
        plain = msgspec.to_builtins(value, builtin_types=_NATIVE)
    except (TypeError, ValueError, RecursionError):
        name = type(value).__name__
        raise WireError(f"a value of type {name} cannot be passed on") from None
    return _encode(plain, above)


def _object(value: dict[Any, Any], above: set[int]) -> Any:
    found: dict[str, Any] = {}
    for key, one in value.items():
        # JavaScript writes a number as text where it is a key, too.
        name = str(key) if isinstance(key, int) and not isinstance(key, bool) else key
        if not isinstance(name, str):
            raise WireError(f"a key must be text, not {type(key).__name__}")
        if name in found:
            raise WireError(f"the key {name!r} is there twice, as text and as a number")
        if not name.isascii() and _text(name) is not name:
            raise WireError("a key that holds half of a surrogate pair cannot be passed on")
        found[str(name)] = _encode(one, above)
    return {_TAG: "object", "v": found} if _TAG in found else found


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        units = value.encode("utf-16-le", "surrogatepass")
        return {_TAG: "utf16", "v": base64.b64encode(units).decode()}
    return value


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # Python has a bound of its own, since this takes quadratic time
        raise WireError("an integer of so many digits cannot be passed on") from None


def _number(value: float) -> Any:
    if math.isnan(value):
        return {_TAG: "number", "v": "NaN"}
    if math.isinf(value):
        return {_TAG: "number", "v": "Infinity" if value > 0 else "-Infinity"}
    if value == 0 and math.copysign(1, value) < 0:
        return {_TAG: "number", "v": "-0"}
    return value


def _moment(value: datetime) -> str:
    try:
        text = value.astimezone(UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):
        raise WireError("a date at the very edge of the calendar cannot be passed on") from None
    return text.replace("+00:00", "Z")


def from_wire(value: Any) -> Any:
    """Return the Python value for what came over the wire, or raise WireError."""
    return _decode(value, 0)


def _decode(value: Any, depth: int) -> Any:
    kind = cast("Any", type(value))
    if kind is dict or kind is list:
        if depth >= DEPTH:
            raise WireError(f"a value nested deeper than {DEPTH} cannot be passed on")
        if kind is list:
            return [_decode(one, depth + 1) for one in value]
        if _TAG in value:
            return _special(value, depth)
        return {key: _decode(one, depth + 1) for key, one in value.items()}
    if kind is int and not -SAFE <= value <= SAFE:
        return float(value) if abs(value) < 1 << 1023 else math.inf  # a Number, not a BigInt
    return value


def _special(value: dict[str, Any], depth: int) -> Any:
    kind, body = value[_TAG], value.get("v")
    if kind == "object" and isinstance(body, dict):
        entries = cast("dict[str, Any]", body)
        return {key: _decode(one, depth + 1) for key, one in entries.items()}
    if kind == "undefined":
        return None
    try:
        if isinstance(body, str):
            return _scalar(kind, body)
    except (ValueError, OverflowError, binascii.Error):
        pass
    raise WireError(f"{str(body)[:40]!r} is no {str(kind)[:40]} that can be passed on")


def _scalar(kind: object, body: str) -> Any:
    if kind == "bigint":
        return int(body)
    if kind == "number" and body in ("NaN", "Infinity", "-Infinity", "-0"):
        return float(body)
    if kind == "date":
        return datetime.fromisoformat(body).astimezone(UTC)
    if kind == "bytes":
        return base64.b64decode(body, validate=True)
    if kind == "utf16":
        return base64.b64decode(body, validate=True).decode("utf-16-le", "surrogatepass")
    raise ValueError
