"""The runtimes of agents, looked at now and then: what is known is told at once, or soon."""

from __future__ import annotations

import asyncio
import time

from tenuto.core.errors import TenutoError
from tenuto.engine.engine import Engine
from tenuto.engine.runtimes import RuntimeInfo

AGE_S = 60.0
PATIENCE_S = 4.0


class Looks:
    """Remembers what the last look found, for a minute."""

    def __init__(self, engine: Engine) -> None:
        """Begin with nothing known."""
        self._engine = engine
        self._found: dict[str, RuntimeInfo] = {}
        self._look: asyncio.Task[None] | None = None
        self._looked = 0.0
        self.fault = ""

    async def runtimes(self) -> list[RuntimeInfo]:
        """Return what is known of each runtime; a look that takes long goes on meanwhile."""
        stale = time.monotonic() - self._looked > AGE_S
        if self._look is None or (self._look.done() and stale):
            self._looked = time.monotonic()
            self._look = asyncio.create_task(self._run())
        await asyncio.wait({self._look}, timeout=PATIENCE_S)
        return list(self._found.values())

    async def _run(self) -> None:
        self.fault = ""
        try:
            await self._engine.runtimes(self._take)
        except TenutoError as error:  # settings of agents that cannot be read
            self.fault = str(error)

    def _take(self, info: RuntimeInfo) -> None:
        if (
            info.available is not None
            or self._found.get(info.name) is None
            or info.kind
            or info.hint
        ):
            self._found[info.name] = info

    async def close(self) -> None:
        """Look no more; programs that were started for it are ended."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)
