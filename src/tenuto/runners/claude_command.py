"""How Claude Code is started: its command line and its variables."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from tenuto.core.runs import Endpoint, McpServer, RunRequest

RETRIES = 3
"""How often it may try a request again by itself; its own default goes on for minutes."""

# Set by a Claude Code that we run inside of: a session of its own must not believe it is a part.
_INSIDE = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT")
# Other ways to a model, and other logins: with an endpoint there is one way, and one token.
_OTHER_WAYS = (
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_CUSTOM_HEADERS",
    "ANTHROPIC_UNIX_SOCKET",
    "CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN_FILE_DESCRIPTOR",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_USE_VERTEX",
)
KEYS = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "GOOGLE_GENERATIVE_AI_API_KEY",
    "OPENAI_API_KEY",
)
"""Real keys: with an endpoint a runtime, and every tool that it starts, is to see none of them."""

_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
}
_STEADY = {
    # its tools are there from the first turn, and not behind a search
    "ENABLE_TOOL_SEARCH": "false",
    # a stream that is cut is tried again as a stream: of a whole answer that is cut nobody can tell
    # what it used
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    # nothing of it works on between two prompts, and no turn begins that nobody asked for
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_CRON": "1",
}
# Tools that wait for a person, or for a later time.
_NOT_FOR_US = "AskUserQuestion,ScheduleWakeup"


class Launch(msgspec.Struct, frozen=True):
    """What a nursery is asked for."""

    argv: list[str]
    env: dict[str, str]
    unset: tuple[str, ...]


def quiet() -> dict[str, str]:
    """Return the variables under which it talks to nobody but its model."""
    return dict(_QUIET)


def fits(text: str) -> bool:
    """Tell whether a text may be a word of a command line: Linux takes 128 KiB."""
    return len(text.encode("utf-8", "replace")) < 100_000


def launch(program: str, request: RunRequest, *, control: bool, session: str = "") -> Launch:
    """Return how it is started: kept open under our control, or for one prompt on its stdin."""
    words = [program, "-p", "--output-format", "stream-json", "--verbose"]
    words += ["--include-partial-messages"]
    if control:
        words += ["--input-format", "stream-json", "--permission-prompt-tool", "stdio"]
    servers, hidden = _servers(request.mcp)
    words += ["--mcp-config", servers, "--strict-mcp-config"]
    words += ["--disallowedTools", _NOT_FOR_US]
    if session or request.session:
        words += ["--resume", session or request.session or ""]
    elif request.new_session:
        words += ["--session-id", request.new_session]
    if request.model:
        words += ["--model", request.model]
    if request.system and fits(request.system):
        words += ["--append-system-prompt", request.system]
    if request.max_turns is not None:
        words += ["--max-turns", str(request.max_turns)]
    if request.bypass and not (control and os.geteuid() == 0):
        words += ["--permission-mode", "bypassPermissions"]
    env = {**_QUIET, **_STEADY, "CLAUDE_CODE_MAX_RETRIES": str(RETRIES), **hidden, **request.env}
    unset = _INSIDE
    if request.endpoint is not None:
        words += ["--settings", _settings(request.endpoint)]
        env |= near() | {
            "ANTHROPIC_BASE_URL": _url(request.endpoint),
            "ANTHROPIC_API_KEY": request.endpoint.token,
        }
        unset += _OTHER_WAYS + tuple(name for name in KEYS if name != "ANTHROPIC_API_KEY")
    return Launch(words, {k: v for k, v in env.items() if k not in unset}, unset)


def _url(endpoint: Endpoint) -> str:
    return f"{endpoint.url}/anthropic"


def near() -> dict[str, str]:
    """Return the variables by which the gateway is reached past every proxy."""
    given = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    names = ",".join(filter(None, [given, "127.0.0.1", "localhost"]))
    return {"NO_PROXY": names, "no_proxy": names}


def _settings(endpoint: Endpoint) -> str:
    """Say the address as a setting too: variables in a user's settings file win over ours."""
    return msgspec.json.encode({"env": {"ANTHROPIC_BASE_URL": _url(endpoint)}}).decode()


def _servers(servers: tuple[McpServer, ...]) -> tuple[str, dict[str, str]]:
    """Return the servers as it wants them, and the variables that this refers to.

    A command line can be read by everybody on the machine, so values of variables are not on it;
    and `${…}` would be replaced there, so words with a dollar go the same way.
    """
    hidden: dict[str, str] = {}

    def hide(value: str) -> str:
        name = f"TENUTO_MCP_{len(hidden)}"
        hidden[name] = value
        return f"${{{name}}}"

    listed: dict[str, Any] = {}
    for server in servers:
        program, *rest = [hide(word) if "$" in word else word for word in server.command]
        env = {name: hide(value) for name, value in server.env.items()}
        listed[server.name] = {"type": "stdio", "command": program, "args": rest, "env": env}
    return msgspec.json.encode({"mcpServers": listed}).decode(), hidden
