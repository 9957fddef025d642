"""The Tasks extension (SEP-2663, `io.modelcontextprotocol/tasks`): tasks/get, update and cancel.

The SDK has none of its own. A task's id is the execution's, so that it is answered by any server of
the project, after any restart. The draft may move: everything about it is in this module.
"""

from __future__ import annotations

from typing import Any, Protocol

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tenuto.mcp.catalogue import TASKS

Context = ServerRequestContext[Any, Any]
_HEADER_MISMATCH = -32020
_MISSING_CAPABILITY = -32021


class NoTask(Exception):
    """There is no task with that id."""


class TaskBook(Protocol):
    """Whoever knows the tasks."""

    async def get(self, task_id: str, can_be_asked: bool) -> dict[str, Any]:
        """Return a task as tasks/get shows it; raise NoTask."""
        ...

    async def update(self, task_id: str, responses: dict[str, Any]) -> None:
        """Take answers to a task's questions; raise NoTask."""
        ...

    async def cancel(self, task_id: str) -> None:
        """Cancel a task; one that has ended stays as it is; raise NoTask."""
        ...


class _TaskParams(types.RequestParams):
    task_id: str


class _UpdateParams(_TaskParams):
    input_responses: dict[str, Any]


def install(server: Server[Any], book: TaskBook) -> None:
    """Make a server answer the extension's methods."""

    async def get(ctx: Context, params: _TaskParams) -> dict[str, Any]:
        _admit(ctx, params.task_id)
        declared = ctx.session.client_capabilities
        asked = declared is not None and declared.elicitation is not None
        try:
            return await book.get(params.task_id, asked)
        except NoTask:
            raise _unknown(params.task_id) from None

    async def update(ctx: Context, params: _UpdateParams) -> dict[str, Any]:
        _admit(ctx, params.task_id)
        try:
            await book.update(params.task_id, params.input_responses)
        except NoTask:
            raise _unknown(params.task_id) from None
        return {}

    async def cancel(ctx: Context, params: _TaskParams) -> dict[str, Any]:
        _admit(ctx, params.task_id)
        try:
            await book.cancel(params.task_id)
        except NoTask:
            raise _unknown(params.task_id) from None
        return {}

    server.add_request_handler("tasks/get", _TaskParams, get)
    server.add_request_handler("tasks/update", _UpdateParams, update)
    server.add_request_handler("tasks/cancel", _TaskParams, cancel)
    server.extensions[TASKS] = {}


def _admit(ctx: Context, task_id: str) -> None:
    """Refuse what may not ask: another era, no capability in this request, headers that disagree."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
    require_capability(ctx)
    if ctx.request is not None:
        named = ctx.request.headers.get("mcp-name")
        if named != task_id:
            raise MCPError(
                _HEADER_MISMATCH, f"the Mcp-Name header is {named!r}, the taskId {task_id!r}"
            )


def require_capability(ctx: Context) -> None:
    """Raise unless this very request declares the extension."""
    declared = ctx.session.client_capabilities
    extensions = (declared.extensions if declared is not None else None) or {}
    if TASKS not in extensions:
        raise MCPError(
            _MISSING_CAPABILITY,
            "Missing required client capability",
            {"requiredCapabilities": {"extensions": {TASKS: {}}}},
        )


def _unknown(task_id: str) -> MCPError:
    return MCPError(types.INVALID_PARAMS, f"Unknown task: {task_id[:80]}")
