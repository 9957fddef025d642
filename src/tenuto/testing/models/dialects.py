"""How a request is read and an answer written: Anthropic messages, OpenAI responses, OpenAI chat."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Given = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A tool of ours as a client presents it."""

    name: str
    description: str
    schema: dict[str, Any] = field(repr=False)
    namespace: str = ""

    @property
    def own(self) -> str:
        """The name that we gave it, if it is ours."""
        if self.namespace == "mcp__tenuto":
            return self.name
        for prefix in ("mcp__tenuto__", "tenuto_"):
            if self.name.startswith(prefix):
                return self.name.removeprefix(prefix)
        return ""


@dataclass(frozen=True)
class Result:
    """A tool's result as a client presents it."""

    call_id: str
    text: str
    is_error: bool = False


Read = tuple[dict[str, Tool], int, list[Result], list[str], str]


@dataclass(frozen=True)
class Dialect:
    """One way to speak."""

    read: Callable[[Given], Read]
    say: Callable[[Given, str], Iterable[bytes]]
    call: Callable[[Given, Tool, dict[str, Any]], Iterable[bytes]]


def _event(data: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def _new(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:24]}"


def _text(content: Any) -> str:
    """Return the text of content, however it is wrapped."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text(one) for one in content)
    if isinstance(content, dict):
        return _text(content.get("text") or content.get("content") or "")
    return ""


def _named(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return tools by name; ours by the names that we gave them."""
    others = {tool.name: tool for tool in tools if not tool.own}
    return others | {tool.own: tool for tool in tools if tool.own}


# Anthropic messages


def _read_messages(given: Given) -> Read:
    tools = [
        Tool(one["name"], one.get("description", ""), one.get("input_schema", {}))
        for one in given.get("tools") or []
    ]
    spoken, results, texts = 0, [], []
    for message in given["messages"]:
        if message["role"] == "assistant":
            spoken += 1
            continue
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "tool_result":
                failed = bool(block.get("is_error"))
                results.append(Result(block["tool_use_id"], _text(block.get("content")), failed))
            elif block["type"] == "text":
                texts.append(block["text"])
    return _named(tools), spoken, results, texts, _text(given.get("system"))


def _messages(given: Given, block: Given, delta: Given, stop: str) -> Iterable[bytes]:
    usage = {"input_tokens": 1000, "output_tokens": 50}
    message = {
        "id": _new("msg"), "type": "message", "role": "assistant", "model": given["model"],
        "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    for event in (
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": 50},
        },
        {"type": "message_stop"},
    ):
        yield _event(event, event["type"])


def _say_messages(given: Given, text: str) -> Iterable[bytes]:
    delta = {"type": "text_delta", "text": text}
    return _messages(given, {"type": "text", "text": ""}, delta, "end_turn")


def _call_messages(given: Given, tool: Tool, arguments: dict[str, Any]) -> Iterable[bytes]:
    block = {"type": "tool_use", "id": _new("toolu"), "name": tool.name, "input": {}}
    delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    return _messages(given, block, delta, "tool_use")


# OpenAI responses


def _read_responses(given: Given) -> Read:
    offered = list(given.get("tools") or [])
    spoken, results, texts = 0, [], []
    for item in given["input"]:
        kind = item.get("type", "message")
        if kind in ("function_call", "tool_search_call") or item.get("role") == "assistant":
            spoken += 1
        elif kind == "tool_search_output":
            offered += item["tools"]  # found by a search: they can be called from now on
        elif kind == "function_call_output":
            results.append(Result(item["call_id"], _text(item["output"])))
        elif kind == "message" and item.get("role") == "user":
            texts.append(_text(item["content"]))
    tools: list[Tool] = []
    for one in offered:
        inner = one.get("tools") if one.get("type") == "namespace" else None
        for tool in inner or [one]:
            name = tool.get("name") or tool["type"]
            space = one.get("name", "") if inner else ""
            about, schema = tool.get("description", ""), tool.get("parameters") or {}
            tools.append(Tool(name, about, schema, space))
    return _named(tools), spoken, results, texts, _text(given.get("instructions"))


def _responses(given: Given, item: Given, middle: list[Given]) -> Iterable[bytes]:
    response: Given = {
        "id": _new("resp"), "object": "response", "created_at": 0, "model": given["model"],
        "status": "in_progress", "output": [],
    }  # fmt: skip
    usage = {
        "input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    done = {**response, "status": "completed", "output": [item], "usage": usage}
    for event in (
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        *middle,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": done},
    ):
        yield _event(event, event["type"])


def _say_responses(given: Given, text: str) -> Iterable[bytes]:
    item = {
        "type": "message", "id": _new("msg"), "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }  # fmt: skip
    delta = {"type": "response.output_text.delta", "item_id": item["id"], "output_index": 0,
             "content_index": 0, "delta": text}  # fmt: skip
    return _responses(given, item, [delta])


def _call_responses(given: Given, tool: Tool, arguments: dict[str, Any]) -> Iterable[bytes]:
    item = {
        "type": "function_call", "id": _new("fc"), "call_id": _new("call"), "name": tool.name,
        "arguments": json.dumps(arguments), "status": "completed",
    }  # fmt: skip
    if tool.name == "tool_search":
        item = {
            "type": "tool_search_call", "id": _new("ts"), "call_id": _new("call"),
            "execution": "client", "status": "completed", "arguments": arguments,
        }  # fmt: skip
    elif tool.namespace:
        item["namespace"] = tool.namespace
    return _responses(given, item, [])


# OpenAI chat completions


def _read_chat(given: Given) -> Read:
    tools = [
        Tool(one["function"]["name"], one["function"].get("description", ""),
             one["function"].get("parameters", {}))
        for one in given.get("tools") or []
    ]  # fmt: skip
    spoken, results, texts, system = 0, [], [], []
    for message in given["messages"]:
        text = _text(message.get("content"))
        if message["role"] == "assistant":
            spoken += 1
        elif message["role"] == "tool":
            results.append(Result(message["tool_call_id"], text))
        elif message["role"] == "system":
            system.append(text)
        else:
            texts.append(text)
    return _named(tools), spoken, results, texts, "\n".join(system)


def _chat(given: Given, deltas: list[Given], stop: str) -> Iterable[bytes]:
    chunk: Given = {
        "id": _new("chatcmpl"), "object": "chat.completion.chunk", "created": 0,
        "model": given["model"],
    }  # fmt: skip
    for delta in deltas:
        yield _event({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _event({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": stop}]})
    usage = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
    yield _event({**chunk, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _say_chat(given: Given, text: str) -> Iterable[bytes]:
    return _chat(given, [{"role": "assistant", "content": text}], "stop")


def _call_chat(given: Given, tool: Tool, arguments: dict[str, Any]) -> Iterable[bytes]:
    function = {"name": tool.name, "arguments": json.dumps(arguments)}
    call = {"index": 0, "id": _new("call"), "type": "function", "function": function}
    return _chat(
        given, [{"role": "assistant", "content": None, "tool_calls": [call]}], "tool_calls"
    )


BY_PATH = {
    "/v1/messages": Dialect(_read_messages, _say_messages, _call_messages),
    "/v1/responses": Dialect(_read_responses, _say_responses, _call_responses),
    "/v1/chat/completions": Dialect(_read_chat, _say_chat, _call_chat),
}
