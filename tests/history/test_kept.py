"""Records in the index and in the archive: rebuilt, damaged, written by two at once, without room."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from history_help import NOON, at_random, filled, row, tape

from tenuto.core import events as ev
from tenuto.core import task_events as te
from tenuto.core.errors import DiskFull, InvalidInput
from tenuto.core.history import DAY_NS, HistoryQuery
from tenuto.core.ids import new_id
from tenuto.core.listing import Row
from tenuto.core.states import State
from tenuto.dispatch.launch import FreshLauncher
from tenuto.engine import retention
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.history import csv_rows, history, of_one, pages, rebuild
from tenuto.engine.settings import Settings
from tenuto.stores import archive as archive_module
from tenuto.stores.archive import Archive
from tenuto.stores.database import Database
from tenuto.stores.index import Index
from tenuto.stores.layout import Project, make_home

STEPS = (
    te.StepStarted(step="a", attempt=1, runtime="echo", model="m"),
    te.StepFinished(step="a", status="completed", attempt=1, duration_s=1.5),
    te.StepStarted(step="b", attempt=1, runtime="echo", model="m"),
    te.StepFinished(step="b", status="failed", attempt=1, kind="auth"),
    te.StepFinished(step="c", status="skipped_dependency_failed"),
    ev.Ended(state=State.FAILED),
)


@pytest.fixture
def home(tmp_path: Path) -> Project:
    project = Project(root=str(tmp_path), home=str(tmp_path / "home"))
    make_home(project)
    return project


@pytest.fixture
def blocking(home: Project) -> BlockingEngine:
    return BlockingEngine(home, Settings(), FreshLauncher())


def running(execution: str) -> Row:
    return Row(execution, "task", State.RUNNING, created_ns=1)


def names(engine: BlockingEngine) -> list[str]:
    return [one.step for one in pages(engine)]


@pytest.mark.promise("D6")
def test_a_rebuild_equals_what_was_added_one_by_one(
    home: Project, blocking: BlockingEngine
) -> None:
    blocking.index.counts()  # an empty one is made
    for number in range(5):
        one = tape(home, STEPS, {"text": "x", "change": f"c{number}"})
        blocking.index.add(running(one))
        blocking.execution(one)  # reads the tape, and notes its end
    added = blocking.index.records(HistoryQuery())
    assert len(added) == 15
    assert rebuild(blocking) == 5
    assert blocking.index.records(HistoryQuery()) == added
    blocking.close()


def test_a_task_is_noted_when_it_is_listed(home: Project, blocking: BlockingEngine) -> None:
    blocking.index.counts()
    blocking.index.add(running(tape(home, STEPS)))
    assert blocking.index.records(HistoryQuery()) == []
    assert sorted(names(blocking)) == ["a", "b", "c"]
    blocking.close()


def test_an_index_of_an_older_schema_is_made_anew_with_records(
    home: Project, blocking: BlockingEngine
) -> None:
    tape(home, STEPS)
    old = Database(home, 1, "CREATE TABLE executions (id TEXT)", lambda _: 0)
    old.use(lambda db: db.execute("SELECT 1"))
    old.close()
    assert sorted(names(blocking)) == ["a", "b", "c"]
    blocking.close()


@pytest.mark.promise("D6")
def test_history_outlives_clean_and_a_rebuild_after_it(
    home: Project, blocking: BlockingEngine
) -> None:
    one, other = tape(home, STEPS), tape(home, STEPS)
    blocking.index.rebuild()
    before = blocking.index.records(HistoryQuery())
    assert retention.clean(blocking, keep=0).removed == 2
    assert blocking.index.records(HistoryQuery()) == before
    assert [one.step for one in of_one(blocking, other)] == ["c", "b", "a"]
    assert rebuild(blocking) == 0
    assert blocking.index.records(HistoryQuery()) == before
    os.truncate(home.index, 4096)  # a damaged index heals by itself, from the same sources
    assert blocking.index.records(HistoryQuery()) == before
    assert retention.clean(blocking, older_s=0, history=True).removed == 0
    assert blocking.index.records(HistoryQuery()) == []
    rebuild(blocking)
    assert blocking.index.records(HistoryQuery()) == []
    assert not os.path.exists(home.folder(one))
    blocking.close()


def test_clean_with_history_keeps_that_of_others(home: Project, blocking: BlockingEngine) -> None:
    first, second = tape(home, STEPS), tape(home, STEPS)
    blocking.index.rebuild()
    retention.clean(blocking, keep=1)
    retention.clean(blocking, keep=0, history=True)
    rebuild(blocking)
    assert {one.execution for one in blocking.index.records(HistoryQuery())} == {first}
    assert not os.path.exists(home.folder(second))
    blocking.close()


def test_a_task_written_down_twice_is_counted_once(home: Project, blocking: BlockingEngine) -> None:
    one = tape(home, STEPS)
    blocking.index.rebuild()
    Archive(home).keep(blocking.index.records(HistoryQuery()))  # and died before it was removed
    rebuild(blocking)
    assert history(blocking).totals.count == 3
    assert retention.clean(blocking, keep=0).removed == 1
    rebuild(blocking)
    assert history(blocking).totals.count == 3
    assert history(blocking, one).totals.count == 3
    blocking.close()


def test_without_room_for_its_history_a_task_stays(
    home: Project, blocking: BlockingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tape(home, STEPS)
    blocking.index.rebuild()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(archive_module, "_write_all", full)
        cleaned = retention.clean(blocking, keep=0)
        assert (cleaned.removed, cleaned.kept) == (0, 1)
        with pytest.raises(DiskFull):
            Archive(home).keep(blocking.index.records(HistoryQuery()))
    assert os.path.exists(home.folder(one))
    assert retention.clean(blocking, keep=0).removed == 1
    assert history(blocking).totals.count == 3
    assert Archive(home).health().damaged == 0
    blocking.close()


def test_a_later_end_is_not_undone_by_who_read_an_earlier_one(home: Project) -> None:
    one = at_random(random.Random(1), 1)[0]
    later = msgspec.structs.replace(one, seq=one.seq + 1, step="later")
    index = Index(home, list)
    index.add(running(one.execution))
    index.settle(row(one.execution, NOON + 5), [one, later])
    index.settle(row(one.execution, NOON + 1), [one])
    assert len(index.records(HistoryQuery(execution=one.execution))) == 2
    index.close()


# The archive's files


def month(project: Project) -> str:
    (name,) = [name for name in os.listdir(project.history) if name.isdecimal()]
    return os.path.join(project.history, name)


@pytest.mark.parametrize("where", ["head", "middle", "tail", "all", "empty"])
def test_a_damaged_file_costs_only_what_was_damaged(home: Project, where: str) -> None:
    archive = Archive(home)
    records = [
        msgspec.structs.replace(one, executed_ns=NOON) for one in at_random(random.Random(3), 30)
    ]
    for execution in dict.fromkeys(one.execution for one in records):
        archive.keep(one for one in records if one.execution == execution)
    assert len(list(archive.records())) == 30
    path = month(home)
    data = bytearray(Path(path).read_bytes())
    half = len(data) // 2
    if where == "head":
        data[:10] = b"x" * 10  # the preamble stands there twice
    elif where == "middle":
        data[half] ^= 255
    elif where == "tail":
        data = data[:-3]
    else:
        data = bytearray(len(data)) if where == "all" else bytearray()
    Path(path).write_bytes(data)
    left = list(archive.records())
    few = {"head": 30, "middle": 20, "tail": 20, "all": 0, "empty": 0}[where]
    assert few <= len(left) <= (30 if where == "head" else 29 if few else 0)
    assert all(one in records for one in left)
    wrong = archive.health().damaged
    assert bool(wrong) == (where not in ("head", "empty"))
    archive.heal()
    assert archive.health().damaged == 0
    assert list(archive.records()) == left
    more = [msgspec.structs.replace(records[0], execution=new_id())]
    archive.keep(more)
    assert list(archive.records()) == left + more
    if wrong:
        assert [name for name in os.listdir(home.quarantine) if name.startswith("history-")]


def test_a_torn_end_is_cut_before_more_is_written(home: Project) -> None:
    archive = Archive(home)
    records = at_random(random.Random(4), 1)
    archive.keep(records)
    with open(month(home), "ab") as file:
        file.write(b"half a frame")
    archive.keep(records)
    assert list(archive.records()) == records * 2
    assert archive.health().damaged == 0


def test_drop_forgets_what_is_older(home: Project) -> None:
    archive = Archive(home)
    records = at_random(random.Random(5), 20)
    archive.keep(records)
    edge = NOON + DAY_NS
    archive.drop([], edge)
    kept = [one for one in records if one.executed_ns >= edge]
    assert sorted(archive.records(), key=lambda one: one.place) == sorted(
        kept, key=lambda one: one.place
    )


def _add(root: str, home: str, seed: int) -> None:
    project = Project(root=root, home=home)
    records = at_random(random.Random(seed), 60)
    filled(project, records).close()
    for one in records:
        Archive(project).keep([one])


@pytest.mark.promise("D6")
def test_two_processes_add_at_once(home: Project) -> None:
    spawn = multiprocessing.get_context("spawn")
    both = [spawn.Process(target=_add, args=(home.root, home.home, seed)) for seed in (1, 2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
        assert one.exitcode == 0
    index = Index(home, list)
    assert len(index.records(HistoryQuery())) == 120
    assert len(list(Archive(home).records())) == 120
    assert Archive(home).health().damaged == 0
    index.close()


@pytest.mark.promise("D6")
@pytest.mark.parametrize(
    "asked",
    [
        {"change": "\ud800"}, {"task_id": 5}, {"before": (1 << 80, "x", 1)}, {"before": "x"},
        {"execution_id": "\ud800"}, {"execution_id": None, "since": "1e999d"},
    ],
)  # fmt: skip
def test_absurd_questions_are_refused_in_words(home: Project, asked: dict[str, Any]) -> None:
    engine = BlockingEngine(home, Settings(), FreshLauncher())
    try:
        with pytest.raises(InvalidInput):
            history(engine, **asked)
        assert history(engine, most=1 << 80).records == ()
    finally:
        engine.close()


@pytest.mark.promise("D6")
def test_no_name_in_a_csv_file_is_a_formula_or_breaks_its_line() -> None:
    """Spreadsheets run what begins with one of these; numbers of our own stay numbers."""
    names = ["=1+1", "+1", "-1", "@SUM(1)", "a\r\n=b", "\t=c", "plain", 'a "b", c']
    rows = csv_rows(({"name": one, "cost": -1.5} for one in names), ("name", "cost"))
    header, *cells = rows
    assert header == ["name", "cost"] and {cost for _, cost in cells} == {"-1.5"}
    assert [name for name, _ in cells] == [
        "'=1+1", "'+1", "'-1", "'@SUM(1)", "a  =b", " =c", "plain", 'a "b", c',
    ]  # fmt: skip
