"""What the driver asks of an agent and what an agent tells: the vocabulary of every runner.

A prompt is answered by events. `Finished` is always the last, comes exactly once, and alone says
whether the turn succeeded: no runner takes an exit code for an answer.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import msgspec

ErrorKind = Literal[
    "missing",  # the runtime is not installed
    "outdated",  # it is, but too old for what we need
    "auth",  # not logged in, or the key was refused
    "bad_request",  # the model refused the request itself
    "budget",  # our own gateway admitted no more
    "permission",  # a tool was refused, and the agent gave up
    "context",  # more than the model's window
    "rate_limit",  # 429
    "overloaded",  # 529 or 503
    "server",  # another 5xx
    "network",  # no connection, or a stream that was cut
    "protocol",  # what it said makes no sense
    "session",  # it has nothing left of the session that was to be taken up
    "crash",  # the process ended without its last word
    "turns",  # it used up the turns that it was given
    "failed",  # the agent itself said that it failed
]
TRANSIENT: frozenset[ErrorKind] = frozenset({"rate_limit", "overloaded", "server", "network"})
"""Kinds after which the same request may work a little later."""
NO_FALLBACK: frozenset[ErrorKind] = frozenset({"auth", "bad_request", "budget", "permission"})
"""Kinds after which another runtime is never tried: it would hide what its user must know."""

UsageGrain = Literal["request", "turn", "none"]


class Capabilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a runner can do; the driver asks for nothing else."""

    interrupt: bool = False
    """A turn can be stopped while its session stays open for the next prompt."""
    resume: bool = False
    """A session can be taken up in a new process, by its id."""
    permissions: bool = False
    """It asks before it uses a tool, and waits for our answer."""
    mcp: bool = False
    """It can be handed MCP servers."""
    system: bool = False
    """It takes a system prompt; else that text opens the first prompt."""
    metered: bool = False
    """It can be pointed at the metering gateway."""
    usage: UsageGrain = "none"
    """How finely it tells what it used."""
    turns: bool = False
    """It can be held to a number of requests for each prompt."""
    unasking: bool = False
    """It uses tools and can ask nobody: it is for tasks that allow all, and opens for no others."""


def cannot_ask(name: str) -> tuple[str, str]:
    """Return why a runtime is not taken that can ask nobody, and the way out."""
    return (
        f"{name} can ask nobody here before it uses a tool, and not everything is allowed",
        "let it use all tools with --permissions allow, or install what can ask (codex-acp)",
    )


class Probe(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was found when a runtime was looked for."""

    available: bool
    version: str = ""
    kind: ErrorKind | None = None
    """Why it is not available."""
    why: str = ""
    hint: str = ""
    unmetered: str = ""
    """Why its spend cannot be counted per request, if it cannot: a subscription login, say."""


class Endpoint(msgspec.Struct, frozen=True):
    """Where requests to models go: the gateway, under a token that tells whose they are.

    `url` has no path of a provider: `/anthropic`, `/openai/v1` and `/google` are below it.
    """

    url: str
    token: str


class McpServer(msgspec.Struct, frozen=True, omit_defaults=True):
    """An MCP server on stdio that the agent is handed."""

    name: str
    command: tuple[str, ...]
    env: dict[str, str] = {}


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is to be opened. The prompts come later, one after the other."""

    cwd: str
    model: str = ""
    """As the runtime names it; empty for its own default."""
    system: str = ""
    session: str | None = None
    """A session to take up again."""
    new_session: str = ""
    """A UUID for the new session, where the runtime lets us choose."""
    env: dict[str, str] = {}
    """Variables on top of the driver's own."""
    mcp: tuple[McpServer, ...] = ()
    endpoint: Endpoint | None = None
    bypass: bool = False
    """Let it use every tool without asking; only in a sandbox, or where the user said so."""
    unasked: bool = False
    """All it would ask for is allowed: a runtime that cannot ask may then use what needs a yes."""
    max_turns: int | None = None
    """How often it may ask its model for one prompt; None for as often as its budget allows."""
    title: str = ""


class RunEvent(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Superclass of what an agent tells."""


class SessionOpened(RunEvent, frozen=True, tag="session_opened"):
    """The session can be taken up by this id from here on."""

    session: str
    model: str = ""
    version: str = ""


class Said(RunEvent, frozen=True, tag="said"):
    """A piece of the agent's text, in order; thoughts are marked."""

    text: str
    thought: bool = False


class ToolBegan(RunEvent, frozen=True, tag="tool_began"):
    """The agent uses a tool."""

    id: str
    name: str
    input: Any = None


class ToolEnded(RunEvent, frozen=True, tag="tool_ended"):
    """The tool came back."""

    id: str
    ok: bool
    output: str = ""


class PermissionAsked(RunEvent, frozen=True, tag="permission_asked"):
    """The agent waits until `answer` is called with this id."""

    id: str
    tool: str
    input: Any = None
    detail: str = ""
    kind: str = ""
    """What it does, where the protocol says so: read, search, edit, execute, …; else empty."""


class Used(RunEvent, frozen=True, tag="used"):
    """Tokens, as the runtime tells them: input is without what came from the cache."""

    model: str = ""
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: Decimal | None = None
    """What the runtime believes it cost; for information only."""


class Retried(RunEvent, frozen=True, tag="retried"):
    """The runtime tries a request again by itself."""

    text: str = ""
    status: int | None = None


class Finished(RunEvent, frozen=True, tag="finished"):
    """The last word of a turn."""

    ok: bool
    text: str = ""
    """The agent's final answer."""
    kind: ErrorKind | None = None
    message: str = ""
    status: int | None = None
    """The HTTP status behind an error, where it is known."""
    interrupted: bool = False


class ChildEnd(msgspec.Struct, frozen=True):
    """How a runtime's process ended."""

    state: str
    exit_code: int | None
    detail: str = ""
