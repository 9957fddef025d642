"""What every event is, apart from all of them so that each family can stand in its own module."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Superclass of all events."""
