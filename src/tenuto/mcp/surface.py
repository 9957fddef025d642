"""Executions as an MCP server shows them: tools, tasks, and resources `exec://ID/log` and `/state`."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto import __version__
from tenuto.core.errors import TenutoError, UnknownExecution
from tenuto.core.execution import Snapshot
from tenuto.core.ids import is_id
from tenuto.core.quantities import iso
from tenuto.core.states import State
from tenuto.mcp import replies, task_replies
from tenuto.mcp.catalogue import INSTRUCTIONS, REPORT, RESOURCES
from tenuto.mcp.pages import START
from tenuto.mcp.replies import Reply
from tenuto.mcp.server import DECISION, Request, decision, plain
from tenuto.mcp.service import Service
from tenuto.mcp.task_replies import asks
from tenuto.mcp.task_results import DECISIONS
from tenuto.mcp.task_tools import InputWanted, decided
from tenuto.mcp.tasks import NoTask

if TYPE_CHECKING:
    from tenuto.mcp.tasks import TaskBook

_URI = re.compile(r"exec://([0-9a-f-]{36})/(log|state)")
_ASK = re.compile(r"ask-(\d{1,9})")
_STARTS = ("execute", "engine_execute", "engine_resume")
_POLL_SOON_MS = 1000
_POLL_MOST_MS = 5000


class Executions:
    """The surface of a project's executions."""

    name = "tenuto"
    version = __version__
    instructions = INSTRUCTIONS

    def __init__(self, service: Service) -> None:
        """Take what does the work."""
        self.service = service

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools."""
        return self.service.tools

    async def call(self, name: str, arguments: dict[str, Any], request: Request) -> dict[str, Any]:
        """Answer a call: its result, or a task where the work goes on and the client takes one."""
        if not self.service.knows(name):
            raise KeyError(name)
        try:
            reply = await self._reply(name, arguments, request)
        except InputWanted as wanted:
            return {
                "resultType": "input_required",
                "requestState": wanted.execution_id,
                "inputRequests": {
                    f"ask-{n}": _elicitation(one.text, DECISION) for n, one in wanted.asked.items()
                },
            }
        starts = name in _STARTS and arguments.get("action") is None
        if reply.open_id and starts and request.takes_tasks:
            snapshot = await self.service.engine.show(reply.open_id)
            if snapshot.done:
                return await self._result(snapshot)
            if request.can_be_asked or snapshot.waiting_for not in DECISIONS:
                return {"resultType": "task", **_seed(snapshot)}
        return as_result(reply)

    async def _reply(self, name: str, arguments: dict[str, Any], request: Request) -> Reply:
        """Answer a call, or go on with one that ended with a question."""
        if not is_id(request.state) or name not in _STARTS:
            return await self.service.call(name, arguments, request)
        answers = {n: decision(one) for n, one in _numbered(request.responses).items()}
        answers = {n: allow for n, allow in answers.items() if allow is not None}
        request.can_be_asked = bool(answers)  # who does not answer is not asked again
        for n, allow in answers.items():
            await decided(self.service, request.state, n, allow)
        return await self.service.attended(request.state, arguments.get("wait"), request)

    # Tasks

    def tasks(self) -> TaskBook:
        """Return itself: a task is an execution."""
        return self

    async def get(self, task_id: str, can_be_asked: bool) -> dict[str, Any]:
        """Return a task: working, waiting for input, or ended with the call's result."""
        snapshot = await self._task(task_id)
        if snapshot.state in (State.KILLED, State.INTERRUPTED):
            return {**_seed(snapshot), "status": "cancelled"}
        if snapshot.done:
            return {
                **_seed(snapshot), "status": "completed", "result": await self._result(snapshot)
            }  # fmt: skip
        shown = _seed(snapshot)
        last = await self.service.engine.logs(snapshot.id, tail=1, most=200)
        line = b"".join(chunk.data for chunk in last).decode("utf-8", "replace").strip()
        if line:
            shown["statusMessage"] += f"; last line: {self.service.redactor.text(line)}"
        if snapshot.needs_input and can_be_asked:
            shown["status"] = "input_required"
            shown["inputRequests"] = {_question(snapshot): _asked(snapshot, line)}
        elif snapshot.kind == "task" and snapshot.waiting_for in DECISIONS:
            await self._add_asks(snapshot, shown, can_be_asked)
        return shown

    async def _add_asks(
        self, snapshot: Snapshot, shown: dict[str, Any], can_be_asked: bool
    ) -> None:
        """Say what a task asks; a client whose user can be asked gets the questions."""
        progress = await self.service.engine.progress(snapshot.id)
        for one in asks(snapshot, progress):
            text = self.service.redactor.text(task_replies.question(one))
            shown["statusMessage"] += f"; it asks {text}"
            if can_be_asked:
                shown["status"] = "input_required"
                requests = shown.setdefault("inputRequests", {})
                requests[f"ask-{one['n']}"] = _elicitation(
                    f"{snapshot.title[:80]} asks {text}", DECISION
                )

    async def update(self, task_id: str, responses: dict[str, Any]) -> None:
        """Bring an answer to who asked, a program or a task; to what is not asked now, it is passed."""
        snapshot = await self._task(task_id)
        for n, response in _numbered(responses).items():
            allow = decision(response)
            if allow is not None and snapshot.waiting_for in DECISIONS:
                await decided(self.service, snapshot.id, n, allow)
        answer: Any = responses.get(_question(snapshot)) if snapshot.needs_input else None
        if not isinstance(answer, dict) or answer.get("action") != "accept":  # pyright: ignore
            return
        content: Any = answer.get("content")  # pyright: ignore
        text: Any = content.get("text") if isinstance(content, dict) else None  # pyright: ignore
        if isinstance(text, str):
            await self.service.engine.send(snapshot.id, text or "\n")

    async def cancel(self, task_id: str) -> None:
        """Kill it; this, unlike a cancelled call, is what the user asked for.

        A task of agents is interrupted: what is done is kept, and engine_resume can go on.
        """
        snapshot = await self._task(task_id)
        engine = self.service.engine
        if not snapshot.done:
            with suppress(TenutoError):
                await (engine.interrupt if snapshot.kind == "task" else engine.kill)(snapshot.id)

    async def _task(self, task_id: str) -> Snapshot:
        if not is_id(task_id):
            raise NoTask
        try:
            return await self.service.engine.show(task_id)
        except UnknownExecution:
            raise NoTask from None

    async def _result(self, snapshot: Snapshot) -> dict[str, Any]:
        """Return what the call would have answered, had it waited to the end."""
        return as_result(await self.service.ended(snapshot.id))

    # Resources

    def resources(self) -> list[dict[str, Any]]:
        """Return those that are always there."""
        return RESOURCES

    def templates(self) -> list[dict[str, Any]]:
        """Return the templates of an execution's log and state."""
        return [
            {
                "uriTemplate": "exec://{id}/log",
                "name": "log",
                "title": "An execution's output",
                "description": "With timestamps; subscribe to hear of new output.",
                "mimeType": "text/plain",
            },
            {
                "uriTemplate": "exec://{id}/state",
                "name": "state",
                "title": "An execution's state",
                "description": "State, exit code, times, value; subscribe to hear of its end.",
                "mimeType": "application/json",
            },
        ]

    async def read(self, uri: str) -> list[dict[str, Any]]:
        """Return a log or a state; the log is cut as answers are, and says where it goes on."""
        if uri == REPORT:
            report = await self.service.engine.report()
            text = self.service.redactor.text(report.text())
            return [{"uri": uri, "mimeType": "text/plain", "text": text}]
        found = _URI.fullmatch(uri)
        if found is None:
            raise KeyError(uri)
        execution_id, part = found.groups()
        try:
            snapshot = await self.service.engine.read(execution_id)
        except TenutoError:
            raise KeyError(uri) from None
        if part == "log":
            page = await self.service.page(snapshot, START, True)
            return [{"uri": uri, "mimeType": "text/plain",
                     "text": self.service.redactor.text(page.text)}]  # fmt: skip
        state = plain(self.service.redactor.data(await self.service.facts(snapshot)))
        text = msgspec.json.encode(state).decode()
        return [{"uri": uri, "mimeType": "application/json", "text": text}]


