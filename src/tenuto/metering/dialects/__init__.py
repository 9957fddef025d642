"""The providers' ways to ask for an answer, and which requests they are."""

from __future__ import annotations

import re
from typing import Any, Literal

from tenuto.metering.dialects.anthropic import MESSAGES
from tenuto.metering.dialects.google import CONTENT
from tenuto.metering.dialects.openai import CHAT, RESPONSES
from tenuto.metering.dialects.shape import Ask, Dialect
from tenuto.metering.usage import Reader

__all__ = ["BY_PROVIDER", "Ask", "Dialect", "Reader", "kind_of_answer", "sort"]

BY_PROVIDER: dict[str, Dialect] = {"anthropic": MESSAGES, "openai": CHAT, "google": CONTENT}
"""The dialect in which a provider's refusals are written."""

_COUNTED: tuple[tuple[str, re.Pattern[str], Dialect], ...] = (
    ("anthropic", re.compile(r"/v1/messages"), MESSAGES),
    ("openai", re.compile(r"/(chat/completions|completions|embeddings)"), CHAT),
    ("openai", re.compile(r"/responses(/compact)?"), RESPONSES),
    ("google", re.compile(r"/v1[a-z0-9]*/.+:(streamG|g)enerateContent"), CONTENT),
)
_FREE: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("anthropic", re.compile(r"/v1/messages/count_tokens")),
    ("openai", re.compile(r"/responses/(input_tokens|[^/]+/cancel)")),
    ("google", re.compile(r"/v1[a-z0-9]*/.+:countTokens")),
)


def sort(provider: str, method: str, path: str) -> Dialect | Literal["free", "unknown"]:
    """Say what a request is: counted, in a dialect; free; or one whose cost nobody could tell."""
    path = path.rstrip("/")
    if method in ("GET", "HEAD"):
        return "free"
    if method == "POST":
        for owner, pattern, dialect in _COUNTED:
            if owner == provider and pattern.fullmatch(path):
                return dialect
        if any(owner == provider and pattern.fullmatch(path) for owner, pattern in _FREE):
            return "free"
    return "unknown"


def kind_of_answer(dialect: Dialect, content_type: str, stream: bool) -> Any:
    """Return how an answer is to be read: as events, as an array in pieces, or whole."""
    if content_type.startswith("text/event-stream"):
        return "events"
    if dialect is CONTENT and stream:
        return "array"
    if stream and not content_type.startswith("application/json"):
        return "events"  # some do not say what they send
    return "whole"
