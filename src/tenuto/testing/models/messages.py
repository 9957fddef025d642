"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tenuto.core.budget import Tokens
from tenuto.testing.models.shapes import (
    Block,
    Dialect,
    Given,
    Piece,
    Read,
    Spoken,
    Turn,
    event,
    listed,
    mapped,
    named,
    new,
    texted,
)
from tenuto.testing.models.steps import Result, Tool

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def _read(given: Given) -> Read:
    tools = [
        Tool(str(one.get("name", "")), texted(one.get("description")), mapped(one.get("input_schema")))
        for one in listed(given.get("tools"))
    ]  # fmt: skip
    spoken = Spoken()
    results: list[Result] = []
    texts: list[str] = []
    for message in listed(given.get("messages")):
        if message.get("role") == "assistant":
            spoken.said()
            continue
        spoken.heard()
        content = message.get("content")
        if isinstance(content, str):
            texts.append(content)
        for block in listed(content):
            if block.get("type") == "tool_result":
                failed = bool(block.get("is_error"))
                call_id = str(block.get("tool_use_id", ""))
                results.append(Result(call_id, texted(block.get("content")), failed))
            elif block.get("type") == "text":
                texts.append(texted(block))
    return Read(named(tools), spoken.times, results, texts, texted(given.get("system")))


def _usage(tokens: Tokens) -> Given:
    return {
        "input_tokens": tokens.input,
        "cache_creation_input_tokens": tokens.cache_write,
        "cache_read_input_tokens": tokens.cache_read,
        "output_tokens": tokens.output,
    }


def _message(turn: Turn, content: list[Given], stop: str | None, tokens: Tokens) -> Given:
    return {
        "id": new("msg"), "type": "message", "role": "assistant", "model": turn.model,
        "content": content, "stop_reason": stop, "stop_sequence": None, "usage": _usage(tokens),
    }  # fmt: skip


def _stop(turn: Turn) -> str:
    return "tool_use" if turn.calls else "end_turn"


def _opened(block: Block) -> Given:
    if block.kind == "call":
        return {"type": "tool_use", "id": block.id, "name": block.tool.name, "input": {}}
    if block.kind == "thought":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _delta(block: Block, piece: str) -> Given:
    if block.kind == "call":
        return {"type": "input_json_delta", "partial_json": piece}
    if block.kind == "thought":
        return {"type": "thinking_delta", "thinking": piece}
    return {"type": "text_delta", "text": piece}


def _closed(block: Block) -> Given:
    if block.kind == "call":
        return {**_opened(block), "input": block.arguments}
    if block.kind == "thought":
        return {"type": "thinking", "thinking": block.text, "signature": "c2NyaXB0ZWQ="}
    return {"type": "text", "text": block.text}


def _event(kind: str, chars: int = 0, **fields: object) -> Piece:
    return Piece(event({"type": kind, **fields}, kind), chars)


def _stream(turn: Turn, given: Given) -> Iterator[Piece]:
    del given
    yield _event("message_start", message=_message(turn, [], None, turn.sent(0)))
    yield _event("ping")
    for index, block in enumerate(turn.blocks):
        yield _event("content_block_start", index=index, content_block=_opened(block))
        for piece in block.pieces:
            delta = _delta(block, piece)
            yield _event("content_block_delta", len(piece), index=index, delta=delta)
        if block.kind == "thought":
            signed = {"type": "signature_delta", "signature": "c2NyaXB0ZWQ="}
            yield _event("content_block_delta", index=index, delta=signed)
        yield _event("content_block_stop", index=index)
    ended = {"stop_reason": _stop(turn), "stop_sequence": None}
    yield _event("message_delta", delta=ended, usage=_usage(turn.tokens))
    yield _event("message_stop")


def _whole(turn: Turn, given: Given) -> Given:
    del given
    return _message(turn, [_closed(block) for block in turn.blocks], _stop(turn), turn.tokens)


def _error(status: int, kind: str, message: str, pause: float | None) -> Given:
    del pause
    kind = kind or _KINDS.get(status, "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": new("req"),
    }


def _models(names: Iterable[str]) -> Given:
    data = [
        {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}
        for name in names
    ]
    ids = [one["id"] for one in data]
    ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return {"data": data, "has_more": False, **ends}


MESSAGES = Dialect(
    "anthropic",
    _read,
    _stream,
    _whole,
    _error,
    "prompt is too long: 205000 tokens > 200000 maximum",
    _models,
    thinks=True,
    writes_cache=True,
    floor=1,  # a stream's first event tells of one already
)
