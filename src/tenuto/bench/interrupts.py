"""How soon real agents stop: each runtime that is installed here, before a model that never answers.

An interrupt is acknowledged when the turn has ended and the session is ready for the next prompt. A
hard stop is over when nothing of the runtime's process tree lives. Agents get a home of their own,
and no request leaves the machine.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager

from tenuto.bench.place import Place
from tenuto.bench.table import Row, at_most, median
from tenuto.core.ports import AgentSession, Runner
from tenuto.core.runs import Endpoint, Finished, RunEvent, RunRequest
from tenuto.engine.driving.nursery import ExecutionNursery
from tenuto.engine.settings import load_settings
from tenuto.runners.registry import runner

_MODELS = {
    "claude-code": "claude-sonnet-4-5",
    "codex": "gpt-5.5",
    "open-code": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini-2.5-pro",
    "cli": "anthropic:claude-sonnet-4-5",
}
_SOON_MS = 100
_SLOW_MS = {"open-code": 1500}
"""What an interrupt may take; OpenCode takes its time, whoever asks."""
_GONE_MS = 1000
_KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")
_PATIENCE_S = 120.0

# says when an agent asks for the next step, and keeps it waiting; what has no tools is refused
_SILENT = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if b'"tools"' in body:
            sys.stdout.write("asked\\n")
            sys.stdout.flush()
            try:
                self.connection.recv(1)
            except OSError:
                pass
            self.close_connection = True
            return
        self.send_response(404)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    do_GET = do_POST
    def log_message(self, *words):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class _Silent:
    """The model that never answers, in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{port}"

    async def asked(self) -> None:
        """Wait until an agent asks for its next step."""
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"asked\n"


@asynccontextmanager
async def _silent() -> AsyncGenerator[_Silent]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SILENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield _Silent(process, int(await process.stdout.readline()))
    finally:
        process.kill()
        await process.wait()


def interrupts(quick: bool) -> Iterator[Row]:
    """Yield how soon the runtimes that are here stop."""
    programs = load_settings(os.getcwd(), os.environ)[0].programs
    with Place() as place:
        rows = asyncio.run(_all(place, programs, 1 if quick else 7))
    if not rows:
        names = ", ".join(_MODELS)
        yield Row(what="interrupt: runtimes found", ours=0, unit="", note=f"of {names}")
    yield from rows


async def _all(place: Place, programs: Mapping[str, str], times: int) -> list[Row]:
    home = os.path.join(place.base, "user")
    os.mkdir(home)
    own = {"HOME": home, **dict.fromkeys(_KEYS, "none")}
    own |= {f"XDG_{name}_HOME": os.path.join(home, name) for name in ("DATA", "CONFIG", "CACHE")}
    rows: list[Row] = []
    for name in _MODELS:
        found = runner(name, programs=programs, home=os.path.join(place.base, "agents"))
        probe = await found.probe({**os.environ, **own})
        if probe.available and found.capabilities.interrupt:
            async with _silent() as model:
                rows += await _one(place, name, found, own, model, times, probe.version)
    return rows


async def _one(
    place: Place,
    name: str,
    found: Runner,
    own: Mapping[str, str],
    model: _Silent,
    times: int,
    version: str,
) -> list[Row]:
    request = RunRequest(
        cwd=place.folder, model=_MODELS[name], env=dict(own), endpoint=Endpoint(model.url, "none")
    )
    engine = place.blocking()
    nursery = ExecutionNursery(engine, lambda _: None)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            session = await found.open(request, nursery)
            took = [await _interrupted(session, model) for _ in range(times)]
            gone = await _ended(session, model)
    finally:
        await nursery.close()
        engine.close()
    bound, note = _SLOW_MS.get(name, _SOON_MS), f"version {version}"
    return [
        at_most(f"interrupt: {name} acknowledges", median(took), bound, note=note),
        at_most(f"interrupt: {name} ended by force", gone, _GONE_MS),
    ]


async def _interrupted(session: AgentSession, model: _Silent) -> float:
    """Return how many milliseconds an interrupt takes, in the middle of a request."""
    turn = asyncio.create_task(_last(session))
    await model.asked()
    begin = time.perf_counter()
    await session.interrupt()
    end = await turn
    took = (time.perf_counter() - begin) * 1000
    assert isinstance(end, Finished)
    assert end.interrupted, end
    return took


async def _ended(session: AgentSession, model: _Silent) -> float:
    """Return how many milliseconds it takes to end the session in the middle of a request."""
    turn = asyncio.create_task(_last(session))
    await model.asked()
    begin = time.perf_counter()
    await session.close()
    took = (time.perf_counter() - begin) * 1000
    await turn
    return took


async def _last(session: AgentSession) -> RunEvent | None:
    last = None
    async for event in session.prompt("Wait for me."):
        last = event
    return last
