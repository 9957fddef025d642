"""What tokens cost: price data for exact model ids, settable defaults for bare names, never a guess."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Context, Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core.budget import Tokens

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

_MILLION = Decimal(1_000_000)
_EXACT = Decimal("0.0000000001")  # a tenth of a billionth of a dollar: sums stay short
_WIDE = Context(
    prec=100
)  # the highest price times the highest count has more digits than the usual 28
# what providers are called before a model's name, and as genai-prices has them
_PROVIDERS = {
    "anthropic": "anthropic",
    "openai": "openai",
    "google": "google",
    "gemini": "google",
    "google-gla": "google",
    "openrouter": "openrouter",
    "mistral": "mistral",
    "deepseek": "deepseek",
    "x-ai": "x-ai",
    "xai": "x-ai",
    "groq": "groq",
}
_EXTRA = re.compile(r"\[[^\]]*\]$")  # claude-sonnet-4-5[1m]


class Price(msgspec.Struct, frozen=True):
    """Dollars for a million tokens."""

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    """None for the price of input."""
    cache_write: Decimal | None = None

    def of(self, tokens: Tokens) -> Decimal:
        """Return what tokens cost."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        total = (
            tokens.input * self.input
            + tokens.output * self.output
            + tokens.cache_read * read
            + tokens.cache_write * write
        )
        return _short(total / _MILLION)


def _short(dollars: Decimal) -> Decimal:
    return dollars.quantize(_EXACT, context=_WIDE).normalize() + 0


def tier_price(given: str | Decimal, made: str | Decimal) -> Price:
    """Return a price with the usual parts of it for the cache: a tenth out of it, 5/4 into it."""
    base = Decimal(given)
    return Price(base, Decimal(made), base / 10, base * Decimal("1.25"))


BARE: dict[str, Price] = {
    "opus": tier_price("15", "75"),
    "sonnet": tier_price("3", "15"),
    "haiku": tier_price("0.25", "1.25"),
}
"""Names that say a tier and no model; each can be set."""


class Prices:
    """Looks prices up; what a user set comes first."""

    def __init__(self, own: Mapping[str, Price] = {}, aliases: Mapping[str, str] = {}) -> None:
        """Take prices and other names that the user set, by model."""
        self._own = {**BARE, **{name.lower(): price for name, price in own.items()}}
        self._aliases = {name.lower(): model for name, model in aliases.items()}

    def cost(
        self, model: str, tokens: Tokens, provider: str = "", hour_writes: int = 0
    ) -> Decimal | None:
        """Return what a request cost, or None for a model whose price is not known.

        `hour_writes` of the tokens written into the cache stay there for an hour, and cost more.
        """
        model = self._aliases.get(model.lower(), model)
        own = self._own.get(model.lower())
        if own is not None:
            return own.of(tokens)
        if not tokens.total:
            return Decimal(0) if _find(model, provider) is not None else None
        found = _find(model, provider)
        return None if found is None else _calculated(found, tokens, hour_writes)

    def known(self, model: str, provider: str = "") -> bool:
        """Tell whether a model has a price."""
        return self.cost(model, Tokens(1, 1), provider) is not None

    def context_window(self, model: str, provider: str = "") -> int | None:
        """Return how many tokens a model takes in, or None where that is not known."""
        name = self._aliases.get(model.lower(), model)
        if name.lower().endswith("[1m]"):
            return 1_000_000
        found = _find(name, provider)
        return None if found is None else found[1].context_window


def _calculated(
    found: tuple[Provider, ModelInfo], tokens: Tokens, hour_writes: int
) -> Decimal | None:
    from datetime import UTC, datetime

    from genai_prices import Usage

    whole = tokens.input + tokens.cache_read + tokens.cache_write  # theirs is with the cache
    given: dict[str, Any] = {"input_tokens": whole, "output_tokens": tokens.output}
    if tokens.cache_read:
        given["cache_read_tokens"] = tokens.cache_read
    if tokens.cache_write:
        given["cache_write_tokens"] = tokens.cache_write
    if hour_writes:
        given["cache_write_1h_tokens"] = min(hour_writes, tokens.cache_write)
    provider, model = found
    try:
        price = model.calc_price(
            Usage(**given), provider, genai_request_timestamp=datetime.now(tz=UTC)
        )
    except (LookupError, ValueError, TypeError, ArithmeticError):
        return None  # the data cannot say it: flagged, not guessed
    return _short(price.total_price)


@lru_cache(maxsize=1024)
def _find(model: str, provider: str) -> tuple[Provider, ModelInfo] | None:
    """Return the provider and the model of a name such as `anthropic/claude-…`, if it is known."""
    try:
        from genai_prices.data_snapshot import (
            get_snapshot,
        )  # half a second, at the first price only
    except ImportError:  # the extra `agents` is not installed
        return None
    snapshot = get_snapshot()
    for owner, name in _readings(model, provider):
        try:
            return snapshot.find_provider_model(name, None, owner, None)
        except LookupError:
            continue
    return None


def _readings(model: str, provider: str) -> list[tuple[str | None, str]]:
    """Return what a name may mean, the likeliest first."""
    name = _EXTRA.sub("", model.strip()).removeprefix("models/")
    if not name:
        return []
    readings: list[tuple[str | None, str]] = []
    head, _, rest = name.partition("/")
    if rest and head in _PROVIDERS:
        readings.append((_PROVIDERS[head], rest))
        if head == "openrouter":
            readings += _readings(rest, "")
    elif provider:
        readings.append((_PROVIDERS.get(provider, provider), name))
    readings.append((None, name))
    return readings
