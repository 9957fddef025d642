"""Agents that are started anew for every prompt, and print lines of JSON until they have answered.

The fallback for runtimes whose better protocol cannot be had. A session is carried by its id alone;
an interrupt is SIGINT; nobody can be asked for permission. What ended well is said by an event of the
runtime: an exit code never makes a success.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import AgentSession, Child, Nursery
from tenuto.core.runs import (
    Capabilities,
    ChildEnd,
    Finished,
    Probe,
    RunEvent,
    RunRequest,
    cannot_ask,
)
from tenuto.runners import claude_probe
from tenuto.runners import oneshot_lines as read
from tenuto.runners.claude_command import Launch, fits, launch
from tenuto.runners.claude_words import Words
from tenuto.runners.oneshot_codex import CodexWords, codex_launch
from tenuto.runners.oneshot_lines import Fields
from tenuto.runners.oneshot_opencode import OpenCodeWords, opencode_launch

GRACE_S = 2.0
"""How long a process may take to end after its last word."""


class Reader(Protocol):
    """Makes events of what one process says."""

    session: str

    def feed(self, fields: Fields) -> list[RunEvent]:
        """Return what a line means; the last is Finished if it ends the turn."""
        ...

    def rest(self) -> list[RunEvent]:
        """Return what is known and not told yet, when nothing more will come."""
        ...

    def verdict(self) -> Finished | None:
        """Return how the turn ended if only the end of the output tells; none if that is unknown."""
        ...


class Turns(Protocol):
    """How one runtime is started for one prompt."""

    name: str

    def takes_system(self, text: str) -> bool:
        """Tell whether it can be given this system prompt; else that opens the first prompt."""
        ...

    def launch(self, request: RunRequest, session: str) -> Launch:
        """Return its command, which reads the prompt from stdin."""
        ...

    def reader(self, session: str) -> Reader:
        """Return a reader for one process; `session` is what is known already."""
        ...


class OneShotSession:
    """A conversation by many processes, one after the other."""

    def __init__(self, turns: Turns, request: RunRequest, nursery: Nursery) -> None:
        """Take how turns are started and where processes come from."""
        self._turns = turns
        self._request = request
        self._nursery = nursery
        self._known = request.session or ""
        self._child: Child | None = None
        self._busy = False
        self._interrupted = False
        self._closed = False

    @property
    def session(self) -> str:
        """The id by which it can be taken up; empty while that is not known."""
        return self._known

    async def prompt(self, text: str) -> AsyncIterator[RunEvent]:
        """Yield what comes of a prompt; the last is always Finished."""
        if self._busy:
            raise RunnerFailed("this session has a prompt already", "wait for its end", "protocol")
        if self._closed:
            yield Finished(ok=False, kind="crash", message="The session is closed.")
            return
        self._busy, self._interrupted = True, False
        system = self._request.system
        if system and not self._known and not self._turns.takes_system(system):
            text = f"{system}\n\n{text}"
        try:
            child = await self._spawn()
            reader = self._turns.reader(self._known)
            finished: Finished | None = None
            await child.send(text.encode("utf-8", "replace"))
            await child.close_input()
            async for line in child.lines():
                fields = read.decoded(line)
                for event in reader.feed(fields) if fields is not None else []:
                    if isinstance(event, Finished):
                        finished = event
                        break
                    yield event
                self._known = reader.session or self._known
                if finished is not None:
                    break
            for event in reader.rest():
                yield event
            end = await self._end(child)
            yield await self._last(finished or reader.verdict(), child, end)
        finally:
            self._busy = False
            await self._leave()

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None:
        """Do nothing: it never asks."""

    async def interrupt(self) -> None:
        """Send SIGINT; the turn's Finished follows."""
        if self._child is not None:
            self._interrupted = True
            await self._child.signal("INT")

    async def close(self) -> None:
        """End its process by force."""
        self._closed = True
        await self._leave()

    async def _spawn(self) -> Child:
        how = self._turns.launch(self._request, self._known)
        self._child = await self._nursery.spawn(
            how.argv,
            cwd=self._request.cwd,
            env=how.env,
            unset=how.unset,
            title=self._request.title,
        )
        return self._child

    async def _end(self, child: Child) -> ChildEnd:
        try:
            async with asyncio.timeout(GRACE_S):
                return await child.wait()
        except TimeoutError:
            await child.kill()
            return await child.wait()

    async def _last(self, told: Finished | None, child: Child, end: ChildEnd) -> Finished:
        if told is not None and told.ok:
            return told
        if self._interrupted or self._closed:
            return Finished(ok=False, interrupted=True, message="The turn was interrupted.")
        if told is not None:
            return told
        words = (await child.last_words()).strip()
        how = end.detail or f"exit code {end.exit_code}"
        message = f"{self._turns.name} ended without an answer ({how})"
        message += f": {words}" if words else ""
        return Finished(ok=False, kind="crash", message=message)

    async def _leave(self) -> None:
        """Leave no process."""
        child, self._child = self._child, None
        if child is not None:
            await child.kill()
            await child.wait()


