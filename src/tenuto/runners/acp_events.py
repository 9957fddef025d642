"""What an ACP agent's messages mean: updates of a session become events of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, cast

import msgspec

from tenuto.core.history import known_cost
from tenuto.core.runs import (
    ErrorKind,
    Finished,
    Retried,
    RunEvent,
    Said,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.runners.acp_errors import kind_of
from tenuto.runners.acp_wire import inner

_STOPPED: dict[str, tuple[ErrorKind, str]] = {
    "refusal": ("bad_request", "the model refused to go on"),
    "max_tokens": ("context", "the model ran out of tokens before its answer was complete"),
    "max_turn_requests": ("turns", "the agent used up the requests that it may make in one turn"),
}

_BY_CATEGORY: dict[str, ErrorKind] = {
    "connection": "network", "access": "auth", "limit": "rate_limit", "request": "bad_request",
}  # fmt: skip


class Update(msgspec.Struct, rename="camel", omit_defaults=True):
    """A session update, as far as we read it; unknown fields and kinds pass unnoticed."""

    session_update: str
    content: Any = None
    tool_call_id: str = ""
    title: str | None = None
    name: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: Any = None
    raw_output: Any = None
    cost: dict[str, Any] | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class Tokens(msgspec.Struct, rename="camel", omit_defaults=True):
    """The usage in an answer to a prompt. Agents differ in whether the input has the cached."""

    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    thought_tokens: int | None = None
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None

    def used(self, model: str, cost: Decimal | None) -> Used:
        """Return it as an event; the input without what came from the cache, as the total tells."""
        read, wrote = self.cached_read_tokens or 0, self.cached_write_tokens or 0
        spoken = self.output_tokens
        fresh = self.input_tokens
        if read and self.total_tokens < fresh + spoken + read + wrote:
            fresh = max(0, fresh - read)
        return Used(model, fresh, spoken, read, wrote, cost)


class _Tool(msgspec.Struct):
    """A tool call as it is known so far."""

    name: str
    input: Any = None
    output: str = ""
    began: bool = False
    ended: bool = False
    kind: str = ""


class Listener:
    """Follows one session: which tools are under way, what was said last, what it has cost."""

    def __init__(self, *, new: bool) -> None:
        """Begin; a session that is taken up has a cost that we do not know yet."""
        self._tools: dict[str, _Tool] = {}
        self._paid: Decimal | None = Decimal(0) if new else None
        self._cost: Decimal | None = None
        self._text: list[str] = []
        self._before = ""
        self.refused = False
        """A tool was refused in this turn, and nothing was said since."""

    def begin(self) -> None:
        """Begin a turn."""
        self._text, self._before, self.refused = [], "", False
        self._cost = None

    @property
    def text(self) -> str:
        """What was said after the last tool, or before it if nothing was."""
        return "".join(self._text).strip() or self._before

    def hear(self, update: Update) -> Iterator[RunEvent]:
        """Yield what an update tells."""
        match update.session_update:
            case "agent_message_chunk":
                if text := plain(update.content):
                    self._text.append(text)
                    self.refused = False
                    yield Said(text)
            case "agent_thought_chunk":
                if text := plain(update.content):
                    yield Said(text, thought=True)
            case "tool_call" | "tool_call_update":
                yield from self._tool(update)
            case "usage_update":
                self._spent(update)
            case "session_info_update":
                failure = failure_in(update.meta)
                if failure.get("severity") == "warning" and failure.get("category") != "unknown":
                    yield Retried(str(failure.get("title", "")))
            case _:
                pass

    def recall(self, update: Update) -> None:
        """Learn from an update that is history: the cost so far, and nothing else."""
        if update.session_update == "usage_update":
            self._spent(update)
            self._paid = self._cost

    def asked(self, update: Update) -> tuple[_Tool, list[RunEvent]]:
        """Return the tool that a permission is asked for, and what is to be told first."""
        tool = self._known(update)
        return tool, list(self._begin(update.tool_call_id, tool))

    def _known(self, update: Update) -> _Tool:
        tool = self._tools.get(update.tool_call_id)
        if tool is None:
            tool = self._tools[update.tool_call_id] = _Tool(_name(update))
        tool.kind = update.kind or tool.kind
        if update.raw_input not in (None, {}, ""):
            tool.input = update.raw_input
        elif tool.input is None and update.title and update.title != tool.name:
            tool.input = {"title": update.title}
        tool.output += str(inner(update.meta, "terminal_output_delta").get("data", ""))
        return tool

    def _tool(self, update: Update) -> Iterator[RunEvent]:
        tool = self._known(update)
        over = update.status in ("completed", "failed")
        # agents announce a call before its input is complete: it is told once it is under way
        if over or update.status == "in_progress" or (update.status is None and tool.input):
            yield from self._begin(update.tool_call_id, tool)
        if over and not tool.ended:
            tool.ended = True
            output = output_of(update) or tool.output
            yield ToolEnded(update.tool_call_id, update.status == "completed", output)

    def _begin(self, tool_id: str, tool: _Tool) -> Iterator[RunEvent]:
        if not tool.began:
            tool.began = True
            self._before, self._text = self.text, []
            yield ToolBegan(tool_id, tool.name, tool.input)

    def _spent(self, update: Update) -> None:
        cost = update.cost or {}
        if cost.get("currency") in (None, "USD") and "amount" in cost:
            try:
                self._cost = known_cost(Decimal(str(cost["amount"])))
            except InvalidOperation:
                self._cost = None

    def usage(self, answer: dict[str, Any], model: str) -> Used | None:
        """Return what the turn used, as the agent tells in its answer."""
        cost = None
        if self._cost is not None:
            if self._paid is not None and self._cost > self._paid:  # 0 is told for "no idea"
                cost = self._cost - self._paid
            self._paid = self._cost
        given: Any = answer.get("usage")
        if not isinstance(given, dict):
            given = _quota(answer)
        try:
            return msgspec.convert(given, Tokens).used(model, cost) if given is not None else None
        except msgspec.ValidationError:
            return None

    def finished(self, stop: str, answer: dict[str, Any], interrupted: bool) -> Finished:
        """Return the last word for a reason to stop."""
        failure = failure_in(answer.get("_meta"))
        if failure.get("severity") == "error":
            said = str(failure.get("title", ""))
            kind, status = kind_of(0, said)
            if kind == "failed":
                kind = _BY_CATEGORY.get(str(failure.get("category")), kind)
            return Finished(False, self.text, kind, said, status, interrupted)
        gave_up = Finished(False, self.text, "permission", "a tool was refused and it gave up")
        if stop == "cancelled":  # by us; or by itself, as some do after a refusal
            stopped = Finished(False, self.text, message="interrupted", interrupted=True)
            return gave_up if self.refused and not interrupted else stopped
        if stop != "end_turn":
            kind, message = _STOPPED.get(
                stop, ("protocol", f"it stopped for a reason we do not know: {stop}")
            )
            return Finished(False, self.text, kind, message, interrupted=interrupted)
        return gave_up if self.refused else Finished(True, self.text)


def plain(content: Any) -> str:
    """Return the text in a block of content, or in a list of them."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(plain, cast("list[Any]", content))))
    if not isinstance(content, dict):
        return ""
    block = cast("dict[str, Any]", content)
    if block.get("type") == "content":
        return plain(block.get("content"))
    if block.get("type") == "diff":
        return f"edited {block.get('path', '')}"
    if block.get("type") == "resource":
        return plain({"type": "text", **cast("dict[str, Any]", block.get("resource") or {})})
    text = block.get("text")
    return text if isinstance(text, str) else ""


