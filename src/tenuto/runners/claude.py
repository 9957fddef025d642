"""Claude Code, kept open across prompts and steered over its stdin: the control protocol.

One process per session. It reads prompts and our requests as lines of JSON, and writes what happens;
an interrupt is a request that it answers at once, and the next prompt goes to the same process. It
asks before it uses a tool, and waits for the answer.

Where the protocol cannot be had, `open` gives a session that starts a process for every prompt.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

import msgspec

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import AgentSession, Child, Nursery
from tenuto.core.runs import (
    Capabilities,
    ChildEnd,
    Finished,
    PermissionAsked,
    Probe,
    RunEvent,
    RunRequest,
)
from tenuto.runners import claude_probe
from tenuto.runners import oneshot_lines as read
from tenuto.runners.claude_command import fits, launch
from tenuto.runners.claude_words import Words
from tenuto.runners.oneshot import ClaudeTurns, OneShotSession
from tenuto.runners.oneshot_lines import Fields

GRACE_S = 2.0
"""How long a session that is closed may take to end by itself."""
START_WITHIN_S = 60.0
"""How long it may take until it answers for the first time: it starts on a cold disk, perhaps."""


class ClaudeRunner:
    """The runtime claude-code."""

    name = "claude-code"
    family = "mcp"
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

    def __init__(
        self, program: str = "claude", *, login: bool = True, start_within: float = START_WITHIN_S
    ) -> None:
        """Take the program; without `login` it is not asked whether it is logged in."""
        self.program = program
        self._login = login
        self._start_within = start_within

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        """Look, by running it, whether it can be used here."""
        return await claude_probe.probe(self.program, environ, login=self._login)

    async def open(self, request: RunRequest, nursery: Nursery) -> AgentSession:
        """Open a session, or take one up; raises RunnerFailed if that cannot be."""
        path = claude_probe.find(self.program, {**os.environ, **request.env})
        if path is None:
            hint = 'install it, or say in the settings where it is: [programs] claude-code = "PATH"'
            raise RunnerFailed(f"there is no program {self.program}", hint, "missing")
        how = launch(path, request, control=True)
        child = await nursery.spawn(
            how.argv, cwd=request.cwd, env=how.env, unset=how.unset, title=request.title
        )
        session = ClaudeSession(child, request)
        try:
            async with asyncio.timeout(self._start_within):
                spoken = await session.start()
        except TimeoutError:
            await session.close()
            why = f"Claude Code did not answer within {self._start_within:.0f} s of its start"
            raise RunnerFailed(why, f"look at `tenuto logs {child.id}`", "protocol") from None
        except BaseException:
            await session.close()
            raise
        if spoken:
            return session
        await session.close()
        return OneShotSession(ClaudeTurns(path), request, nursery)


class ClaudeSession:
    """A conversation with one process."""

    def __init__(self, child: Child, request: RunRequest) -> None:
        """Take a process that was just started."""
        self.child = child
        self._words = Words()
        self._words.session = request.session or request.new_session
        long = not fits(request.system)
        self._extra = {"appendSystemPrompt": request.system} if long else {}
        # As root Claude Code refuses to bypass its permissions unless it is told that it is in a
        # sandbox, which we do not know: it asks then, and has the answer at once.
        self._allow_all = request.bypass and os.geteuid() == 0
        self._events: asyncio.Queue[RunEvent] | None = None
        self._prompt = ""
        self._stale = 0  # turns that nobody listens to any more, and whose result is still to come
        self._answers: dict[str, asyncio.Future[Fields]] = {}
        self._stops: dict[str, str] = {}  # our requests to stop a prompt, and which one it was
        self._asked: dict[str, Any] = {}
        self._ended = asyncio.Event()
        self._closing = False
        # Written by a task of its own: a reader that waits for a full pipe while the other side
        # does the same would wait for ever.
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write())
        self._reading = asyncio.create_task(self._read())

    @property
    def session(self) -> str:
        """The id by which it can be taken up."""
        return self._words.session

    async def start(self) -> bool:
        """Shake hands; tell whether it speaks the protocol."""
        try:
            answered = await self._request({"subtype": "initialize", **self._extra})
        except _Gone:
            end = await self._gone()
            words = (await self.child.last_words()).strip()
            if "unknown option" in words:
                return False
            why = words or f"exit code {end.exit_code} {end.detail}".strip()
            kind = "session" if "No conversation found" in words else "failed"
            raise RunnerFailed(
                f"Claude Code ended before it took a prompt: {why}",
                f"look at `tenuto logs {self.child.id}`",
                kind if words else "crash",
            ) from None
        return read.text(answered, "subtype") == "success"

    async def prompt(self, text: str) -> AsyncIterator[RunEvent]:
        """Yield what comes of a prompt; the last is always Finished."""
        if self._events is not None:
            raise RunnerFailed("this session has a prompt already", "wait for its end", "protocol")
        events: asyncio.Queue[RunEvent] = asyncio.Queue()
        self._words.begin()
        self._prompt = str(uuid4())
        self._events = events
        if self._ended.is_set():
            await self._finish_by_end()
        message = {"role": "user", "content": text}
        try:
            self._send({
                "type": "user",
                "uuid": self._prompt,
                "message": message,
                "parent_tool_use_id": None,
                "session_id": self.session,
            })  # fmt: skip
            while True:
                event = await events.get()
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            if self._events is events:  # left before its end: it must not go on unheard
                self._events = None
                self._stale += 1
                self._interrupt()

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None:
        """Answer a PermissionAsked."""
        self._permit(request_id, allow, why)

    async def interrupt(self) -> None:
        """Stop the current turn softly; its Finished follows."""
        if self._events is None:
            return
        self._words.interrupting = True
        self._interrupt()

    async def close(self) -> None:
        """End it: by the end of its input, and by force if it does not go."""
        if not self._closing:
            self._closing = True
            if self._events is not None:
                self._interrupt()  # so that it ends its tools itself
            self._out.put_nowait(None)
        await self._gone()
        await self.child.kill()
        self._writing.cancel()
        await asyncio.gather(self._reading, self._writing, return_exceptions=True)

    async def _gone(self) -> ChildEnd:
        """Return how it ended; by force if it does not in time."""
        try:
            async with asyncio.timeout(GRACE_S):
                return await self.child.wait()
        except TimeoutError:
            await self.child.kill()
            return await self.child.wait()

    # what we write

    async def _write(self) -> None:
        while (line := await self._out.get()) is not None:
            await self.child.send(line)
        await self.child.close_input()

    def _send(self, message: Fields) -> None:
        self._out.put_nowait(msgspec.json.encode(message) + b"\n")

    async def _request(self, request: Fields) -> Fields:
        """Ask it something; return its response, or raise _Gone."""
        key = str(uuid4())
        answered: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
        self._answers[key] = answered
        if self._ended.is_set():
            answered.set_exception(_Gone())
        try:
            self._send({"type": "control_request", "request_id": key, "request": request})
            return await answered
        finally:
            self._answers.pop(key, None)

    def _permit(self, key: str, allow: bool, why: str = "") -> None:
        if key not in self._asked:
            return  # withdrawn meanwhile
        given = self._asked.pop(key)
        if allow:
            verdict = {"behavior": "allow", "updatedInput": given}
        else:
            verdict = {"behavior": "deny", "message": why or "This tool was refused."}
        answer = {"subtype": "success", "request_id": key, "response": verdict}
        self._send({"type": "control_response", "response": answer})

    def _interrupt(self) -> None:
        self._stop({"subtype": "interrupt"}, self._prompt)

    def _stop(self, request: Fields, prompt: str) -> None:
        """Ask for an end of a prompt; what is answered is looked at when it comes."""
        key = str(uuid4())
        self._stops[key] = prompt
        self._send({"type": "control_request", "request_id": key, "request": request})

    # what it writes

    async def _read(self) -> None:
        try:
            async for line in self.child.lines():
                fields = read.decoded(line)
                if fields is not None:
                    self._take(fields)
        finally:
            self._ended.set()
            for waiting in self._answers.values():
                if not waiting.done():
                    waiting.set_exception(_Gone())
            await self._finish_by_end()

    def _take(self, fields: Fields) -> None:
        match read.text(fields, "type"):
            case "control_response":
                self._answered(read.inner(fields, "response"))
            case "control_request":
                self._asks(read.text(fields, "request_id"), read.inner(fields, "request"))
            case "control_cancel_request":
                self._asked.pop(read.text(fields, "request_id"), None)
            case "result" if self._is_stale(fields):
                self._stale = max(0, self._stale - 1)
            case "result":
                self._stale = 0
                self._tell(self._words.feed(fields))
            case _:
                if self._events is not None and not self._stale:
                    self._tell(self._words.feed(fields))

    def _is_stale(self, fields: Fields) -> bool:
        """Tell whether a result is of another turn than the one that is listened to."""
        named = read.texts(fields, "user_message_uuids")
        if named:
            return self._prompt not in named
        return self._stale > 0

    def _tell(self, events: list[RunEvent]) -> None:
        for event in events:
            if self._events is None:
                return
            self._events.put_nowait(event)
            if isinstance(event, Finished):
                self._events = None

    def _asks(self, key: str, request: Fields) -> None:
        if read.text(request, "subtype") != "can_use_tool":
            error = {"subtype": "error", "request_id": key, "error": "not supported here"}
            self._send({"type": "control_response", "response": error})
            return
        self._asked[key] = request.get("input")
        tool = read.text(request, "tool_name")
        detail = read.text(request, "decision_reason") or read.text(request, "blocked_path")
        if self._events is None:
            self._permit(key, False, "Nobody listens to this turn any more.")
        elif self._allow_all:
            self._permit(key, True)
        else:
            self._tell([PermissionAsked(key, tool, request.get("input"), detail)])

    def _answered(self, response: Fields) -> None:
        key = read.text(response, "request_id")
        if key in self._answers:
            if not self._answers[key].done():
                self._answers[key].set_result(response)
            return
        prompt = self._stops.pop(key, "")
        if not prompt:
            return
        inner = read.inner(response, "response")
        if prompt in read.texts(inner, "still_queued"):
            # That turn had not begun: take the prompt back.
            self._stop({"subtype": "cancel_async_message", "message_uuid": prompt}, prompt)
        elif inner.get("cancelled") is True and prompt != self._prompt:
            self._stale = max(0, self._stale - 1)
        elif inner.get("cancelled") is True:
            self._tell([_interrupted()])
        elif (
            inner.get("cancelled") is False and prompt == self._prompt and self._words.interrupting
        ):
            self._interrupt()  # it has begun meanwhile

    async def _finish_by_end(self) -> None:
        """End a turn whose process is gone without its last word."""
        if self._events is None:
            return
        self._tell(self._words.rest())
        if self._closing:
            self._tell([_interrupted("The session was closed.")])
            return
        end = await self._gone()
        words = (await self.child.last_words()).strip()
        how = end.detail or f"exit code {end.exit_code}"
        said = f": {words}" if words else ""
        message = f"Claude Code ended in the middle of a turn ({how}){said}"
        self._tell([Finished(ok=False, kind="crash", message=message)])


class _Gone(Exception):
    """The process ended before it answered."""


def _interrupted(message: str = "The turn was interrupted.") -> Finished:
    return Finished(ok=False, interrupted=True, message=message)
