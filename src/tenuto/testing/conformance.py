"""What every implementation of a port must do, as functions that raise AssertionError.

A test calls them with a way to make the implementation; see tests/test_conformance.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from tenuto.core.confinement import Subject
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
STORE_SUITE = (store_lists_what_was_added, store_settles_and_forgets)
