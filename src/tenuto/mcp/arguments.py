"""Arguments of tool calls: spelled either way, held against the tool's schema, faults named."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import Any, cast

import msgspec

from tenuto.codemode.schemas import Checker, parameters
from tenuto.core.errors import InvalidInput
from tenuto.core.quantities import parse_duration
from tenuto.core.specs import check_text
from tenuto.mcp.catalogue import ACTIONS
from tenuto.mcp.task_catalogue import ALIASES

_SHOWN = 5
_FREE = ("code", "text", "stdinData")
_WINDOWS: dict[Any, str | None] = {
    True: "day", False: None, "daily": "day", "monthly": "month", "today": "day",
}  # fmt: skip


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
    names = ALIASES.get(tool, {})
    spelled = {_spelled(name, known): value for name, value in given.items() if value is not None}
    tidy = {names.get(name, name): value for name, value in spelled.items()}
    _widen(tool, tidy)
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
        if isinstance(value, str) and name not in _FREE:
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


def _widen(tool: str, tidy: dict[str, Any]) -> None:
    """Take the other shapes in which users of tasks and budgets give things."""
    if tool == "engine_execute":
        _widen_plan(tidy)
        if isinstance(tidy.get("context"), (dict, list)):
            tidy["context"] = msgspec.json.format(msgspec.json.encode(tidy["context"])).decode()
        if isinstance(tidy.get("worktree"), bool):
            tidy["worktree"] = "keep" if tidy["worktree"] else None
        for name in ("files", "skills", "chain"):
            if isinstance(tidy.get(name), str):
                tidy[name] = [tidy[name]]
    elif tool == "engine_budget":
        _widen_budget(tidy)
    elif tool == "execute" and isinstance(tidy.get("command"), str):
        tidy["command"] = _words(tidy["command"])
    for name in [name for name, value in tidy.items() if value is None]:
        del tidy[name]


def _words(command: str) -> list[Any]:
    """Return a command that was written as the text of a list; a shell line is not split by guess."""
    with suppress(msgspec.DecodeError, RecursionError):
        words = msgspec.json.decode(command)
        if isinstance(words, list):
            return cast("list[Any]", words)
    raise InvalidInput(
        f"execute: command is a list of words, not one text: {command[:80]!r}",
        'a program: command=["ls", "-l"]; a line for the shell: code="ls -l | wc -l", '
        'language="bash"',
    )


def _widen_plan(tidy: dict[str, Any]) -> None:
    """Take a plan as an object with steps, and as text, too."""
    plan: Any = tidy.get("plan")
    if isinstance(plan, str):
        with suppress(msgspec.DecodeError, RecursionError):
            plan = msgspec.json.decode(plan)
    if isinstance(plan, dict) and plan.keys() <= {"steps", "tasks", "concurrency"}:  # pyright: ignore
        whole = cast("dict[str, Any]", plan)
        plan = whole.get("steps", whole.get("tasks"))
        tidy.setdefault("concurrency", whole.get("concurrency"))
    tidy["plan"] = plan


def _widen_budget(tidy: dict[str, Any]) -> None:
    if "max_tokens" in tidy:
        raise InvalidInput(
            "limits of the project are dollars, it has none in tokens",
            "give max_tokens to engine_execute, for one task",
        )
    reset: Any = tidy.get("reset")
    if isinstance(reset, (bool, str)) and reset in _WINDOWS:
        tidy["reset"] = _WINDOWS[reset]


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
