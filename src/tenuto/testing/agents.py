"""Agents without a model: runners for tests, benchmarks, and as an example of a runner of one's own.

Name it in the settings as `tenuto.testing.agents:EchoRunner`. A prompt is answered with its own text;
what is written in double brackets makes it do something first, in the order that it is written:

    [[say:some text]]     answer this instead        [[think:some text]]  think aloud
    [[use:1000,50]]       use tokens (in,out[,cache_read[,cache_write]])
    [[delay:0.2]]         take so many seconds       [[hang]]             until it is interrupted
    [[tool:Bash]]         use a tool                 [[ask:Bash]]         the same, but ask first
    [[retry:529]]         try something again        [[recall]]           answer with all prompts so far
    [[fail:auth]]         fail, of that kind         [[crash]]            as if its process had died
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import cast, get_args

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import Nursery
from tenuto.core.runs import (
    Capabilities,
    ErrorKind,
    Finished,
    PermissionAsked,
    Probe,
    Retried,
    RunEvent,
    RunRequest,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)

_WORD = re.compile(r"\[\[(\w+)(?::([^\]]*))?\]\]")


class EchoRunner:
    """A runner whose agent says what it was asked."""

    capabilities = Capabilities(
        interrupt=True, resume=True, permissions=True, system=True, usage="request"
    )

    def __init__(self, name: str = "echo", family: str = "echo", answer: str = "{text}") -> None:
        """Take what it is called, and how it answers: `{text}`, `{number}` and `{system}` are filled."""
        self.name = name
        self.family = family
        self._answer = answer

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        """Be there, unless TENUTO_ECHO_MISSING says otherwise."""
        if why := environ.get("TENUTO_ECHO_MISSING"):
            return Probe(available=False, kind="missing", why=why, hint="unset TENUTO_ECHO_MISSING")
        return Probe(available=True, version="1")

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        """Open a session; it needs no process."""
        del nursery
        folder = _folder({**os.environ, **request.env})
        if request.session is None:
            session, prompts = request.new_session or str(uuid.uuid4()), list[str]()
            _keep(folder, session, prompts)
        else:
            session = request.session
            prompts = _recall(folder, session)
        return EchoSession(session, prompts, folder, request, self._answer)


class EchoSession:
    """A conversation with nobody, kept in a file."""

    def __init__(
        self, session: str, prompts: list[str], folder: str, request: RunRequest, answer: str
    ) -> None:
        """Take a session and the prompts that it has had."""
        self.session = session
        self._prompts = prompts
        self._folder = folder
        self._request = request
        self._answer = answer
        self._told = False
        self._ended = ""
        self._stop: asyncio.Event | None = None
        self._asked: dict[str, asyncio.Future[tuple[bool, str]]] = {}

    async def prompt(self, text: str) -> AsyncGenerator[RunEvent, None]:
        """Do what the prompt says in brackets, then answer."""
        if self._ended:
            yield Finished(ok=False, kind="crash", message=self._ended)
            return
        if self._stop is not None:
            raise RuntimeError("one prompt at a time")
        self._stop = asyncio.Event()
        try:
            if not self._told:
                self._told = True
                yield SessionOpened(self.session, self._request.model or "echo", "1")
            self._prompts.append(text)
            _keep(self._folder, self.session, self._prompts)
            number = len(self._prompts)
            rest = " ".join(_WORD.sub("", text).split())
            answer = self._answer.format(text=rest, number=number, system=self._request.system)
            for word, given in _WORD.findall(text):
                if word == "say":
                    answer = given
                elif word == "recall":
                    answer = " | ".join(self._prompts)
                async for event in self._do(word, given):
                    yield event
                    if isinstance(event, Finished):
                        return
            yield Said(answer)
            yield Finished(ok=True, text=answer)
        finally:
            self._stop = None

    async def _do(self, word: str, given: str) -> AsyncIterator[RunEvent]:
        """Yield what one word in brackets makes of the turn."""
        if word == "think":
            yield Said(given, thought=True)
        elif word == "use":
            counts = [int(one) for one in given.split(",")]
            counts += [0] * (4 - len(counts))
            given_in, out, read, written = counts[:4]
            yield Used(self._request.model or "echo", given_in, out, read, written)
        elif word == "retry":
            yield Retried("again", int(given) if given else None)
        elif word in ("delay", "hang"):
            if await self._interrupted(float(given) if word == "delay" else None):
                yield Finished(ok=False, message="interrupted", interrupted=True)
        elif word in ("tool", "ask"):
            async for event in self._use(given, ask=word == "ask" and not self._request.bypass):
                yield event
        elif word == "fail":
            kind = _kind(given)
            yield Finished(ok=False, kind=kind, message=f"it was told to fail: {kind}")
        elif word == "crash":
            self._ended = "it was told to crash"
            yield Finished(ok=False, kind="crash", message=self._ended)

    async def _use(self, tool: str, ask: bool) -> AsyncIterator[RunEvent]:
        call = uuid.uuid4().hex
        yield ToolBegan(call, tool, {"command": "echo"})
        allow, why = True, ""
        if ask:
            future: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
            self._asked[call] = future
            yield PermissionAsked(call, tool, {"command": "echo"}, "echo")
            assert self._stop is not None
            stopped = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait({future, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            del self._asked[call]
            if not future.done():
                yield ToolEnded(call, False, "interrupted")
                yield Finished(ok=False, message="interrupted", interrupted=True)
                return
            allow, why = future.result()
        yield ToolEnded(call, allow, "done" if allow else f"refused: {why}")

    async def _interrupted(self, seconds: float | None) -> bool:
        """Wait, and tell whether somebody could not."""
        assert self._stop is not None
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None:
        """Answer a PermissionAsked."""
        future = self._asked.get(request_id)
        if future is not None and not future.done():
            future.set_result((allow, why))

    async def interrupt(self) -> None:
        """Stop the current turn."""
        if self._stop is not None:
            self._stop.set()

    async def close(self) -> None:
        """End it; a turn that runs is interrupted."""
        await self.interrupt()
        self._ended = self._ended or "it was closed"


def _kind(given: str) -> ErrorKind:
    if given in get_args(ErrorKind):
        return cast("ErrorKind", given)
    raise ValueError(f"{given!r} is no kind of error; there are {', '.join(get_args(ErrorKind))}")


def _folder(environ: Mapping[str, str]) -> str:
    if own := environ.get("TENUTO_ECHO_HOME"):
        return own
    state = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "tenuto", "echo")


def _keep(folder: str, session: str, prompts: list[str]) -> None:
    os.makedirs(folder, 0o700, exist_ok=True)
    path = os.path.join(folder, f"{session}.json")
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(prompts, file)
    os.replace(f"{path}.new", path)


def _recall(folder: str, session: str) -> list[str]:
    try:
        with open(os.path.join(folder, f"{session}.json"), encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        why = f"there is no session {session}"
        raise RunnerFailed(why, "begin a new one", "session") from None
