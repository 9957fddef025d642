"""The MCP servers that the session was handed, each with its tools."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import McpServer
from tenuto.runners.loop.files import ToolError
from tenuto.runners.loop.tools import NAME_MOST, Tool

_RESULT_MOST = 200_000


class Servers:
    """Servers that run as long as the session."""

    def __init__(self, cwd: str, environ: Mapping[str, str]) -> None:
        """Begin with none."""
        self._cwd = cwd
        self._environ = environ
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, servers: Iterable[McpServer]) -> list[Tool]:
        """Start them all and return what they offer; raises RunnerFailed naming the one that fails."""
        ready: list[asyncio.Future[list[Tool]]] = []
        for server in servers:
            future: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
            ready.append(future)
            self._tasks.append(asyncio.create_task(self._run(server, future)))
        return [tool for found in await asyncio.gather(*ready) for tool in found]

    async def close(self) -> None:
        """End them."""
        self._stop.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, server: McpServer, ready: asyncio.Future[list[Tool]]) -> None:
        """Hold one server. A task of its own, as what holds it must be left where it was entered."""
        from mcp.client.client import Client
        from mcp.client.stdio import StdioServerParameters

        parameters = StdioServerParameters(
            command=server.command[0],
            args=list(server.command[1:]),
            env={**self._environ, **server.env},
            cwd=self._cwd,
        )
        try:
            async with Client(parameters, cache=None) as client:
                tools: list[Tool] = []
                cursor: str | None = None
                while True:
                    page = await client.list_tools(cursor=cursor)
                    for one in page.tools:
                        about, schema = one.description or "", one.input_schema
                        tools.append(_tool(client, server.name, one.name, about, schema))
                    cursor = page.next_cursor
                    if not cursor:
                        break
                if not ready.done():
                    ready.set_result(tools)
                await self._stop.wait()
        except Exception as error:
            if not ready.done():
                why = _why(error)
                ready.set_exception(
                    RunnerFailed(
                        f"the MCP server {server.name} could not be used: {why}",
                        f"try it by hand: {' '.join(server.command)}",
                    )
                )
        finally:
            if not ready.done():
                ready.cancel()


def _why(error: BaseException) -> str:
    inner: Any = error
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return f"{type(inner).__name__}: {inner}"  # pyright: ignore[reportUnknownArgumentType]


def _tool(client: Any, server: str, name: str, about: str, schema: dict[str, Any]) -> Tool:
    async def run(arguments: dict[str, Any]) -> str:
        try:
            result = await client.call_tool(name, arguments)
        except Exception as error:
            raise ToolError(f"the MCP server {server} did not answer: {_why(error)}") from None
        text = _text(result)
        if result.is_error:
            raise ToolError(text or "the tool failed without saying why")
        return text

    offered = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}_{name}")[:NAME_MOST]
    return Tool(offered, about, schema, run, asks=True, checked=False)


def _text(result: Any) -> str:
    """Return the text of a result; what is no text is named."""
    pieces: list[str] = []
    for one in result.content:
        kind = str(one.type)
        if kind == "text":
            pieces.append(one.text)
        elif kind == "resource" and getattr(one.resource, "text", None):
            pieces.append(one.resource.text)
        else:
            pieces.append(f"({kind} that is not shown)")
    if not pieces and result.structured_content is not None:
        pieces.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = "\n".join(pieces)
    if len(text) > _RESULT_MOST:
        half = _RESULT_MOST // 2
        left = len(text) - 2 * half
        text = f"{text[:half]}\n… ({left} characters left out) …\n{text[-half:]}"
    return text


def environment(own: Mapping[str, str], cwd: str) -> dict[str, str]:
    """Return what the servers are given: what we have, in the folder that we work in."""
    return {**own, "PWD": os.path.abspath(cwd)}
