"""Durations, sizes, moments and money as people write them: 30s, 10m, 512M, 2026-11-15T10:00:00Z, $2."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from tenuto.core.errors import InvalidInput

if TYPE_CHECKING:
    from decimal import Decimal

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MOST_SECONDS = 1e15  # thirty million years: nobody means more
_MOST_BYTES = 1e30
_BYTES = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def parse_duration(text: object) -> float:
    """Return seconds for `30`, `30s`, `1.5h`, `1h30m` or a number; never negative."""
    seconds = -1.0
    if isinstance(text, str):
        seconds = _duration(text)
    elif isinstance(text, (int, float)) and not isinstance(text, bool):
        seconds = float(text) if abs(text) < _MOST_SECONDS else -1.0
    if not 0 <= seconds < _MOST_SECONDS:
        raise InvalidInput(f"{text!r} is not a duration", "write it as 30s, 10m, 2h or 1h30m")
    return seconds


def _duration(text: str) -> float:
    rest = text.strip().lower()
    try:
        return float(rest)
    except ValueError:
        pass
    total = 0.0
    while rest:
        number, rest = _split_number(rest)
        unit, rest = _split_unit(rest)
        if not number or unit not in _SECONDS:
            return -1.0
        total += float(number) * _SECONDS[unit]
    return total if text.strip() else -1.0


def _split_number(text: str) -> tuple[str, str]:
    end = 0
    while end < len(text) and ((text[end].isdecimal() and text[end].isascii()) or text[end] == "."):
        end += 1
    number = text[:end]
    if number.count(".") > 1 or number == ".":
        number = ""
    return number, text[end:]


def _split_unit(text: str) -> tuple[str, str]:
    end = 0
    while end < len(text) and text[end].isalpha():
        end += 1
    return text[:end], text[end:]


def parse_size(text: object) -> int:
    """Return bytes for `512M`, `2GiB`, `64k` or a number; powers of 1024."""
    size = -1
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    elif isinstance(text, str):
        number, unit = _split_number(text.strip())
        unit = unit.strip().lower()
        unit = unit.removesuffix("ib") if unit.endswith("ib") else unit
        unit = unit.removesuffix("b") if len(unit) == 2 else unit
        asked = float(number) * _BYTES[unit] if number and unit in _BYTES else -1.0
        size = int(asked) if asked < _MOST_BYTES else -1
    if size < 0:
        raise InvalidInput(f"{text!r} is not a size", "write it as 512M, 2G or a number of bytes")
    return size


def parse_moment(text: str, now_ns: int) -> int:
    """Return nanoseconds since the epoch for an ISO 8601 time or an age such as `10m`."""
    stripped = text.strip()
    age = _duration(stripped)
    if 0 <= age < _MOST_SECONDS and not stripped.replace(".", "").isdecimal():
        return now_ns - int(age * 1e9)
    try:
        moment = datetime.datetime.fromisoformat(stripped)
        if moment.tzinfo is None:
            moment = moment.astimezone()
    except (ValueError, OverflowError):  # the latter from years that have no local time
        raise InvalidInput(
            f"{text!r} is not a time", "write 2026-11-15T10:00:00Z, or an age such as 10m"
        ) from None
    delta = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (delta.days * 86400 + delta.seconds) * 1_000_000_000 + delta.microseconds * 1000


def iso(time_ns: int) -> str:
    """Return a moment as ISO 8601 in UTC with microseconds."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + f".{rest // 1000:06d}Z"


def brief_duration(seconds: float) -> str:
    """Return a duration in at most two units, as people say it: 350ms, 12s, 3m05s, 2h10m."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 59.5:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    minutes, whole = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{whole:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 24 else f"{hours // 24}d{hours % 24:02d}h"


def brief_size(size: int) -> str:
    """Return a size in one unit: 812 B, 1.4 KB, 500.0 MB."""
    if size < 1024:
        return f"{size} B"
    number = float(size)
    for unit in ("KB", "MB", "GB"):
        number /= 1024
        if number < 1024:
            return f"{number:.1f} {unit}"
    return f"{number / 1024:.1f} TB"


def money(dollars: Decimal | float | None) -> str:
    """Return dollars in cents, and below one with three digits that count: $12.50, $0.00975.

    So nothing that was spent looks like nothing. What nobody knows is `unknown`.
    """
    from decimal import Decimal  # most commands show no money

    if dollars is None:
        return "unknown"
    amount = Decimal(str(dollars))
    places = max(2, 2 - amount.adjusted()) if 0 < abs(amount) < 1 else 2
    whole, _, part = f"{amount:.{places}f}".partition(".")
    return f"${whole}.{part[:2]}{part[2:].rstrip('0')}"
