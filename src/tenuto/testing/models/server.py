"""A model on loopback that follows a script, in the three dialects that the clients speak.

A script is a list of steps. Which one is next follows from the conversation that the client sends:
as many steps as the model has spoken before are done. A step is a call, a text, or a function that
makes one of them of what the model was shown, as a real model would. Every request is kept, so that
a test can look at what was really shown.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tenuto.testing.models import dialects

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_CURSOR = re.compile(r"cursor\W{1,6}(\d+(?:\+\d+)?)\b")


class Call:
    """The model calls one of our tools; the client's prefix is put before its name."""

    def __init__(self, tool: str, /, **arguments: Any) -> None:
        self.tool = tool
        self.arguments = arguments


Answer = Call | str


@dataclass
class Seen:
    """What a model is shown with one request."""

    tools: dict[str, dialects.Tool]
    spoken: int
    results: list[dialects.Result]
    texts: list[str]
    system: str
    raw: dict[str, Any] = field(repr=False, default_factory=dict)

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


Step = Answer | Callable[[Seen], Answer]


class Model:
    """Serves a script until it is closed."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.other: list[str] = []
        self.errors: list[str] = []
        self.steps: list[Step] = []
        self._bell = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def play(self, *steps: Step) -> None:
        """Begin a new script; what was shown before is forgotten."""
        with self._bell:
            self.steps, self.seen, self.errors = list(steps), [], []

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def shown(self) -> Seen:
        """What the model was shown last."""
        assert not self.errors, self.errors
        assert self.seen, f"the client asked no model: {self.other}"
        return self.seen[-1]

    @property
    def results(self) -> list[str]:
        """All results of tools that the model was shown."""
        return [one.text for one in self.shown.results]

    def until(self, wanted: Callable[[Seen], bool], patience: float = 60.0) -> Seen:
        """Wait until a request shows something."""
        with self._bell:
            for_it: list[Seen] = []

            def there() -> bool:
                for_it[:] = [one for one in self.seen if wanted(one)]
                return bool(for_it or self.errors)

            assert self._bell.wait_for(there, patience), f"never shown; last: {self.seen[-1:]}"
            assert not self.errors, self.errors
            return for_it[0]

    def answer(self, seen: Seen) -> Answer:
        """Return what the script says next."""
        with self._bell:
            self.seen.append(seen)
            self._bell.notify_all()
            if seen.spoken >= len(self.steps):
                return "That is all."
            step = self.steps[seen.spoken]
            try:
                answer = step(seen) if callable(step) else step
                if isinstance(answer, Call) and answer.tool not in seen.tools:
                    raise AssertionError(f"no tool {answer.tool} among {sorted(seen.tools)}")
                return answer
            except Exception as error:
                self.errors.append(f"step {seen.spoken}: {error!r}")
                self._bell.notify_all()
                return "The script failed."


def _handler(model: Model) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            return

        def do_HEAD(self) -> None:
            self._reply(200, b"")

        def do_GET(self) -> None:
            model.other.append(f"GET {self.path}")
            self._reply(200, b'{"object": "list", "data": []}')

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.partition("?")[0]
            dialect = dialects.BY_PATH.get(path)
            if dialect is None:
                model.other.append(f"POST {self.path} {body[:200]!r}")
                self._reply(404, b'{"error": {"message": "not here", "type": "not_found"}}')
                return
            given = json.loads(body)
            tools, spoken, results, texts, system = dialect.read(given)
            if not tools:  # a title, a probe: not the conversation
                model.other.append(f"POST {self.path} {body[:200]!r}")
                self._stream(dialect.say(given, "A title"), given)
                return
            seen = Seen(tools, spoken, results, texts, system, given)
            answer = model.answer(seen)
            if isinstance(answer, str):
                self._stream(dialect.say(given, answer), given)
            else:
                tool = seen.tools[answer.tool]
                self._stream(dialect.call(given, tool, answer.arguments), given)

        def _stream(self, events: Iterable[bytes], given: dict[str, Any]) -> None:
            assert given.get("stream"), "only streams are served"
            self._reply(200, b"".join(events), "text/event-stream")

        def _reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
            try:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client went

    return Handler
