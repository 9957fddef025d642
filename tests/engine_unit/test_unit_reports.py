"""The report as people read it."""

from __future__ import annotations

from tenuto.core.ids import new_id
from tenuto.engine.reports import Report, ReportLine


def test_the_columns_stand_under_each_other_whatever_is_waited_for():
    lines = [
        ReportLine(new_id(), "title", state, "2026-01-01T00:00:00Z", 61.0, number, False, False)
        for state, number in (("running", 1), ("waiting: approval", 1), ("waiting: input", 1))
    ]
    _, *told = Report("2026-01-01T00:00:00Z", tuple(lines), {"running": 1}).text().splitlines()
    assert len({line.index("1m01s") for line in told}) == 1
    assert all("1 line " in line for line in told)
