"""OpenAI's responses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from tenuto.core.budget import Tokens
from tenuto.testing.models.chat import error, models
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

_TOO_LONG = (
    "Your input exceeds the context window of this model. Please adjust your input and try again."
)


def _tools(offered: list[Given]) -> dict[str, Tool]:
    tools: list[Tool] = []
    for one in offered:
        inner = listed(one.get("tools")) if one.get("type") == "namespace" else []
        for tool in inner or [one]:
            kind = str(tool.get("type", "function"))
            about, schema = texted(tool.get("description")), mapped(tool.get("parameters"))
            space = str(one.get("name", "")) if inner else ""
            tools.append(Tool(str(tool.get("name") or kind), about, schema, space, kind))
    return named(tools)


def _read(given: Given) -> Read:
    asked = given.get("input")
    offered = listed(given.get("tools"))
    spoken = Spoken()
    results: list[Result] = []
    texts: list[str] = [asked] if isinstance(asked, str) else []
    system = [texted(given.get("instructions"))]
    for item in listed(asked):
        kind, role = str(item.get("type", "message")), item.get("role")
        if kind.endswith("_call") or role == "assistant":
            spoken.said(str(item.get("call_id", "")))
        elif kind == "reasoning":
            continue
        else:
            spoken.heard()
        if kind == "tool_search_output":
            offered += listed(item.get("tools"))  # found by a search: callable from now on
        elif kind in ("function_call_output", "custom_tool_call_output"):
            results.append(Result(str(item.get("call_id", "")), texted(item.get("output"))))
        elif kind == "message" and role == "user":
            texts.append(texted(item.get("content")))
        elif kind == "message" and role in ("system", "developer"):
            system.append(texted(item.get("content")))
    words = "\n".join(one for one in system if one)
    return Read(_tools(offered), spoken.times, results, texts, words)


def _usage(tokens: Tokens) -> Given:
    asked = tokens.input + tokens.cache_read
    return {
        "input_tokens": asked,
        "input_tokens_details": {"cached_tokens": tokens.cache_read},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": asked + tokens.output,
    }


def _item(block: Block, item_id: str, done: bool) -> Given:
    status = "completed" if done else "in_progress"
    if block.kind == "text":
        part: Given = {"type": "output_text", "text": block.text, "annotations": []}
        return {
            "type": "message", "id": item_id, "role": "assistant", "status": status,
            "content": [part] if done else [],
        }  # fmt: skip
    base: Given = {"id": item_id, "call_id": block.id, "status": status}
    name = block.tool.name
    if name == "tool_search":
        return {
            "type": "tool_search_call",
            **base,
            "execution": "client",
            "arguments": block.arguments,
        }
    words = block.text if done else ""
    if block.tool.kind == "custom":
        return {"type": "custom_tool_call", **base, "name": name, "input": words}
    item = {"type": "function_call", **base, "name": name, "arguments": words}
    return {**item, "namespace": block.tool.namespace} if block.tool.namespace else item


def _response(turn: Turn, given: Given) -> Given:
    return {
        "id": new("resp"), "object": "response", "created_at": 0, "model": turn.model,
        "status": "in_progress", "output": [], "error": None, "incomplete_details": None,
        "instructions": given.get("instructions"), "metadata": {}, "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "temperature": 1.0, "top_p": 1.0, "usage": None,
    }  # fmt: skip


def _text(block: Block, place: Given) -> Iterator[tuple[Given, int]]:
    part: Given = {"type": "output_text", "text": "", "annotations": []}
    place = {**place, "content_index": 0}
    told: Given = {**place, "logprobs": []}
    yield {"type": "response.content_part.added", **place, "part": part}, 0
    for piece in block.pieces:
        yield {"type": "response.output_text.delta", **told, "delta": piece}, len(piece)
    yield {"type": "response.output_text.done", **told, "text": block.text}, 0
    whole = {**part, "text": block.text}
    yield {"type": "response.content_part.done", **place, "part": whole}, 0


def _arguments(block: Block, place: Given) -> Iterator[tuple[Given, int]]:
    custom = block.tool.kind == "custom"
    kind = "custom_tool_call_input" if custom else "function_call_arguments"
    for piece in block.pieces:
        yield {"type": f"response.{kind}.delta", **place, "delta": piece}, len(piece)
    words = {"input" if custom else "arguments": block.text}
    yield {"type": f"response.{kind}.done", **place, "name": block.tool.name, **words}, 0


def _events(turn: Turn, given: Given) -> Iterator[tuple[Given, int]]:
    response = _response(turn, given)
    yield {"type": "response.created", "response": response}, 0
    yield {"type": "response.in_progress", "response": response}, 0
    output: list[Given] = []
    for index, block in enumerate(turn.blocks):
        item_id = new("msg" if block.kind == "text" else "fc")
        place = {"item_id": item_id, "output_index": index}
        opened = _item(block, item_id, done=False)
        yield {"type": "response.output_item.added", "output_index": index, "item": opened}, 0
        whole = 0
        if block.kind == "text":
            yield from _text(block, place)
        elif block.tool.name == "tool_search":
            whole = len(block.text)  # it comes in one piece
        else:
            yield from _arguments(block, place)
        output.append(_item(block, item_id, done=True))
        done = {"type": "response.output_item.done", "output_index": index, "item": output[-1]}
        yield done, whole
    told = {"status": "completed", "output": output, "usage": _usage(turn.tokens)}
    yield {"type": "response.completed", "response": {**response, **told}}, 0


def _stream(turn: Turn, given: Given) -> Iterator[Piece]:
    for number, (one, chars) in enumerate(_events(turn, given)):
        yield Piece(event({**one, "sequence_number": number}, str(one["type"])), chars)


def _whole(turn: Turn, given: Given) -> Given:
    output = [
        _item(block, new("msg" if block.kind == "text" else "fc"), done=True)
        for block in turn.blocks
    ]
    told = {"status": "completed", "output": output, "usage": _usage(turn.tokens)}
    return {**_response(turn, given), **told}


def _overflow_stream(given: Given) -> Iterator[Piece]:
    """Yield how a stream tells of it: it has begun by then."""
    response = _response(Turn(str(given.get("model", "")), (), Tokens()), given)
    why = {"code": "context_length_exceeded", "message": _TOO_LONG}
    wrong = {"type": "invalid_request_error", "param": "input", **why}
    number = count()
    for one in (
        {"type": "response.created", "response": response},
        {"type": "error", "error": wrong, **why, "param": "input"},
        {"type": "response.failed", "response": {**response, "status": "failed", "error": why}},
    ):
        yield Piece(event({**one, "sequence_number": next(number)}, str(one["type"])))


RESPONSES = Dialect(
    "openai-responses",
    _read,
    _stream,
    _whole,
    error,
    _TOO_LONG,
    models,
    overflow_kind="context_length_exceeded",
    overflow_stream=_overflow_stream,
)
