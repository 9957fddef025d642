"""Passing one request on and its answer back, unbuffered, while a reader listens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from tenuto.metering.dialects import Ask, Dialect, kind_of_answer
from tenuto.metering.dialects.openai import hidden
from tenuto.metering.http import Request, Send, passed_back
from tenuto.metering.upstreams import Upstream
from tenuto.metering.usage import Closed, Events, Reader, Usage

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

Settle = Callable[[Usage, int], None]
_UNPACKED = frozenset({"", "identity"})
_UNPACKABLE = frozenset({*_UNPACKED, "gzip", "deflate"})


class Unreachable(Exception):
    """The upstream gave no answer at all."""

    def __init__(self, message: str, sent: bool) -> None:
        """Say why, and whether the request had reached it."""
        super().__init__(message)
        self.sent = sent


class Relay:
    """One request on its way."""

    def __init__(
        self, client: AsyncClient, upstream: Upstream, request: Request, below: str
    ) -> None:
        """Take what goes where; `below` is the path without the provider's name."""
        self._client = client
        self._upstream = upstream
        self._request = request
        raw = request.raw_path.lstrip("/").partition("/")[2]
        if below and raw.startswith("v1/") and request.path.lstrip("/").startswith("openai/"):
            raw = raw[3:]  # the base of that one has it already
        query = request.query_on()
        self._url = f"{upstream.url}/{raw}" + (f"?{query}" if query else "")
        self._reader: Reader | None = None
        self.status = 0
        """The upstream's, once it has answered."""
        self.cut = False
        """Its answer broke off."""

    def usage(self, asked: int) -> Usage:
        """Return what the request used, as far as it is known by now."""
        if self._reader is None:
            # errors cost nothing; of what was left before an answer began, nothing was told
            return Usage(estimated=not self.status)
        return self._reader.end(asked)

    async def plain(self, body: bytes, send: Send) -> None:
        """Pass on what costs nothing."""
        response = await self._open(body)
        try:
            await self._head(response, send, changed=_is_unpacked(response))
            async for chunk in _chunks(response):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except _errors():
            return  # cut short for the client as it was for us
        finally:
            await response.aclose()

    async def counted(
        self, ask: Ask, dialect: Dialect, send: Send, settle: Settle, asked: int
    ) -> None:
        """Pass on a request to a model; it is settled before the client sees the answer's end."""
        response = await self._open(ask.body)
        try:
            closed = not _ways(response) <= _UNPACKABLE
            if response.status_code < 400 and closed:
                self._reader = Closed()
            elif response.status_code < 400:
                content = response.headers.get("content-type", "").lower()
                self._reader = dialect.reader(kind_of_answer(dialect, content, ask.stream))
            hides_usage = ask.hides_usage and not closed
            await self._head(response, send, _is_unpacked(response) or hides_usage)
            listener = _Listener(self._reader, hides_usage)
            async for chunk in _chunks(response):
                out = listener.hear(chunk)
                if listener.final:
                    settle(self.usage(asked), self.status)
                if out:
                    await send({"type": "http.response.body", "body": out, "more_body": True})
            settle(self.usage(asked), self.status)
            await send({"type": "http.response.body", "body": listener.rest()})
        except _errors():
            self.cut = True  # settled by our caller with what is known; the client's ends here too
        finally:
            await response.aclose()

    async def _open(self, body: bytes) -> Response:
        import httpx2

        key = [(self._upstream.header, self._upstream.value)] if self._upstream.header else []
        headers = self._request.passed_on([*key, ("accept-encoding", "identity")])
        try:
            request = self._client.build_request(
                self._request.method, self._url, headers=headers, content=body or None
            )
            response = await self._client.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
            raise Unreachable(_unreached(self._upstream, error), sent=False) from error
        except httpx2.RequestError as error:
            raise Unreachable(_unreached(self._upstream, error), sent=True) from error
        self.status = response.status_code
        return response

    async def _head(self, response: Response, send: Send, changed: bool) -> None:
        headers = passed_back(response.headers.raw, changed)
        status = response.status_code
        await send({"type": "http.response.start", "status": status, "headers": headers})


class _Listener:
    """Lets an answer by while its reader hears it.

    What comes at once is passed on a piece late, so that it is settled before its last byte is seen;
    of a stream, only a chunk that the client had not asked for is held back.
    """

    def __init__(self, reader: Reader | None, hides_usage: bool) -> None:
        self._reader = reader
        self._late = reader is not None and reader.kind == "whole"
        self._before = b""
        self._events = Events() if hides_usage and reader is not None and not self._late else None

    @property
    def final(self) -> bool:
        """The answer has come to its last event."""
        return self._reader is not None and self._reader.final

    def hear(self, chunk: bytes) -> bytes:
        """Return what can be passed on now."""
        if self._reader is not None:
            self._reader.feed(chunk)
        if self._late:
            before, self._before = self._before, chunk
            return before
        if self._events is not None:
            return b"".join(raw for raw, data in self._events.feed(chunk) if not hidden(data))
        return chunk

    def rest(self) -> bytes:
        """Return what was held back to the end."""
        return self._before if self._events is None else self._events.remainder()


def _unreached(upstream: Upstream, error: Exception) -> str:
    why = str(error) or type(error).__name__
    return f"Tenuto gateway: {upstream.url} gave no answer: {why}"


def _ways(response: Response) -> set[str]:
    """Return how an answer is packed, in spite of our wish."""
    told = response.headers.get("content-encoding", "").lower()
    return {way.strip() for way in told.split(",")}


def _is_unpacked(response: Response) -> bool:
    """Tell whether it is packed in a way that we undo; in any other it passes as it is."""
    return not _ways(response) <= _UNPACKED and _ways(response) <= _UNPACKABLE


async def _chunks(response: Response) -> AsyncIterator[bytes]:
    """Yield the answer as it comes, unpacked if that can be done."""
    source = response.aiter_bytes() if _is_unpacked(response) else response.aiter_raw()
    async for chunk in source:
        yield chunk


def _errors() -> tuple[type[Exception], ...]:
    import httpx2

    found: Any = (httpx2.RequestError, httpx2.StreamError)
    return found
