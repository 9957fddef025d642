"""Totals by SQL equal a plain fold; every filter finds what a plain filter finds."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

import pytest
from history_help import NOON, at_random, filled, row
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.core.errors import InvalidInput
from tenuto.core.history import (
    BY,
    DAY_NS,
    ExecutionRecord,
    Group,
    HistoryQuery,
    check_by,
    group,
    known_cost,
    total,
)
from tenuto.core.ids import new_id
from tenuto.stores.layout import Project, make_home
from tenuto.testing.dummies import MemoryStore


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("totals")


def a_project(place: Path) -> Project:
    home = str(place / new_id())
    project = Project(root=str(place), home=home)
    make_home(project)
    return project


@pytest.mark.promise("D6")
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), number=st.integers(0, 40))
def test_totals_equal_a_plain_fold(place: Path, seed: int, number: int) -> None:
    chance = random.Random(seed)
    records = at_random(chance, number)
    index = filled(a_project(place), records)
    memory = MemoryStore()
    for execution in {one.execution for one in records}:
        memory.settle(row(execution), [one for one in records if one.execution == execution])
    queries = [
        HistoryQuery(),
        HistoryQuery(since_ns=NOON + DAY_NS),
        HistoryQuery(since_ns=NOON + DAY_NS, until_ns=NOON + 2 * DAY_NS),
        HistoryQuery(change="c1", failed=True),
        HistoryQuery(task_id="T-1"),
        HistoryQuery(most=7),
    ]
    queries += [HistoryQuery(execution=one.execution) for one in records[:1]]
    queries += [HistoryQuery(before=one.place, most=5) for one in records[:1]]
    for query in queries:
        fitting = [one for one in records if query.fits(one)]
        newest = sorted(fitting, key=lambda one: one.place, reverse=True)[: query.most]
        assert index.records(query) == newest == memory.records(query)
        whole = [Group("", total(fitting))] if fitting else []
        assert index.totals(query) == whole == memory.totals(query)
        for by in BY:
            assert index.totals(query, by) == group(fitting, by) == memory.totals(query, by)
    index.close()


def record(seq: int, **fields: object) -> ExecutionRecord:
    values = {"execution": "x", "step": "a", "status": "completed", "executed_ns": NOON, **fields}
    return ExecutionRecord(seq=seq, **values)  # type: ignore[arg-type]


def test_totals_by_hand() -> None:
    found = total(
        [
            record(0, cost=Decimal("0.1"), duration_s=1.0),
            record(1, cost=Decimal("0.2"), duration_s=2.0, unmetered=True),
            record(2, status="failed", duration_s=10.0),
            record(3, status="skipped_dependency_failed", duration_s=99.0),
        ]
    )
    assert (found.count, found.ran, found.completed, found.failed, found.skipped) == (4, 3, 2, 1, 1)
    assert found.cost == Decimal("0.3"), "to the cent, not as floats have it"
    assert (found.unpriced, found.unmetered) == (1, 1)
    assert found.success_rate == pytest.approx(2 / 3)
    assert (found.duration_s, found.p50_s, found.p95_s) == (13.0, 2.0, 10.0)
    assert total([]).success_rate is None
    assert total([]).cost is None


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-1", "1e999999", "1000001", None])
def test_what_can_be_no_cost_is_unknown(text: str | None) -> None:
    assert known_cost(None if text is None else Decimal(text)) is None


def test_costs_are_kept_to_a_trillionth() -> None:
    assert known_cost(Decimal("0.0000000000014")) == Decimal("0.000000000001")
    assert str(known_cost(Decimal("1000"))) == "1000"


def test_groups_have_names() -> None:
    assert check_by("model") == "model"
    with pytest.raises(InvalidInput, match="colour"):
        check_by("colour")
