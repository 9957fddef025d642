"""Google's generateContent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

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
    up,
)
from tenuto.testing.models.steps import Result, Tool

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    529: "UNAVAILABLE",
}


def _result(part: Given) -> Result:
    told = mapped(part.get("response"))
    call_id = str(part.get("id") or part.get("name") or "")
    for key in ("error", "output", "result", "return_value"):
        if isinstance(told.get(key), str):
            return Result(call_id, str(told[key]), key == "error")
    return Result(call_id, json.dumps(told), "error" in told)


def _tools(given: Given) -> dict[str, Tool]:
    tools: list[Tool] = []
    for group in listed(given.get("tools")):
        for one in listed(group.get("functionDeclarations") or group.get("function_declarations")):
            schema = one.get("parametersJsonSchema") or one.get("parameters_json_schema")
            schema = mapped(schema or one.get("parameters"))
            tools.append(Tool(str(one.get("name", "")), texted(one.get("description")), schema))
    return named(tools)


def _read(given: Given) -> Read:
    spoken = Spoken()
    results: list[Result] = []
    texts: list[str] = []
    for content in listed(given.get("contents")):
        if content.get("role") == "model":
            spoken.said()
            continue
        spoken.heard()
        for part in listed(content.get("parts")):
            if "functionResponse" in part:
                results.append(_result(mapped(part["functionResponse"])))
            elif "text" in part:
                texts.append(texted(part))
    system = mapped(given.get("systemInstruction") or given.get("system_instruction"))
    return Read(_tools(given), spoken.times, results, texts, texted(system.get("parts")))


def _usage(turn: Turn, tokens: Tokens) -> Given:
    """Return the usage; thoughts are told apart from the rest of the output."""
    thought = sum(len(block.text) for block in turn.blocks if block.kind == "thought")
    thoughts = min(tokens.output, up(turn.tokens.output * thought, turn.chars))
    asked = tokens.input + tokens.cache_read
    told: Given = {
        "promptTokenCount": asked,
        "candidatesTokenCount": tokens.output - thoughts,
        "totalTokenCount": asked + tokens.output,
    }
    if thoughts:
        told["thoughtsTokenCount"] = thoughts
    if tokens.cache_read:
        told["cachedContentTokenCount"] = tokens.cache_read
    return told


def _part(block: Block, text: str) -> Given:
    if block.kind == "call":
        return {"functionCall": {"id": block.id, "name": block.tool.name, "args": block.arguments}}
    return {"text": text, "thought": True} if block.kind == "thought" else {"text": text}


def _reply(turn: Turn, parts: list[Given], tokens: Tokens, reply_id: str, done: bool) -> Given:
    candidate: Given = {"content": {"role": "model", "parts": parts}, "index": 0}
    if done:
        candidate["finishReason"] = "STOP"
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(turn, tokens),
        "modelVersion": turn.model,
        "responseId": reply_id,
    }


def _stream(turn: Turn, given: Given) -> Iterator[Piece]:
    del given
    reply_id, sent = new("resp"), 0
    for block in turn.blocks:
        # the arguments of a call come in one piece here
        for piece in (block.text,) if block.kind == "call" else block.pieces:
            sent += len(piece)
            parts = [_part(block, piece)]
            yield Piece(event(_reply(turn, parts, turn.sent(sent), reply_id, False)), len(piece))
    yield Piece(event(_reply(turn, [{"text": ""}], turn.tokens, reply_id, True)))


def _whole(turn: Turn, given: Given) -> Given:
    del given
    parts = [_part(block, block.text) for block in turn.blocks]
    return _reply(turn, parts, turn.tokens, new("resp"), True)


def _error(status: int, kind: str, message: str, pause: float | None) -> Given:
    details: list[dict[str, Any]] = []
    if pause is not None:
        retry = "type.googleapis.com/google.rpc.RetryInfo"
        details.append({"@type": retry, "retryDelay": f"{pause:g}s"})
    word = kind or _STATUSES.get(status, "INTERNAL")
    told: Given = {"code": status, "message": message, "status": word}
    return {"error": {**told, "details": details} if details else told}


def _models(names: Iterable[str]) -> Given:
    ways = ["generateContent", "streamGenerateContent", "countTokens"]
    return {
        "models": [
            {
                "name": f"models/{name}", "displayName": name, "version": "1",
                "inputTokenLimit": 1048576, "outputTokenLimit": 65536,
                "supportedGenerationMethods": ways,
            }
            for name in names
        ]
    }  # fmt: skip


GOOGLE = Dialect(
    "google",
    _read,
    _stream,
    _whole,
    _error,
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    _models,
    thinks=True,
)
