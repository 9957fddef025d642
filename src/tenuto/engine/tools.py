"""Composed tools from Python, beside an engine: `await engine.tools.run("greet", {"name": "Ada"})`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from tenuto.codemode.registry import Registry
from tenuto.core.tools import Scope, Tool
from tenuto.engine.composed import Tools
from tenuto.engine.work import Options

if TYPE_CHECKING:
    from tenuto.core.execution import Snapshot
    from tenuto.engine.blocking import BlockingEngine
    from tenuto.engine.hosting import Hosting


class EngineTools:
    """The composed tools that an engine's project sees."""

    def __init__(
        self,
        engine: BlockingEngine,
        host: Hosting,
        call: Callable[..., Awaitable[Any]],
        wait: Callable[..., Awaitable[Snapshot]],
    ) -> None:
        """Take the engine's own means."""
        self._tools = Tools(engine)
        self._settings = engine.settings
        self._host = host
        self._call = call
        self._wait = wait

    async def save(
        self,
        name: str,
        code: str,
        *,
        schema: Mapping[str, Any] | None = None,
        description: str = "",
        language: Literal["js", "ts"] = "js",
        scope: Scope = "project",
    ) -> Tool:
        """Save code under a name, as its next version."""

        def save() -> Tool:
            return self._tools.save(
                name, code, schema=schema, description=description, language=language, scope=scope
            )

        return await self._call(save)

    async def list(self) -> list[Tool]:
        """Return all tools by name; broken files are passed over with a warning."""
        tools, problems = await self._call(self._tools.list)
        for one in problems:
            warnings.warn(f"passed over {one.path}: {one.why}", stacklevel=2)
        return tools

    async def show(
        self, name: str, *, version: int | None = None, scope: Scope | None = None
    ) -> Tool:
        """Return a tool, or one of its versions."""
        return await self._call(lambda: self._tools.show(name, version=version, scope=scope))

    async def run(
        self,
        name: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        wait: float | None = None,
        **options: Any,
    ) -> Snapshot:
        """Run a tool as an execution of its own, and wait for it as `Engine.run` does."""
        began, wait = time.monotonic(), self._settings.patience(wait)
        work = await self._call(self._tools.work, name, inputs, Options(**options))
        watch = await self._host.start(work, Registry({}))
        await self._call(self._tools.used, name)
        return await self._wait(watch, wait, None, began)

    async def delete(self, name: str, *, scope: Scope | None = None, purge: bool = False) -> Scope:
        """Delete a tool, and tell from where; its versions stay readable unless purged too."""
        return await self._call(lambda: self._tools.delete(name, scope=scope, purge=purge))
