"""What the dialects share: how a request is looked at, and what an answer is made of."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from tenuto.core.budget import Tokens
from tenuto.testing.models.steps import Call, Result, Say, Tool

Given = dict[str, Any]


class Piece(NamedTuple):
    """Bytes for the line, and the characters of texts and arguments that are in them."""

    data: bytes
    chars: int = 0


class Read(NamedTuple):
    """What stands in a request."""

    tools: dict[str, Tool]
    spoken: int
    results: list[Result]
    texts: list[str]
    system: str


@dataclass(frozen=True)
class Block:
    """A part of an answer, in pieces."""

    kind: Literal["text", "thought", "call"]
    pieces: tuple[str, ...]
    tool: Tool
    arguments: Given
    id: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class Turn:
    """An answer as a dialect writes it."""

    model: str
    blocks: tuple[Block, ...]
    tokens: Tokens
    """Of the whole answer."""
    floor: int = 0
    """Output that is billed as soon as the stream begins."""

    @property
    def chars(self) -> int:
        """The characters of all blocks."""
        return sum(len(block.text) for block in self.blocks)

    @property
    def calls(self) -> bool:
        """Whether a tool is called."""
        return any(block.kind == "call" for block in self.blocks)

    def sent(self, chars: int) -> Tokens:
        """Return what is billed once so many characters were sent."""
        told = self.tokens
        whole = self.chars
        part = told.output if chars >= whole else up(told.output * chars, whole)
        output = min(told.output, max(self.floor, part))
        return Tokens(told.input, output, told.cache_read, told.cache_write)


@dataclass(frozen=True)
class Dialect:
    """One provider's way to speak."""

    name: str
    read: Callable[[Given], Read]
    stream: Callable[[Turn, Given], Iterator[Piece]]
    whole: Callable[[Turn, Given], Given]
    error: Callable[[int, str, str, float | None], Given]
    """Of status, kind, message and the pause it asks for."""
    overflow: str
    """What it says of a request that is too long."""
    models: Callable[[Iterable[str]], Given]
    thinks: bool = False
    writes_cache: bool = False
    floor: int = 0
    overflow_kind: str = ""
    overflow_stream: Callable[[Given], Iterator[Piece]] | None = None


def up(number: int, by: int) -> int:
    """Divide, rounding up."""
    return -(-number // by) if by else 0


def event(data: Any, name: str = "") -> bytes:
    """Return one server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def new(prefix: str) -> str:
    """Return a new id."""
    return f"{prefix}_{uuid.uuid4().hex[:24]}"


def mapped(value: Any) -> Given:
    """Return an object, or an empty one in place of anything else."""
    return cast("Given", value) if isinstance(value, dict) else {}


def listed(value: Any) -> list[Given]:
    """Return the objects of a list; nothing of anything else."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Given", one) for one in items if isinstance(one, dict)]


def texted(content: Any) -> str:
    """Return the text of content, however it is wrapped."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(texted(one) for one in cast("list[Any]", content))
    inner = mapped(content)
    return texted(inner.get("text") or inner.get("content") or "") if inner else ""


def named(tools: list[Tool]) -> dict[str, Tool]:
    """Return tools by name; ours by the names that we gave them."""
    others = {tool.name: tool for tool in tools if not tool.own}
    return others | {tool.own: tool for tool in tools if tool.own}


class Spoken:
    """Counts how often the model has spoken: answers, not the items that they came in."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self.times = 0
        self._speaking = False
        self._marks: set[str] = set()

    def said(self, call_id: str = "") -> None:
        """Count an item of the model's; what stands beside it, or has its mark, is the same answer."""
        mark = call_id.rpartition("_")[0]
        mark = mark if "_" in mark else ""  # ours have two parts and a number; others none
        if not self._speaking and mark not in self._marks:
            self.times += 1
        if mark:
            self._marks.add(mark)
        self._speaking = True

    def heard(self) -> None:
        """Note that somebody else spoke."""
        self._speaking = False


def split(text: str, pieces: int) -> tuple[str, ...]:
    """Cut a text into about so many pieces, none of them empty unless it is."""
    size = max(1, up(len(text), max(1, pieces)))
    return tuple(text[at : at + size] for at in range(0, len(text), size)) or ("",)


def turn(dialect: Dialect, say: Say, tools: dict[str, Tool], model: str, request: str) -> Turn:
    """Return what a dialect is to write, and what it costs."""
    mark = new("call")
    plain = Tool("", "", {})
    blocks: list[Block] = []
    if say.thinking and dialect.thinks:
        blocks.append(Block("thought", split(say.thinking, say.pieces), plain, {}))
    for part in say.parts:
        if isinstance(part, Call):
            tool = tools[part.tool]
            words = json.dumps(part.arguments)
            if tool.kind == "custom":  # its input is no JSON
                words = str(part.arguments.get("input", ""))
            call_id = f"{mark}_{len(blocks)}"
            pieces = split(words, say.pieces)
            blocks.append(Block("call", pieces, tool, part.arguments, call_id))
        else:
            blocks.append(Block("text", split(part, say.pieces), plain, {}))
    tokens = say.usage
    if tokens is None:
        chars = sum(len(block.text) for block in blocks)
        counted = max(0, up(len(request), 4) - say.cache_read - say.cache_write)
        tokens = Tokens(counted, up(chars, 4), say.cache_read, say.cache_write)
    if not dialect.writes_cache and tokens.cache_write:  # billed there as any other input
        tokens = Tokens(tokens.input + tokens.cache_write, tokens.output, tokens.cache_read)
    return Turn(model, tuple(blocks), tokens, dialect.floor)
