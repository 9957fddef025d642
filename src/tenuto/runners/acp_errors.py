"""What an agent's error was about: agents wrap what the model's server said in words of their own."""

from __future__ import annotations

import json
import re
from typing import Any

from tenuto.core.runs import ErrorKind

AUTH_REQUIRED = -32000
_PROTOCOL = frozenset({-32700, -32600, -32601, -32602})
BUDGET_MARK = "Tenuto budget"
"""What the gateway's refusal contains; it goes before everything else that the text may say."""

_BY_STATUS: dict[int, ErrorKind] = {
    400: "bad_request", 401: "auth", 403: "auth", 404: "bad_request", 413: "context",
    422: "bad_request", 429: "rate_limit", 503: "overloaded", 529: "overloaded",
}  # fmt: skip
_STATUS = re.compile(
    r"(?:\bstatus(?:[ _]?code)?\W{1,4}|\bhttp\W{1,3}|\bcode\W{1,4}|\berror:? )([45]\d\d)\b"
    r"|\b([45]\d\d)\s+(?:[A-Z][a-z]+|\{)",
    re.I,
)
_WIDE = re.compile(
    r"context[_ ](?:length|window)|prompt is too long|maximum context|maximum number of tokens",
    re.I,
)
_WORDS: dict[ErrorKind, str] = {
    "context": _WIDE.pattern,
    "auth": r"authenticat|unauthori[sz]ed|api[-_ ]?key|not logged in|log ?in required|credential",
    "rate_limit": r"rate.?limit|too many requests|quota|resource_exhausted",
    "overloaded": r"overloaded|unavailable",
    "network": (
        r"ECONN|ENOTFOUND|EAI_AGAIN|fetch failed|socket|network|stream (?:error|disconnected)"
        r"|connection|terminated|premature|closed before|error sending request"
    ),
    "server": r"internal server error|server_error",
    "bad_request": r"bad request|invalid_request",
}
_BY_WORDS: dict[ErrorKind, re.Pattern[str]] = {
    kind: re.compile(words, re.I) for kind, words in _WORDS.items()
}


def told(message: str, data: Any) -> str:
    """Return everything that an error says, as one text."""
    if data is None or data == {}:
        return message
    more = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=str)
    return f"{message}: {more}" if more not in message else message


def status_in(text: str) -> int | None:
    """Return the HTTP status that a text speaks of."""
    found = _STATUS.search(text)
    return int(found[1] or found[2]) if found is not None else None


def kind_of(code: int, text: str) -> tuple[ErrorKind, int | None]:
    """Return what an error was about and the HTTP status behind it."""
    status = status_in(text)
    if BUDGET_MARK.lower() in text.lower():
        return "budget", status
    if code == AUTH_REQUIRED:
        return "auth", status
    if status is not None:
        if _WIDE.search(text):
            return "context", status
        return _BY_STATUS.get(status, "server" if status >= 500 else "failed"), status
    for kind, words in _BY_WORDS.items():
        if words.search(text):
            return kind, None
    return ("protocol" if code in _PROTOCOL else "failed"), None
