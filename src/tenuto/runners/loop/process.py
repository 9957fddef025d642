"""The loop's process from the inside: commands come in, the session is opened, turns run."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from tenuto.core.runs import Finished, RunEvent, RunRequest, SessionOpened
from tenuto.runners.loop import wire
from tenuto.runners.loop.agent import Agent
from tenuto.runners.loop.faults import explain
from tenuto.runners.loop.files import Workspace
from tenuto.runners.loop.history import History, home
from tenuto.runners.loop.models import Connected
from tenuto.runners.loop.naming import choose
from tenuto.runners.loop.servers import Servers, environment
from tenuto.runners.loop.tools import distinct, own_tools

_RETRIES = 2
_SYSTEM = """\
You are an agent that works in the folder {cwd}. Use your tools to look at things rather than to \
guess: read files before you change them, and keep changes to what was asked. Paths are relative to \
that folder; nothing outside of it can be reached with the file tools. When you are done, answer \
with what you did and found, in plain words."""


class Process:
    """What one process does from its first line to its last."""

    def __init__(self, write: Callable[[bytes], None], environ: Mapping[str, str]) -> None:
        """Take where lines go and what is set."""
        self._write = write
        self._environ = environ
        self._agent: Agent | None = None
        self._history: History | None = None
        self._connected: Connected | None = None
        self._servers: Servers | None = None
        self._opening: asyncio.Task[bool] | None = None
        self._turn: asyncio.Task[None] | None = None

    async def serve(self, lines: AsyncIterator[bytes]) -> None:
        """Do what the lines say until they end, or the session cannot be opened."""
        try:
            async for line in lines:
                command = wire.read_command(line)
                if isinstance(command, wire.Close):
                    break
                if isinstance(command, wire.Open):
                    if self._opening is None:
                        self._opening = asyncio.create_task(self._open(command.request))
                        if not await self._opened(lines):
                            break
                else:
                    self._do(command)
        except msgspec.DecodeError as error:
            self.tell(Finished(ok=False, kind="protocol", message=f"not a command: {error}"))
        finally:
            await self._close()

    async def _opened(self, lines: AsyncIterator[bytes]) -> bool:
        """Wait until it is open; a driver that goes meanwhile ends that."""
        assert self._opening is not None
        reading = asyncio.ensure_future(anext(lines, None))
        await asyncio.wait({self._opening, reading}, return_when=asyncio.FIRST_COMPLETED)
        if not self._opening.done():
            return False  # the end of stdin, or close: nothing else may come before it is open
        if not self._opening.result():
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            return False
        line = await reading
        if line is None:
            return False
        command = wire.read_command(line)
        if isinstance(command, wire.Close):
            return False
        self._do(command)
        return True

    def tell(self, message: RunEvent | wire.Items | wire.Note) -> None:
        """Write one line."""
        self._write(wire.line(message))

    def _do(self, command: wire.Command) -> None:
        running = self._turn is not None and not self._turn.done()
        if isinstance(command, wire.Prompt):
            if running or self._agent is None:
                self.tell(wire.Note("a prompt came while none could be taken; it was dropped"))
            else:
                self._turn = asyncio.create_task(self._agent.turn(command.text))
        elif isinstance(command, wire.Answer):
            if self._agent is not None:
                self._agent.answer(command.id, command.allow, command.why)
        elif isinstance(command, wire.Interrupt) and self._turn is not None and running:
            # Not before its first step: a task that never ran tells nothing.
            asyncio.get_running_loop().call_soon(self._turn.cancel)

    async def _open(self, request: RunRequest) -> bool:
        try:
            await self._make(request)
        except Exception as error:
            fault = explain(error)
            self.tell(
                Finished(ok=False, kind=fault.kind, message=fault.message, status=fault.status)
            )
            return False
        return True

    async def _make(self, request: RunRequest) -> None:
        chosen = choose(request.model, self._environ, request.endpoint)
        session = request.session or request.new_session or str(uuid.uuid4())
        self._history = History.take(home(self._environ), session, request.session is not None)
        if self._history.note:
            self.tell(wire.Note(self._history.note))
        self._servers = Servers(request.cwd, environment(self._environ, request.cwd))
        handed = await self._servers.start(request.mcp)
        self._connected = Connected(chosen, local=request.endpoint is not None)
        system = _SYSTEM.format(cwd=os.path.abspath(request.cwd))
        self._agent = Agent(
            self._connected.model,
            distinct([*own_tools(Workspace(request.cwd)), *handed]),
            self._history,
            self.tell,
            system=f"{system}\n\n{request.system}" if request.system else system,
            bypass=request.bypass,
            max_turns=request.max_turns,
            retries=int(self._environ.get("TENUTO_LOOP_RETRIES") or _RETRIES),
        )
        self.tell(SessionOpened(session, f"{chosen.prefix}:{chosen.model}", _version()))

    async def _close(self) -> None:
        for task in (self._opening, self._turn):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._servers is not None:
            await self._servers.close()
        if self._connected is not None:
            await self._connected.close()
        if self._history is not None:
            self._history.close()


def _version() -> str:
    from importlib.metadata import version

    return version("pydantic-ai-slim")
