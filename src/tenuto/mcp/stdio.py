"""The SDK's server on the wire that the front holds."""

from __future__ import annotations

import asyncio
import json
import os
import select
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage

from tenuto.core.texts import sound
from tenuto.mcp.front import Front
from tenuto.mcp.greeting import ACKNOWLEDGED, SUBSCRIPTION
from tenuto.mcp.opening import opened

_ATOMIC = select.PIPE_BUF  # a writable pipe or socket takes so much without blocking
_LAST_WORDS_S = 2.0


async def serve(front: Front) -> None:
    """Serve one client until its end of stdin; its executions go on."""
    async with opened() as server:
        await run(server, front)


async def run(server: Server[Any], front: Front) -> None:
    """Drive a server on the front's wire."""
    async with _streams(front) as (read, write):
        options = server.create_initialization_options(NotificationOptions())
        await server.run(read, write, options)


@asynccontextmanager
async def _streams(front: Front) -> AsyncGenerator[tuple[Any, Any]]:
    inbox_in, inbox = create_context_streams[SessionMessage | Exception](0)
    outbox, outbox_out = create_context_streams[SessionMessage](0)
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def deliver(line: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: we are leaving
            loop.call_soon_threadsafe(lines.put_nowait, line)

    async def receive() -> None:
        async with inbox_in:
            while (line := await lines.get()) is not None:
                item: SessionMessage | Exception
                try:
                    item = SessionMessage(_parsed(line))
                except Exception as error:
                    item = error
                    refused = _refused(line)
                    if refused is not None:
                        await outbox.send(SessionMessage(refused))
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await inbox_in.send(item)
                front.taken()

    async def send() -> None:
        async with outbox_out:
            async for item in outbox_out:
                message = item.message
                if _is_second(message, front):
                    continue
                text = message.model_dump_json(by_alias=True, exclude_unset=True)
                if not await _write(front.wire.write_fd, text.encode() + b"\n"):
                    lines.put_nowait(None)  # nobody will ever read: the client is gone
                    return

    front.attach(deliver)
    async with anyio.create_task_group() as group:
        group.start_soon(receive)
        group.start_soon(send)
        yield inbox, outbox
        # what is on its way out may still go, to a client that reads
        with anyio.move_on_after(_LAST_WORDS_S):
            await outbox.aclose()
        group.cancel_scope.cancel()


def _parsed(line: bytes) -> types.JSONRPCMessage:
    """Return a message; half a character in it, as in text that somebody cut, is replaced."""
    read = types.jsonrpc_message_adapter.validate_json
    try:
        return read(line, by_name=False)
    except ValueError:
        return read(json.dumps(sound(json.loads(line))), by_name=False)


def _refused(line: bytes) -> types.JSONRPCError | None:
    """Return an answer to a request that is none, if it can be told whose it is: else they wait."""
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    number = fields.get("id") if isinstance(fields, dict) and "method" in fields else None  # pyright: ignore
    if not isinstance(number, (int, str)) or isinstance(number, bool):
        return None
    error = types.ErrorData(
        code=types.INVALID_REQUEST, message="this is no request of JSON-RPC 2.0"
    )
    return types.JSONRPCError(jsonrpc="2.0", id=number, error=error)


def _is_second(message: types.JSONRPCMessage, front: Front) -> bool:
    """Tell whether the front said this already, while the SDK was loading."""
    if isinstance(message, types.JSONRPCResponse):
        return front.was_answered(message.id)
    if isinstance(message, types.JSONRPCNotification) and message.method == ACKNOWLEDGED:
        meta: Any = (message.params or {}).get("_meta") or {}
        return front.was_acknowledged(meta.get(SUBSCRIPTION))
    return False


async def _write(fd: int, data: bytes) -> bool:
    """Write to the client without ever blocking the loop; False once it is gone."""
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    view = memoryview(data)
    while view:
        ready = poller.poll(0)
        if not ready:
            await _writable(fd)
            continue
        try:
            view = view[os.write(fd, view[:_ATOMIC]) :]
        except BlockingIOError:
            await _writable(fd)
        except OSError:
            return False
    return True


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def ring() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(fd, ring)
    try:
        await ready
    finally:
        loop.remove_writer(fd)
