"""What the gateway needs of HTTP: a request as it came, answers as they go out, headers that pass."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

MOST_BODY = 64 * 1024 * 1024
_LOOPBACK = (b"127.0.0.1", b"localhost", b"[::1]")
_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
_KEYS = (b"x-api-key", b"authorization", b"x-goog-api-key")
# the gateway's own, and what would make another request of it than the one that was counted
_OURS = frozenset(
    [*_KEYS, *b"host content-length accept-encoding cookie x-http-method-override".split()]
)
# what every server reads alike: no fragment, and nothing packed that would be a path's own sign
_PLAIN_PATH = re.compile(
    r"(?:[A-Za-z0-9._~:@/+,=!$&'()*-]|%(?!00|2[35Ff]|3[BbFf]|5[Cc])[0-9A-Fa-f]{2})*"
)


class Gone(Exception):
    """The client has closed its connection."""


class TooLarge(Exception):
    """The request's body is larger than any that makes sense."""


class Request(msgspec.Struct, frozen=True):
    """A request as it came, but for its body."""

    method: str
    path: str
    raw_path: str
    query: str
    headers: Headers

    @classmethod
    def of(cls, scope: Scope) -> Request:
        """Return the request of an ASGI scope."""
        raw = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string", b"").decode("latin-1")
        return cls(scope["method"], scope["path"], raw.decode("latin-1"), query, scope["headers"])

    def header(self, name: bytes) -> bytes:
        """Return a header's value; nothing if it is missing or given twice."""
        found = [value for key, value in self.headers if key == name]
        return found[0] if len(found) == 1 else b""

    @property
    def foreign(self) -> str:
        """Why it cannot come from a program on this machine, if so: a browser's page sent it."""
        host = self.header(b"host").rsplit(b":", 1)
        if not host[0] or host[0].lower() not in _LOOPBACK:
            return "it was meant for another host"
        if any(key in (b"origin", b"sec-fetch-site") for key, _ in self.headers):
            return "it comes from a browser"
        return ""

    @property
    def ambiguous(self) -> bool:
        """Its path may mean another one to whoever it is passed on to than it does to us."""
        if not _PLAIN_PATH.fullmatch(self.raw_path):
            return True
        return any(part in (".", "..") for part in self.path.split("/"))

    def candidates(self) -> list[str]:
        """Return everything that may be a key, wherever providers have it."""
        found = [value.decode("latin-1") for key, value in self.headers if key in _KEYS]
        found = [one[7:].strip() if one[:7].lower() == "bearer " else one for one in found]
        if "key=" in self.query:
            found += [value for name, value in parse_qsl(self.query) if name == "key"]
        return found

    def passed_on(self, extra: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
        """Return the headers that go on, and those that are put in their place."""
        named = {word.strip().lower() for word in self.header(b"connection").split(b",")}
        kept = [
            (key, value)
            for key, value in self.headers
            if key not in _HOP and key not in _OURS and key not in named
        ]
        return kept + [(name.encode(), value.encode("latin-1")) for name, value in extra]

    def query_on(self) -> str:
        """Return the query without a key."""
        if "key=" not in self.query:
            return self.query
        pairs = parse_qsl(self.query, keep_blank_values=True)
        return urlencode([(name, value) for name, value in pairs if name != "key"])


async def body_of(receive: Receive) -> bytes:
    """Return the whole body; raises Gone or TooLarge."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        size += len(part)
        if size > MOST_BODY:
            raise TooLarge
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def until_gone(receive: Receive) -> None:
    """Return once the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_present(work: Awaitable[None], receive: Receive) -> bool:
    """Do some work for as long as the client is there; tell whether it was done."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finished = doing.done()
        if finished:
            doing.result()
        return finished
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def answer(
    send: Send, status: int, value: Any, extra: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a JSON answer."""
    body = msgspec.json.encode(value)
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def passed_back(headers: Iterable[tuple[bytes, bytes]], changed: bool) -> Headers:
    """Return an answer's headers as they go to the client; a changed body has another length."""
    kept = [(key.lower(), value) for key, value in headers]
    return [
        (key, value)
        for key, value in kept
        if key not in _HOP and not (changed and key in (b"content-length", b"content-encoding"))
    ]
