"""OpenAI's chat completions."""

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
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "unsupported_country_region_territory"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}


def _read(given: Given) -> Read:
    tools: list[Tool] = []
    for one in listed(given.get("tools")):
        about = mapped(one.get("function")) or mapped(one.get("custom"))
        schema = mapped(about.get("parameters"))
        tools.append(Tool(str(about.get("name", "")), texted(about.get("description")), schema))
    spoken = Spoken()
    results: list[Result] = []
    texts: list[str] = []
    system: list[str] = []
    for message in listed(given.get("messages")):
        text, role = texted(message.get("content")), message.get("role")
        if role == "assistant":
            spoken.said()
            continue
        spoken.heard()
        if role == "tool":
            results.append(Result(str(message.get("tool_call_id", "")), text))
        elif role in ("system", "developer"):
            system.append(text)
        else:
            texts.append(text)
    return Read(named(tools), spoken.times, results, texts, "\n".join(system))


def _usage(tokens: Tokens) -> Given:
    asked = tokens.input + tokens.cache_read
    return {
        "prompt_tokens": asked,
        "completion_tokens": tokens.output,
        "total_tokens": asked + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _deltas(block: Block, index: int) -> Iterator[tuple[Given, int]]:
    if block.kind == "text":
        for piece in block.pieces:
            yield {"content": piece}, len(piece)
        return
    function = {"name": block.tool.name, "arguments": ""}
    opened = {"index": index, "id": block.id, "type": "function", "function": function}
    yield {"tool_calls": [opened]}, 0
    for piece in block.pieces:
        yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, len(piece)


def _stop(turn: Turn) -> str:
    return "tool_calls" if turn.calls else "stop"


def _stream(turn: Turn, given: Given) -> Iterator[Piece]:
    # only who asks is told the usage; the other chunks say null then
    tells = bool(mapped(given.get("stream_options")).get("include_usage"))
    chunk: Given = {
        "id": new("chatcmpl"), "object": "chat.completion.chunk", "created": 0,
        "model": turn.model, **({"usage": None} if tells else {}),
    }  # fmt: skip

    def said(delta: Given, stop: str | None = None) -> bytes:
        return event({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]})

    yield Piece(said({"role": "assistant", "content": None if turn.calls else ""}))
    calls = 0
    for block in turn.blocks:
        for delta, chars in _deltas(block, calls):
            yield Piece(said(delta), chars)
        calls += block.kind == "call"
    yield Piece(said({}, _stop(turn)))
    if tells:
        yield Piece(event({**chunk, "choices": [], "usage": _usage(turn.tokens)}))
    yield Piece(b"data: [DONE]\n\n")


def _whole(turn: Turn, given: Given) -> Given:
    del given
    text = "".join(block.text for block in turn.blocks if block.kind == "text")
    message: Given = {"role": "assistant", "content": text or None, "refusal": None}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": block.id,
                "type": "function",
                "function": {"name": block.tool.name, "arguments": block.text},
            }
            for block in turn.blocks
            if block.kind == "call"
        ]
    return {
        "id": new("chatcmpl"), "object": "chat.completion", "created": 0, "model": turn.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _stop(turn)}],
        "usage": _usage(turn.tokens),
    }  # fmt: skip


def error(status: int, kind: str, message: str, pause: float | None) -> Given:
    """Return an error as OpenAI writes it."""
    del pause
    usual, code = _KINDS.get(status, ("server_error", None))
    if kind == "context_length_exceeded":
        usual, code, kind = "invalid_request_error", kind, ""
    return {"error": {"message": message, "type": kind or usual, "param": None, "code": code}}


def models(names: Iterable[str]) -> Given:
    """Return the list of models as OpenAI writes it."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "scripted"} for name in names]
    return {"object": "list", "data": data}


CHAT = Dialect(
    "openai-chat",
    _read,
    _stream,
    _whole,
    error,
    "This model's maximum context length is 128000 tokens. However, your messages resulted in "
    "130000 tokens. Please reduce the length of the messages.",
    models,
    overflow_kind="context_length_exceeded",
)
