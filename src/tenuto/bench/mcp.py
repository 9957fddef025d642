"""The MCP server beside a bare server of the SDK: start-up, the cost of a call, many calls at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from tenuto.bench.place import Place
from tenuto.bench.startup import tenuto_words
from tenuto.bench.table import Row, median, none_of, times_at_most

# What anyone would write with the SDK: one tool that does nothing, and one that runs a program.
_BARE = """
import anyio, asyncio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
import mcp_types as types

async def tools(ctx, params):
    schema = {"type": "object"}
    return types.ListToolsResult(tools=[types.Tool(name="noop", input_schema=schema)])

async def call(ctx, params):
    text = "nothing"
    if params.name == "run":
        child = await asyncio.create_subprocess_exec("true", stdin=asyncio.subprocess.DEVNULL)
        text = str(await child.wait())
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

async def main():
    server = Server("bare", on_list_tools=tools, on_call_tool=call)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""
_META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
_HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


class Wire:
    """A server process and its two pipes."""

    def __init__(self, argv: list[str], folder: str, modern: bool = True) -> None:
        """Start it."""
        self._modern = modern
        self._number = 0
        self._process = subprocess.Popen(
            argv, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def send(self, method: str, **params: Any) -> int:
        """Send a request."""
        self._number += 1
        if self._modern:
            params["_meta"] = _META
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self._write(message)
        return self._number

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next answer."""
        assert self._process.stdout is not None
        while True:
            message: dict[str, Any] = json.loads(self._process.stdout.readline())
            if "id" in message:
                return message

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its answer."""
        self.send(method, **params)
        return self.receive()

    def greet(self) -> None:
        """Do what a client does first."""
        if self._modern:
            self.ask("server/discover")
            return
        self.ask("initialize", **_HELLO)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def close(self) -> None:
        """Leave, and wait for its end."""
        self._process.communicate()


def mcp(quick: bool) -> Iterator[Row]:
    """Measure `tenuto mcp` over stdio."""
    ours, bare = tenuto_words("mcp"), [sys.executable, "-c", _BARE]
    with Place() as place:
        yield from _start_up(ours, bare, place.folder, 3 if quick else 10)
        yield from _calls(ours, bare, place.folder, 50 if quick else 500)
        yield from _at_once(ours, place.folder, 3 if quick else 10)


def _start_up(ours: list[str], bare: list[str], folder: str, rounds: int) -> Iterator[Row]:
    for era, modern in (("2026-07-28", True), ("2025-11-25", False)):
        took: dict[str, list[float]] = {"ours": [], "bare": []}
        for _ in range(rounds):
            for name, argv in (("bare", bare), ("ours", ours)):
                begin = time.perf_counter()
                wire = Wire(argv, folder, modern)
                wire.greet()
                wire.ask("tools/list")
                took[name].append((time.perf_counter() - begin) * 1000)
                wire.close()
        what = f"spawn to first tools/list, {era}"
        yield times_at_most(what, median(took["ours"]), median(took["bare"]), 1.2)


def _calls(ours: list[str], bare: list[str], folder: str, rounds: int) -> Iterator[Row]:
    lists: dict[str, Any] = {"name": "execute", "arguments": {"action": "list_async_executions"}}
    runs: dict[str, Any] = {"name": "execute", "arguments": {"command": ["true"]}}
    noop: dict[str, Any] = {"name": "noop", "arguments": {}}
    run: dict[str, Any] = {"name": "run", "arguments": {}}
    one, other = Wire(ours, folder), Wire(bare, folder)
    try:
        for what, mine, theirs, count in (
            ("a call that starts nothing", lists, noop, rounds),
            ("a call that runs true", runs, run, rounds // 2),
        ):
            took: dict[str, list[float]] = {"ours": [], "bare": []}
            for number in range(count + 10):
                for name, wire, params in (("bare", other, theirs), ("ours", one, mine)):
                    begin = time.perf_counter()
                    answer = wire.ask("tools/call", **params)
                    if number >= 10 and "result" in answer:
                        took[name].append((time.perf_counter() - begin) * 1000)
            mine_p50, theirs_p50 = median(took["ours"]), median(took["bare"])
            if mine is lists:
                yield times_at_most(f"{what}, p50", mine_p50, theirs_p50, 1.5)
            else:  # the record, the keeper and the running list are what it buys
                yield Row(what=f"{what}, p50", ours=mine_p50, floor=theirs_p50)
    finally:
        one.close()
        other.close()


def _at_once(ours: list[str], folder: str, rounds: int) -> Iterator[Row]:
    wire = Wire(ours, folder)
    took: list[float] = []
    wrong = 0
    try:
        wire.ask("tools/call", name="execute", arguments={"command": ["true"]})  # it is warm then
        for number in range(rounds):
            begin = time.perf_counter()
            words = {
                wire.send("tools/call", name="execute", arguments={"command": ["echo", word]}): word
                for word in (f"{number}-{n}" for n in range(16))
            }
            for _ in words:
                answer = wire.receive()
                data = answer.get("result", {}).get("structuredContent", {})
                wrong += data.get("output") != words[answer["id"]]
            took.append((time.perf_counter() - begin) * 1000)
    finally:
        wire.close()
    yield Row(what="16 executes at once, all answered, p50", ours=median(took))
    yield none_of("  answers lost or mixed", wrong, "answers")
