"""An execution as a line in a list: what an index knows without opening the tape."""

from __future__ import annotations

import msgspec

from tenuto.core.states import State


class Row(msgspec.Struct, frozen=True):
    """One execution as the index knows it."""

    id: str
    kind: str
    state: State
    reason: str = ""
    title: str = ""
    parent: str | None = None
    exit_code: int | None = None
    is_async: bool = False
    created_ns: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    starter: str = ""
    size: int = 0
    """Bytes of output; known once it has ended."""
    lines: int = 0
    has_left: bool = False
    """It has ended, but processes of it are left: a keeper should be with them."""
    text: str = ""
    """What it can be found by besides its title; known only where a row is made from a tape."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which executions to list; what is left out does not matter."""

    most: int | None = None
    states: tuple[State, ...] = ()
    kind: str = ""
    text: str = ""
    since_ns: int = 0
    only_async: bool = False
