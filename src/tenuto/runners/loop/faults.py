"""What an exception of a model's library means, in the words of core.runs."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx2
import msgspec
from pydantic import ValidationError
from pydantic_ai import exceptions as ai

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import ErrorKind

_CONTEXT = (
    "prompt is too long",
    "context length",
    "context window",
    "context_length",
    "input token count",
    "number of tokens allowed",
    "reduce the length",
    "too many tokens",
)
_BUDGET = "Tenuto budget"
_BY_STATUS: dict[int, ErrorKind] = {
    401: "auth",
    403: "auth",
    408: "network",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}
_BY_TYPE: tuple[tuple[tuple[type[BaseException], ...], ErrorKind], ...] = (
    ((ai.ModelContextWindowExceededError,), "context"),
    ((ai.ModelConnectionError, ai.ModelRequestTimeout), "network"),
    ((ai.ModelUnavailableError,), "overloaded"),
    ((ai.ModelServerError,), "server"),
    ((httpx2.TransportError, httpx2.StreamError, OSError), "network"),
)


class Fault(msgspec.Struct, frozen=True):
    """Why a request came to nothing."""

    kind: ErrorKind
    message: str
    status: int | None = None
    retry_after: float | None = None


class Broken(Exception):
    """An answer that we ourselves found wanting."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind


def explain(error: BaseException) -> Fault:
    """Return what went wrong, as the driver is told."""
    text = _message(error)
    if isinstance(error, Broken):
        return Fault(error.kind, text)
    if isinstance(error, RunnerFailed):
        return Fault(cast("ErrorKind", error.kind), str(error))
    status = _status(error)
    after = getattr(error, "retry_after", None)
    if status is not None:
        return Fault(_by_status(status, text, error), text, status, after)
    for kinds, kind in _BY_TYPE:
        if isinstance(error, kinds):
            return Fault(kind, text, None, after)
    if "ended without a `finish_reason`" in text:
        return Fault("network", "the stream ended before the answer did")
    if _is_nonsense(error):
        return Fault("protocol", f"the model's answer makes no sense: {text}")
    return Fault("failed", f"{type(error).__name__}: {text}")


def _is_nonsense(error: BaseException) -> bool:
    kinds = (ai.ModelAPIError, ai.UnexpectedModelBehavior, ValidationError, ValueError, KeyError)
    return isinstance(error, (*kinds, TypeError, AttributeError, json.JSONDecodeError))


def _by_status(status: int, text: str, error: BaseException) -> ErrorKind:
    if text.startswith(_BUDGET):
        return "budget"
    if isinstance(error, ai.ModelContextWindowExceededError) or status == 413:
        return "context"
    if status in (400, 422) and any(one in text.lower() for one in _CONTEXT):
        return "context"
    if status == 400 and "api key not valid" in text.lower():  # Google says it so
        return "auth"
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return "server" if status >= 500 else "bad_request"


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status behind an error, or behind what caused it."""
    while error is not None:
        for name in ("status_code", "code"):
            found = getattr(error, name, None)
            if isinstance(found, int) and 400 <= found < 600:
                return found
        error = error.__cause__
    return None


def _message(error: BaseException) -> str:
    """Return the provider's own words, else the exception's."""
    body = getattr(error, "body", None)
    found = _find(body)
    if not found and isinstance(body, str | bytes):
        try:
            found = _find(json.loads(body))
        except ValueError:
            found = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    if found:
        return found[:4000]
    text = str(error) or type(error).__name__
    cause = error.__cause__
    if cause is not None and str(cause) and str(cause) not in text:
        text = f"{text} ({cause})"
    return text[:4000]


def _find(body: Any) -> str:
    if isinstance(body, list):
        return _find(cast("list[Any]", body)[0]) if body else ""
    if not isinstance(body, dict):
        return ""
    given = cast("dict[str, Any]", body)
    inner = given.get("error")
    if isinstance(inner, dict | list):
        return _find(inner)
    for one in (given.get("message"), inner):
        if isinstance(one, str) and one:
            return one
    return ""
