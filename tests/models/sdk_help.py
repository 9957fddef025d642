"""The providers' own libraries, each asked the same things, and told in the same words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tenuto.core.budget import Tokens

# Lines without certificates everywhere: loading them takes longer than all the rest here.

PROMPT = "What is in the file?"
TOOLS = {"read_file": "Read a file", "list_files": "List files"}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


@dataclass
class Told:
    """What came of a request."""

    text: str = ""
    thought: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    pieces: int = 0
    tokens: Tokens = field(default_factory=Tokens)


class Anthropic:
    name = "anthropic"

    @contextmanager
    def client(self, url: str) -> Iterator[Any]:
        import anthropic

        line = anthropic.DefaultHttpxClient(verify=False)
        with anthropic.Anthropic(
            base_url=url, api_key="x", max_retries=0, http_client=line
        ) as client:
            yield client

    def _given(self, tools: bool) -> dict[str, Any]:
        given: dict[str, Any] = {"model": "m", "max_tokens": 1000, "system": "You are a tester."}
        if tools:
            given["tools"] = [
                {"name": name, "description": about, "input_schema": SCHEMA}
                for name, about in TOOLS.items()
            ]
        return given

    def ask(self, url: str, stream: bool = True, tools: bool = False) -> Told:
        messages = [{"role": "user", "content": PROMPT}]
        with self.client(url) as client:
            if not stream:
                return self._told(client.messages.create(messages=messages, **self._given(tools)))
            pieces = 0
            with client.messages.stream(messages=messages, **self._given(tools)) as events:
                for event in events:
                    kinds = ("text_delta", "input_json_delta")
                    pieces += event.type == "content_block_delta" and event.delta.type in kinds
                told = self._told(events.get_final_message())
            told.pieces = pieces
            return told

    def _told(self, message: Any) -> Told:
        told = Told()
        for block in message.content:
            if block.type == "text":
                told.text += block.text
            elif block.type == "thinking":
                told.thought += block.thinking
            else:
                told.calls.append((block.name, block.input))
        used = message.usage
        told.tokens = Tokens(
            used.input_tokens, used.output_tokens,
            used.cache_read_input_tokens or 0, used.cache_creation_input_tokens or 0,
        )  # fmt: skip
        return told


class Chat:
    name = "openai-chat"

    @contextmanager
    def client(self, url: str) -> Iterator[Any]:
        import openai

        line = openai.DefaultHttpxClient(verify=False)
        with openai.OpenAI(
            base_url=url + "/v1", api_key="x", max_retries=0, http_client=line
        ) as client:
            yield client

    def ask(self, url: str, stream: bool = True, tools: bool = False) -> Told:
        given: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
        if tools:
            given["tools"] = [
                {"type": "function",
                 "function": {"name": name, "description": about, "parameters": SCHEMA}}
                for name, about in TOOLS.items()
            ]  # fmt: skip
        with self.client(url) as client:
            if not stream:
                return self._told(client.chat.completions.create(**given))
            pieces = 0
            given["stream_options"] = {"include_usage": True}
            with client.chat.completions.stream(**given) as events:
                for event in events:
                    if event.type == "content.delta":
                        pieces += bool(event.delta)
                    pieces += event.type == "tool_calls.function.arguments.delta"
                told = self._told(events.get_final_completion())
            told.pieces = pieces
            return told

    def _told(self, whole: Any) -> Told:
        message, used = whole.choices[0].message, whole.usage
        calls = [
            (one.function.name, json.loads(one.function.arguments))
            for one in message.tool_calls or []
        ]
        cached = used.prompt_tokens_details.cached_tokens
        tokens = Tokens(used.prompt_tokens - cached, used.completion_tokens, cached)
        return Told(message.content or "", calls=calls, tokens=tokens)


class Responses(Chat):
    name = "openai-responses"

    def ask(self, url: str, stream: bool = True, tools: bool = False) -> Told:
        given: dict[str, Any] = {"model": "m", "input": PROMPT, "instructions": "You test."}
        if tools:
            given["tools"] = [
                {"type": "function", "name": name, "description": about, "parameters": SCHEMA}
                for name, about in TOOLS.items()
            ]
        with self.client(url) as client:
            if not stream:
                return self._told(client.responses.create(**given))
            pieces = 0
            with client.responses.stream(**given) as events:
                for event in events:
                    pieces += event.type in (
                        "response.output_text.delta", "response.function_call_arguments.delta"
                    )  # fmt: skip
                told = self._told(events.get_final_response())
            told.pieces = pieces
            return told

    def _told(self, whole: Any) -> Told:
        used = whole.usage
        cached = used.input_tokens_details.cached_tokens
        calls = [
            (one.name, json.loads(one.arguments))
            for one in whole.output
            if one.type == "function_call"
        ]
        tokens = Tokens(used.input_tokens - cached, used.output_tokens, cached)
        return Told(whole.output_text, calls=calls, tokens=tokens)


class Google:
    name = "google"

    @contextmanager
    def client(self, url: str) -> Iterator[Any]:
        from google import genai

        options = genai.types.HttpOptions(
            base_url=url, client_args={"verify": False}, async_client_args={"verify": False}
        )
        with genai.Client(api_key="x", http_options=options) as client:
            yield client

    def ask(self, url: str, stream: bool = True, tools: bool = False) -> Told:
        config: dict[str, Any] = {"system_instruction": "You are a tester."}
        if tools:
            declared = [
                {"name": name, "description": about, "parameters_json_schema": SCHEMA}
                for name, about in TOOLS.items()
            ]
            config["tools"] = [{"function_declarations": declared}]
            config["automatic_function_calling"] = {"disable": True}
        given = {"model": "m", "contents": PROMPT, "config": config}
        with self.client(url) as client:
            if not stream:
                return self._told([client.models.generate_content(**given)])
            return self._told(list(client.models.generate_content_stream(**given)))

    def _told(self, replies: list[Any]) -> Told:
        told = Told()
        for reply in replies:
            for part in reply.candidates[0].content.parts or []:
                told.pieces += bool(part.text or part.function_call)
                if part.function_call:
                    told.calls.append((part.function_call.name, part.function_call.args))
                elif part.thought:
                    told.thought += part.text
                else:
                    told.text += part.text or ""
        used = replies[-1].usage_metadata
        cached = used.cached_content_token_count or 0
        output = used.candidates_token_count + (used.thoughts_token_count or 0)
        told.tokens = Tokens(used.prompt_token_count - cached, output, cached)
        return told


SDKS = {one.name: one for one in (Anthropic(), Chat(), Responses(), Google())}
