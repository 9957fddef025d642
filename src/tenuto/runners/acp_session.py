"""A conversation with an ACP agent: prompts, permissions, interrupts and the end of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import msgspec

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import Child
from tenuto.core.runs import (
    ChildEnd,
    Finished,
    PermissionAsked,
    RunEvent,
    RunRequest,
    SessionOpened,
)
from tenuto.runners.acp_errors import kind_of, told
from tenuto.runners.acp_events import Listener, Update
from tenuto.runners.acp_wire import ChildTransport

GRACE_S = 0.5
"""How long an agent has, when it is closed, to end by itself before it is ended."""
_NOT_OURS = -32601


class AcpSession:
    """One session in one process."""

    def __init__(self, name: str, child: Child, request: RunRequest, hint: str = "") -> None:
        """Take a child that was just started."""
        from acp.connection import Connection

        self._name = name
        self.child = child
        self._request = request
        self._hint = hint
        self._transport = ChildTransport(child)
        self._connection = Connection(self._asked, self._transport)
        self._listener = Listener(new=request.session is None)
        self._events: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        self._waiting: dict[str, tuple[asyncio.Future[str | None], dict[str, str]]] = {}
        self._questions = 0
        self._heard = 0
        self._turn: asyncio.Task[Finished] | None = None
        self._interrupted = False
        self._fault = ""
        self._closing: asyncio.Task[None] | None = None
        self._closes = False
        self._system = False
        self._prompted = False
        self.session = request.session or ""
        self.version = ""
        self.model = ""

    # opening

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask the agent for something before there are turns; raises RunnerFailed."""
        from acp.exceptions import RequestError

        try:
            answer: Any = await self._connection.send_request(method, params)
        except RequestError as error:
            text = told(str(error), error.data)
            kind, _ = kind_of(error.code, text)
            hint = self._hint if kind == "auth" else ""
            raise RunnerFailed(f"{self._name} refused {method}: {text}", hint, kind) from None
        except ConnectionError:
            lost = await self._lost()
            raise RunnerFailed(lost.message, self._hint, lost.kind or "crash") from None
        return cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}

    async def replayed(self) -> None:
        """Return once the history that `session/load` replays has come; none of it is told.

        Some agents answer before they are through with it. So they are asked for something that no
        agent knows, again and again, until nothing came between question and answer.
        """
        heard = -1
        while heard != self._heard:
            heard = self._heard
            with suppress(RunnerFailed):
                await self.call("_tenuto/through", {})

    def opened(self, session: str, version: str, model: str, *, closes: bool, system: bool) -> None:
        """Remember what was agreed; without `system` that text opens the first prompt."""
        self.session, self.version, self.model = session, version, model
        self._closes, self._system = closes, system

    # what the agent sends by itself

    async def _asked(self, method: str, params: Any, _notification: bool) -> Any:
        from acp.exceptions import RequestError

        if method == "session/update":
            self._hear(params)
            return None
        if method == "session/request_permission":
            return await self._permission(params)
        if _notification:
            return None
        raise RequestError(_NOT_OURS, f"Method not found: {method}")

    def _hear(self, params: Any) -> None:
        try:
            update = msgspec.convert(params["update"], Update)
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            self._fault = f"an update of the session that makes no sense: {error}"
            self._events.put_nowait(None)
            return
        self._heard += 1
        theirs = params.get("sessionId")
        if theirs != self.session and self.session:
            return  # a session of a subagent
        if self._turn is None:
            self._listener.recall(update)
            return
        for event in self._listener.hear(update):
            self._events.put_nowait(event)

    async def _permission(self, params: Any) -> dict[str, Any]:
        update = msgspec.convert(
            {"sessionUpdate": "tool_call_update", **params["toolCall"]}, Update
        )
        options = {str(one["kind"]): str(one["optionId"]) for one in params["options"]}
        tool, first = self._listener.asked(update)
        if self._request.bypass:
            chosen = options.get("allow_once") or options.get("allow_always")
            return _outcome(chosen)
        self._questions += 1
        question = f"{update.tool_call_id or 'permission'}:{self._questions}"
        waiting: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting[question] = waiting, options
        detail = update.title or ""
        if "allow_once" not in options:
            detail = f"{detail} (can only be allowed for the rest of the session)".strip()
        for event in first:
            self._events.put_nowait(event)
        # a title without a kind may be the model's own words: it says nothing about what is done
        kind = tool.kind or "other"
        self._events.put_nowait(PermissionAsked(question, tool.name, tool.input, detail, kind))
        try:
            return _outcome(await waiting)
        finally:
            self._waiting.pop(question, None)

    # what the driver asks

    async def prompt(self, text: str) -> AsyncIterator[RunEvent]:
        """Yield what comes of a prompt; the last is always Finished."""
        if self._turn is not None:
            raise RunnerFailed(
                f"{self._name} is in the middle of a turn", "let it finish, or interrupt it"
            )
        if not self._prompted:
            yield SessionOpened(self.session, self.model, self.version)
            if self._request.system and self._request.session is None and not self._system:
                text = f"{self._request.system}\n\n{text}"
        self._prompted = True
        self._listener.begin()
        self._interrupted = False
        events = self._events = asyncio.Queue[RunEvent | None]()
        turn = self._turn = asyncio.create_task(self._run(text))
        turn.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while not turn.done() or not events.empty():
                event = await events.get()
                if event is not None:
                    yield event
                elif self._fault and not turn.done():
                    turn.cancel()
                    await asyncio.gather(turn, return_exceptions=True)
            yield self._last(turn)
        finally:
            if not turn.done():
                # nobody listens any more: the agent is to stop too
                turn.cancel()
                with suppress(ConnectionError):
                    await self._cancel()
            self._turn = None

    def _last(self, turn: asyncio.Task[Finished]) -> Finished:
        if self._fault:
            message = f"{self._name} sent {self._fault}"
            self._fault = ""
            return Finished(False, self._listener.text, "protocol", message)
        if turn.cancelled():
            return Finished(False, self._listener.text, "crash", f"{self._name} was closed")
        return turn.result()

    async def _run(self, text: str) -> Finished:
        from acp.exceptions import RequestError

        params = {"sessionId": self.session, "prompt": [{"type": "text", "text": text}]}
        try:
            answer: Any = await self._connection.send_request("session/prompt", params)
        except RequestError as error:
            said = told(str(error), error.data)
            kind, status = kind_of(error.code, said)
            if self._interrupted and kind in ("failed", "network"):
                return Finished(False, self._listener.text, message=said, interrupted=True)
            message = f"{said} ({self._hint})" if kind == "auth" and self._hint else said
            return Finished(False, self._listener.text, kind, message, status)
        except ConnectionError:
            return await self._lost()
        given = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
        stop: Any = given.get("stopReason")
        if not isinstance(stop, str):
            message = f"{self._name} answered a prompt without a reason to stop: {answer!r:.200}"
            return Finished(False, self._listener.text, "protocol", message)
        used = self._listener.usage(given, self.model)
        if used is not None:
            self._events.put_nowait(used)
        return self._listener.finished(stop, given, self._interrupted)

    async def _lost(self) -> Finished:
        """Return the last word of a turn whose process is gone, or speaks no more."""
        if self._transport.broken:
            message = f"{self._name} sent {self._transport.broken}"
            return Finished(False, self._listener.text, "protocol", message)
        end = await self._ended()
        if self._closing is not None:
            return Finished(False, self._listener.text, "crash", f"{self._name} was closed")
        words = (await self.child.last_words()).strip() or self._transport.stray.strip()
        said = f"; its last words: {words[-1000:]}" if words else " without a word"
        message = f"{self._name} ended in the middle of its work ({_how(end)}){said}"
        return Finished(False, self._listener.text, "crash", message)

    async def _ended(self) -> ChildEnd:
        try:
            return await asyncio.wait_for(self.child.wait(), GRACE_S)
        except TimeoutError:  # it closed its stdout and lives on: there is no speaking with it
            await self.child.kill()
            return await self.child.wait()

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None:
        """Answer a PermissionAsked; ACP has no place for the reason."""
        del why
        found = self._waiting.get(request_id)
        if found is None or found[0].done():
            return  # the turn was stopped meanwhile
        waiting, options = found
        if not allow:
            self._listener.refused = True
        kinds = ("allow_once", "allow_always") if allow else ("reject_once", "reject_always")
        waiting.set_result(next((options[kind] for kind in kinds if kind in options), None))

    async def interrupt(self) -> None:
        """Cancel the turn; what it waits for an answer to is cancelled with it."""
        if self._turn is None or self._turn.done():
            return
        self._interrupted = True
        with suppress(ConnectionError):
            await self._cancel()
        for waiting, _ in list(self._waiting.values()):
            if not waiting.done():
                waiting.set_result(None)

    async def _cancel(self) -> None:
        await self._connection.send_notification("session/cancel", {"sessionId": self.session})

    async def close(self) -> None:
        """End the session and its process: asked first, by force after GRACE_S."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._leave(), GRACE_S)
        await self.child.kill()
        if self._turn is not None:
            self._turn.cancel()
        await self._connection.close()

    async def _leave(self) -> None:
        from acp.exceptions import RequestError

        if self._closes and self.session:
            with suppress(ConnectionError, RequestError):
                await self._connection.send_request("session/close", {"sessionId": self.session})
        await self.child.close_input()
        await self.child.wait()


def _outcome(option: str | None) -> dict[str, Any]:
    if option is None:
        return {"outcome": {"outcome": "cancelled"}}
    return {"outcome": {"outcome": "selected", "optionId": option}}


def _how(end: ChildEnd) -> str:
    code = f"exit {end.exit_code}" if end.exit_code is not None else end.state
    return f"{code}, {end.detail}" if end.detail else code
