"""What stands where the gateway does: it knows the gateway's paths, and a scripted model is behind it.

A test can make it refuse, or hold a request until the test lets go of it. Google's dialect is spoken
here, as far as one agent needs it.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tenuto.core.runs import Endpoint
from tenuto.testing.models import Call, Model, Say

TOKEN = "token-of-this-task"


class Front:
    """Serves until it is closed."""

    def __init__(self) -> None:
        self.model = Model()
        self.google: list[Any] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.tokens: set[str] = set()
        self.refusal: tuple[int, dict[str, Any]] | None = None
        self._held: threading.Event | None = None
        self._bell = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.endpoint = Endpoint(url, TOKEN)

    def play(self, *steps: Any) -> None:
        self.model.play(*steps)
        self.google = list(steps)
        self.refusal = None
        self.asked.clear()

    def refuse(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        """Answer everything with an error."""
        self.refusal = status, {"error": {"message": message, "type": kind, "code": status}}

    def hold(self) -> None:
        """Answer nothing until `let_go`."""
        self._held = threading.Event()

    def let_go(self) -> None:
        if self._held is not None:
            self._held.set()
        self._held = None

    def until_asked(self, times: int = 1) -> None:
        """Wait until so many requests of the conversation have come."""
        with self._bell:
            assert self._bell.wait_for(lambda: len(self.asked) >= times, 60)

    def note(self, path: str, given: dict[str, Any]) -> threading.Event | None:
        with self._bell:
            self.asked.append((path, given))
            self._bell.notify_all()
            return self._held

    def close(self) -> None:
        self.let_go()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.model.close()


def _google(steps: list[Any], given: dict[str, Any]) -> bytes:
    spoken = sum(one.get("role") == "model" for one in given.get("contents", []))
    step = steps[spoken] if spoken < len(steps) else "That is all."
    if isinstance(step, Say):
        (step,) = step.parts
    if isinstance(step, Call):
        part: dict[str, Any] = {"functionCall": {"name": step.tool, "args": step.arguments}}
    else:
        part = {"text": step}
    chunk = {
        "candidates": [
            {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
        ],
        "usageMetadata": {
            "promptTokenCount": 1000,
            "candidatesTokenCount": 50,
            "totalTokenCount": 1050,
        },
        "modelVersion": "scripted",
    }
    return f"data: {json.dumps(chunk)}\r\n\r\n".encode()


def _handler(front: Front) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            return

        def do_GET(self) -> None:
            self._reply(404, b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            given = json.loads(body)
            _, provider, path = self.path.split("/", 2)
            key = self.headers.get("x-goog-api-key") or self.headers.get("x-api-key")
            front.tokens.add(key or self.headers.get("authorization", "").removeprefix("Bearer "))
            if given.get("tools"):
                held = front.note(self.path, given)
                if held is not None:
                    held.wait(120)
            if front.refusal is not None:
                status, error = front.refusal
                self._reply(status, json.dumps(error).encode())
            elif provider == "google":
                if "streamGenerateContent" in path:
                    self._reply(200, _google(front.google, given), "text/event-stream")
                else:
                    self._reply(200, b'{"totalTokens": 10}')
            else:
                request = urllib.request.Request(
                    f"{front.model.url}/{path}", body, {"content-type": "application/json"}
                )
                with urllib.request.urlopen(request) as answer:
                    self._reply(answer.status, answer.read(), answer.headers["content-type"])

        def _reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
            try:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    return Handler
