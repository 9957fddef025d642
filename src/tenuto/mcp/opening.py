"""Putting the server together for the project around the current folder."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus

from tenuto.engine.engine import Engine
from tenuto.engine.settings import Settings, load_settings
from tenuto.mcp.notices import Context, Notices
from tenuto.mcp.server import build
from tenuto.mcp.service import Service
from tenuto.mcp.surface import Executions
from tenuto.stores.layout import current_folder, find_project

_LARGEST_FRAMES = 256 * 1024  # a few of the tape's


def settings_here() -> Settings:
    """Return the settings in force; what is read for an answer is some more than it can show."""
    project = find_project(current_folder(), os.environ)
    settings, _ = load_settings(project.root, os.environ)
    inline = max(4 * settings.mcp_output, _LARGEST_FRAMES)
    return msgspec.structs.replace(settings, output_inline=inline)


def settings_home() -> str:
    """Return the project's state folder."""
    return find_project(current_folder(), os.environ).home


@asynccontextmanager
async def opened() -> AsyncGenerator[Server[Any]]:
    """Open the engine and give a server on it; leaving it ends nothing that was started."""
    async with Engine(settings=settings_here()) as engine:
        service = Service(engine)
        bus = InMemorySubscriptionBus()
        notices = Notices(service, bus)
        server = build(Executions(service), bus, notices.subscribe, notices.unsubscribe)
        server.add_request_handler(
            "logging/setLevel", types.SetLevelRequestParams, notices.set_level
        )

        async def meet(ctx: Context, call_next: CallNext) -> HandlerResult:
            notices.meet(ctx)
            return await call_next(ctx)

        server.middleware.append(meet)
        notices.start()
        try:
            yield server
        finally:
            await notices.stop()
            await service.close()
