"""The records of agents' steps in the index: written, found and summed up by SQLite.

Sums are of whole numbers (microseconds, trillionths of a dollar), each in two parts, so that they are
exact and never too large for 64 bits.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from tenuto.core.budget import Tokens
from tenuto.core.history import (
    DAY_NS,
    SKIPPED,
    By,
    ExecutionRecord,
    Group,
    HistoryQuery,
    Totals,
    as_micro,
    as_pico,
    day_name,
    dollars,
    in_order,
)
from tenuto.stores.database import Connection

_COLUMNS = (
    "execution, seq, step, status, executed_ns, attempt, task_id, change, workflow, role, model, "
    "runtime, strategy, kind, input, output, cache_read, cache_write, cost, unmetered, duration"
)
_MARKS = ", ".join("?" * len(_COLUMNS.split(",")))
_KEYS: dict[By | None, str] = {
    None: "''",
    "model": "model",
    "runtime": "runtime",
    "day": f"executed_ns / {DAY_NS}",
    "change": "change",
    "workflow": "workflow",
    "task": "CASE task_id WHEN '' THEN execution ELSE task_id END",
    "role": "role",
    "strategy": "strategy",
}
_PART = 1_000_000
_SUMS = f"""
SELECT {{key}} AS key, count(*), sum(status = 'completed'), sum(status = 'failed'),
  sum(status = 'interrupted'), sum(status = '{SKIPPED}'),
  sum(input), sum(output), sum(cache_read), sum(cache_write),
  count(cost), sum(cost / {_PART}), sum(cost % {_PART}),
  sum(cost IS NULL AND status <> '{SKIPPED}'), sum(unmetered AND status <> '{SKIPPED}'),
  sum(CASE status WHEN '{SKIPPED}' THEN 0 ELSE duration / {_PART} END),
  sum(CASE status WHEN '{SKIPPED}' THEN 0 ELSE duration % {_PART} END)
FROM records {{where}} GROUP BY key
"""


# Write


def replace(db: Connection, execution: str, records: Iterable[ExecutionRecord]) -> None:
    """Let a task have exactly these records."""
    with db:
        db.execute("DELETE FROM records WHERE execution = ?", (execution,))
        insert(db, records)


def insert(db: Connection, records: Iterable[ExecutionRecord]) -> None:
    """Add records, unless they are there already."""
    sql = f"INSERT OR IGNORE INTO records ({_COLUMNS}) VALUES ({_MARKS})"
    with db:
        for one in records:
            db.execute(sql, _values(one))


def drop(db: Connection, executions: Sequence[str], before_ns: int) -> None:
    """Forget the records of these tasks, and all that are older."""
    with db:
        for one in executions:
            db.execute("DELETE FROM records WHERE execution = ?", (one,))
        db.execute("DELETE FROM records WHERE executed_ns < ?", (before_ns,))


def _values(one: ExecutionRecord) -> tuple[Any, ...]:
    tokens = one.tokens
    return (
        one.execution, one.seq, one.step, one.status, one.executed_ns, one.attempt, one.task_id,
        one.change, one.workflow, one.role, one.model, one.runtime, one.strategy, one.kind,
        tokens.input, tokens.output, tokens.cache_read, tokens.cache_write,
        None if one.cost is None else as_pico(one.cost), int(one.unmetered),
        as_micro(one.duration_s),
    )  # fmt: skip


# Read


def select(db: Connection, query: HistoryQuery) -> list[ExecutionRecord]:
    """Return the records that fit, newest first."""
    where, values = _where(query)
    sql = (
        f"SELECT {_COLUMNS} FROM records {where} "
        "ORDER BY executed_ns DESC, execution DESC, seq DESC LIMIT ?"
    )
    values.append(-1 if query.most is None else query.most)
    return [_record(row) for row in db.execute(sql, values)]


def totals(db: Connection, query: HistoryQuery, by: By | None) -> list[Group]:
    """Return the totals of each group of the records that fit; without `by` there is one, if any."""
    where, values = _where(query)
    with_ran = f"{where} AND" if where else "WHERE"
    ran = f"{with_ran} status <> '{SKIPPED}'"
    key = _KEYS[by]
    with db.reading():  # both are of the same moment
        sums = db.execute(_SUMS.format(key=key, where=where), values)
        durations: dict[Any, array[int]] = {}
        for name, duration in db.execute(f"SELECT {key}, duration FROM records {ran}", values):
            durations.setdefault(name, array("q")).append(duration)
    groups = [_group(row, sorted(durations.get(row[0], ())), by) for row in sums]
    return in_order(groups, by) if by else groups


def _where(query: HistoryQuery) -> tuple[str, list[Any]]:
    terms: list[str] = []
    values: list[Any] = []
    if query.execution:
        terms.append("execution >= ? AND execution < ?")
        values += [query.execution, f"{query.execution}g"]  # ids are hexadecimal
    if query.since_ns:
        terms.append("executed_ns >= ?")
        values.append(query.since_ns)
    if query.until_ns is not None:
        terms.append("executed_ns < ?")
        values.append(query.until_ns)
    if query.change:
        terms.append("change = ? AND change <> ''")  # as the index has it
        values.append(query.change)
    if query.task_id:
        terms.append("task_id = ? AND task_id <> ''")
        values.append(query.task_id)
    if query.failed:
        terms.append("status <> 'completed'")
    if query.before is not None:
        terms.append("(executed_ns, execution, seq) < (?, ?, ?)")
        values += query.before
    return f"WHERE {' AND '.join(terms)}" if terms else "", values


def _group(row: Sequence[Any], durations: Sequence[int], by: By | None) -> Group:
    (key, count, completed, failed, interrupted, skipped, given, output, read, written,
     priced, cost, cost_rest, unpriced, unmetered, duration, duration_rest) = row  # fmt: skip
    p50, p95 = (
        durations[-(-len(durations) * part // 100) - 1] / 1e6 if durations else None
        for part in (50, 95)
    )
    found = Totals(
        count=count,
        completed=completed,
        failed=failed,
        interrupted=interrupted,
        skipped=skipped,
        tokens=Tokens(given, output, read, written),
        cost=dollars(cost * _PART + cost_rest) if priced else None,
        unpriced=unpriced,
        unmetered=unmetered,
        duration_s=(duration * _PART + duration_rest) / 1e6,
        p50_s=p50,
        p95_s=p95,
    )
    return Group(day_name(key) if by == "day" else str(key), found)


def _record(row: Sequence[Any]) -> ExecutionRecord:
    return ExecutionRecord(
        execution=row[0],
        seq=row[1],
        step=row[2],
        status=row[3],
        executed_ns=row[4],
        attempt=row[5],
        task_id=row[6],
        change=row[7],
        workflow=row[8],
        role=row[9],
        model=row[10],
        runtime=row[11],
        strategy=row[12],
        kind=row[13],
        tokens=Tokens(*row[14:18]),
        cost=None if row[18] is None else dollars(row[18]),
        unmetered=bool(row[19]),
        duration_s=row[20] / 1e6,
    )
