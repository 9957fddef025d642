"""Texts from outside, made fit to be kept and passed on."""

from __future__ import annotations

from typing import Any, cast


def sound(value: Any) -> Any:
    """Return a value whose texts are valid Unicode: half characters are replaced."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [sound(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return {sound(name): sound(one) for name, one in fields.items()}
    return value