class ClaudeTurns:
    """Claude Code, one process for each prompt."""

    name = "Claude Code"

    def __init__(self, path: str) -> None:
        """Take the program's path."""
        self._path = path

    def takes_system(self, text: str) -> bool:
        """Tell whether it fits on a command line."""
        return fits(text)

    def launch(self, request: RunRequest, session: str) -> Launch:
        """Return its command."""
        return launch(self._path, request, control=False, session=session)

    def reader(self, session: str) -> Reader:
        """Return a reader."""
        words = Words()
        words.session = session
        return words


class OpenCodeTurns:
    """OpenCode, one process for each prompt."""

    name = "OpenCode"

    def __init__(self, path: str) -> None:
        """Take the program's path."""
        self._path = path

    def takes_system(self, text: str) -> bool:
        """Tell that it takes none."""
        del text
        return False

    def launch(self, request: RunRequest, session: str) -> Launch:
        """Return its command."""
        return opencode_launch(self._path, request, session)

    def reader(self, session: str) -> Reader:
        """Return a reader."""
        return OpenCodeWords(session)


class CodexTurns:
    """Codex, one process for each prompt; it tells the sum of a whole session, so ours is kept here."""

    name = "Codex"

    def __init__(self, path: str) -> None:
        """Take the program's path."""
        self._path = path
        self._last: CodexWords | None = None

    def takes_system(self, text: str) -> bool:
        """Tell that it takes none."""
        del text
        return False

    def launch(self, request: RunRequest, session: str) -> Launch:
        """Return its command."""
        return codex_launch(self._path, request, session)

    def reader(self, session: str) -> Reader:
        """Return a reader that knows what was used before."""
        before = self._last.total if self._last is not None else None
        if before is None and not session:
            before = {}
        self._last = CodexWords(session, before)
        return self._last


class _OneShot:
    """What the three have in common."""

    name = ""
    family = ""
    capabilities = Capabilities()
    title = ""
    minimum: tuple[int, ...] = (0,)

    def __init__(self, program: str) -> None:
        """Take the program's name or path."""
        self.program = program

    def turns(self, path: str) -> Turns:
        """Return how it is started."""
        raise NotImplementedError

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        """Look, by running it, whether it is there."""
        path = claude_probe.find(self.program, environ)
        return await claude_probe.versioned(self.title, path, self.program, environ, self.minimum)

    async def open(self, request: RunRequest, nursery: Nursery) -> AgentSession:
        """Open a session; its process starts with the first prompt."""
        if self.capabilities.unasking and not (request.unasked or request.bypass):
            raise RunnerFailed(*cannot_ask(self.name), "permission")
        path = claude_probe.find(self.program, {**os.environ, **request.env})
        if path is None:
            hint = f"install {self.title}, or set the runtime's program"
            raise RunnerFailed(f"there is no program {self.program}", hint, "missing")
        return OneShotSession(self.turns(path), request, nursery)


class ClaudeOneShot(_OneShot):
    """Claude Code without its control protocol."""

    name = "claude-code"
    family = "mcp"
    title = "Claude Code"
    minimum = claude_probe.MINIMUM
    capabilities = Capabilities(
        resume=True, mcp=True, system=True, metered=True, usage="request", interrupt=True,
        turns=True,
    )  # fmt: skip

    def __init__(self, program: str = "claude") -> None:
        """Take the program's name or path."""
        super().__init__(program)

    def turns(self, path: str) -> Turns:
        """Return how it is started."""
        return ClaudeTurns(path)


class OpenCodeOneShot(_OneShot):
    """OpenCode by `opencode run`."""

    name = "open-code"
    family = "mcp"
    title = "OpenCode"
    minimum = (1, 0, 0)
    capabilities = Capabilities(
        interrupt=True, resume=True, mcp=True, metered=True, usage="request"
    )

    def __init__(self, program: str = "opencode") -> None:
        """Take the program's name or path."""
        super().__init__(program)

    def turns(self, path: str) -> Turns:
        """Return how it is started."""
        return OpenCodeTurns(path)


class CodexOneShot(_OneShot):
    """Codex by `codex exec`."""

    name = "codex"
    family = "codex"
    title = "Codex"
    minimum = (0, 100, 0)
    capabilities = Capabilities(
        interrupt=True, resume=True, mcp=True, metered=True, usage="turn", unasking=True
    )

    def __init__(self, program: str = "codex") -> None:
        """Take the program's name or path."""
        super().__init__(program)

    def turns(self, path: str) -> Turns:
        """Return how it is started."""
        return CodexTurns(path)
