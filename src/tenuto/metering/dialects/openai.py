"""OpenAI's chat completions and responses, and whoever speaks like that."""

from __future__ import annotations

from typing import Any

import msgspec

from tenuto.metering.dialects.shape import Ask, Dialect
from tenuto.metering.usage import Reader, length, listing, mapping, number, parsed

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_BEHIND = (
    "a response with background=true tells its usage to whoever fetches it later, where nobody counts: "
    "leave background out"
)
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class _OpenAIReader(Reader):
    def _named(self, value: dict[str, Any]) -> None:
        model = value.get("model")
        if isinstance(model, str) and model:
            self.model = model

    def _usage(self, usage: dict[str, Any], given: str, made: str) -> bool:
        """Take over usage; what came from the cache is in the input there, and is taken out of it."""
        whole, output = number(usage.get(given)), number(usage.get(made))
        if whole is None:
            return False
        cached = number(mapping(usage.get(f"{given}_details")).get("cached_tokens")) or 0
        self.cache_read = min(cached, whole)
        self.input = whole - self.cache_read
        self.output = output or 0  # embeddings have none
        return True

    def _failed(self, error: Any) -> None:
        if error:
            self.error = str(mapping(error).get("message") or "error")


class ChatReader(_OpenAIReader):
    """Reads chat completions, whole and as chunks."""

    def read(self, value: dict[str, Any]) -> None:
        """Read one chunk."""
        self._named(value)
        self._failed(value.get("error"))
        told = self._usage(mapping(value.get("usage")), "prompt_tokens", "completion_tokens")
        choices = listing(value.get("choices"))
        for choice in choices:
            self._count(mapping(choice.get("delta")))
            self.chars += length(choice.get("text"))
        # told apart at the end; by some with the last words, and by some all the way
        self.told = self.told or (told and (not choices or bool(choices[0].get("finish_reason"))))

    def read_whole(self, value: dict[str, Any]) -> None:
        """Read an answer that came at once."""
        self._named(value)
        self._failed(value.get("error"))
        if not self._usage(mapping(value.get("usage")), "prompt_tokens", "completion_tokens"):
            for choice in listing(value.get("choices")):
                self._count(mapping(choice.get("message")))

    def _count(self, message: dict[str, Any]) -> None:
        for key in ("content", "reasoning_content", "reasoning", "refusal"):
            self.chars += length(message.get(key))
        for call in listing(message.get("tool_calls")):
            self.chars += length(mapping(call.get("function")).get("arguments"))


class ResponsesReader(_OpenAIReader):
    """Reads responses, whole and as events."""

    def read(self, value: dict[str, Any]) -> None:
        """Read one event."""
        kind = value.get("type")
        if not isinstance(kind, str):
            return
        response = mapping(value.get("response"))
        self._named(response)
        self._failed(response.get("error"))
        if kind == "error":
            self._failed(mapping(value.get("error")) or value)
        elif kind in _ENDS:
            self.told = self._usage(mapping(response.get("usage")), "input_tokens", "output_tokens")
            self.final = True
        elif kind.endswith(".delta"):
            self.chars += length(value.get("delta"))

    def read_whole(self, value: dict[str, Any]) -> None:
        """Read an answer that came at once."""
        self._named(value)
        self._failed(value.get("error"))
        if not self._usage(mapping(value.get("usage")), "input_tokens", "output_tokens"):
            for item in listing(value.get("output")):
                self.chars += length(item.get("arguments"))
                for part in listing(item.get("content")):
                    self.chars += length(part.get("text"))


def hidden(data: bytes) -> bool:
    """Tell whether a chunk only tells the usage, which the client had not asked for."""
    if b'"usage"' not in data:
        return False
    value = parsed(data)
    return bool(value.get("usage")) and value.get("choices") == []


def _ask_chat(body: bytes, path: str, query: str) -> Ask | None:
    del query
    given = parsed(body)
    model = given.get("model")
    if not isinstance(model, str):
        return None
    most = number(given.get("max_completion_tokens")) or number(given.get("max_tokens"))
    stream = given.get("stream") is True
    options = mapping(given.get("stream_options"))
    if not stream or options.get("include_usage") is True or not path.endswith("completions"):
        return Ask(model, stream, most, body)
    if "stream_options" in given:
        given["stream_options"] = {**options, "include_usage": True}
        return Ask(model, True, most, msgspec.json.encode(given), hides_usage=True)
    # put in at the front, so that all else stays as it was written
    opened = body.index(b"{") + 1
    added = b'"stream_options":{"include_usage":true},'
    return Ask(model, True, most, body[:opened] + added + body[opened:], hides_usage=True)


def _ask_responses(body: bytes, path: str, query: str) -> Ask | None:
    del path, query
    given = parsed(body)
    model = given.get("model")
    if not isinstance(model, str):
        return None
    most = number(given.get("max_output_tokens"))
    why = _BEHIND if given.get("background") else ""
    return Ask(model, given.get("stream") is True, most, body, hidden=why)


def _error(status: int, message: str) -> dict[str, Any]:
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


CHAT = Dialect("openai-chat", "openai", _ask_chat, ChatReader, _error)
RESPONSES = Dialect("openai-responses", "openai", _ask_responses, ResponsesReader, _error)
