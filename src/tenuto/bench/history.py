"""How fast the records of a million steps are found and summed up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal

from tenuto.bench.place import Place
from tenuto.bench.table import Row, at_most, median, none_of
from tenuto.core.budget import Tokens
from tenuto.core.history import DAY_NS, ExecutionRecord, HistoryQuery
from tenuto.core.ids import new_id
from tenuto.stores.index import Index
from tenuto.stores.layout import make_home

_YEAR_NS = 365 * DAY_NS
_EACH = 4  # steps of a task


def history(quick: bool) -> Iterator[Row]:
    """Measure the records of a year: a million, of which some 2,700 are of the last day."""
    number = 20_000 if quick else 1_000_000
    now = time.time_ns()
    with Place() as place:
        make_home(place.project)
        index = Index(place.project, list, lambda _: _records(number, now))
        try:
            begin = time.perf_counter()
            index.rebuild()
            filled = time.perf_counter() - begin
            yield from _rows(index, number, now, filled, 5 if quick else 50)
        finally:
            index.close()


def _records(number: int, now: int) -> Iterator[ExecutionRecord]:
    execution = ""
    for one in range(number):
        if one % _EACH == 0:
            execution = new_id()
        yield ExecutionRecord(
            execution=execution, seq=one % _EACH * 10, step=f"step-{one % _EACH}",
            status="completed" if one % 9 else "failed",
            executed_ns=now - (number - one) * (_YEAR_NS // 1_000_000), attempt=1,
            task_id=f"T-{one // 40}", change=f"C-{one // 400}", workflow=f"w-{one % 7}",
            role="developer", model=f"model-{one % 5}", runtime=f"runtime-{one % 3}",
            strategy="multi", tokens=Tokens(one % 9973, one % 997),
            cost=Decimal(one % 99_991).scaleb(-6), duration_s=one % 99_991 / 1000,
        )  # fmt: skip


def _rows(index: Index, number: int, now: int, filled: float, rounds: int) -> Iterator[Row]:
    newest = index.records(HistoryQuery(most=1))[0]
    day = HistoryQuery(since_ns=now - DAY_NS)
    middle = f"T-{number // 80}"
    yield at_most(
        f"history of {number:,} steps: latest 50",
        _median(rounds, lambda: index.records(HistoryQuery(most=50))),
        5,
    )
    one_task = HistoryQuery(execution=newest.execution)
    yield at_most("  of one task", _median(rounds, lambda: index.records(one_task)), 1)
    by_id = HistoryQuery(task_id=middle, most=50)
    yield at_most("  by the user's task id", _median(rounds, lambda: index.records(by_id)), 5)
    yield at_most(
        "  the last day by model", _median(rounds, lambda: index.totals(day, "model")), 10
    )
    whole = _median(1, lambda: index.totals(HistoryQuery(), "model"))
    yield Row(what="  all of it by model", ours=whole, unit="ms")
    total = index.totals(HistoryQuery())[0].totals
    wrong = int(total.count != number) + (total.failed != -(-number // 9))
    wrong += len(index.records(one_task)) != _EACH
    wrong += len(index.records(by_id)) != 40
    yield none_of("  wrong answers", wrong, "reads", f"filled in {filled:.1f} s")


def _median(rounds: int, work: Callable[[], Sequence[object]]) -> float:
    """Return the median time of some calls, in milliseconds."""
    times: list[float] = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1000)
    return median(times)
