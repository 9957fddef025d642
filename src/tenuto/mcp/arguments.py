"""Arguments of tool calls: spelled either way, held against the tool's schema, faults named."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, cast

import msgspec

from tenuto.codemode.schemas import Checker, parameters
from tenuto.core.errors import InvalidInput
from tenuto.core.quantities import parse_duration
from tenuto.core.specs import check_text
from tenuto.mcp.catalogue import ACTIONS

_SHOWN = 5


class Arguments:
    """Checked arguments by name; null counts as left out."""

    def __init__(self, given: dict[str, Any]) -> None:
        """Take what passed the schema."""
        self._given = given

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or the default where it was left out."""
        found = self._given.get(name)
        return default if found is None else found

    def renamed(self, **names: str) -> Arguments:
        """Return them under other names."""
        return Arguments({names.get(name, name): value for name, value in self._given.items()})


def checked(tool: str, given: dict[str, Any], tools: list[dict[str, Any]]) -> Arguments:
    """Return a call's arguments, or raise InvalidInput with what is wrong and what is valid."""
    schema = next(one["inputSchema"] for one in tools if one["name"] == tool)
    known = schema["properties"]
    tidy = {_spelled(name, known): value for name, value in given.items() if value is not None}
    action = tidy.get("action")
    if tool == "execute" and action is not None and action not in ACTIONS:
        raise InvalidInput(f"Unknown action: {str(action)[:80]}", f"actions: {', '.join(ACTIONS)}")
    tidy = {name: _meant(value, known.get(name, {})) for name, value in tidy.items()}
    faults = _checker(msgspec.json.encode(schema)).faults(tidy)
    if faults:
        raise InvalidInput(
            f"{tool}: {'; '.join(faults[:_SHOWN])}", f"it takes {parameters(schema)}"
        )
    for name, value in tidy.items():
        if isinstance(value, str) and name not in ("code", "text", "stdinData"):
            check_text(name, value)
    return Arguments(tidy)


def _meant(value: Any, schema: dict[str, Any]) -> Any:
    """Return a value as its schema wants it where models write it otherwise: 5 for "5", 30 for "30s"."""
    kind = schema.get("type")
    if isinstance(value, dict) and "properties" in schema:
        given, inner = cast("dict[str, Any]", value), schema["properties"]
        return {name: _meant(one, inner.get(name, {})) for name, one in given.items()}
    if kind == "string" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if kind == "number" and isinstance(value, str):
        try:
            return parse_duration(value)
        except InvalidInput:
            return value
    if kind == "integer" and isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return cast("Any", value)


@cache
def _checker(schema: bytes) -> Checker:
    return Checker(msgspec.json.decode(schema))


def _spelled(name: str, known: dict[str, Any]) -> str:
    """Return the name as the schema writes it: executionId and execution_id are the same."""
    if name in known:
        return name
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
    words = name.split("_")
    camel = words[0] + "".join(word[:1].upper() + word[1:] for word in words[1:])
    return next((one for one in (snake, camel) if one in known), name)
