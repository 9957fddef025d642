"""Composed tools: pieces of code with a name, a description and a schema of what they take."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Scope = Literal["project", "global"]
ToolLanguage = Literal["js", "ts"]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a tool, as it stands in its file; the last four fields do not."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}
    code: str
    language: ToolLanguage = "js"
    version: int = 1
    created: str = ""
    updated: str = ""
    scope: Scope = "project"
    uses: int = 0
    last_used: str | None = None
    latest: bool = True
    """False for a version that was replaced or deleted since."""

    def same_as(self, other: Tool) -> bool:
        """Tell whether the two would do the same."""
        return _substance(self) == _substance(other)


def _substance(tool: Tool) -> tuple[object, ...]:
    return tool.name, tool.description, tool.input_schema, tool.code, tool.language


class Problem(msgspec.Struct, frozen=True):
    """A file among the tools that is none; it is passed over and left as it is."""

    path: str
    why: str
