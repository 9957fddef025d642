"""Which kind of failure it was, from what a runtime tells of it."""

from __future__ import annotations

import re

from tenuto.core.runs import ErrorKind

BUDGET = "Tenuto budget"
"""How every refusal of our gateway begins: it is a 400, as runtimes try nothing else only once."""

_OVERFLOW = re.compile(
    r"prompt is too long|context.{0,20}(length|window)|maximum context|too many tokens", re.I
)
_BY_STATUS: dict[int, ErrorKind] = {
    401: "auth",
    403: "auth",
    413: "context",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}
_STATUS = re.compile(r"\b(?:status:?|Error:|HTTP)\s*\(?([45]\d\d)\b")


def of_status(status: int, message: str) -> ErrorKind:
    """Return the kind of an HTTP error."""
    if BUDGET in message:
        return "budget"
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:
        return "server"
    return "context" if _OVERFLOW.search(message) else "bad_request"


def status_in(message: str) -> int | None:
    """Return the HTTP status that a message names, where a runtime tells it in no other way."""
    found = _STATUS.search(message)
    return int(found[1]) if found else None


def of_message(message: str, otherwise: ErrorKind) -> ErrorKind:
    """Return the kind of a failure of which there is only a text."""
    if BUDGET in message:
        return "budget"
    status = status_in(message)
    if status is not None:
        return of_status(status, message)
    return "context" if _OVERFLOW.search(message) else otherwise
