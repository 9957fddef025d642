"""The words between whoever wants an execution held and the mechanisms that can hold it."""

from __future__ import annotations

from typing import Any

import msgspec

from tenuto.core.specs import Limits, Network


class View(msgspec.Struct, frozen=True):
    """What of the file system an execution is to have. Paths are absolute and exist."""

    execute: tuple[str, ...]
    """Read and run: the system, the interpreter, what the caller named."""
    write: tuple[str, ...]
    """Read, run and change: the working directory, what the caller named."""
    hide: tuple[str, ...]
    """Never to be seen, even where they lie inside the others: our own state."""


class Subject(msgspec.Struct, frozen=True):
    """An execution that is to be held."""

    id: str
    argv: tuple[str, ...]
    cwd: str
    environ: dict[str, str]
    view: View
    net: Network = "off"
    limits: Limits = Limits()
    pty: bool = False
    owner: tuple[int, int] | None = None
    """The user and group to run as, if not ours."""
    groups: dict[str, str] = {}
    """Where control groups can be made that limit `memory` and `pids`."""
    guard: tuple[tuple[str, str | None], ...] = ()
    """Links to state folders that it could replace, and where each leads now."""


class Confinement(msgspec.Struct, frozen=True):
    """How a keeper is to start it."""

    argv: tuple[str, ...]
    cwd: str
    environ: dict[str, str]
    confine: dict[str, Any]
    """The job's field `confine`; its `report` is what will stand on the tape."""
    rlimits: dict[str, Any]
    """The plain resource limits to set."""


class Found(msgspec.Struct, frozen=True):
    """One rung of the ladder, as it was found on this machine."""

    name: str
    problem: str = ""
    """Why it cannot be used, or nothing."""
