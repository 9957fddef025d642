"""`opencode run --format json`: how it is started, and what its lines mean. Seen with 1.18.33.

It has no event for the end of a turn: the last step must have stopped by itself. Its exit code is 0
when a permission was refused, and 1 when it overcame an error.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any, cast

import msgspec

from tenuto.core.runs import (
    Finished,
    RunEvent,
    RunRequest,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.runners import oneshot_kinds as kinds
from tenuto.runners import oneshot_lines as read
from tenuto.runners.claude_command import KEYS, Launch, near
from tenuto.runners.oneshot_lines import Fields

_CONFIG = "OPENCODE_CONFIG_CONTENT"
_REJECTED = "rejected permission"


def opencode_launch(path: str, request: RunRequest, session: str) -> Launch:
    """Return its command; the prompt comes on stdin."""
    words = [path, "run", "--format", "json"]
    if session:
        words += ["--session", session]
    if request.model:
        words += ["--model", request.model]
    if request.bypass:
        words += ["--auto"]
    # by itself it asks for nothing; what it asks for is refused here, where nobody can answer
    verdict = "allow" if request.bypass or request.unasked else "ask"
    ours: Fields = {
        "autoupdate": False,
        "share": "disabled",
        "permission": dict.fromkeys(("edit", "bash", "webfetch"), verdict),
    }
    for server in request.mcp:
        ours["permission"][f"{server.name}_*"] = verdict
    unset: tuple[str, ...] = ()
    direct: dict[str, str] = {}
    if request.endpoint is not None:
        unset, direct = KEYS, near()
        key = request.endpoint.token
        ours["provider"] = {
            name: {"options": {"baseURL": request.endpoint.url + path, "apiKey": key}}
            for name, path in (
                ("anthropic", "/anthropic/v1"),
                ("openai", "/openai/v1"),
                ("google", "/google/v1beta"),
            )
        }
    if request.mcp:
        ours["mcp"] = {
            server.name: {
                "type": "local",
                "command": list(server.command),
                "environment": server.env,
                "enabled": True,
            }
            for server in request.mcp
        }
    given = read.decoded(request.env.get(_CONFIG, "").encode()) or {}
    env = {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        **request.env,
        **direct,
        _CONFIG: msgspec.json.encode(_merged(given, ours)).decode(),
        "PWD": request.cwd,  # it believes this, and not where it is
    }
    return Launch(words, {k: v for k, v in env.items() if k not in unset}, unset)


def _merged(one: Any, other: Any) -> Any:
    """Return two settings as one; the second wins."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return other
    first, second = cast(Fields, one), cast(Fields, other)
    both = {name: _merged(first[name], second[name]) for name in first if name in second}
    return {**first, **second, **both}


class OpenCodeWords:
    """Reads the lines of one process."""

    def __init__(self, session: str) -> None:
        """Take the session's id if it is known."""
        self.session = session
        self._opened = False
        self._text = ""
        self._reason = ""
        self._rejected = False
        self._failure: Finished | None = None
        self._ended: set[str] = set()

    def feed(self, fields: Fields) -> list[RunEvent]:
        """Return what a line means; none of them is the last word."""
        told: list[RunEvent] = []
        self.session = read.text(fields, "sessionID") or self.session
        if self.session and not self._opened:
            self._opened = True
            told.append(SessionOpened(self.session))
        part = read.inner(fields, "part")
        match read.text(fields, "type"):
            case "step_start":
                self._reason, self._text = "", ""
            case "text" if read.text(part, "text"):
                self._text += read.text(part, "text")
                told.append(Said(read.text(part, "text")))
            case "reasoning" if read.text(part, "text"):
                told.append(Said(read.text(part, "text"), thought=True))
            case "tool_use":
                told += self._tool(part)
            case "step_finish":
                self._reason, self._failure = read.text(part, "reason"), None
                told.append(_used(part))
            case "error":
                self._failure = _failed(read.inner(fields, "error"))
            case _:
                pass
        return told

    def rest(self) -> list[RunEvent]:
        """Return nothing."""
        return []

    def verdict(self) -> Finished | None:
        """Return how the turn ended: as its last step did."""
        if self._failure is not None:
            return self._failure
        if self._reason == "stop":
            return Finished(ok=True, text=self._text)
        if self._rejected:
            message = "OpenCode stopped: a tool was refused, and nobody can be asked in this mode."
            return Finished(ok=False, kind="permission", message=message)
        if self._reason and self._reason != "tool-calls":
            message = f"OpenCode's last step did not end by itself: {self._reason}"
            return Finished(ok=False, kind="failed", message=message)
        return None

    def _tool(self, part: Fields) -> list[RunEvent]:
        """Return both ends: a tool is told of when it has come back."""
        key, state = read.text(part, "callID"), read.inner(part, "state")
        if not key or key in self._ended:
            return []
        self._ended.add(key)
        error = read.text(state, "error")
        self._rejected = _REJECTED in error
        began = ToolBegan(key, read.text(part, "tool"), state.get("input"))
        ok = read.text(state, "status") == "completed"
        return [began, ToolEnded(key, ok, error or read.text(state, "output"))]


def _used(part: Fields) -> Used:
    tokens = read.inner(part, "tokens")
    cache = read.inner(tokens, "cache")
    return Used(
        input=read.count(tokens, "input"),
        output=read.count(tokens, "output") + read.count(tokens, "reasoning"),
        cache_read=read.count(cache, "read"),
        cache_write=read.count(cache, "write"),
        cost=_cost(part.get("cost")),
    )


def _cost(value: Any) -> Decimal | None:
    """Return what it believes it cost; it says 0 where it knows no price."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def _failed(error: Fields) -> Finished:
    data = read.inner(error, "data")
    message = read.text(data, "message") or read.text(error, "name") or "OpenCode gave no reason."
    status = read.status(data, "statusCode")
    name = read.text(error, "name")
    if name in ("ProviderAuthError",):
        return Finished(ok=False, kind="auth", message=message, status=status)
    if status is not None:
        return Finished(
            ok=False, kind=kinds.of_status(status, message), message=message, status=status
        )
    kind = kinds.of_message(message, "network" if name == "APIError" else "failed")
    return Finished(ok=False, kind=kind, message=message)
