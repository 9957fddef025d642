"""Progress of a wait: the new output lines, at most five seconds apart."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from tenuto.engine.engine import Engine
from tenuto.engine.redact import Redactor

if TYPE_CHECKING:
    from tenuto.engine.goals import Waiting

EVERY_S = 5.0
FIRST_S = 1.0  # the client has waited longer than we know: the server may just have started
SOONEST_S = 0.5
_MOST = 2000


class Listener(Protocol):
    """Whoever is told."""

    async def progress(self, message: str) -> None:
        """Take a message."""
        ...


class Hearing:
    """Told by a wait of what it gathers; tells a client, soon after news and never later than 5 s."""

    def __init__(
        self, engine: Engine, execution_id: str, listener: Listener, redactor: Redactor
    ) -> None:
        """Begin now."""
        self._engine = engine
        self._id = execution_id
        self._listener = listener
        self._redactor = redactor
        self._began = time.monotonic()
        self._told = self._began - EVERY_S + FIRST_S
        self._seen = 0

    async def __call__(self, waiting: Waiting) -> float:
        """Tell if it is time to; return the seconds after which it is time again."""
        now = time.monotonic()
        fresh = waiting.chunks[self._seen :]
        due = max(self._told, self._began) + SOONEST_S if fresh else self._told + EVERY_S
        if now < due:
            return due - now
        text = b"".join(chunk.data for chunk in fresh)[-_MOST:].decode("utf-8", "replace").strip()
        if not text and waiting.truncated:
            last = await self._engine.logs(self._id, tail=3)
            text = b"".join(chunk.data for chunk in last)[-_MOST:].decode("utf-8", "replace")
        self._seen = len(waiting.chunks)
        self._told = now
        silent = f"running for {now - self._began:.0f} s, no new output"
        await self._listener.progress(self._redactor.text(text.strip()) or silent)
        return SOONEST_S if len(waiting.chunks) > self._seen else EVERY_S
