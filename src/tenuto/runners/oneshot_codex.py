"""`codex exec --json`: how it is started, and what its lines mean. Seen with 0.166.0."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from tenuto.core.runs import (
    ErrorKind,
    Finished,
    McpServer,
    Retried,
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

_OURS = "tenuto"
_LOOKING = ("output", "list", "engine_status")
_MARK = "TENUTO_EXECUTION"
TOKEN = "TENUTO_GATEWAY_TOKEN"
"""The variable in which it finds the gateway's token."""

_RETRY = re.compile(r"^Reconnecting\.\.\. ")
_NETWORK = re.compile(
    r"stream (disconnected|closed)|error sending request|connection|timed out|idle timeout", re.I
)
_COUNTS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_input_tokens",
    "output_tokens",
)


def codex_launch(path: str, request: RunRequest, session: str) -> Launch:
    """Return its command; the prompt comes on stdin."""
    words = [path, "exec"]
    words += ["resume", "--json"] if session else ["--json"]
    words += ["--skip-git-repo-check"]
    settings: list[str] = ["check_for_update_on_startup=false", "analytics.enabled=false"]
    env: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    if request.endpoint is not None:
        unset = KEYS
        env |= near() | {TOKEN: request.endpoint.token}
        provider = {
            "name": "Tenuto",
            "base_url": f"{request.endpoint.url}/openai/v1",
            "env_key": TOKEN,
            "wire_api": "responses",
            "request_max_retries": 3,
            "stream_max_retries": 3,
            "supports_websockets": False,
        }
        settings += ['model_provider="tenuto"', f"model_providers.tenuto={_toml(provider)}"]
    for server in request.mcp:
        settings.append(_server(server, env, request.bypass or request.unasked))
    if request.bypass:
        words += ["--dangerously-bypass-approvals-and-sandbox"]
    else:
        settings.append('sandbox_mode="workspace-write"')
        # else it leaves an empty .git and its like in /tmp, which others take for a repository
        settings.append("sandbox_workspace_write.exclude_slash_tmp=true")
    if request.model:
        words += ["--model", request.model]
    for setting in settings:
        words += ["-c", setting]
    env = {name: value for name, value in {**env, **request.env}.items() if name not in unset}
    return Launch([*words, *([session] if session else []), "-"], env, unset)


def _server(server: McpServer, env: dict[str, str], free: bool) -> str:
    """Return the setting for a server; its variables go through codex's own, off the command line.

    Nobody can be asked: without leave for everything, our tools that start something are not there.
    """
    shared = {n: v for n, v in server.env.items() if env.setdefault(n, v) == v}
    fields = {
        "command": server.command[0],
        "args": list(server.command[1:]),
        "env_vars": [*shared, _MARK],  # it passes on no other: the server must know whose it is
        "env": {n: v for n, v in server.env.items() if n not in shared},
        "default_tools_approval_mode": "approve",
    }
    if not free and server.name == _OURS:
        fields["enabled_tools"] = list(_LOOKING)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", server.name)  # it does not take quotes here
    return f"mcp_servers.{name}={_toml(fields)}"


def _toml(value: object) -> str:
    """Return a value as TOML has it inline."""
    if isinstance(value, Mapping):
        fields = (f"{json.dumps(str(k))}={_toml(v)}" for k, v in value.items())  # pyright: ignore
        return "{" + ",".join(fields) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_toml(one) for one in value) + "]"  # pyright: ignore
    return json.dumps(value)  # strings, numbers and booleans are the same in both


class CodexWords:
    """Reads the lines of one process."""

    def __init__(self, session: str, before: dict[str, int] | None) -> None:
        """Take what the session had used before, if that is known: codex tells its whole sum."""
        self.session = session
        self.total = before
        self._known = before
        self._text = ""
        self._begun: set[str] = set()

    def feed(self, fields: Fields) -> list[RunEvent]:
        """Return what a line means."""
        match read.text(fields, "type"):
            case "thread.started":
                self.session = read.text(fields, "thread_id") or self.session
                return [SessionOpened(self.session)] if self.session else []
            case "item.started" | "item.updated" | "item.completed" as when:
                return self._item(read.inner(fields, "item"), when == "item.completed")
            case "error":
                message = read.text(fields, "message")
                if _RETRY.match(message):
                    return [Retried(message, kinds.status_in(message))]
                return []  # the same comes as turn.failed
            case "turn.completed":
                used = self._used(read.inner(fields, "usage"))
                return [*used, Finished(ok=True, text=self._text)]
            case "turn.failed":
                return [_failed(read.text(read.inner(fields, "error"), "message"))]
            case _:
                return []

    def rest(self) -> list[RunEvent]:
        """Return nothing: what was used comes with the end of a turn, or not at all."""
        return []

    def verdict(self) -> Finished | None:
        """Return nothing: the end of the output says nothing."""
        return None

    def _item(self, item: Fields, done: bool) -> list[RunEvent]:
        key = read.text(item, "id")
        match read.text(item, "type"):
            case "agent_message":
                if not done:
                    return []
                self._text = read.text(item, "text")
                return [Said(self._text)]
            case "reasoning":
                return [Said(read.text(item, "text"), thought=True)] if done else []
            case "command_execution":
                name, given = "shell", {"command": read.text(item, "command")}
            case "mcp_tool_call":
                name = f"{read.text(item, 'server')}.{read.text(item, 'tool')}"
                given = item.get("arguments")
            case "file_change":
                name, given = "file_change", item.get("changes")
            case "web_search":
                name, given = "web_search", item.get("query")
            case _:
                return []  # `error` items among them: they are warnings
        told: list[RunEvent] = []
        if key not in self._begun:
            self._begun.add(key)
            told.append(ToolBegan(key, name, given))
        if done:
            ok = read.text(item, "status") in ("", "completed")
            told.append(ToolEnded(key, ok, _output(item)))
        return told

    def _used(self, usage: Fields) -> list[RunEvent]:
        total = {name: read.count(usage, name) for name in _COUNTS}
        known, self.total = self._known, total
        if known is None or not any(total.values()):
            return []  # taken up from elsewhere: what came before cannot be told from this turn
        now = {name: max(0, total[name] - known.get(name, 0)) for name in _COUNTS}
        cached, written = now["cached_input_tokens"], now["cache_write_input_tokens"]
        return [
            Used(
                input=max(0, now["input_tokens"] - cached - written),
                output=now["output_tokens"],
                cache_read=cached,
                cache_write=written,
            )
        ]


def _output(item: Fields) -> str:
    found = read.text(item, "aggregated_output") or read.flat(item.get("result"))
    return found or read.text(read.inner(item, "error"), "message")


def _failed(message: str) -> Finished:
    """Return how a turn failed, of which codex tells a text only."""
    body = read.decoded(message.encode("utf-8", "replace"))
    if body is not None:  # an answer of the server, as it came: it does so with a 400 only
        inner = read.inner(body, "error")
        message = read.text(inner, "message") or read.text(body, "detail") or message
        return Finished(ok=False, kind=kinds.of_status(400, message), message=message, status=400)
    otherwise: ErrorKind = "network" if _NETWORK.search(message) else "failed"
    return Finished(
        ok=False,
        kind=kinds.of_message(message, otherwise),
        message=message or "Codex gave no reason.",
        status=kinds.status_in(message),
    )
