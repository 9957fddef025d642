"""The tools' work: what was asked, checked, done by the engine, answered. Knows no SDK."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import msgspec

from tenuto.core.errors import InvalidInput, TenutoError, UnknownExecution
from tenuto.core.execution import Snapshot
from tenuto.core.ids import new_id
from tenuto.core.quantities import brief_size, parse_duration, parse_size
from tenuto.core.specs import Limits
from tenuto.engine.engine import Engine
from tenuto.engine.redact import Redactor
from tenuto.engine.reports import Report, ReportLine
from tenuto.mcp import (
    catalogue,
    composed,
    keys,
    managing,
    overview,
    reading,
    replies,
    state_tools,
    task_replies,
    task_results,
    task_tools,
)
from tenuto.mcp.arguments import Arguments, checked
from tenuto.mcp.hearing import Hearing
from tenuto.mcp.looking import Looks
from tenuto.mcp.pages import START, Cursor, Page, page_of
from tenuto.mcp.replies import Reply

_REPORT_AGE_S = 0.25
_CROWD = 8  # from so many on, looking at all of them is worth sharing for longer
_CROWD_AGE_S = 1.0
_LAST_LINES = 10
_LAST_BYTES = 2048
_SESSIONS = {"js": "js", "ts": "js", "python": "python"}
_LIMITS: dict[str, Callable[[Any], Any]] = {
    "memory": parse_size,
    "file_size": parse_size,
    "output": parse_size,
    "cpu": parse_duration,
}


class Caller(Protocol):
    """Whoever made a request, as far as the tools care."""

    can_be_asked: bool
    """Its user can be asked something."""
    asks_by_result: bool
    """Only by ending the call with the question."""

    async def progress(self, message: str) -> None:
        """Tell how far it is; does nothing for a client that did not ask."""
        ...

    async def asked(self, message: str) -> bool | None:
        """Ask the client's user for a yes or no; None where nobody can be asked, or answers."""
        ...


Call = Callable[["Service", Arguments, Caller], Awaitable[Reply]]


