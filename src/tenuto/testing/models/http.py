"""The line: requests are read, found their dialect, and answered piece by piece."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

from tenuto.core.budget import Tokens
from tenuto.testing.models.chat import CHAT
from tenuto.testing.models.gates import Gate, Gone, present
from tenuto.testing.models.google import GOOGLE
from tenuto.testing.models.messages import MESSAGES
from tenuto.testing.models.responses import RESPONSES
from tenuto.testing.models.scripts import spoken
from tenuto.testing.models.shapes import Dialect, Given, Piece, Turn, mapped, turn, up
from tenuto.testing.models.steps import (
    Answer,
    Cut,
    Fail,
    Garbage,
    Overflow,
    Seen,
    Silence,
    Slow,
)

if TYPE_CHECKING:
    from tenuto.testing.models.server import Model

_ENDS = (
    (re.compile(r"/messages$"), MESSAGES, "answer"),
    (re.compile(r"/messages/count_tokens$"), MESSAGES, "count"),
    (re.compile(r"/responses$"), RESPONSES, "answer"),
    (re.compile(r"/chat/completions$"), CHAT, "answer"),
    (re.compile(r"/models/([^/:]+):(?:stream)?[gG]enerateContent$"), GOOGLE, "answer"),
    (re.compile(r"/models/([^/:]+):countTokens$"), GOOGLE, "count"),
)
_LISTS = re.compile(r"/(v1beta|v1)?/?models(?:/([^/]+))?$")
_JSON = "application/json"


class Server(ThreadingHTTPServer):
    """Knows its connections, so that it can end them and wait for their threads."""

    daemon_threads = False
    block_on_close = True
    request_queue_size = 1024  # many clients may come at once, and none is to be refused

    def __init__(self, model: Model, port: int) -> None:
        """Listen on loopback."""
        self.model = model
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, and serve it in a thread of its own."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep what went wrong; clients that go are nothing wrong."""
        del request
        error = sys.exc_info()[1]
        if not isinstance(error, (OSError, Gone)):
            self.model.fault(f"serving {client_address}: {error!r}")

    def drop(self) -> None:
        """End every connection: whoever reads, writes or waits there comes to an end."""
        for one in list(self._connections):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "scripted-model"

    @property
    def model(self) -> Model:
        return cast("Server", self.server).model

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def do_HEAD(self) -> None:
        self._reply(200, b"")

    def do_GET(self) -> None:
        self.model.note(f"GET {self.path}")
        found = _LISTS.search(self.path.partition("?")[0])
        if found is None:
            self._reply(404, b'{"error": {"message": "not here", "type": "not_found"}}')
            return
        dialect = CHAT
        if found.group(1) == "v1beta" or "x-goog-api-key" in self.headers:
            dialect = GOOGLE
        elif "anthropic-version" in self.headers:
            dialect = MESSAGES
        one = found.group(2)
        listed = dialect.models([one] if one else self.model.names)
        rows = cast("list[Given]", listed.get("data") or listed.get("models") or [])
        self._document(200, rows[0] if one else listed)

    def do_POST(self) -> None:
        body = self._body()
        path = self.path.partition("?")[0]
        end = _end(path)
        if end is None:
            self.model.note(f"POST {self.path} {body[:200]!r}")
            self._reply(404, b'{"error": {"message": "not here", "type": "not_found"}}')
            return
        found, dialect, way = end
        text = body.decode("utf-8", "replace")
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            given = error
        if not isinstance(given, dict):
            self.model.fault(f"POST {self.path}: no JSON object: {body[:200]!r}")
            self._document(400, dialect.error(400, "", "the request is no JSON object", None))
            return
        given = mapped(cast("object", given))
        if way == "count":
            self.model.note(f"POST {self.path}")
            name = "totalTokens" if dialect is GOOGLE else "input_tokens"
            self._document(200, {name: up(len(text), 4)})
            return
        model, stream = str(given.get("model") or ""), bool(given.get("stream"))
        if dialect is GOOGLE:  # its paths say both
            model, stream = found.group(1), "stream" in found.group()
        self._ask(dialect, given, text, model, stream)

    def _ask(self, dialect: Dialect, given: Given, text: str, model: str, stream: bool) -> None:
        try:
            read = dialect.read(given)
        except Exception as error:  # whatever a client sends, it is told, and so is the test
            self.model.fault(f"POST {self.path}: {error!r}: {text[:200]!r}")
            self._document(400, dialect.error(400, "", f"the request is odd: {error!r}", None))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(*read, given, dialect.name, model, stream, self.path, headers)
        answer, scripted = self.model.answer(seen)
        if not scripted:
            self.model.note(f"POST {self.path} {text[:200]!r}")
        try:
            while isinstance(answer, Silence):
                answer.gate.wait(self.connection)
                answer = self.model.go_on(seen)
            _Reply(self, dialect, seen, text).send(answer)
        except (Gone, OSError):
            self.close_connection = True

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("transfer-encoding") or ""):
            size = self.headers.get("content-length") or "0"
            return self.rfile.read(int(size)) if size.isdigit() else b""
        body = b""
        while size := int(self.rfile.readline().split(b";")[0].strip() or b"0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _document(self, status: int, document: Given, **headers: str) -> None:
        self._reply(status, json.dumps(document).encode(), **headers)

    def _reply(self, status: int, body: bytes, kind: str = _JSON, **headers: str) -> None:
        try:
            self.start(status, kind, **{"content-length": str(len(body)), **headers})
            if self.command != "HEAD":
                self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client went

    def start(self, status: int, kind: str, **headers: str) -> None:
        """Send the head."""
        self.send_response(status)
        for name, value in {"content-type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()


def _end(path: str) -> tuple[re.Match[str], Dialect, str] | None:
    for pattern, dialect, way in _ENDS:
        found = pattern.search(path)
        if found is not None:
            return found, dialect, way
    return None


class _Reply:
    """Sends one answer, and keeps its bill."""

    def __init__(self, line: _Handler, dialect: Dialect, seen: Seen, request: str) -> None:
        self.line = line
        self.dialect = dialect
        self.seen = seen
        self.request = request
        self.books = line.model.books

    def send(self, answer: Answer) -> None:
        """Send it; raises Gone, or OSError, if the client goes before its end."""
        say = spoken(answer)
        if isinstance(answer, Fail):
            self._fail(answer)
        elif isinstance(answer, Overflow):
            self._overflow()
        elif isinstance(answer, Garbage):
            self._garbage(answer)
        elif say is not None:
            cut = answer.after if isinstance(answer, Cut) else None
            inner = answer.answer if isinstance(answer, Cut) else answer
            gate = inner.gate if isinstance(inner, Slow) else None
            said = turn(self.dialect, say, self.seen.tools, self.seen.model, self.request)
            (self._stream if self.seen.stream else self._whole)(said, gate, cut)

    def _error(self, status: int, kind: str, message: str, pause: float | None = None) -> None:
        headers = {} if pause is None else {"retry-after": f"{pause:g}"}
        document = self.dialect.error(status, kind, message, pause)
        body = json.dumps(document).encode()
        self.line.start(status, _JSON, **{"content-length": str(len(body)), **headers})
        self.line.wfile.write(body)

    def _fail(self, fail: Fail) -> None:
        self._error(fail.status, fail.kind, fail.message, fail.retry_after)

    def _overflow(self) -> None:
        told = self.dialect.overflow_stream
        if told is None or not self.seen.stream:
            self._error(400, self.dialect.overflow_kind, self.dialect.overflow)
            return
        self._start_stream()
        for piece in told(self.seen.raw):
            self._chunk(piece.data)
        self._chunk(b"")

    def _garbage(self, garbage: Garbage) -> None:
        self._open(Tokens(input=up(len(self.request), 4)))
        kind = "text/event-stream" if self.seen.stream else _JSON
        self.line.start(200, kind, **{"content-length": str(len(garbage.data))})
        self.line.wfile.write(garbage.data)

    def _open(self, tokens: Tokens) -> int:
        return self.books.open(self.dialect.name, self.seen.model, tokens)

    def _start_stream(self) -> None:
        self.line.start(200, "text/event-stream", **{"transfer-encoding": "chunked"})

    def _chunk(self, data: bytes) -> None:
        self.line.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _stream(self, said: Turn, gate: Gate | None, cut: int | None) -> None:
        present(self.line.connection)
        place = self._open(said.sent(0))
        self._start_stream()
        chars = sent = 0
        for piece, more in _ahead(self.dialect.stream(said, self.seen.raw)):
            if sent == cut and (sent or piece.chars):
                raise Gone  # by us: the line is closed where it stands
            if piece.chars and gate is not None:
                gate.wait(self.line.connection)
            present(self.line.connection)
            before = said.sent(chars)
            chars += piece.chars
            sent += bool(piece.chars)
            # the bill first: who has read the piece must find it there
            self.books.change(place, said.sent(chars), complete=not more)
            try:
                self._chunk(piece.data)
                if not more:
                    self._chunk(b"")
            except OSError:
                self.books.change(place, before)
                raise
        if cut is not None:
            self.line.model.fault(f"a cut after {cut} pieces, but there were {sent}")

    def _whole(self, said: Turn, gate: Gate | None, cut: int | None) -> None:
        if gate is not None:
            gate.wait(self.line.connection)
        present(self.line.connection)
        body = json.dumps(self.dialect.whole(said, self.seen.raw)).encode()
        place = self._open(said.tokens)
        self.line.start(200, _JSON, **{"content-length": str(len(body))})
        if cut is not None:
            self.line.wfile.write(body[: len(body) // 2])
            raise Gone
        self.books.change(place, said.tokens, complete=True)
        try:
            self.line.wfile.write(body)
        except OSError:
            self.books.change(place, said.tokens)
            raise


def _ahead(pieces: Iterator[Piece]) -> Iterator[tuple[Piece, bool]]:
    """Yield each piece with whether more follow."""
    last: Piece | None = None
    for piece in pieces:
        if last is not None:
            yield last, True
        last = piece
    if last is not None:
        yield last, False
