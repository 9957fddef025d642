"""What every implementation of a port must do, as functions that raise AssertionError.

A test calls them with a way to make the implementation; see tests/test_conformance.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal

import msgspec

from tenuto.core.budget import Tokens
from tenuto.core.confinement import Subject
from tenuto.core.history import BY, ExecutionRecord, Group, HistoryQuery, group, total
from tenuto.core.ids import new_id
from tenuto.core.listing import Query, Row
from tenuto.core.ports import Dispatcher, Rung, Store
from tenuto.core.states import LIVE, State


def _row(number: int, state: State = State.RUNNING, **fields: object) -> Row:
    row = Row(id=new_id(), kind="command", state=state, title=f"job {number}", created_ns=number)
    return msgspec.structs.replace(row, **fields)


def store_lists_what_was_added(make: Callable[[], Store]) -> None:
    """Rows come back by id, by prefix, newest first, and through every filter."""
    store = make()
    rows = [_row(n, State.RUNNING if n % 2 else State.FAILED) for n in range(1, 9)]
    for row in rows:
        store.add(row, f"words of {row.title}")
    assert store.get(rows[3].id) == rows[3]
    assert store.by_prefix(rows[2].id) == [rows[2]]
    assert store.latest(Query()) == rows[::-1]
    assert store.latest(Query(most=2)) == rows[:-3:-1]
    assert store.latest(Query(states=(State.FAILED,))) == [
        r for r in rows[::-1] if r.created_ns % 2 == 0
    ]
    assert store.latest(Query(since_ns=7)) == [rows[7], rows[6]]
    assert store.latest(Query(text="job 5")) == [rows[4]]
    assert store.latest(Query(kind="code")) == []
    assert [row.id for row in store.live()] == [r.id for r in rows if r.state in LIVE]
    assert store.counts() == {"running": 4, "failed": 4}
    store.close()


def store_settles_and_forgets(make: Callable[[], Store]) -> None:
    """A settled row keeps its head; async stays async; forgotten rows are gone."""
    store = make()
    row = _row(1, parent="p")
    store.add(row)
    store.mark_async(row.id)
    ended = msgspec.structs.replace(row, state=State.SUCCEEDED, exit_code=0, ended_ns=9)
    store.settle(ended)
    found = store.get(row.id)
    assert found is not None
    assert (found.state, found.exit_code, found.is_async) == (State.SUCCEEDED, 0, True)
    assert found.title == row.title
    assert store.children("p") == [found]
    assert store.latest(Query(only_async=True)) == [found]
    assert store.counts() == {"succeeded": 1}
    assert store.nearest(row.id[:-4] + "ffff") == found
    assert store.live() == []
    store.settle(msgspec.structs.replace(ended, has_left=True))
    assert [one.id for one in store.live()] == [row.id], "a keeper should still be there"
    store.settle(ended)
    assert store.live() == []
    store.settle(_row(2))
    assert len(store.latest(Query())) == 1, "settling must not invent rows"
    store.forget([row.id])
    assert store.get(row.id) is None
    assert store.counts().get("succeeded", 0) == 0
    assert store.check() == ""
    store.close()


def store_knows_what_is_inside_what(make: Callable[[], Store]) -> None:
    """Children come oldest first, of their own parent only; a wrong id is near to the likest one."""
    store = make()
    assert store.nearest(new_id()) is None, "nothing is near in an empty store"
    rows = [_row(n, parent="one" if n % 2 else "other") for n in range(1, 5)]
    rows.append(_row(5, parent=None))
    for row in reversed(rows):
        store.add(row)
    assert store.children("one") == [rows[0], rows[2]]
    assert store.children(rows[4].id) == []
    assert store.children("on") == [], "a parent is named wholly"
    assert store.nearest(rows[3].id[:-1] + "g") == rows[3]
    assert store.by_prefix(rows[0].id[:4], 2) == rows[:2]
    store.close()


def store_keeps_the_records_of_steps(make: Callable[[], Store]) -> None:
    """A settled task has exactly the records it came with; they are found by everything they say."""
    store = make()
    task, other = _ended(1), _ended(2)
    mine = [_record(task.id, n, change="C" if n < 3 else "") for n in range(1, 5)]
    for row, records in ((task, mine), (other, [_record(other.id, 9, task_id="T", kind="auth")])):
        store.add(row)
        store.settle(row, [_record(row.id, 99)])
        store.settle(row, records)  # what was there before is replaced
        store.settle(row)  # and left alone by who brings none
    theirs = store.records(HistoryQuery(execution=other.id))
    assert [one.seq for one in theirs] == [9]
    everything = store.records(HistoryQuery())
    assert everything == [*theirs, *mine[::-1]], "newest first, each as it was given"
    assert store.records(HistoryQuery(execution=task.id[:-1])) == mine[::-1], "a beginning will do"
    assert store.records(HistoryQuery(since_ns=3, until_ns=9)) == [mine[3], mine[2]]
    assert store.records(HistoryQuery(change="C")) == [mine[1], mine[0]]
    assert store.records(HistoryQuery(task_id="T")) == theirs
    assert store.records(HistoryQuery(failed=True)) == [*theirs, mine[2], mine[0]]
    assert store.records(HistoryQuery(most=2)) == everything[:2]
    before = everything[1].place
    assert store.records(HistoryQuery(before=before, most=2)) == everything[2:4], "page by page"
    store.forget([task.id])
    assert store.records(HistoryQuery()) == everything, "records outlive their rows"
    store.forget_records([other.id], before_ns=2)
    assert store.records(HistoryQuery()) == mine[:0:-1]
    store.close()


def store_adds_records_up(make: Callable[[], Store]) -> None:
    """Totals are those of a plain sum: of all that fits, by group, and nothing of nothing."""
    store = make()
    row = _ended(1)
    records = [_record(row.id, n, model="m" if n < 4 else "n") for n in range(1, 7)]
    store.add(row)
    store.settle(row, records)
    assert store.totals(HistoryQuery()) == [Group("", total(records))]
    assert store.totals(HistoryQuery(most=1))[0].totals.count == 6, "of all that fits, not a page"
    assert store.totals(HistoryQuery(failed=True)) == [Group("", total(records[::2]))]
    assert store.totals(HistoryQuery(since_ns=100)) == []
    for by in BY:
        assert store.totals(HistoryQuery(), by) == group(records, by), by
    assert [one.key for one in store.totals(HistoryQuery(), "model")] == ["m", "n"]
    store.close()


def _ended(number: int) -> Row:
    return _row(number, State.SUCCEEDED, kind="task", ended_ns=100)


def _record(execution: str, number: int, **fields: object) -> ExecutionRecord:
    """Return a record that ended at that time; those of even numbers were completed."""
    record = ExecutionRecord(
        execution=execution, seq=number, step=f"s{number}", executed_ns=number, attempt=1,
        status="failed" if number % 2 else "completed", role="developer", runtime="echo",
        tokens=Tokens(number, 2, 3, 4), duration_s=number / 8,
        cost=None if number == 5 else Decimal(number) / 1000,
    )  # fmt: skip
    return msgspec.structs.replace(record, **fields)


def dispatcher_says_who_took_the_job(
    make: Callable[[], Dispatcher], job: bytes, tape_fd: int, dir_fd: int
) -> bool:
    """The connection brings a byte if a keeper took the job, and ends without one if not."""
    dispatcher = make()
    connection = dispatcher.launch(job, tape_fd, dir_fd)
    connection.settimeout(30)
    first = connection.recv(1)
    assert len(first) <= 1
    os.fstat(tape_fd)  # our descriptors stay ours
    os.fstat(dir_fd)
    connection.close()
    dispatcher.close()
    dispatcher.close()  # closing twice is no error
    return bool(first)


def rung_answers_for_itself(make: Callable[[], Rung], subject: Subject) -> None:
    """A rung has a name, says the same twice, and changes nothing of the subject that it is given."""
    rung = make()
    assert rung.name
    assert rung.name.isidentifier()
    assert rung.probe() == rung.probe()
    before = msgspec.json.encode(subject)
    assert rung.refuses(subject) == rung.refuses(subject)
    assert rung.lacks(subject) == rung.lacks(subject)
    assert msgspec.json.encode(subject) == before


def rung_makes_a_job(make: Callable[[], Rung], subject: Subject) -> None:
    """What a keeper is given holds the program's words last, its report, and survives JSON."""
    confinement = make().confine(subject, ["something"])
    assert confinement.argv[-len(subject.argv) :] == subject.argv
    assert os.path.isabs(confinement.argv[0])
    assert os.path.isabs(confinement.cwd)
    assert confinement.confine["kind"] in ("bwrap", "landlock", "limits")
    report = confinement.confine["report"]
    assert report["level"]
    assert "something" in report["missing"]
    assert report["net"] in ("on", "loopback", "off")
    assert confinement.rlimits["core"] == 0
    decoded = msgspec.json.decode(msgspec.json.encode(confinement), type=type(confinement))
    assert decoded.argv == confinement.argv


RUNG_SUITE = (rung_answers_for_itself, rung_makes_a_job)
STORE_SUITE = (
    store_lists_what_was_added,
    store_settles_and_forgets,
    store_knows_what_is_inside_what,
    store_keeps_the_records_of_steps,
    store_adds_records_up,
)
