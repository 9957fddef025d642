"""What a script is made of, and what a model is shown: the words that tests are written in."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tenuto.core.budget import Tokens
from tenuto.testing.models.gates import Gate

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_CURSOR = re.compile(r"cursor\W{1,6}(\d+(?:\+\d+)?)\b")
_PREFIXES = ("mcp__tenuto__", "mcp_tenuto_", "tenuto_")
PIECES = 4
LONG = "This answer is long enough to be sent in several pieces, one after the other. " * 2


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Tool:
    """A tool as a client presents it."""

    name: str
    description: str
    schema: dict[str, Any] = field(repr=False)
    namespace: str = ""
    kind: str = "function"

    @property
    def own(self) -> str:
        """The name that we gave it, if it is ours."""
        if self.namespace == "mcp__tenuto":
            return self.name
        for prefix in _PREFIXES:
            if self.name.startswith(prefix):
                return self.name.removeprefix(prefix)
        return ""


@dataclass(frozen=True)
class Result:
    """A tool's result as a client presents it."""

    call_id: str
    text: str
    is_error: bool = False


@dataclass
class Seen:
    """What a model is shown with one request."""

    tools: dict[str, Tool]
    spoken: int
    results: list[Result]
    texts: list[str]
    system: str
    raw: dict[str, Any] = field(repr=False, default_factory=_nothing)
    dialect: str = ""
    model: str = ""
    stream: bool = False
    path: str = ""
    headers: dict[str, str] = field(repr=False, default_factory=dict[str, str])
    """With names in lower case."""

    @property
    def text(self) -> str:
        """The system prompt and all that the user said."""
        return "\n".join([self.system, *self.texts])

    @property
    def last(self) -> str:
        """The newest result of a tool."""
        return self.results[-1].text if self.results else ""

    @property
    def id(self) -> str:
        """The execution that the newest result, or notice, names first."""
        for text in [self.last, *reversed(self.texts)]:
            found = _ID.search(text)
            if found is not None:
                return found.group()
        raise AssertionError(f"no execution id in {self.last[:500]!r}")

    @property
    def cursor(self) -> str:
        """The cursor that the newest result gives."""
        found = _CURSOR.findall(self.last)
        assert found, f"no cursor in {self.last[:500]!r}"
        return found[-1]


class Call:
    """The model calls a tool; a client's prefix is put before the names of ours."""

    def __init__(self, tool: str, /, **arguments: Any) -> None:
        """Name the tool as the client presents it, or as we named it if it is ours."""
        self.tool = tool
        self.arguments = arguments

    def __repr__(self) -> str:
        return f"Call({self.tool!r}, **{self.arguments!r})"


class Say:
    """One answer: texts and calls, in order, in several pieces each.

    Without `usage` the answer is counted: input is the request's characters by four, output those of
    texts, thoughts and arguments that were sent, by four. `cache_read` and `cache_write` are taken
    out of the counted input, where the provider tells of such.
    """

    def __init__(
        self,
        *parts: str | Call,
        thinking: str = "",
        usage: Tokens | None = None,
        cache_read: int = 0,
        cache_write: int = 0,
        pieces: int = PIECES,
    ) -> None:
        """Take the parts; `thinking` comes before them, in the dialects that show thoughts."""
        self.parts = parts
        self.thinking = thinking
        self.usage = usage
        self.cache_read = cache_read
        self.cache_write = cache_write
        self.pieces = pieces

    def __repr__(self) -> str:
        return f"Say{self.parts!r}"


@dataclass(frozen=True)
class Fail:
    """An error in the provider's own shape, for so many requests. It bills nothing."""

    status: int
    message: str = "the scripted model fails here, as it was told to"
    kind: str = ""
    """The provider's word for it; empty for the usual one of the status."""
    retry_after: float | None = None
    times: int = 1


@dataclass(frozen=True)
class Overflow:
    """The provider's error for a request longer than the model's window."""

    times: int = 1


@dataclass(frozen=True)
class Garbage:
    """A good status, and then bytes that mean nothing. Its input is billed."""

    data: bytes = b'data: {"type": "mess\x00\xff<html>\n\n'
    times: int = 1


@dataclass(frozen=True)
class Cut:
    """The connection is dropped after so many pieces of an answer."""

    after: int = 1
    answer: str | Call | Say | Slow = LONG
    times: int = 1


@dataclass(frozen=True)
class Silence:
    """Nothing is answered until `release`, or until the client goes; then the script goes on."""

    gate: Gate = field(default_factory=Gate)
    times: int = 1

    def release(self) -> None:
        """Let the requests that wait here have the step that comes next."""
        self.gate.open()


@dataclass(frozen=True)
class Slow:
    """Each piece of an answer waits until the gate lets it through."""

    gate: Gate
    answer: str | Call | Say = LONG


Answer = str | Call | Say | Slow | Cut | Fail | Overflow | Garbage | Silence
Step = Answer | Callable[[Seen], Answer]
MUTE = (Fail, Overflow, Garbage, Cut, Silence)
"""Steps after which a client's conversation is no longer than before: it asks the same again."""
