"""Reading what a request used out of its answer, as the bytes go by: whole JSON and event streams.

A reader is fed whatever comes, cut anywhere, and never fails on it. What the provider told is taken
as told; where an answer ended before its usage came, the output is estimated from the text that was
seen (four characters to a token), the input from the request, and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from tenuto.core.budget import COUNT_MOST, Tokens

_MOST = 64 * 1024 * 1024
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a return at the very end may be half of one
_MARKS = re.compile(rb'["\\{}]')


class Usage(msgspec.Struct, frozen=True):
    """What one request used, as far as its answer told."""

    tokens: Tokens = Tokens()
    model: str = ""
    hour_writes: int = 0
    """Tokens that went into the cache for an hour, which cost more; they are in `cache_write` too."""
    estimated: bool = False
    error: str = ""
    """What the answer said was wrong, where it did so after a good status."""


def tokens_of(chars: int) -> int:
    """Return about how many tokens so many characters are."""
    return -(-chars // 4)


class Events:
    """Splits a stream of server-sent events; each comes with its raw bytes and its data.

    An event or a line larger than any provider's is let by unread, in pieces, so that a stream
    without an end takes no memory without an end.
    """

    def __init__(self, most: int = _MOST) -> None:
        """Begin; `most` is what one event may hold."""
        self._most = most
        self._rest = (
            bytearray()
        )  # it grows in place: a long line is not copied for each piece of it
        self._raw: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0

    @property
    def held(self) -> int:
        """How many bytes wait for the end of their event."""
        return self._size + len(self._rest)

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the events that are complete now."""
        looked = max(0, len(self._rest) - 1)  # a return at its end may have got its other half
        self._rest += chunk
        if len(self._rest) > self._most:  # no line of a provider is so long
            yield self._unread()
            return
        at = 0
        found: list[tuple[int, int]] = [
            end.span() for end in _LINE_END.finditer(self._rest, looked)
        ]
        for begin, end in found:
            line, raw = bytes(self._rest[at:begin]), bytes(self._rest[at:end])
            at = end
            self._raw.append(raw)
            self._size += len(raw)
            if not line:
                yield self._take()
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            if self._size > self._most:
                yield b"".join(self._raw), b""
                self._raw, self._data, self._size = [], [], 0
        del self._rest[:at]

    def _unread(self) -> tuple[bytes, bytes]:
        event = b"".join(self._raw) + bytes(self._rest), b""
        self._raw, self._data, self._size = [], [], 0
        self._rest.clear()
        return event

    def _take(self) -> tuple[bytes, bytes]:
        event = b"".join(self._raw), b"\n".join(self._data)
        self._raw, self._data, self._size = [], [], 0
        return event

    def end(self) -> list[bytes]:
        """Return the data of what is left, though no empty line ends it."""
        left = [data for _, data in self.feed(b"\n")]  # a line without an end is one all the same
        return [*left, self._take()[1]]

    def remainder(self) -> bytes:
        """Return the bytes that no event was made of yet."""
        return b"".join(self._raw) + bytes(self._rest)


class Objects:
    """Splits a JSON array that comes in pieces into its objects."""

    def __init__(self) -> None:
        """Begin before the array."""
        self._rest = b""
        self._at = 0
        self._depth = 0
        self._in_text = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the objects that are complete now."""
        self._rest += chunk
        begin = 0
        while (mark := _MARKS.search(self._rest, self._at)) is not None:
            sign, self._at = mark.group(), mark.end()
            if sign == b"\\" and self._in_text:
                if self._at >= len(self._rest):
                    self._at -= 1  # what it escapes has not come yet
                    break
                self._at += 1
            elif sign == b'"':
                self._in_text = not self._in_text
            elif not self._in_text and sign == b"{":
                if self._depth == 0:
                    begin = mark.start()
                self._depth += 1
            elif not self._in_text and sign == b"}" and self._depth:
                self._depth -= 1
                if self._depth == 0:
                    yield self._rest[begin : self._at]
                    begin = self._at
        else:
            self._at = len(self._rest)
        if self._depth == 0:
            begin = self._at
        self._rest, self._at = self._rest[begin:], self._at - begin
        if len(self._rest) > _MOST:
            self._rest, self._at, self._depth, self._in_text = b"", 0, 0, False


class Reader:
    """Superclass of the dialects' readers: gathers usage, model, text and errors."""

    def __init__(self, kind: str) -> None:
        """Take how the answer comes: `events`, `array` or `whole`."""
        self.kind = kind
        self._events = Events()
        self._objects = Objects()
        self._whole: list[bytes] = []
        self._size = 0
        self.model = ""
        self.error = ""
        self.chars = 0
        self.input: int | None = None
        self.output: int | None = None
        self.cache_read = 0
        self.cache_write = 0
        self.hour_writes = 0
        self.told = False
        """The usage of the whole answer has been told."""
        self.final = False
        """Nothing comes any more that could change it."""

    def feed(self, chunk: bytes) -> None:
        """Take in some of the answer."""
        if self.kind == "events":
            for _, data in self._events.feed(chunk):
                self.take(data)
        elif self.kind == "array":
            for one in self._objects.feed(chunk):
                self.take(one)
        else:
            self._size += len(chunk)
            if self._size <= _MOST:
                self._whole.append(chunk)

    def take(self, data: bytes) -> None:
        """Take in one event, or one object."""
        if data == b"[DONE]":
            self.final = True
            return
        value = parsed(data)
        if value:
            self.read(value)

    def read(self, value: dict[str, Any]) -> None:
        """Read one event, object or whole answer; each dialect does."""
        raise NotImplementedError

    def read_whole(self, value: dict[str, Any]) -> None:
        """Read an answer that came at once."""
        self.read(value)

    def end(self, asked: int = 0) -> Usage:
        """Return what the request used; `asked` tokens are put in for input that was not told."""
        if self.kind == "events":
            for data in self._events.end():
                self.take(data)
        elif self.kind == "whole":
            value = parsed(b"".join(self._whole)) if self._size <= _MOST else {}
            if value:
                self.read_whole(value)
            else:
                self.chars += self._size
            self.told = bool(value)
        if self.error and self.input is None and self.output is None and not self.chars:
            return Usage(
                model=self.model, error=self.error
            )  # a refusal, in a stream: it used nothing
        told = self.told and self.input is not None and self.output is not None
        given = asked if self.input is None else self.input
        made = self.output or 0
        if not told:
            made = max(made, tokens_of(self.chars))
        tokens = Tokens(max(0, given), made, self.cache_read, self.cache_write)
        return Usage(tokens, self.model, self.hour_writes, not told, self.error)


class Closed(Reader):
    """Hears an answer that is packed in a way which only the client may know.

    It goes by the size, and takes each byte for a token: what is packed is about four times as much.
    """

    def __init__(self) -> None:
        """Begin."""
        super().__init__("closed")

    def feed(self, chunk: bytes) -> None:
        """Take in some of the answer."""
        self.chars += 4 * len(chunk)


def parsed(data: bytes) -> dict[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    if not data:
        return {}
    try:
        return mapping(msgspec.json.decode(data))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}


def mapping(value: Any) -> dict[str, Any]:
    """Return a value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def listing(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list, nothing for anything else."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", one) for one in items if isinstance(one, dict)]


def number(value: Any) -> int | None:
    """Return a count of tokens, or None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < COUNT_MOST else None


def length(value: Any) -> int:
    """Return how many characters a text has; nothing for anything else."""
    return len(value) if isinstance(value, str) else 0
