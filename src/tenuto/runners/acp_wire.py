"""The line to an ACP agent: messages of JSON-RPC, one a line, over a child's stdin and stdout."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

from tenuto.core.ports import Child
from tenuto.core.texts import sound

_KEPT = 2000


def inner(value: Any, *names: str) -> dict[str, Any]:
    """Return the object below these names, empty where there is none."""
    for name in names:
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list, none where there is no list."""
    found = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", one) for one in found if isinstance(one, dict)]


class BrokenMessage(Exception):
    """A message that cannot be read: something that the agent said is lost."""


class ChildTransport:
    """What the SDK wants of a transport, over a child.

    Agents print things that are no messages at all (warnings of their runtimes, mostly). Those are
    skipped and the last of them is kept for the error message; a torn message is an error.
    """

    def __init__(self, child: Child) -> None:
        """Take a child that nobody else reads."""
        self._child = child
        self._lines: AsyncIterator[bytes] = child.lines()
        self.stray = ""
        self.broken = ""
        """Why the line was given up, if it was."""

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message; what comes too late for the agent is dropped."""
        data = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
        await self._child.send(data.encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, None at the end."""
        async for line in self._lines:
            try:
                message = self._read(line)
            except BrokenMessage as error:
                self.broken = str(error)
                return None
            if message is not None:
                return message
        return None

    def _read(self, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            message: Any = json.loads(line)
            if b"\\ud" in line or b"\\uD" in line:  # half a character, cut by whoever streams
                message = sound(message)
        except (ValueError, RecursionError) as error:
            if b'"jsonrpc"' in line:
                shown = line[:200].decode("utf-8", "replace")
                raise BrokenMessage(f"a message that is no JSON ({error}): {shown}") from None
            message = None
        if isinstance(message, dict) and ("method" in message or "id" in message):
            found = cast("dict[str, Any]", message)
            if "method" not in found and not isinstance(found.get("error", {}), dict):
                raise BrokenMessage(f"an answer whose error is no object: {line[:200]!r}")
            return found
        self.stray = line[-_KEPT:].decode("utf-8", "replace")
        return None

    async def close(self) -> None:
        """Read no more."""
        if isinstance(self._lines, AsyncGenerator):
            await cast("AsyncGenerator[bytes, None]", self._lines).aclose()
