"""Our server on the SDK's: tools, tasks and resources of whatever is plugged in.

`Surface` is what a server shows; executions are one (surface.py), the conformance tests' fixture is
another. Requests come here from every protocol version and both transports.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, cast

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tenuto.mcp import tasks
from tenuto.mcp.catalogue import TASKS
from tenuto.mcp.tasks import TaskBook

Context = ServerRequestContext[Any, Any]
DECISION: dict[str, Any] = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Approve", "default": True}},
    "required": ["approve"],
}
COMPLETE = {"resultType": "complete"}  # the new wire asks for it; the old ones leave it out


class Request:
    """One request, as tools see it: what its client can take, and a way to tell it of progress."""

    def __init__(self, ctx: Context) -> None:
        """Take the SDK's view of it."""
        self.ctx = ctx
        self._steps = 0.0
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        declared = ctx.session.client_capabilities
        extensions = (declared.extensions if declared is not None else None) or {}
        self.takes_tasks = modern and TASKS in extensions
        self.can_be_asked = declared is not None and declared.elicitation is not None
        self.asks_by_result = modern
        params = ctx.params or {}
        self.state = str(params.get("requestState") or "") if modern else ""
        self.responses: dict[str, Any] = (params.get("inputResponses") or {}) if modern else {}

    async def progress(self, message: str) -> None:
        """Send a progress notification, if the client asked for them."""
        self._steps += 1
        await self.ctx.session.report_progress(self._steps, message=message)

    async def asked(self, message: str) -> bool | None:
        """Ask the client's user for a yes or no; None where nobody can be asked, or answers."""
        if self.asks_by_result or not self.can_be_asked:
            return None
        try:
            answer = await self.ctx.session.elicit_form(
                message, DECISION, related_request_id=self.ctx.request_id
            )
        except Exception:  # it cannot, or is gone: the question stays open
            return None
        return decision({"action": answer.action, "content": answer.content})


def decision(answer: Any) -> bool | None:
    """Return the yes or no in an elicitation's answer, or None where there is none."""
    given = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
    content: Any = given.get("content")
    if given.get("action") == "decline":
        return False
    if given.get("action") != "accept" or not isinstance(content, dict):
        return None
    return cast("dict[str, Any]", content).get("approve") is True


class Surface(Protocol):
    """What a server shows."""

    name: str
    version: str
    instructions: str

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools, in a fixed order."""
        ...

    async def call(self, name: str, arguments: dict[str, Any], request: Request) -> dict[str, Any]:
        """Answer a call with a result for the wire; raise KeyError for a tool there is not."""
        ...

    def tasks(self) -> TaskBook:
        """Return what answers tasks/get and its like."""
        ...

    def resources(self) -> list[dict[str, Any]]:
        """Return resources that always exist."""
        ...

    def templates(self) -> list[dict[str, Any]]:
        """Return the templates of resources."""
        ...

    async def read(self, uri: str) -> list[dict[str, Any]]:
        """Return a resource's contents; raise KeyError if there is none."""
        ...


def build(
    surface: Surface,
    bus: InMemorySubscriptionBus,
    watch: Callable[[Context, str], Awaitable[None]] | None = None,
    unwatch: Callable[[Context, str], Awaitable[None]] | None = None,
    lifespan: Callable[[Server[Any]], AbstractAsyncContextManager[Any]] | None = None,
) -> Server[Any]:
    """Return an SDK server that shows a surface."""

    async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> Any:
        del ctx, params
        return {**COMPLETE, "tools": surface.tools()}

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Any:
        try:
            result = await surface.call(params.name, params.arguments or {}, Request(ctx))
        except KeyError:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}") from None
        return {**COMPLETE, **result}

    async def list_resources(ctx: Context, params: types.PaginatedRequestParams | None) -> Any:
        del ctx, params
        return {**COMPLETE, "resources": surface.resources()}

    async def list_templates(ctx: Context, params: types.PaginatedRequestParams | None) -> Any:
        del ctx, params
        return {**COMPLETE, "resourceTemplates": surface.templates()}

    async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> Any:
        try:
            return {**COMPLETE, "contents": await surface.read(str(params.uri))}
        except KeyError:
            legacy = ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS
            code = -32002 if legacy else types.INVALID_PARAMS
            uri = str(params.uri)
            raise MCPError(code, f"Resource not found: {uri}", {"uri": uri}) from None

    async def subscribe(ctx: Context, params: types.SubscribeRequestParams) -> Any:
        if watch is not None:
            await watch(ctx, str(params.uri))
        return types.EmptyResult()

    async def unsubscribe(ctx: Context, params: types.UnsubscribeRequestParams) -> Any:
        if unwatch is not None:
            await unwatch(ctx, str(params.uri))
        return types.EmptyResult()

    still = CacheHint(ttl_ms=300_000, scope="public")
    fresh = CacheHint(ttl_ms=0, scope="private")
    server: Server[Any] = Server(
        surface.name,
        version=surface.version,
        instructions=surface.instructions,
        lifespan=lifespan or _nothing,
        cache_hints={
            "tools/list": still,
            "resources/list": fresh,
            "resources/templates/list": still,
            "resources/read": fresh,
            "server/discover": still,
        },
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(bus),
    )
    tasks.install(server, surface.tasks())
    return server


@asynccontextmanager
async def _nothing(server: Server[Any]) -> AsyncGenerator[None]:
    del server
    yield None


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: other numbers and what is no text become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}  # pyright: ignore
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]  # pyright: ignore
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value