def output_of(update: Update) -> str:
    """Return what a tool gave back, as text."""
    if text := plain(update.content):
        return text
    raw = update.raw_output
    if isinstance(raw, dict):
        for name in ("output", "formatted_output", "aggregated_output", "stdout", "error"):
            value = cast("dict[str, Any]", raw).get(name)
            if isinstance(value, str):
                return value
    if raw is None or isinstance(raw, str):
        return raw or ""
    return json.dumps(raw, ensure_ascii=False)


def failure_in(meta: Any) -> dict[str, Any]:
    """Return the failure that codex-acp tells beside the protocol, which has no word for one."""
    return inner(meta, "jetbrains", "air", "sessionFailure")


def _name(update: Update) -> str:
    """Return a tool's name where it is told; else its title if that is one word; else its kind."""
    if update.name:
        return update.name
    for place in update.meta or {}:
        name = inner(update.meta, place).get("toolName")
        if isinstance(name, str):
            return name
    title = update.title or ""
    if (title and " " not in title) or update.kind in (None, "other"):
        return title or "tool"
    return update.kind


def _quota(answer: dict[str, Any]) -> dict[str, Any] | None:
    """Return the tokens as gemini tells them, beside the protocol."""
    count = inner(answer, "_meta", "quota", "token_count")
    if "input_tokens" not in count:
        return None
    return {
        "inputTokens": count["input_tokens"],
        "outputTokens": count.get("output_tokens", 0),
        "cachedReadTokens": count.get("cached_tokens"),
    }
