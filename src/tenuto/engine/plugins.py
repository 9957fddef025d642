"""Users' own parts by name: from the settings as module:name, or from entry points of packages."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tenuto.core.errors import InvalidInput

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def named_parts(group: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the parts of a group by name, as module:name; the settings' before packages' own."""
    from importlib.metadata import entry_points  # slow, and few have any

    found: dict[str, str] = {}
    points: list[EntryPoint] = sorted(entry_points(group=group), key=lambda one: one.value)
    for point in points:
        found.setdefault(point.name, point.value)
    return found | dict(settings)


def load_part(what: str, name: str, where: str) -> Any:
    """Return what stands at module:name; raises InvalidInput, saying what could not be found."""
    module, _, attribute = where.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module that is imported may raise anything
        raise InvalidInput(
            f"the {what} {name!r} ({where}) cannot be loaded: {type(error).__name__}: {error}",
            "correct the setting, install its package, or put its folder on PYTHONPATH",
        ) from error
    return found
