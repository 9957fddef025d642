"""How a tool is written down: its name, words, schema and hints, as plain data."""

from __future__ import annotations

from typing import Any

ID = {
    "type": "string",
    "description": "The execution's id, or a unique beginning of it.",
}
CURSOR = {
    "type": "string",
    "description": "The cursor of the last answer: only what came after it is given. "
    "Leave it out for everything from the beginning.",
}
SECONDS = {"type": "number", "minimum": 0}
# Claude Code hides tools behind a search unless they ask to be shown. Our answers name these, so a
# model must be able to call them without looking for them first.
_AT_ONCE = (
    "execute", "output", "send_input", "list", "kill", "engine_execute", "approve", "deny",
)  # fmt: skip


def tool(
    name: str,
    title: str,
    description: str,
    properties: dict[str, Any],
    required: tuple[str, ...] = (),
    read_only: bool = False,
    destructive: bool = False,
) -> dict[str, Any]:
    """Return a tool as clients are shown it."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    if required:
        schema["required"] = list(required)
    hints: dict[str, Any] = {"title": title, "readOnlyHint": read_only, "openWorldHint": True}
    if not read_only:
        hints["destructiveHint"] = destructive
    described: dict[str, Any] = {
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": schema,
        "annotations": hints,
    }
    if name in _AT_ONCE:
        described["_meta"] = {"anthropic/alwaysLoad": True}
    return described
