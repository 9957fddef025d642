"""What stands between a client and the scripted model, and lets some requests go wrong."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tenuto.testing.models import Model


class Status:
    """The request is refused."""

    def __init__(self, code: int, message: str = "No.", kind: str = "error") -> None:
        self.code = code
        body = {"type": "error", "error": {"type": kind, "message": message}}
        self.body = json.dumps(body).encode()


class Half:
    """The answer begins, and no more comes of it until `go` is set; then the connection ends."""

    def __init__(self, text: str = "The beginning", garbage: bytes = b"") -> None:
        self.text = text
        self.garbage = garbage
        self.begun = threading.Event()
        self.go = threading.Event()


Fault = Status | Half


class Faulty:
    """A model on loopback: each conversation request meets the next fault, then the real script."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.faults: list[Fault | None] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.paths: list[str] = []
        self._halves: list[Half] = []
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"faulty": self})
        )
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def meet(self, *faults: Fault | None) -> None:
        """Say what the next requests meet; None is none."""
        self.faults = list(faults)
        self._halves += [one for one in faults if isinstance(one, Half)]

    def next(self, path: str, key: str, given: dict[str, Any]) -> Fault | None:
        self.paths.append(path)
        self.keys.append(key)
        if not given.get("tools"):
            return None
        self.requests.append(given)
        return self.faults.pop(0) if self.faults else None

    def close(self) -> None:
        for half in self._halves:
            half.go.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _pieces(given: dict[str, Any], text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    message = {
        "id": "msg_half", "type": "message", "role": "assistant", "model": given["model"],
        "content": [], "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": 700, "output_tokens": 1},
    }  # fmt: skip
    yield "message_start", {"message": message}
    yield "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}
    yield "content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faulty: Faulty

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self._reply(200, b"", "text/plain")

    def do_GET(self) -> None:
        self._reply(200, b'{"object": "list", "data": []}', "application/json")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        key = self.headers.get("x-api-key") or self.headers.get("authorization") or ""
        fault = self.faulty.next(self.path, key, json.loads(body or b"{}"))
        try:
            if isinstance(fault, Status):
                self._reply(fault.code, fault.body, "application/json")
            elif fault is not None:
                self._half(fault, json.loads(body))
            else:
                self._forward(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client went

    def _forward(self, body: bytes) -> None:
        path = self.path.removeprefix("/anthropic").removeprefix("/openai")
        request = urllib.request.Request(self.faulty.model.url + path, body)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request) as answer:
            self._reply(answer.status, answer.read(), answer.headers["content-type"])

    def _half(self, half: Half, given: dict[str, Any]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for name, data in _pieces(given, half.text):
            line = json.dumps({"type": name, **data})
            self.wfile.write(f"event: {name}\ndata: {line}\n\n".encode())
        self.wfile.write(half.garbage)
        self.wfile.flush()
        half.begun.set()
        half.go.wait(60)

    def _reply(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
