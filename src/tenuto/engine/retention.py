"""Cleaning: by age, count and size; never a live execution, never one with processes left."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import DiskFull, InvalidInput, NewerTape
from tenuto.core.listing import Query, Row
from tenuto.core.states import ENDED, RESUMABLE
from tenuto.engine import scratch
from tenuto.engine.recover import fold
from tenuto.stores.tape import NAME as TAPE
from tenuto.stores.tape import TapeReader

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

_BATCH = 50  # tasks whose records are written down with one sync
_LEAVE_S = 2.0  # for a keeper to sync and to go, once its execution has ended
_PAUSE_S = 0.005


class Cleaned(msgspec.Struct, frozen=True):
    """What a cleaning removed."""

    removed: int
    size: int
    kept: int = 0
    """Tasks that had to stay: there was no room to write down what their steps came to."""
    resumable: int = 0
    """Of those removed, the tasks that could have gone on."""
    unfinished: int = 0
    """Tasks that only their age removes, since they can go on."""


def clean(
    engine: BlockingEngine,
    older_s: float | None = None,
    keep: int | None = None,
    max_size: int | None = None,
    history: bool = False,
) -> Cleaned:
    """Remove ended executions that are too old, too many or too large together; oldest first.

    Tasks that can go on are nobody's ballast: they do not count, and only their age removes them.
    The records of tasks' steps stay, unless the history is to go too: then those of what is removed
    do, and with an age all that are older.
    """
    if any(bound is not None and bound < 0 for bound in (older_s, keep, max_size)):
        raise InvalidInput("a bound for cleaning cannot be below zero")
    engine.settle_live()
    rows = engine.index.latest(Query(states=tuple(ENDED)))
    doomed: dict[str, Row] = {}
    if older_s is not None:
        edge = time.time_ns() - int(older_s * 1e9)
        doomed |= {row.id: row for row in rows if (row.ended_ns or row.created_ns) < edge}
    unfinished = {row.id for row in rows if row.id not in doomed and _can_go_on(row)}
    rows = [row for row in rows if row.id not in unfinished]
    if keep is not None:
        doomed |= {row.id: row for row in rows[keep:]}
    if max_size is not None:
        doomed |= _over_size(engine, [row for row in rows if row.id not in doomed], max_size)
    removed, kept = _remove_all(engine, doomed, history)
    engine.index.forget(list(removed))
    for one in removed:
        _leave_worktrees(os.path.join(engine.project.home, "worktrees", one), one)
    if history:
        from tenuto.stores.archive import Archive

        edge = 0 if older_s is None else max(0, time.time_ns() - int(older_s * 1e9))
        tasks = [one for one in removed if doomed[one].kind == "task"]
        Archive(engine.project).drop(tasks, edge)
        engine.index.forget_records(tasks, edge)
    resumable = sum(_can_go_on(doomed[one]) for one in removed)
    stayed = 0 if keep is None and max_size is None else len(unfinished)
    return Cleaned(len(removed), sum(removed.values()), kept, resumable, stayed)


def _can_go_on(row: Row) -> bool:
    return row.kind == "task" and row.state in RESUMABLE


def _remove_all(
    engine: BlockingEngine, doomed: dict[str, Row], history: bool
) -> tuple[dict[str, int], int]:
    """Remove folders and return their sizes, and how many tasks could not be."""
    tasks = [one for one, row in doomed.items() if row.kind == "task" and not history]
    removed: dict[str, int] = {}
    for one in doomed.keys() - set(tasks):  # first, for they make room for the records of the rest
        size = _remove(engine.project.folder(one))
        if size is not None:
            removed[one] = size
    kept = 0
    for at in range(0, len(tasks), _BATCH):
        batch = tasks[at : at + _BATCH]
        try:
            removed |= _remove_tasks(engine, batch)
        except DiskFull:
            kept += len(batch)
    return removed, kept


def _remove_tasks(engine: BlockingEngine, ids: Sequence[str]) -> dict[str, int]:
    """Remove tasks after what their steps came to is safe on disk."""
    from tenuto.core.history import ExecutionRecord, HistoryQuery
    from tenuto.engine.history import records_of
    from tenuto.stores.archive import Archive

    project, records, removed = engine.project, list[ExecutionRecord](), dict[str, int]()
    with ExitStack() as locks:
        free = [one for one in ids if _lock(project.folder(one), locks)]
        for one in free:
            # where the tape cannot be read any more, the index may still know
            records += records_of(project, one) or engine.index.records(HistoryQuery(execution=one))
        Archive(project).keep(records)
        for one in free:
            removed[one] = _remove_folder(project.folder(one))
    return removed


def _leave_worktrees(base: str, task: str) -> None:
    """Remove what a task's steps had checked out; the branches with their work are the user's."""
    if not os.path.isdir(base):
        return
    from tenuto.core.errors import WorktreeFailed
    from tenuto.engine.worktrees import Worktrees

    checkouts = [one.path for one in os.scandir(base) if one.is_dir(follow_symlinks=False)]
    if checkouts:
        with suppress(WorktreeFailed, OSError):  # of a repository that is gone: nothing is known
            Worktrees(checkouts[0], base, task).leave()


def clean_by_settings(engine: BlockingEngine, history: bool = False) -> Cleaned:
    """Do what the retention settings ask for; nothing by default."""
    settings = engine.settings
    bounds = (settings.retention_age, settings.retention_count, settings.retention_size)
    if all(bound is None for bound in bounds):
        return Cleaned(0, 0)
    return clean(engine, *bounds, history=history)


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
    with ExitStack() as locks:
        return _remove_folder(folder) if _lock(folder, locks) else None


def _lock(folder: str, locks: ExitStack) -> bool:
    """Take the lock of an execution's tape, as long as `locks` are held; False if another has it."""
    try:
        lock = os.open(os.path.join(folder, TAPE), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True  # no tape
    locks.callback(os.close, lock)
    limit = time.monotonic() + _LEAVE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return True
            if time.monotonic() > limit or not _ending(folder):
                return False
            time.sleep(_PAUSE_S)
        else:
            return True


def _ending(folder: str) -> bool:
    """Tell whether its keeper has said its last word, and is about to go."""
    try:
        with TapeReader(folder) as reader:
            execution = fold(reader, os.path.basename(folder))
    except (OSError, NewerTape):
        return False
    return not execution.live and not execution.left_behind


def _remove_folder(folder: str) -> int:
    size = folder_size(folder)
    scratch.remove(folder, os.path.basename(folder))
    shutil.rmtree(folder, ignore_errors=True)
    try:
        os.rmdir(os.path.dirname(folder))  # only when it was the last of its day
    except OSError:
        pass
    return size