class Service:
    """Answers tool calls for one project."""

    def __init__(self, engine: Engine) -> None:
        """Take an open engine."""
        self.engine = engine
        self.limit = max(engine.settings.mcp_output, catalogue.LEAST_OUTPUT)
        self.tools = catalogue.tools(brief_size(self.limit))
        self.redactor = Redactor(os.environ)
        self._look: asyncio.Task[Report] | None = None
        self._looked = 0.0
        self._last: tuple[ReportLine, ...] = ()
        self.open: set[str] = set()  # answered with while they went on; notices take them up
        self.looks = Looks(engine)
        self._aside: dict[str, asyncio.Task[bool]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._calls: dict[str, Call] = {
            "execute": Service._execute,
            "output": reading.output,
            "send_input": reading.send_input,
            "list": managing.list_executions,
            "kill": managing.kill,
            "engine_execute": task_tools.execute,
            "approve": task_tools.approve,
            "deny": task_tools.deny,
            "engine_resume": task_tools.resume,
            "engine_checkpoint": state_tools.checkpoint,
            "engine_history": state_tools.history,
            "engine_budget": overview.budget,
            "engine_status": overview.status,
            "engine_interrupt": managing.interrupt,
            "composed_tools": composed.composed,
        }

    def knows(self, name: str) -> bool:
        """Tell whether there is such a tool."""
        return name in self._calls

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Reply:
        """Answer one call; whatever the caller did wrong is an answer too."""
        try:
            reply = await self._calls[name](self, checked(name, arguments, self.tools), caller)
        except TenutoError as error:
            reply = replies.refused(error)
        if reply.open_id:
            self.open.add(reply.open_id)
        return await self._completed(reply)

    async def _completed(self, reply: Reply) -> Reply:
        """Add the running list, and take known secrets out."""
        text, data = replies.listed(await self._running(reply))
        whole = {**reply.data, **data}
        clean: Any = self.redactor.data(whole)
        return msgspec.structs.replace(
            reply, text=self.redactor.text(f"{reply.text}\n\n{text}"), data=clean
        )

    async def _running(self, reply: Reply) -> list[ReportLine]:
        """Return what runs; answers given at the same moment share one look."""
        age = _CROWD_AGE_S if len(self._last) > _CROWD else _REPORT_AGE_S
        if self._look is None or self._looked < time.monotonic() - age:
            self._looked = time.monotonic()
            self._look = asyncio.create_task(self.engine.report())
        report = await asyncio.shield(self._look)
        self._last = report.running
        # the look may be a moment older than the answer
        own = reply.data.get("execution_id")
        if "ended_at" in reply.data:
            return [one for one in report.running if one.id != own]
        if reply.open_id and all(one.id != own for one in report.running):
            return [*report.running, _line(reply.data)]
        return list(report.running)

    def changed(self) -> None:
        """Forget the list, for something runs or ended that is not in it; a long one is kept a while."""
        if len(self._last) <= _CROWD:
            self._look = None

    # Run

    async def _execute(self, given: Arguments, caller: Caller) -> Reply:
        if given.get("code") is None and given.get("command") is None:
            action = given.get("action")
            if action is None:
                raise InvalidInput(
                    "No code provided. Either provide code to execute, or use an action "
                    "parameter for management tasks.",
                    'execute(code="1 + 1"), or execute(action="list_async_executions")',
                )
            return await managing.manage(self, action, given, caller)
        wait = self.wait_of(given.get("wait"))
        began = time.monotonic()
        key = given.get("idempotencyKey")
        if key is None:
            execution_id = await self._begin(given, new_id())
        else:
            names = ("code", "command", "language", "workingDirectory")
            same = {name: given.get(name) for name in names}
            execution_id = await self.once(key, same, lambda new: self._begin(given, new))
        return await self.attend(execution_id, wait, caller, began)

    async def once(
        self, key: str, same: dict[str, Any], begin: Callable[[str], Awaitable[str]]
    ) -> str:
        """Begin work under a key, unless it has begun; `same` is what makes it the same work."""
        work = msgspec.json.encode(same, order="deterministic").decode()
        folder = os.path.join(self.engine.home, "mcp-keys")
        async with keys.hold(folder, key, work) as keyed:
            if keyed.execution_id:
                try:
                    return (await self.engine.show(keyed.execution_id)).id
                except UnknownExecution:
                    pass  # it never started, or was cleaned
            execution_id = new_id()
            keyed.name(execution_id)
            return await begin(execution_id)

    async def _begin(self, given: Arguments, execution_id: str) -> str:
        options: dict[str, Any] = {
            "cwd": given.get("workingDirectory"),
            "env": given.get("env") or {},
            "limits": _limits(given.get("limits") or {}),
            "deadline": _seconds(given.get("deadline")),
            "idle": _seconds(given.get("idle")),
            "detached": given.get("wait") == 0,
        }
        for name in ("sandbox", "engine"):
            if given.get(name) is not None:
                options[name] = given.get(name)
        if session := self._session(given):
            options["session"] = session
        code, command = given.get("code"), given.get("command")
        if code is not None and command is not None:
            raise InvalidInput("both code and a command are given", "give one of them")
        language = None if code is None else given.get("language") or "js"
        return await self.started(
            execution_id,
            self.engine.start(
                code, command=command, language=language, execution_id=execution_id, **options
            ),
        )

    async def started(self, execution_id: str, start: Coroutine[Any, Any, str]) -> str:
        """Start something; a caller that goes meanwhile leaves it as it leaves what runs."""
        starting = asyncio.ensure_future(start)
        self.changed()
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._leave(execution_id, 0.0, starting)
            raise

    def _session(self, given: Arguments) -> str | None:
        """Return the session to run in: the one named, or the client's own if the settings name it.

        That one is two, for a session has one language. What is confined in its own way is no part
        of it; "" is none.
        """
        named, own = given.get("session"), self.engine.settings.session
        language = given.get("language") or "js"
        confined = given.get("limits") or given.get("sandbox") or given.get("engine")
        apart = given.get("code") is None or confined
        if named is not None or own is None or apart or language not in _SESSIONS:
            return named
        return f"{own}-{_SESSIONS[language]}"

    def wait_of(self, given: object) -> float:
        """Return how many seconds to wait: as asked, or as the settings say."""
        return self.engine.settings.wait if given is None else parse_duration(given)

    async def attended(self, execution_id: str, wait: object, caller: Caller) -> Reply:
        """Answer a call that goes on with its wait: it ended with a question before."""
        try:
            reply = await self.attend(execution_id, self.wait_of(wait), caller, time.monotonic())
        except TenutoError as error:
            return replies.refused(error)
        return await self._completed(reply)

    async def attend(
        self,
        execution_id: str,
        wait: float,
        caller: Caller,
        began: float,
        place: Cursor = START,
    ) -> Reply:
        """Wait for an execution that this call is about, and answer with its end or a handover."""
        try:
            snapshot = await self.waited(execution_id, wait, caller, began, place, ask=True)
        except asyncio.CancelledError:
            self._leave(execution_id, time.monotonic() - began)
            raise
        self.changed()
        if snapshot.done:
            return await self._result(snapshot, place)
        opening = replies.handover(snapshot, time.monotonic() - began)
        page = await self.page(snapshot, place, True)
        return await self.going(snapshot, page, opening, "Current progress")

    async def waited(
        self,
        execution_id: str,
        wait: float,
        caller: Caller,
        began: float,
        place: Cursor,
        until: str | None = None,
        ask: bool = False,
    ) -> Snapshot:
        """Wait for the end, a text, or somebody being waited for; tell of progress meanwhile.

        A task whose questions are all answered goes on; with `ask` the client's user may be asked.
        """
        hearing = Hearing(self.engine, execution_id, caller, self.redactor)
        while True:
            left = max(0.0, wait - (time.monotonic() - began))
            snapshot = await self.engine.wait(
                execution_id, left, until=until, after=place.after, heard=hearing
            )
            left = max(0.0, wait - (time.monotonic() - began))
            asked = caller if ask else None
            if not left or not await task_tools.goes_on(self, snapshot, asked, left):
                return await task_results.settled(self, snapshot)

    async def ended(self, execution_id: str) -> Reply:
        """Answer with an execution that has ended, as a call that waited for it would have."""
        snapshot = await self.engine.read(execution_id)
        return await self._completed(await self._result(snapshot, START))

    async def _result(self, snapshot: Snapshot, place: Cursor) -> Reply:
        if snapshot.kind == "task":
            return await task_results.result(self, snapshot, place)
        return replies.finished(snapshot, await self.page(snapshot, place, False))

    async def finished(self, snapshot: Snapshot, page: Page) -> Reply:
        """Answer with how an execution ended, and a page of its output."""
        if snapshot.kind == "task":
            progress = await self.engine.progress(snapshot.id)
            return task_replies.finished(snapshot, progress, page)
        return replies.finished(snapshot, page)

    async def going(self, snapshot: Snapshot, page: Page, opening: str, heading: str) -> Reply:
        """Answer with a live execution's output, and the next calls."""
        if snapshot.kind == "task":
            progress = await self.engine.progress(snapshot.id)
            return task_replies.going(snapshot, progress, page, opening, heading)
        return replies.still_going(snapshot, page, opening, heading)

    async def facts(self, snapshot: Snapshot) -> dict[str, Any]:
        """Return all that is known of an execution, without its output."""
        if snapshot.kind == "task":
            return task_replies.facts(snapshot, await self.engine.progress(snapshot.id))
        return replies.facts(snapshot)

    def _leave(
        self, execution_id: str, waited_s: float, starting: asyncio.Future[str] | None = None
    ) -> None:
        """Act on a cancel or a disconnect: the work goes on, unless the settings say kill."""

        async def leave() -> None:
            try:
                if starting is not None:
                    await starting
                if self.engine.settings.on_cancel == "kill":
                    await self.engine.kill(execution_id)
                else:
                    await self.engine.detach(execution_id, waited_s)
            except TenutoError:
                return  # it has ended meanwhile, or never began

        task = asyncio.create_task(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def aside(self, key: str, work: Coroutine[Any, Any, bool]) -> asyncio.Task[bool] | None:
        """Do something that may outlast the call; None if it is being done for that key already."""
        if key in self._aside:
            work.close()
            return None
        task = asyncio.create_task(work)
        self._aside[key] = task
        task.add_done_callback(lambda _: self._aside.pop(key, None))
        return task

    async def close(self) -> None:
        """Finish what cancelled calls left to do; ask nobody any more."""
        await self.looks.close()
        for task in (*self._aside.values(),):
            task.cancel()
        while self._leaving:
            await asyncio.gather(*self._leaving, return_exceptions=True)

    async def page(self, snapshot: Snapshot, place: Cursor, stamps: bool) -> Page:
        """Return a snapshot's output as much as an answer holds; a cut one with its last lines."""
        page = page_of(snapshot, place, self.limit, stamps)
        if not page.truncated:
            return page
        last = await self.engine.logs(snapshot.id, tail=_LAST_LINES, most=_LAST_BYTES)
        tail = b"".join(chunk.data for chunk in last).decode("utf-8", "replace")
        return page_of(snapshot, place, self.limit, stamps, tail.strip("\n"))


def _line(data: dict[str, Any]) -> ReportLine:
    return ReportLine(
        id=data["execution_id"], title=data["title"], state=data["state"],
        started_at=data["started_at"], duration_s=data["duration_s"],
        output_lines=data["output_lines"], is_async=data["async"], done=False,
    )  # fmt: skip


def _limits(given: dict[str, Any]) -> Limits:
    """Return limits as the engine takes them: sizes such as 512M in bytes, times in seconds."""
    parsed = {
        name: _LIMITS[name](value) if name in _LIMITS else value for name, value in given.items()
    }
    return Limits(**parsed)


def _seconds(given: object) -> float | None:
    return None if given is None else parse_duration(given)
