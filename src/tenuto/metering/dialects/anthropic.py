"""Anthropic's messages."""

from __future__ import annotations

from typing import Any

from tenuto.metering.dialects.shape import Ask, Dialect
from tenuto.metering.usage import Reader, length, mapping, number, parsed

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}


class MessagesReader(Reader):
    """Reads messages, whole and as events."""

    def read(self, value: dict[str, Any]) -> None:
        """Read one event."""
        match value.get("type"):
            case "message_start":
                self._message(mapping(value.get("message")))
            case "content_block_start":
                block = mapping(value.get("content_block"))
                self.chars += length(block.get("text")) + length(block.get("thinking"))
            case "content_block_delta":
                delta = mapping(value.get("delta"))
                for key in ("text", "partial_json", "thinking"):
                    self.chars += length(delta.get(key))
            case "message_delta":
                self._usage(mapping(value.get("usage")))
                self.told = bool(mapping(value.get("delta")).get("stop_reason")) or self.told
            case "message_stop":
                self.final = True
            case "error":
                self.error = str(mapping(value.get("error")).get("message") or "error")
            case "message":
                self.read_whole(value)
            case _:
                pass

    def read_whole(self, value: dict[str, Any]) -> None:
        """Read an answer that came at once."""
        self._message(value)
        if value.get("type") == "error":
            self.error = str(mapping(value.get("error")).get("message") or "error")

    def _message(self, message: dict[str, Any]) -> None:
        model = message.get("model")
        if isinstance(model, str) and model:
            self.model = model
        self._usage(mapping(message.get("usage")))

    def _usage(self, usage: dict[str, Any]) -> None:
        """Take over what is told; the counts are of the whole answer so far."""
        for key, name in (
            ("input_tokens", "input"),
            ("output_tokens", "output"),
            ("cache_read_input_tokens", "cache_read"),
            ("cache_creation_input_tokens", "cache_write"),
        ):
            count = number(usage.get(key))
            if count is not None:
                setattr(self, name, count)
        hour = number(mapping(usage.get("cache_creation")).get("ephemeral_1h_input_tokens"))
        if hour is not None:
            self.hour_writes = hour


def _ask(body: bytes, path: str, query: str) -> Ask | None:
    del path, query
    given = parsed(body)
    model = given.get("model")
    if not isinstance(model, str):
        return None
    return Ask(model, given.get("stream") is True, number(given.get("max_tokens")), body)


def _error(status: int, message: str) -> dict[str, Any]:
    kind = _KINDS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


MESSAGES = Dialect("anthropic", "anthropic", _ask, MessagesReader, _error)
