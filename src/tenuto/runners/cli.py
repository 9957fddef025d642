"""The runner `cli`: our own agent loop on a model's API, in a process of its own.

This is the driver's side, which loads none of the providers' libraries; `tenuto.runners.loop` is the
process.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from importlib import metadata, util
from urllib.parse import urlsplit

import msgspec

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import Child, Nursery
from tenuto.core.runs import Capabilities, Finished, Probe, RunEvent, RunRequest, SessionOpened
from tenuto.runners.loop import naming, wire

_INSTALL = "pip install 'tenuto[agents]'"
_REACH_S = 2.0
_CLOSE_S = 5.0
"""How long a loop may take to end its MCP servers and itself before it is killed."""


class CliRunner:
    """Our own agent, which needs nothing but a key for a model."""

    name = "cli"
    family = "cli"
    capabilities = Capabilities(
        interrupt=True,
        resume=True,
        permissions=True,
        mcp=True,
        system=True,
        metered=True,
        usage="request",
        turns=True,
    )

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        """Look for the library, and for a key or a server that answers."""
        if util.find_spec("pydantic_ai") is None:
            return Probe(
                available=False,
                kind="missing",
                why="pydantic-ai is not installed",
                hint=_INSTALL,
            )
        version = metadata.version("pydantic-ai-slim")
        keys = [one for names in naming.KEYS.values() for one in names]
        if any(environ.get(one) for one in keys):
            return Probe(available=True, version=version)
        why = "no key for a model is set"
        addresses = sorted({one for names in naming.ADDRESSES.values() for one in names})
        for name in addresses:
            if url := environ.get(name):
                problem = await _reach(url)
                if not problem:
                    return Probe(available=True, version=version)
                why = f"{why}, and {name}={url} does not answer: {problem}"
        hint = f"set one of {', '.join(keys)}, or OLLAMA_BASE_URL for a server of your own"
        return Probe(available=False, version=version, kind="auth", why=why, hint=hint)

    async def open(self, request: RunRequest, nursery: Nursery) -> CliSession:
        """Start a loop and wait until it is open."""
        if util.find_spec("pydantic_ai") is None:
            raise RunnerFailed("pydantic-ai is not installed", _INSTALL, "missing")
        withheld = naming.SECRETS if request.endpoint is not None else ()
        child = await nursery.spawn(
            # -P: what lies in the workspace must not pass for a module
            (sys.executable, "-P", "-m", "tenuto.runners.loop"),
            cwd=request.cwd,
            env={name: value for name, value in request.env.items() if name not in withheld},
            unset=withheld,
            title=request.title or "agent loop",
        )
        session = CliSession(child)
        try:
            await session.open(request)
        except BaseException:
            await session.close()
            raise
        return session


class CliSession:
    """A loop that is open, from the driver's side."""

    def __init__(self, child: Child) -> None:
        """Take its process and begin to listen."""
        self.session = ""
        self._child = child
        self._heard: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        self._opened: SessionOpened | None = None
        self._running = 0
        self._closed: asyncio.Task[None] | None = None
        self._listening = asyncio.create_task(self._listen())

    async def open(self, request: RunRequest) -> None:
        """Send the request and wait for its answer; raises RunnerFailed."""
        await self._send(wire.Open(request))
        event = await self._next()
        if isinstance(event, SessionOpened):
            self.session = event.session
            self._opened = event
            return
        end = event if isinstance(event, Finished) else await self._crashed()
        raise RunnerFailed(end.message, kind=end.kind or "failed")

    async def prompt(self, text: str) -> AsyncGenerator[RunEvent, None]:
        """Yield what comes of a prompt. Whoever stops listening interrupts it."""
        while self._running:  # left over from a prompt that nobody listened to the end
            event = await self._next()
            if event is None:
                break
            self._running -= isinstance(event, Finished)
        self._running = 1
        await self._send(wire.Prompt(text))
        if self._opened is not None:
            opened, self._opened = self._opened, None
            yield opened
        try:
            while True:
                event = await self._next()
                if event is None:
                    self._running = 0
                    yield await self._crashed()
                    return
                if isinstance(event, Finished):
                    self._running = 0
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            if self._running:
                await self.interrupt()

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None:
        """Answer a PermissionAsked."""
        await self._send(wire.Answer(request_id, allow, why))

    async def interrupt(self) -> None:
        """Stop the current turn; None if none runs."""
        if self._running:
            await self._send(wire.Interrupt())

    async def close(self) -> None:
        """Ask it to end, and end it if it does not."""
        if self._closed is None:
            self._closed = asyncio.create_task(self._close())
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        await self._send(wire.Close())
        await self._child.close_input()
        waiting = asyncio.ensure_future(self._child.wait())
        await asyncio.wait({waiting}, timeout=_CLOSE_S)
        if not waiting.done():
            await self._child.kill()
        await waiting
        await asyncio.gather(self._listening, return_exceptions=True)

    async def _send(self, command: wire.Command) -> None:
        await self._child.send(wire.line(command))

    async def _next(self) -> RunEvent | None:
        """Return the next event, None once there are no more."""
        event = await self._heard.get()
        if event is None:
            self._heard.put_nowait(None)
        return event

    async def _listen(self) -> None:
        try:
            async for line in self._child.lines():
                event = wire.read_event(line)
                if event is not None:
                    self._heard.put_nowait(event)
        except msgspec.DecodeError as error:
            text = f"the loop wrote a line that makes no sense: {error}"
            self._heard.put_nowait(Finished(ok=False, kind="protocol", message=text))
            await self._child.kill()
        finally:
            self._heard.put_nowait(None)

    async def _crashed(self) -> Finished:
        """Return the last word for a process that ended without one."""
        end = await self._child.wait()
        words = (await self._child.last_words()).strip()[-2000:]
        how = end.detail or (
            f"exit code {end.exit_code}" if end.exit_code is not None else end.state
        )
        message = f"the agent loop ended in the middle ({how})" + (f": {words}" if words else "")
        return Finished(ok=False, kind="crash", message=message)


async def _reach(url: str) -> str:
    """Return why nothing listens at a URL, or nothing."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        async with asyncio.timeout(_REACH_S):
            _, writer = await asyncio.open_connection(parts.hostname or "", port)
        writer.close()
        await writer.wait_closed()
    except TimeoutError:
        return f"not within {_REACH_S:g} s"
    except (OSError, ValueError) as error:
        return str(error)
    return ""
