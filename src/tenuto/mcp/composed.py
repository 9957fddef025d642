"""The tool for composed tools: pieces of code saved under a name, run in any later session."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

from tenuto.codemode.schemas import parameters
from tenuto.core.errors import InvalidInput
from tenuto.core.tools import Tool
from tenuto.mcp.arguments import Arguments
from tenuto.mcp.replies import Reply

if TYPE_CHECKING:
    from tenuto.mcp.service import Caller, Service


async def composed(service: Service, given: Arguments, caller: Caller) -> Reply:
    """List, run, save, show or delete composed tools."""
    action, name = given.get("action"), given.get("name")
    tools = service.engine.tools
    if action == "list":
        return await _list(service)
    if not name:
        raise InvalidInput(f"name is required for {action}", 'see composed_tools(action="list")')
    if action == "run":
        began = time.monotonic()
        started = await tools.run(name, given.get("inputs") or {}, wait=0)
        return await service.attend(started.id, service.wait_of(given.get("wait")), caller, began)
    if action == "save":
        if not given.get("code"):
            raise InvalidInput("code is required for save", "its last expression is its value")
        saved = await tools.save(
            name,
            given.get("code"),
            schema=given.get("input_schema"),
            description=given.get("description", ""),
            scope=given.get("scope", "project"),
        )
        text = f"Saved {_signature(saved)} as version {saved.version}."
        return Reply(text, {"message": text, **_facts(saved)})
    if action == "delete":
        scope = await tools.delete(name, scope=given.get("scope"))
        text = f"Deleted the {scope} tool {name}."
        return Reply(text, {"message": text})
    shown = await tools.show(name, scope=given.get("scope"))
    text = f"{_signature(shown)}\n{shown.description}\n\n{shown.code}"
    return Reply(text, {**_facts(shown), "code": shown.code, "input_schema": shown.input_schema})


async def _list(service: Service) -> Reply:
    with warnings.catch_warnings(record=True) as problems:
        warnings.simplefilter("always")
        found = await service.engine.tools.list()
    lines = [f"- {_signature(one)}: {one.description}" for one in found]
    lines += [f"- warning: {one.message}" for one in problems]
    text = f"Composed tools ({len(found)}):\n" + ("\n".join(lines) or "(none yet)")
    return Reply(
        text,
        {
            "tools": [_facts(one) for one in found],
            "warnings": [str(one.message) for one in problems],
        },
    )


def _signature(tool: Tool) -> str:
    return f"{tool.name}({parameters(tool.input_schema)})"


def _facts(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "scope": tool.scope,
        "version": tool.version,
        "parameters": parameters(tool.input_schema),
        "uses": tool.uses,
        "last_used_at": tool.last_used,
    }
