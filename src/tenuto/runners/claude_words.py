"""What Claude Code says on its stdout, as the events of a turn.

Seen with 2.1.325, and made for what came before and may come after: unknown messages are nothing,
keys may be in any order, and only a `result` ends a turn.

- `subtype` of a result lies (an API error is a "success"): is_error and terminal_reason count.
- An `assistant` message comes once per block, before its final usage is known. That is in the
  stream of partial messages; both carry the message's id, and text is told only once.
- What went wrong with the API comes as an assistant message of the model `<synthetic>`.
"""

from __future__ import annotations

from tenuto.core.runs import (
    ErrorKind,
    Finished,
    Retried,
    RunEvent,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.runners import oneshot_kinds as kinds
from tenuto.runners import oneshot_lines as read
from tenuto.runners.oneshot_lines import Fields

_SYNTHETIC = "<synthetic>"
_ABORTED = ("aborted_streaming", "aborted_tools")
_BY_REASON: dict[str, ErrorKind] = {
    "max_turns": "turns",
    "budget_exhausted": "budget",
    "prompt_too_long": "context",
    "blocking_limit": "context",
    "rapid_refill_breaker": "context",
    "image_error": "bad_request",
}
# The name that Claude Code gives an error, for those without an HTTP status.
_BY_ERROR: dict[str, ErrorKind] = {
    "authentication_failed": "auth",
    "billing_error": "auth",
    "rate_limit": "rate_limit",
    "overloaded": "overloaded",
    "invalid_request": "bad_request",
    "model_not_found": "bad_request",
}
_COUNTS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


class Words:
    """Reads the messages of one process; `begin` before each prompt."""

    def __init__(self) -> None:
        """Begin with nothing read."""
        self.session = ""
        self.model = ""
        self._opened = False
        self.begin()

    def begin(self) -> None:
        """Get ready for the next turn."""
        self.interrupting = False
        self._usage: dict[str, dict[str, int]] = {}  # by message, until it is told
        self._models: dict[str, str] = {}
        self._counted: set[str] = set()
        self._streamed: set[str] = set()  # messages whose text came in pieces
        self._current: dict[str, str] = {}  # the message that streams, by its agent
        self._tools: set[str] = set()
        self._ended: set[str] = set()
        self._error = ""

    def feed(self, fields: Fields) -> list[RunEvent]:
        """Return what a message means; the last is Finished if it ends the turn."""
        match read.text(fields, "type"):
            case "system":
                return self._system(fields)
            case "stream_event":
                return self._stream(fields)
            case "assistant":
                return self._assistant(fields)
            case "user":
                return self._results(read.objects(read.inner(fields, "message"), "content"))
            case "result":
                return [*self.rest(), self._result(fields)]
            case _:
                return []

    def rest(self) -> list[RunEvent]:
        """Return the use of requests that ended without a last word: they were billed too."""
        return [event for key in list(self._usage) for event in self._count(key)]

    def verdict(self) -> Finished | None:
        """Return nothing: the end of the output says nothing."""
        return None

    def _system(self, fields: Fields) -> list[RunEvent]:
        match read.text(fields, "subtype"):
            case "init":
                self.session = read.text(fields, "session_id") or self.session
                self.model = read.text(fields, "model")
                if self._opened or not self.session:
                    return []
                self._opened = True
                version = read.text(fields, "claude_code_version")
                return [SessionOpened(self.session, self.model, version)]
            case "api_retry":
                status = read.status(fields, "error_status")
                attempt, most = read.count(fields, "attempt"), read.count(fields, "max_retries")
                error = read.text(fields, "error") or "unknown"
                return [Retried(f"{error}, retry {attempt} of {most}", status)]
            case _:
                return []

    # requests and what they used

    def _note(self, key: str, model: str, usage: Fields) -> None:
        """Keep the largest numbers: the ones at the start of a stream are not its last."""
        if not key or key in self._counted or model == _SYNTHETIC:
            return
        known = self._usage.setdefault(key, dict.fromkeys(_COUNTS, 0))
        for name in _COUNTS:
            known[name] = max(known[name], read.count(usage, name))
        if model:
            self._models[key] = model

    def _count(self, key: str) -> list[RunEvent]:
        known = self._usage.pop(key, None)
        if known is None:
            return []
        self._counted.add(key)
        return [
            Used(
                model=self._models.get(key, ""),
                input=known["input_tokens"],
                output=known["output_tokens"],
                cache_read=known["cache_read_input_tokens"],
                cache_write=known["cache_creation_input_tokens"],
            )
        ]

    # what the agent says and does

    def _stream(self, fields: Fields) -> list[RunEvent]:
        event = read.inner(fields, "event")
        agent = read.text(fields, "parent_tool_use_id")
        match read.text(event, "type"):
            case "message_start":
                message = read.inner(event, "message")
                key = read.text(message, "id")
                self._current[agent] = key
                self._streamed.add(key)
                self._note(key, read.text(message, "model"), read.inner(message, "usage"))
            case "message_delta":
                self._note(self._current.get(agent, ""), "", read.inner(event, "usage"))
            case "message_stop":
                return self._count(self._current.pop(agent, ""))
            case "content_block_delta" if not agent:
                delta = read.inner(event, "delta")
                for name, thought in (("text", False), ("thinking", True)):
                    if read.text(delta, "type") == f"{name}_delta" and read.text(delta, name):
                        return [Said(read.text(delta, name), thought)]
            case _:
                pass
        return []

    def _assistant(self, fields: Fields) -> list[RunEvent]:
        message = read.inner(fields, "message")
        if read.text(message, "model") == _SYNTHETIC:
            self._error = read.text(fields, "error") or self._error
            return []
        key = read.text(message, "id")
        self._note(key, read.text(message, "model"), read.inner(message, "usage"))
        # the text of an agent's own agents is theirs: it comes back as the result of a tool
        silent = bool(read.text(fields, "parent_tool_use_id")) or key in self._streamed
        told: list[RunEvent] = []
        for block in read.objects(message, "content"):
            match read.text(block, "type"):
                case "text" if not silent and read.text(block, "text"):
                    told.append(Said(read.text(block, "text")))
                case "thinking" if not silent and read.text(block, "thinking"):
                    told.append(Said(read.text(block, "thinking"), thought=True))
                case "tool_use" | "server_tool_use" | "mcp_tool_use":
                    told += self._tool(block)
                case _:
                    pass
        return told + self._results(read.objects(message, "content"))

    def _tool(self, block: Fields) -> list[RunEvent]:
        key = read.text(block, "id")
        if not key or key in self._tools:
            return []
        self._tools.add(key)
        return [ToolBegan(key, read.text(block, "name"), block.get("input"))]

    def _results(self, blocks: list[Fields]) -> list[RunEvent]:
        told: list[RunEvent] = []
        for block in blocks:
            key = read.text(block, "tool_use_id")
            if not key or not read.text(block, "type").endswith("tool_result"):
                continue
            if key not in self._ended:
                self._ended.add(key)
                failed = block.get("is_error") is True
                told.append(ToolEnded(key, not failed, read.flat(block.get("content"))))
        return told

    # the end of a turn

    def _result(self, fields: Fields) -> Finished:
        self.session = read.text(fields, "session_id") or self.session
        reason = read.text(fields, "terminal_reason")
        if not reason and read.text(fields, "subtype") == "error_max_turns":
            reason = "max_turns"  # before there were reasons
        failed = fields.get("is_error")
        said = read.text(fields, "result")
        if failed is False and reason in ("", "completed"):
            return Finished(ok=True, text=said)
        errors = "; ".join(read.texts(fields, "errors"))
        if reason in _ABORTED or (self.interrupting and failed is True and not reason):
            return Finished(ok=False, interrupted=True, message="The turn was interrupted.")
        if not isinstance(failed, bool):
            return Finished(
                ok=False, kind="protocol", message="Claude Code gave a result without is_error."
            )
        status = read.status(fields, "api_error_status")
        denied = bool(read.objects(fields, "permission_denials"))
        message = said or errors or f"Claude Code stopped: {reason or 'it gave no reason'}"
        return Finished(
            ok=False,
            kind=self._kind(reason, status, message, denied),
            message=message,
            status=status,
        )

    def _kind(self, reason: str, status: int | None, message: str, denied: bool) -> ErrorKind:
        if reason in _BY_REASON:
            return _BY_REASON[reason]
        if status is not None:
            return kinds.of_status(status, message)
        if self._error in _BY_ERROR:
            return _BY_ERROR[self._error]
        if reason == "api_error":
            return kinds.of_message(message, "network")
        return kinds.of_message(message, "permission" if denied else "failed")
