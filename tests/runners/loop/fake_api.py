"""Model APIs on loopback, in the test's own event loop: each request gets the next reply."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CUT = object()
"""The connection ends here, in the middle."""
HANG = object()
"""Nothing more comes, until the client goes."""


@dataclass
class Reply:
    pieces: list[Any]
    status: int = 200
    kind: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def fail(status: int, message: str = "no", /, **headers: str) -> Reply:
    body = {"type": "error", "error": {"type": "some_error", "message": message, "code": None}}
    fixed = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply([json.dumps(body).encode()], status, "application/json", fixed)


class Api:
    """Serves replies in order; `hung` is set when one hangs, `gone` when its client left."""

    def __init__(self) -> None:
        self.replies: list[Reply | Callable[[Request], Reply]] = []
        self.requests: list[Request] = []
        self.hung = asyncio.Event()
        self.gone = asyncio.Event()
        self.url = ""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    def play(self, *replies: Reply | Callable[[Request], Reply]) -> None:
        self.replies = list(replies)
        self.requests = []
        self.hung.clear()
        self.gone.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *rest = head.strip().split("\r\n")
        headers = {k.lower(): v for k, v in (one.split(": ", 1) for one in rest)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Request(first.split()[1], headers, json.loads(body) if body else {})
        self.requests.append(request)
        next_one = self.replies.pop(0) if self.replies else fail(400, "the script is over")
        reply = next_one(request) if callable(next_one) else next_one
        lines = [f"HTTP/1.1 {reply.status} X", f"content-type: {reply.kind}"]
        lines += ["transfer-encoding: chunked", "connection: close"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        for piece in reply.pieces:
            if piece is CUT:
                await writer.drain()
                writer.transport.abort()
                return
            if piece is HANG:
                self.hung.set()
                await reader.read()  # its end: the client went
                self.gone.set()
                return
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


_numbers = itertools.count()


def _new(name: str) -> str:
    return f"id_{next(_numbers)}_{name}"


def _sse(*events: dict[str, Any], named: bool = False) -> list[bytes]:
    return [
        (f"event: {one['type']}\n" if named else "").encode()
        + b"data: " + json.dumps(one).encode() + b"\n\n"
        for one in events
    ]  # fmt: skip


class Anthropic:
    model = "anthropic:claude-sonnet-5-5"
    path = "/anthropic/v1/messages"
    cache_write = 100

    @staticmethod
    def key(request: Request) -> str:
        given = request.headers
        return given.get("x-api-key") or given.get("authorization", "").removeprefix("Bearer ")

    @staticmethod
    def _reply(blocks: list[tuple[Any, list[Any]]], stop: str) -> Reply:
        usage = {"input_tokens": 700, "output_tokens": 1}
        usage |= {"cache_read_input_tokens": 200, "cache_creation_input_tokens": 100}
        message = {"id": "m", "type": "message", "role": "assistant", "content": []}
        message |= {"model": "claude-sonnet-5-5", "stop_reason": None, "usage": usage}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
        for index, (block, deltas) in enumerate(blocks):
            events.append({"type": "content_block_start", "index": index, "content_block": block})
            for delta in deltas:
                event = {"type": "content_block_delta", "index": index, "delta": delta}
                events.append(event)
            events.append({"type": "content_block_stop", "index": index})
        last = {"delta": {"stop_reason": stop}, "usage": {"output_tokens": 50}}
        events.append({"type": "message_delta", **last})
        events.append({"type": "message_stop"})
        return Reply(_sse(*events, named=True))

    @classmethod
    def text(cls, *pieces: str, stop: str = "end_turn", thought: str = "") -> Reply:
        deltas = [{"type": "text_delta", "text": one} for one in pieces]
        blocks: list[tuple[Any, list[Any]]] = [({"type": "text", "text": ""}, deltas)]
        if thought:
            think = [{"type": "thinking_delta", "thinking": thought}]
            think.append({"type": "signature_delta", "signature": "c2ln"})
            blocks.insert(0, ({"type": "thinking", "thinking": "", "signature": ""}, think))
        return cls._reply(blocks, stop)

    @classmethod
    def call(cls, *calls: tuple[str, dict[str, Any]]) -> Reply:
        blocks: list[tuple[Any, list[Any]]] = []
        for name, given in calls:
            block = {"type": "tool_use", "id": _new(name), "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(given)}
            blocks.append((block, [delta]))
        return cls._reply(blocks, "tool_use")


class Chat:
    model = "openai-chat:gpt-5.5"
    path = "/openai/v1/chat/completions"
    cache_write = 0

    @staticmethod
    def key(request: Request) -> str:
        return request.headers.get("authorization", "").removeprefix("Bearer ")

    @staticmethod
    def _reply(deltas: list[Any], stop: str) -> Reply:
        base = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "gpt-5.5"}
        choice = {"index": 0, "finish_reason": None}
        events = [{**base, "choices": [{**choice, "delta": one}]} for one in deltas]
        events.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": stop}]})
        usage = {"prompt_tokens": 900, "completion_tokens": 50, "total_tokens": 950}
        usage |= {"prompt_tokens_details": {"cached_tokens": 200}}
        events.append({**base, "choices": [], "usage": usage})
        return Reply([*_sse(*events), b"data: [DONE]\n\n"])

    @classmethod
    def text(cls, *pieces: str) -> Reply:
        return cls._reply([{"role": "assistant", "content": one} for one in pieces], "stop")

    @classmethod
    def call(cls, *calls: tuple[str, dict[str, Any]]) -> Reply:
        made = [
            {"index": number, "id": _new(name), "type": "function",
             "function": {"name": name, "arguments": json.dumps(given)}}
            for number, (name, given) in enumerate(calls)
        ]  # fmt: skip
        return cls._reply([{"role": "assistant", "tool_calls": made}], "tool_calls")


class Responses:
    model = "openai:gpt-5.5"
    path = "/openai/v1/responses"
    cache_write = 0
    key = Chat.key

    @staticmethod
    def _reply(items: list[tuple[Any, list[Any]]]) -> Reply:
        response = {"id": "resp_1", "object": "response", "created_at": 0, "model": "gpt-5.5"}
        events: list[Any] = [
            {"type": "response.created",
             "response": {**response, "status": "in_progress", "output": []}}
        ]  # fmt: skip
        for index, (item, deltas) in enumerate(items):
            empty = {**item, "content": []} if deltas else item
            at = {"output_index": index}
            events.append({"type": "response.output_item.added", **at, "item": empty})
            events += [{**one, **at, "item_id": item["id"]} for one in deltas]
            events.append({"type": "response.output_item.done", **at, "item": item})
        usage = {"input_tokens": 900, "output_tokens": 50, "total_tokens": 950}
        usage |= {"input_tokens_details": {"cached_tokens": 200}}
        usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
        output = [item for item, _ in items]
        done = {**response, "status": "completed", "output": output, "usage": usage}
        events.append({"type": "response.completed", "response": done})
        numbered = [{**one, "sequence_number": n} for n, one in enumerate(events)]
        return Reply(_sse(*numbered, named=True))

    @classmethod
    def text(cls, *pieces: str) -> Reply:
        content = [{"type": "output_text", "text": "".join(pieces), "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
        deltas = [
            {"type": "response.output_text.delta", "content_index": 0, "delta": one, "logprobs": []}
            for one in pieces
        ]
        return cls._reply([({**item, "content": content}, deltas)])

    @classmethod
    def call(cls, *calls: tuple[str, dict[str, Any]]) -> Reply:
        return cls._reply(
            [
                ({"type": "function_call", "id": _new("fc"), "call_id": _new(name),
                  "name": name, "arguments": json.dumps(given), "status": "completed"}, [])
                for number, (name, given) in enumerate(calls)
            ]
        )  # fmt: skip


class Google:
    model = "google:gemini-3-flash-preview"
    path = "/google/v1/models/gemini-3-flash-preview:streamGenerateContent"
    cache_write = 0

    @staticmethod
    def key(request: Request) -> str:
        return request.headers.get("x-goog-api-key", "")

    @staticmethod
    def _reply(parts: list[Any]) -> Reply:
        usage = {"promptTokenCount": 900, "candidatesTokenCount": 40, "thoughtsTokenCount": 10}
        usage |= {"totalTokenCount": 950, "cachedContentTokenCount": 200}
        events: list[Any] = []
        for number, part in enumerate(parts):
            one = {"content": {"role": "model", "parts": [part]}, "index": 0}
            if number == len(parts) - 1:
                one["finishReason"] = "STOP"
            event = {"candidates": [one], "modelVersion": "gemini-3-flash-preview"}
            event |= {"usageMetadata": usage, "responseId": "r"}
            events.append(event)
        return Reply(_sse(*events))

    @classmethod
    def text(cls, *pieces: str) -> Reply:
        return cls._reply([{"text": one} for one in pieces])

    @classmethod
    def call(cls, *calls: tuple[str, dict[str, Any]]) -> Reply:
        return cls._reply(
            [{"functionCall": {"name": name, "args": given}} for name, given in calls]
        )


DIALECTS = [Anthropic, Chat, Responses, Google]
