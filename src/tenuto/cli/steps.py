"""tenuto history --steps: what agents' steps came to, one by one or in groups; also as CSV."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from tenuto.cli.arguments import opened
from tenuto.cli.console import OUT, encoded, width
from tenuto.cli.table import table
from tenuto.cli.words import plural
from tenuto.core.history import SKIPPED, check_by
from tenuto.core.ids import short
from tenuto.core.quantities import brief_duration, money
from tenuto.engine import history as past

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from tenuto.cli.console import Console
    from tenuto.core.history import ExecutionRecord, Group, History, Totals
    from tenuto.engine.blocking import BlockingEngine

_MOST = 50
_HEADER = (
    "TASK", "STEP", "STATUS", "ENDED", "DURATION", "IN", "OUT", "COST", "ROLE", "RUNTIME", "MODEL",
)  # fmt: skip
_TOTALS = ("STEPS", "SUCCESS", "IN", "OUT", "COST", "MEAN", "P50", "P95")


def steps(args: argparse.Namespace, console: Console) -> int:
    """Print the steps that fit, or the totals of their groups."""
    by = check_by(args.by)
    asked: dict[str, Any] = {
        "since": args.since, "until": args.until, "change": args.change, "task_id": args.task_id,
        "failed": args.failed,
    }  # fmt: skip
    with closing(opened()) as engine:
        if args.csv and by is None and args.id is None and args.n is None:
            records = past.pages(engine, **asked)
            _csv((past.record_document(one) for one in records), past.RECORD_FIELDS, console)
            return 0
        most = args.n or (None if args.csv else _MOST)
        found = past.history(engine, args.id, by=by, most=most, **asked)
    if args.csv:
        document = past.history_document(found)
        fields = past.RECORD_FIELDS if by is None else past.GROUP_FIELDS
        _csv(document["steps" if by is None else "groups"], fields, console)
    elif console.json:
        console.document(past.history_document(found))
    else:
        _tell(found, console)
    return 0


def steps_of_one(engine: BlockingEngine, execution_id: str, console: Console) -> int:
    """Print the steps of one task."""
    found = past.history(engine, execution_id, most=None)
    if console.json:
        document = past.history_document(found)
        console.document({"id": found.records[0].execution, "transitions": [], **document})
    else:
        _tell(found, console)
    return 0


def _csv(documents: Iterable[dict[str, Any]], fields: tuple[str, ...], console: Console) -> None:
    import csv
    import io

    line = io.StringIO()
    writer = csv.writer(line)
    for row in past.csv_rows(documents, fields):
        writer.writerow(row)
        console.write(OUT, encoded(line.getvalue()))
        line.seek(0)
        line.truncate()


def _tell(found: History, console: Console) -> None:
    if console.quiet:
        for name in dict.fromkeys(one.execution for one in found.records):
            console.out(name)
        for one in found.groups:
            console.out(one.key)
        return
    if not found.totals.count:
        console.message("No step of a task has ended that fits.")
        return
    if found.by is not None:
        header = (found.by.upper(), *_TOTALS)
        rows = [_group(one) for one in found.groups]
        console.out("\n".join(table(header, rows, width(), right=range(1, len(header)))))
    else:
        rows = [_record(one) for one in found.records]
        paint = {2: console.paint_state}
        lines = table(_HEADER, rows, width(), right=(4, 5, 6, 7), paint=paint)
        console.out("\n".join(lines))
    console.out(_summary(found.totals))


def _record(one: ExecutionRecord) -> tuple[str, ...]:
    skipped = one.status == SKIPPED
    status = "skipped" if skipped else one.status
    if one.kind and one.kind != status:
        status = f"{status}: {one.kind}"
    tokens = one.tokens
    return (
        short(one.execution), one.step, status,
        one.executed_at[:19] + "Z", brief_duration(one.duration_s),
        str(tokens.total - tokens.output), str(tokens.output),
        "-" if skipped and one.cost is None else money(one.cost),
        one.role or "-", one.runtime or "-", one.model or "-",
    )  # fmt: skip


def _group(one: Group) -> tuple[str, ...]:
    totals = one.totals
    rate = totals.success_rate
    tokens = totals.tokens
    durations = (totals.mean_s, totals.p50_s, totals.p95_s)
    return (
        one.key or "-", str(totals.count), "-" if rate is None else f"{rate:.0%}",
        str(tokens.total - tokens.output), str(tokens.output), _cost(totals),
        *("-" if seconds is None else brief_duration(seconds) for seconds in durations),
    )  # fmt: skip


def _cost(totals: Totals) -> str:
    known = totals.cost is not None
    return money(totals.cost) + ("+?" if known and totals.unpriced else "")


def _summary(totals: Totals) -> str:
    tokens = totals.tokens
    parts = [plural(totals.count, "step")]
    if totals.success_rate is not None:
        parts.append(f"{totals.success_rate:.0%} completed")
    if totals.skipped:
        parts.append(f"{totals.skipped} skipped")
    parts.append(f"{tokens.total - tokens.output} tokens in, {tokens.output} out")
    parts.append(f"cost {_cost(totals)}")
    if totals.mean_s is not None and totals.p95_s is not None:
        mean, p95 = brief_duration(totals.mean_s), brief_duration(totals.p95_s)
        parts.append(f"{mean} on average, {p95} at p95")
    return ", ".join(parts)
