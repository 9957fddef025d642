"""Google's generateContent and streamGenerateContent."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec

from tenuto.metering.dialects.shape import Ask, Dialect
from tenuto.metering.usage import Reader, length, listing, mapping, number, parsed

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
}


class ContentReader(Reader):
    """Reads answers whole, as events, and as an array that comes in pieces."""

    def read(self, value: dict[str, Any]) -> None:
        """Read one piece; each tells the usage so far, and the last one why it is the last."""
        model = value.get("modelVersion")
        if isinstance(model, str) and model:
            self.model = model
        error = value.get("error")
        if error:
            self.error = str(mapping(error).get("message") or "error")
        told = self._usage(mapping(value.get("usageMetadata")))
        for candidate in listing(value.get("candidates")):
            for part in listing(mapping(candidate.get("content")).get("parts")):
                self.chars += length(part.get("text"))
                arguments = mapping(part.get("functionCall")).get("args")
                if arguments is not None:
                    self.chars += len(msgspec.json.encode(arguments))
            self.told = self.told or (told and bool(candidate.get("finishReason")))
        if told and mapping(value.get("promptFeedback")).get("blockReason"):
            self.told = True

    def _usage(self, usage: dict[str, Any]) -> bool:
        prompt = number(usage.get("promptTokenCount"))
        if prompt is None:
            return False
        tools = number(usage.get("toolUsePromptTokenCount")) or 0
        cached = min(number(usage.get("cachedContentTokenCount")) or 0, prompt)
        self.cache_read = cached
        self.input = prompt + tools - cached
        self.output = (number(usage.get("candidatesTokenCount")) or 0) + (
            number(usage.get("thoughtsTokenCount")) or 0
        )
        return True


def _ask(body: bytes, path: str, query: str) -> Ask | None:
    del query
    name, _, way = unquote(path).rpartition(":")
    model = name.rpartition("/")[2]
    given = parsed(body)
    if not model or not given:
        return None
    config = mapping(given.get("generationConfig") or given.get("generation_config"))
    most = number(config.get("maxOutputTokens") or config.get("max_output_tokens"))
    return Ask(model, way == "streamGenerateContent", most, body)


def _error(status: int, message: str) -> dict[str, Any]:
    word = _STATUSES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": word}}


CONTENT = Dialect("google", "google", _ask, ContentReader, _error)
