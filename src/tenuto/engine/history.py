"""What agents' steps came to: records from tapes, kept in the index, and what they add up to."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core.errors import AmbiguousId, InvalidInput, NewerTape, UnknownExecution
from tenuto.core.history import (
    ExecutionRecord,
    History,
    HistoryQuery,
    Totals,
    check_by,
    group,
    total,
)
from tenuto.core.ids import check_prefix, short
from tenuto.core.quantities import parse_moment
from tenuto.core.recording import Recorder
from tenuto.core.specs import check_text
from tenuto.keeper.frames import Frame
from tenuto.stores.archive import Archive
from tenuto.stores.layout import Project
from tenuto.stores.tape import TapeReader

if TYPE_CHECKING:
    from tenuto.core.ports import Store
    from tenuto.engine.blocking import BlockingEngine

_PAGE = 5000
_LONG = (1 << 63) - 1
_FORMULA = ("=", "+", "-", "@")
Moment = str | datetime.datetime | None
"""ISO 8601, an age such as `7d`, or a datetime."""
Place = tuple[int, str, int]
"""Where a record stands in time: `ExecutionRecord.place`."""


# From tapes


def records_of(
    project: Project, execution_id: str, events: Sequence[Frame] = ()
) -> list[ExecutionRecord]:
    """Return the records of a task's steps that have ended, from its tape; none without one.

    `events` are those of its tape, if it was read already.
    """
    recorder = Recorder(execution_id)
    for frame in events:
        recorder.take(frame.seq, frame.time_ns, frame.body)
    if events:
        return recorder.records
    try:
        with TapeReader(project.folder(execution_id)) as reader:
            for frame in reader.events():
                recorder.take(frame.seq, frame.time_ns, frame.body)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, NewerTape):
        pass
    return recorder.records


def all_records(project: Project, tasks: Sequence[str]) -> Iterator[ExecutionRecord]:
    """Yield the records of these tasks from their tapes, then those of tasks that are gone."""
    for one in tasks:
        yield from records_of(project, one)
    yield from Archive(project).records()


def rebuild(engine: BlockingEngine) -> int:
    """Make the index anew from the tapes and the archive; damaged files of that are healed first."""
    Archive(engine.project).heal()
    return engine.index.rebuild()


# Questions


def history(
    engine: BlockingEngine,
    execution_id: str | None = None,
    *,
    since: Moment = None,
    until: Moment = None,
    by: str | None = None,
    change: str = "",
    task_id: str = "",
    failed: bool = False,
    most: int | None = 50,
    before: Place | None = None,
) -> History:
    """Return records of steps, or the totals of groups of them, and the totals of all that fit."""
    query = _query(since, until, change, task_id, failed)
    if before is not None and not _is_place(before):
        raise InvalidInput(
            f"{before!r:.60} is no place in the history", "see ExecutionRecord.place"
        )
    most = None if most is None else min(most, _LONG)
    page = msgspec.structs.replace(query, most=most, before=before)
    grouping = check_by(by)
    if execution_id is not None:
        found = [one for one in of_one(engine, execution_id) if query.fits(one)]
        return History(
            records=() if grouping else tuple([one for one in found if page.fits(one)][:most]),
            totals=total(found),
            by=grouping,
            groups=tuple(group(found, grouping)) if grouping else (),
        )
    engine.settle_live()
    index = engine.index
    if grouping is not None:
        groups = tuple(index.totals(query, grouping))
        return History(totals=_all(index, query), by=grouping, groups=groups)
    records = tuple(index.records(page))
    complete = before is None and (most is None or len(records) < most)
    return History(records=records, totals=total(records) if complete else _all(index, query))


def _all(index: Store, query: HistoryQuery) -> Totals:
    found = index.totals(query)
    return found[0].totals if found else Totals()


def of_one(engine: BlockingEngine, execution_id: str) -> list[ExecutionRecord]:
    """Return the records of one task, newest first; of one that runs too, or was cleaned away."""
    try:
        whole = engine.execution(execution_id).id
    except UnknownExecution:
        found = engine.index.records(HistoryQuery(execution=check_prefix(execution_id)))
        names = {one.execution for one in found}
        if not names:
            raise
        if len(names) > 1:
            several = "; ".join(short(one) for one in sorted(names)[:5])
            raise AmbiguousId(
                f"{execution_id} fits several tasks: {several}", "write more of it"
            ) from None
        return found
    return list(reversed(records_of(engine.project, whole)))


def pages(
    engine: BlockingEngine,
    *,
    since: Moment = None,
    until: Moment = None,
    change: str = "",
    task_id: str = "",
    failed: bool = False,
) -> Iterator[ExecutionRecord]:
    """Yield every record that fits, newest first, however many there are."""
    engine.settle_live()
    query = msgspec.structs.replace(_query(since, until, change, task_id, failed), most=_PAGE)
    while found := engine.index.records(query):
        yield from found
        query = msgspec.structs.replace(query, before=found[-1].place)


def _query(since: Moment, until: Moment, change: str, task_id: str, failed: bool) -> HistoryQuery:
    now = time.time_ns()
    since_ns = max(0, _moment(since, now) or 0)
    until_ns = _moment(until, now)
    if until_ns is not None and until_ns <= since_ns:
        raise InvalidInput("the time asked for ends before it begins", "see --since and --until")
    check_text("change", change)
    check_text("task_id", task_id)
    return HistoryQuery(
        since_ns=since_ns, until_ns=until_ns, change=change, task_id=task_id, failed=failed
    )


def _moment(given: Moment, now_ns: int) -> int | None:
    if given is None or given == "":
        return None
    text = given.isoformat() if isinstance(given, datetime.datetime) else given
    return min(parse_moment(text, now_ns), _LONG)


def _is_place(given: object) -> bool:
    try:
        found = msgspec.convert(given, Place)
    except msgspec.ValidationError:
        return False
    return all(abs(number) <= _LONG for number in (found[0], found[2]))


# Documents


def record_document(one: ExecutionRecord) -> dict[str, Any]:
    """Return a record as `--json` shows it, and as a line of CSV has it."""
    tokens = one.tokens
    return {
        "execution_id": one.execution, "step": one.step, "task_id": one.task_id,
        "change": one.change, "workflow": one.workflow, "role": one.role, "model": one.model,
        "runtime": one.runtime, "strategy": one.strategy, "status": one.status,
        "success": one.success, "error_kind": one.kind, "attempt": one.attempt,
        "tokens_in": tokens.input, "tokens_out": tokens.output,
        "tokens_cache_read": tokens.cache_read, "tokens_cache_write": tokens.cache_write,
        "cost": None if one.cost is None else float(one.cost), "unmetered": one.unmetered,
        "duration_s": one.duration_s, "executed_at": one.executed_at,
    }  # fmt: skip


def totals_document(one: Totals) -> dict[str, Any]:
    """Return totals as `--json` shows them."""
    tokens, rate, mean = one.tokens, one.success_rate, one.mean_s
    return {
        "count": one.count, "completed": one.completed, "failed": one.failed,
        "interrupted": one.interrupted, "skipped": one.skipped,
        "success_rate": None if rate is None else round(rate, 4),
        "tokens": tokens.total, "tokens_in": tokens.input, "tokens_out": tokens.output,
        "tokens_cache_read": tokens.cache_read, "tokens_cache_write": tokens.cache_write,
        "cost": None if one.cost is None else float(one.cost), "unpriced": one.unpriced,
        "unmetered": one.unmetered, "duration_s": one.duration_s,
        "mean_s": None if mean is None else round(mean, 6), "p50_s": one.p50_s, "p95_s": one.p95_s,
    }  # fmt: skip


def history_document(found: History) -> dict[str, Any]:
    """Return an answer as `--json` shows it."""
    document: dict[str, Any] = {"schema": 1, "totals": totals_document(found.totals)}
    if found.by is None:
        return {**document, "steps": [record_document(one) for one in found.records]}
    groups = [{"key": one.key, **totals_document(one.totals)} for one in found.groups]
    return {**document, "by": found.by, "groups": groups}


def csv_rows(documents: Iterable[dict[str, Any]], fields: Sequence[str]) -> Iterator[list[str]]:
    """Yield a header and a line for each document.

    No value can break a line, steer a terminal, or be a formula for a spreadsheet.
    """
    yield list(fields)
    for one in documents:
        yield [_cell(one[name]) for name in fields]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    # spreadsheets run what begins so, and show what follows an apostrophe as it is
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


RECORD_FIELDS = tuple(
    record_document(ExecutionRecord(execution="", seq=0, step="", status="failed", executed_ns=0))
)
GROUP_FIELDS = ("key", *totals_document(Totals()))
