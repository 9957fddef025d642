"""What every dialect tells the gateway: what a request asks for, how its answer is read, its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tenuto.metering.usage import Reader


class Ask(msgspec.Struct, frozen=True):
    """What the gateway has to know of a request."""

    model: str
    stream: bool
    max_output: int | None
    body: bytes
    """As it goes on."""
    hides_usage: bool = False
    """The client did not ask for the last chunk of the stream: it is taken out again."""
    hidden: str = ""
    """Why it cannot be counted, if so: it is not passed on."""


class Dialect(msgspec.Struct, frozen=True):
    """One provider's way to ask for an answer."""

    name: str
    provider: str
    """As price data has it."""
    ask: Callable[[bytes, str, str], Ask | None]
    """Of the body, the path below the provider's and the query; None for what makes no sense."""
    reader: Callable[[str], Reader]
    error: Callable[[int, str], dict[str, Any]]