def as_result(reply: Reply) -> dict[str, Any]:
    """Return an answer in the shape of a tool's result."""
    result: dict[str, Any] = {
        "content": [{"type": "text", "text": plain(reply.text)}],
        "structuredContent": plain(reply.data),
    }
    if reply.is_error:
        result["isError"] = True
    return result


def _seed(snapshot: Snapshot) -> dict[str, Any]:
    """Return what every view of a task has."""
    age_ms = snapshot.duration_s * 1000
    return {
        "taskId": snapshot.id,
        "status": "working",
        "statusMessage": f"{replies.state_words(snapshot)}, {snapshot.output_lines} lines of output",
        "createdAt": iso(snapshot.created_ns),
        "lastUpdatedAt": iso(snapshot.changed_ns or snapshot.created_ns),
        "ttlMs": None,
        "pollIntervalMs": int(min(max(_POLL_SOON_MS, age_ms / 10), _POLL_MOST_MS)),
    }


def _question(snapshot: Snapshot) -> str:
    """Return a key that stands for this one wait for input, as the extension asks."""
    return f"stdin-{snapshot.changed_ns}"


def _numbered(responses: dict[str, Any]) -> dict[int, Any]:
    """Return answers to a task's questions by their numbers."""
    found = {_ASK.fullmatch(key): value for key, value in responses.items()}
    return {int(match[1]): value for match, value in found.items() if match is not None}


def _asked(snapshot: Snapshot, line: str) -> dict[str, Any]:
    text = f"{snapshot.title[:80]} waits for input: {line or '(it says nothing)'}"
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "title": "Input", "description": "One line."}},
        "required": ["text"],
    }
    return _elicitation(text, schema)


def _elicitation(message: str, schema: dict[str, Any]) -> dict[str, Any]:
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}
