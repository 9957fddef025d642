"""Cleaning: by age, count and size; never a live execution, never one with processes left."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import InvalidInput
from tenuto.core.listing import Query, Row
from tenuto.core.states import ENDED
from tenuto.stores.tape import NAME as TAPE

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine


class Cleaned(msgspec.Struct, frozen=True):
    """What a cleaning removed."""

    removed: int
    size: int


def clean(
    engine: BlockingEngine,
    older_s: float | None = None,
    keep: int | None = None,
    max_size: int | None = None,
) -> Cleaned:
    """Remove ended executions that are too old, too many or too large together; oldest first."""
    if any(bound is not None and bound < 0 for bound in (older_s, keep, max_size)):
        raise InvalidInput("a bound for cleaning cannot be below zero")
    engine.settle_live()
    rows = engine.index.latest(Query(states=tuple(ENDED)))
    doomed: dict[str, Row] = {}
    if older_s is not None:
        edge = time.time_ns() - int(older_s * 1e9)
        doomed |= {row.id: row for row in rows if (row.ended_ns or row.created_ns) < edge}
    if keep is not None:
        doomed |= {row.id: row for row in rows[keep:]}
    if max_size is not None:
        doomed |= _over_size(engine, [row for row in rows if row.id not in doomed], max_size)
    sizes = {one: _remove(engine.project.folder(one)) for one in doomed}
    removed = {one: size for one, size in sizes.items() if size is not None}
    engine.index.forget(list(removed))
    return Cleaned(len(removed), sum(removed.values()))


def clean_by_settings(engine: BlockingEngine) -> Cleaned:
    """Do what the retention settings ask for; nothing by default."""
    settings = engine.settings
    bounds = (settings.retention_age, settings.retention_count, settings.retention_size)
    if all(bound is None for bound in bounds):
        return Cleaned(0, 0)
    return clean(engine, *bounds)


def _over_size(engine: BlockingEngine, rows: list[Row], max_size: int) -> dict[str, Row]:
    doomed: dict[str, Row] = {}
    total = 0
    for row in rows:  # newest first: what fits stays
        total += folder_size(engine.project.folder(row.id))
        if total > max_size:
            doomed[row.id] = row
    return doomed


def folder_size(folder: str) -> int:
    """Return the bytes of the files in one execution's folder."""
    try:
        with os.scandir(folder) as entries:
            return sum(e.stat(follow_symlinks=False).st_size for e in entries)
    except FileNotFoundError:
        return 0


def _remove(folder: str) -> int | None:
    """Remove an execution's folder and return its size; None if it is kept, or resumed just now."""
    lock = -1
    try:
        lock = os.open(os.path.join(folder, TAPE), os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        pass  # no tape
    size = folder_size(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if lock >= 0:
        os.close(lock)
    try:
        os.rmdir(os.path.dirname(folder))  # only when it was the last of its day
    except OSError:
        pass
    return size
