"""Lines of JSON from a program that may change: read loosely, and never with an exception.

A runtime adds fields, changes the order of keys and prints things that are no JSON. What cannot be
used is nothing here, and the turn goes on.
"""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from tenuto.core.texts import sound

Fields = dict[str, Any]
_MOST = 2**53


def decoded(line: bytes) -> Fields | None:
    """Return the object on a line, or nothing if there is none."""
    try:
        found = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        found = _mended(line)
    return cast(Fields, found) if isinstance(found, dict) else None


def _mended(line: bytes) -> Any:
    """Read what is no valid Unicode: text that was cut inside a character is no reason to lose it."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return sound(json.loads(line.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return None


def text(fields: Fields, name: str) -> str:
    """Return a text, or an empty one."""
    found = fields.get(name)
    return found if isinstance(found, str) else ""


def inner(fields: Fields, name: str) -> Fields:
    """Return an object, or an empty one."""
    found = fields.get(name)
    return cast(Fields, found) if isinstance(found, dict) else {}


def objects(fields: Fields, name: str) -> list[Fields]:
    """Return the objects in a list, or none."""
    found = fields.get(name)
    if not isinstance(found, list):
        return []
    return [cast(Fields, one) for one in cast(list[Any], found) if isinstance(one, dict)]


def texts(fields: Fields, name: str) -> list[str]:
    """Return the texts in a list, or none."""
    found = fields.get(name)
    if not isinstance(found, list):
        return []
    return [one for one in cast(list[Any], found) if isinstance(one, str)]


def count(fields: Fields, name: str) -> int:
    """Return a number of things, or 0."""
    found = fields.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return 0
    return int(found) if 0 <= found < _MOST else 0


def status(fields: Fields, name: str) -> int | None:
    """Return an HTTP status, or none."""
    found = count(fields, name)
    return found if 100 <= found <= 599 else None


def flat(value: Any) -> str:
    """Return the text of content, however it is wrapped."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, (flat(one) for one in cast(list[Any], value))))
    if isinstance(value, dict):
        fields = cast(Fields, value)
        return flat(fields.get("text") or fields.get("content") or "")
    return ""
