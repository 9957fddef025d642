"""A client that speaks the raw wire to a real server process, in any protocol version."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60.0
HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
VERSIONS = (*HANDSHAKE, MODERN)


def slow(value: str) -> Any:
    """Return a parameter that is left to the slow lane: others of its kind are not."""
    return pytest.param(value, marks=pytest.mark.full)


META = "io.modelcontextprotocol/"
TASKS = META + "tasks"


class Failed(Exception):
    """The server answered with a JSON-RPC error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code = error["code"]
        self.error = error


class Wire:
    """One server process; every line it ever wrote to stdout was JSON-RPC, or reading fails."""

    def __init__(
        self, place: Place, version: str = MODERN, capabilities: dict[str, Any] | None = None
    ) -> None:
        self.version = version
        self.capabilities = capabilities or {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tenuto.cli.main", "mcp"],
            cwd=place.folder,
            env=place.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.notices: queue.Queue[dict[str, Any]] = queue.Queue()
        self.lines: list[bytes] = []
        self.errors: list[bytes] = []
        self._answers: dict[Any, dict[str, Any]] = {}
        self._bell = threading.Condition()
        self._number = 0
        self.ended = False
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._noise)]
        for thread in self._threads:
            thread.start()
        if version != MODERN:
            self.greet()

    def greet(self) -> dict[str, Any]:
        result = self.request(
            "initialize",
            protocolVersion=self.version,
            capabilities=self.capabilities,
            clientInfo={"name": "test", "version": "1"},
        )
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            message = json.loads(line)
            with self._bell:
                if "id" in message and ("result" in message or "error" in message):
                    assert message["id"] not in self._answers, f"answered twice: {line!r}"
                    self._answers[message["id"]] = message
                else:
                    self.notices.put(message)
                self._bell.notify_all()
        with self._bell:
            self.ended = True
            self._bell.notify_all()

    def _noise(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)

    def send(self, message: Any) -> None:
        self.send_raw(json.dumps(message).encode() + b"\n")

    def send_raw(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def meta(self) -> dict[str, Any]:
        return {
            META + "protocolVersion": MODERN,
            META + "clientInfo": {"name": "test", "version": "1"},
            META + "clientCapabilities": self.capabilities,
        }

    def ask(self, method: str, /, **params: Any) -> int:
        """Send a request and return its number."""
        self._number += 1
        if self.version == MODERN:
            params["_meta"] = {**self.meta(), **params.get("_meta", {})}
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.send(message)
        return self._number

    def answer(self, number: Any, patience: float = PATIENCE) -> dict[str, Any]:
        limit = time.monotonic() + patience
        with self._bell:
            while number not in self._answers:
                left = limit - time.monotonic()
                if self.ended or left <= 0:
                    errors = b"".join(self.errors).decode()
                    raise AssertionError(f"no answer to {number}: {errors[-3000:]}")
                self._bell.wait(left)
            message = self._answers[number]
        if "error" in message:
            raise Failed(message["error"])
        return message["result"]

    def request(self, method: str, /, **params: Any) -> dict[str, Any]:
        return self.answer(self.ask(method, **params))

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        return self.request("tools/call", name=tool, arguments=arguments)

    def data(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Return a call's data; its text must be there as well."""
        result = self.call(tool, **arguments)
        assert text(result)
        return result["structuredContent"]

    def notice(self, method: str, patience: float = PATIENCE) -> dict[str, Any]:
        """Wait for a notification of a kind and return its params."""
        limit = time.monotonic() + patience
        while True:
            message = self.notices.get(timeout=max(0.01, limit - time.monotonic()))
            if message["method"] == method:
                return message["params"]

    def leave(self) -> int:
        """Close stdin, as a client that goes, and return the server's exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(PATIENCE)

    def close(self) -> None:
        for pipe in (self.process.stdin,):
            try:
                if pipe is not None and not pipe.closed:
                    pipe.close()
            except BrokenPipeError:
                pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(PATIENCE)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def text(result: dict[str, Any]) -> str:
    (content,) = result["content"]
    return content["text"]


class Place:
    """A project with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.home = folder / "home"
        self.folder.mkdir(parents=True)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TENUTO_", "XDG_", "PYTHONDONTWRITE"))
        }
        beside = os.path.dirname(sys.executable)
        self.env = {
            **kept,
            "TENUTO_HOME": str(self.home),
            "HOME": str(folder),
            "PATH": beside + os.pathsep + kept.get("PATH", os.defpath),
        }
        self.wires: list[Wire] = []

    def wire(self, version: str = MODERN, **more: Any) -> Wire:
        wire = Wire(self, version, **more)
        self.wires.append(wire)
        return wire

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tenuto.cli.main", *words],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def document(self, *words: str) -> Any:
        return json.loads(self.cli("--json", *words).stdout)

    def close(self) -> None:
        for wire in self.wires:
            wire.close()
        if self.home.exists():
            done = self.cli("kill", "--all")
            assert done.returncode == 0, done.stderr
        assert not self.strays()

    def strays(self) -> list[int]:
        marks = {f"TENUTO_EXECUTION={p.name}".encode() for p in self.home.glob("executions/*/*")}
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                variables = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if marks.intersection(variables):
                found.append(int(path.name))
        return found
