import fcntl
import multiprocessing
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenuto.core.errors import EngineFault
from tenuto.core.ids import new_id
from tenuto.core.listing import Query, Row
from tenuto.core.states import ENDED, LIVE, State
from tenuto.stores import database
from tenuto.stores.index import Index
from tenuto.stores.layout import Project, make_home

SPAWN = multiprocessing.get_context("spawn")
IDS = [f"{n:08x}-0000-7000-8000-{n:012x}" for n in (0, 1, 0x11, 0x12, 0x1200, 0xABCDEF, 0xABCDEE)]


def project_in(folder: Path | str) -> Project:
    project = Project(root=str(folder), home=os.path.join(folder, "state"))
    make_home(project)
    return project


@pytest.fixture
def project(tmp_path) -> Project:
    return project_in(tmp_path)


@contextmanager
def fresh_project() -> Iterator[Project]:
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="tenuto-test-") as folder:
        yield project_in(folder)


def row(n: int, **fields: object) -> Row:
    values = {"id": IDS[n], "kind": "command", "state": State.QUEUED, "created_ns": n + 1}
    return Row(**(values | fields))  # type: ignore[arg-type]


# Against a model

ROWS = st.builds(
    Row,
    id=st.sampled_from(IDS),
    kind=st.sampled_from(["code", "command", "task"]),
    state=st.sampled_from(State),
    reason=st.sampled_from(["", "exit"]),
    title=st.sampled_from(["", "make test", "sleep 5", "Grüße an alle"]),
    parent=st.none() | st.sampled_from(IDS[:2]),
    exit_code=st.none() | st.integers(0, 255),
    is_async=st.booleans(),
    created_ns=st.integers(1, 9),
    started_ns=st.none() | st.integers(1, 9),
    ended_ns=st.none() | st.integers(1, 9),
    starter=st.sampled_from(["", "1:2:b"]),
)
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), ROWS),
    st.tuples(st.just("settle"), ROWS),
    st.tuples(st.just("async"), st.sampled_from(IDS)),
    st.tuples(st.just("forget"), st.lists(st.sampled_from(IDS), max_size=3)),
    st.tuples(st.just("search"), st.sampled_from(["make", "sle", "grüsse"])),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("rebuild"), st.none()),
)
QUERIES = st.builds(
    Query,
    most=st.none() | st.integers(0, 5),
    states=st.lists(st.sampled_from(State), max_size=3).map(tuple),
    kind=st.sampled_from(["", "code", "nothing"]),
    text=st.sampled_from(["", "make", "SLEEP", "te", "sleep make", "Grüße", "absent"]),
    since_ns=st.integers(0, 9),
    only_async=st.booleans(),
)


def found_by(model: dict[str, Row], query: Query) -> list[Row]:
    def fits(one: Row) -> bool:
        words = one.title.lower().split()
        return (
            (not query.states or one.state in query.states)
            and (not query.kind or one.kind == query.kind)
            and one.created_ns >= query.since_ns
            and (one.is_async or not query.only_async)
            and all(
                any(word.startswith(part) for word in words) for part in query.text.lower().split()
            )
        )

    rows = sorted(
        (one for one in model.values() if fits(one)), key=lambda one: one.id, reverse=True
    )
    return rows if query.most is None else rows[: query.most]


def apply(index: Index, model: dict[str, Row], kind: str, value: object) -> None:
    match kind, value:
        case "add", Row() as one:
            if one.id not in model:
                index.add(one)
                model[one.id] = one
        case "settle", Row() as one:
            index.settle(one)
            if one.id in model:
                known = model[one.id]
                model[one.id] = msgspec.structs.replace(
                    known, state=one.state, reason=one.reason, exit_code=one.exit_code,
                    is_async=known.is_async or one.is_async, started_ns=one.started_ns,
                    ended_ns=one.ended_ns,
                )  # fmt: skip
        case "async", str() as one:
            index.mark_async(one)
            if one in model:
                model[one] = msgspec.structs.replace(model[one], is_async=True)
        case "forget", list() as ids:
            index.forget(ids)
            for one in ids:
                model.pop(one, None)
        case "search", str() as text:
            index.latest(Query(text=text))
        case "reopen", _:
            index.close()
        case _:
            assert index.rebuild() == len(model)


@pytest.mark.promise("X9")
@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, max_size=15), st.lists(QUERIES, min_size=1, max_size=6), st.data())
def test_the_index_answers_as_a_dictionary_would(operations, queries, data):
    with fresh_project() as project:
        model: dict[str, Row] = {}
        index = Index(project, lambda: list(model.values()))
        for kind, value in operations:
            apply(index, model, kind, value)
        for query in queries:
            assert index.latest(query) == found_by(model, query)
        in_order = [model[one] for one in sorted(model)]
        assert index.counts() == Counter(str(one.state) for one in model.values())
        assert index.live() == [one for one in in_order if one.state in LIVE]
        for one in IDS:
            assert index.get(one) == model.get(one)
            assert index.children(one) == [row for row in in_order if row.parent == one]
        prefix = data.draw(st.sampled_from(IDS))[: data.draw(st.integers(1, 36))].rstrip("-")
        matching = [one for one in in_order if one.id.startswith(prefix)]
        assert index.by_prefix(prefix) == matching[:5]
        assert index.by_prefix(prefix, most=1) == matching[:1]
        nearest = index.nearest(prefix)
        assert (nearest is None) == (not model)
        if nearest is not None:
            shared = [len(os.path.commonprefix([prefix, one])) for one in model]
            assert len(os.path.commonprefix([prefix, nearest.id])) == max(shared)
        assert index.check() == ""
        index.close()


@pytest.mark.promise("X9")
@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=20), st.text(alphabet='"*^-+:(){} ANDORNEAT\0', max_size=12)))
@example("a\0b")
@example("\ud800")
@example('"')
@example("NEAR(a b)")
@example("title : x")
@example("   ")
def test_any_text_can_be_searched_for(searching, text):
    found = searching.latest(Query(text=text))
    if text.split() == ["needle"]:
        assert len(found) == 1


@pytest.fixture(scope="module")
def searching(tmp_path_factory) -> Iterator[Index]:
    index = Index(project_in(tmp_path_factory.mktemp("search")), list)
    index.add(row(0, title="a needle in the hay"), text="print('haystack.search')")
    index.add(row(1, title="other"), text="x = 1\nfrom pathlib import Path  # naïve café")
    yield index
    index.close()


@pytest.mark.promise("X9")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("needle", [0]), ("NEEDLE", [0]), ("hay", [0]), ("haystack.search", [0]), ("need hay", [0]),
        ("pathlib", [1]), ("café", [1]), ("cafe", [1]), ("import path", [1]), ("e", []), ("zebra", []),
        ("needle zebra", []), ("print('hay", [0]), ("other", [1]),
    ],
)  # fmt: skip
def test_text_finds_title_and_code_by_their_words(searching, text, found):
    assert [one.id for one in searching.latest(Query(text=text))] == [IDS[n] for n in found]


def test_adding_an_id_twice_is_an_engine_fault(project):
    index = Index(project, list)
    index.add(row(0))
    with pytest.raises(EngineFault):
        index.add(row(0))
    assert index.counts() == {"queued": 1}
    index.close()


# Files


@pytest.mark.promise("X16")
def test_the_index_is_for_its_user_alone(project):
    index = Index(project, list)
    index.add(row(0))
    for name in ("index.db", "index.db-wal", "index.db-shm", "index.lock"):
        mode = os.stat(os.path.join(project.home, name)).st_mode
        assert stat.S_IMODE(mode) == 0o600, name
    index.close()


@pytest.mark.promise("D5")
@pytest.mark.parametrize("names", [["index.db"], ["index.db", "index.db-wal", "index.db-shm"]])
def test_an_index_deleted_under_an_open_one_is_rebuilt(project, names):
    rows = [row(0, state=State.FAILED), row(1)]
    index = Index(project, lambda: rows)
    index.add(row(2))
    for name in names:
        os.unlink(os.path.join(project.home, name))
    assert [one.id for one in index.latest(Query())] == [IDS[1], IDS[0]]
    assert index.counts() == {"failed": 1, "queued": 1}
    assert index.check() == ""
    index.close()


def write_in_another_process(project: Project, conn) -> None:
    index = Index(project, list)
    for number in iter(conn.recv, None):
        index.add(row(number))
        conn.send(len(index.latest(Query())))
    index.close()


@pytest.mark.promise("D5")
@pytest.mark.parametrize("names", [["index.db"], ["index.db", "index.db-wal", "index.db-shm"]])
def test_whoever_still_has_a_deleted_index_open_does_not_harm_the_new_one(project, names):
    """Closing the old one must not remove the log of the new one, which has the same name."""
    old = Index(project, list)
    old.add(row(0))
    for name in names:
        os.unlink(os.path.join(project.home, name))
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=write_in_another_process, args=(project, theirs))
    process.start()
    theirs.close()  # so that its end is seen
    ours.send(1)
    assert ours.recv() == 1
    old.add(row(2))  # notices, lets go of the old file, goes on in the new one
    ours.send(3)
    assert ours.recv() == 3
    assert len(old.latest(Query())) == 3
    ours.send(None)
    process.join(60)
    assert process.exitcode == 0
    old.close()
    again = Index(project, list)
    assert [one.id for one in again.latest(Query())] == [IDS[3], IDS[2], IDS[1]]
    assert again.check() == ""
    again.close()


def filled(project: Project, number: int = 60) -> list[Row]:
    rows = [
        Row(id=new_id(), kind="code", state=State.SUCCEEDED, title=f"number {n}", created_ns=n + 1)
        for n in range(number)
    ]
    index = Index(project, list)
    for one in rows:
        index.add(one, text="words " * 50)
    index.latest(Query(text="number"))
    index.close()
    return rows


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> tuple[Path, list[Row]]:
    project = project_in(tmp_path_factory.mktemp("template"))
    return Path(project.index), filled(project)


def heals(broken: bytes, rows: list[Row]) -> list[str]:
    """The index works, knows all rows, and what was put aside is returned."""
    with fresh_project() as project:
        Path(project.index).write_bytes(broken)
        known = list(rows)
        index = Index(project, lambda: known)
        index.add(row(0))
        known.append(row(0))
        found = {one.id for one in index.latest(Query())}
        if index.check() or found != {one.id for one in known}:
            assert index.rebuild() == len(known)  # damage that was in nobody's way so far
            found = {one.id for one in index.latest(Query())}
        assert index.check() == ""
        assert found == {one.id for one in known}
        assert index.latest(Query(text="number", most=1)) == [max(rows, key=lambda one: one.id)]
        assert sum(index.counts().values()) == len(found)
        index.close()
        return sorted(os.listdir(project.quarantine)) if os.path.isdir(project.quarantine) else []


@pytest.mark.promise("D5")
@pytest.mark.parametrize(
    "kept", [0, 1, 15, 16, 99, 100, 511, 512, 1000, 4095, 4096, 5000, 0.5, 0.9]
)
def test_a_truncated_index_is_rebuilt(template, kept):
    path, rows = template
    whole = path.read_bytes()
    size = kept if isinstance(kept, int) else int(len(whole) * kept)
    aside = heals(whole[:size], rows)
    assert bool(aside) == (size > 0)


@pytest.mark.promise("D5")
@pytest.mark.parametrize(
    "garbage", [b"garbage" * 1000, b"\0" * 8192, b"SQLite format 3\0" + b"\xff" * 9000]
)
def test_garbage_in_place_of_the_index_is_put_aside_and_kept(garbage):
    rows = [Row(id=new_id(), kind="code", state=State.FAILED, title="number", created_ns=1)]
    with fresh_project() as project:
        Path(project.index).write_bytes(garbage)
        index = Index(project, lambda: rows)
        assert index.latest(Query()) == rows
        (aside,) = [name for name in os.listdir(project.quarantine) if name.endswith(".db")]
        assert Path(project.quarantine, aside).read_bytes() == garbage
        index.close()


@pytest.mark.promise("D5")
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_an_index_with_any_damaged_page_works_again(template, data):
    path, rows = template
    broken = bytearray(path.read_bytes())
    pages = len(broken) // 4096
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, pages - 1)) * 4096 + data.draw(st.integers(0, 200))
        junk = data.draw(st.sampled_from([b"\xff" * 100, b"\0" * 500, os.urandom(64)]))
        broken[start : start + len(junk)] = junk[: len(broken) - start]
    try:
        heals(bytes(broken), rows)
    except EngineFault as error:  # a header that says it is newer
        assert "newer" in error.message


def test_an_index_that_breaks_while_it_is_open_heals(project):
    rows = [row(n, state=State.FAILED) for n in range(4)]
    index = Index(project, lambda: rows)
    assert index.counts() == {"failed": 4}
    index.close()
    index.latest(Query())
    with open(project.index, "r+b") as file:
        file.write(b"\xff" * os.path.getsize(project.index))
    other = Index(project, lambda: rows)
    index.close()
    assert other.counts() == {"failed": 4}
    assert index.counts() == {"failed": 4}
    other.close()
    index.close()


@pytest.mark.promise("D5")
def test_a_newer_schema_is_refused_clearly_and_left_alone(project):
    filled(project, 1)
    with sqlite3.connect(project.index) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = Path(project.index).read_bytes()
    index = Index(project, list)
    with pytest.raises(EngineFault, match="newer Tenuto") as caught:
        index.counts()
    assert "upgrade" in caught.value.hint
    index.close()
    assert Path(project.index).read_bytes() == before
    assert not os.path.exists(project.quarantine)


def test_a_damaged_index_is_replaced_under_those_who_have_it_open(project):
    rows = filled(project, 1)
    user = Index(project, lambda: rows)
    user.counts()
    damaged = Path(project.home, "index.db")
    os.rename(damaged, Path(project.home, "aside"))
    damaged.write_bytes(b"garbage" * 1000)
    for suffix in ("-wal", "-shm"):
        Path(f"{damaged}{suffix}").unlink(missing_ok=True)
    other = Index(project, lambda: rows)
    assert other.counts() == {"succeeded": 1}
    other.add(row(0))
    assert user.counts() == {"succeeded": 1, "queued": 1}
    other.close()
    user.close()


def test_a_damaged_index_is_not_replaced_while_it_is_used(project, monkeypatch):
    monkeypatch.setattr(database, "_REPLACE_S", 0.2)
    Path(project.home, "index.db").write_bytes(b"garbage" * 1000)
    user = os.open(os.path.join(project.home, "index.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(user, fcntl.LOCK_SH)
    with pytest.raises(EngineFault, match="another process is using it"):
        Index(project, list).counts()
    os.close(user)
    index = Index(project, list)
    assert index.counts() == {}
    index.close()


def test_an_index_that_cannot_be_opened_is_an_engine_fault(project):
    os.mkdir(project.index)
    with pytest.raises(EngineFault, match="cannot open the index"):
        Index(project, list).counts()


def test_a_rebuild_that_fails_leaves_what_was_there(project):
    def failing() -> Iterator[Row]:
        yield row(3)
        raise RuntimeError("tape on fire")

    index = Index(project, list)
    index.add(row(0, title="kept"))
    index.close()
    index = Index(project, failing)
    with pytest.raises(RuntimeError):
        index.rebuild()
    assert [one.id for one in index.latest(Query(text="kept"))] == [IDS[0]]
    assert index.counts() == {"queued": 1}
    index.close()


def test_a_first_fill_that_fails_is_done_again(project):
    """A process that dies in the middle must not leave an index that looks complete."""
    tries = iter([RuntimeError("killed")])

    def rows() -> list[Row]:
        if (error := next(tries, None)) is not None:
            raise error
        return [row(0), row(1)]

    with pytest.raises(RuntimeError):
        Index(project, rows).counts()
    index = Index(project, rows)
    assert index.counts() == {"queued": 2}
    index.close()


def test_a_rebuild_keeps_what_is_just_being_started(project):
    """Its row is written before its folder."""
    index = Index(project, lambda: [row(0, state=State.FAILED)])
    index.add(row(1))
    index.add(row(2, state=State.SUCCEEDED))  # its folder is gone
    assert index.rebuild() == 2
    assert [one.id for one in index.latest(Query())] == [IDS[1], IDS[0]]
    index.close()


# Many at once


def add_many(project: Project, number: int) -> None:
    index = Index(project, list)
    for _ in range(number):
        one = Row(id=new_id(), kind="code", state=State.QUEUED, title="many", created_ns=1)
        index.add(one)
        index.settle(msgspec.structs.replace(one, state=State.SUCCEEDED))
        index.live()
    index.latest(Query(text="many", most=1))
    index.close()


@pytest.mark.promise("X9")
def test_four_processes_write_at_once_and_nothing_is_lost(project):
    processes = [SPAWN.Process(target=add_many, args=(project, 200)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0] * 4
    index = Index(project, list)
    assert index.counts() == {"succeeded": 800}
    assert len(index.latest(Query(text="many"))) == 800
    assert index.check() == ""
    index.close()


def test_threads_share_one_index(project):
    index = Index(project, list)
    errors: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(50):
                one = Row(
                    id=new_id(), kind="code", state=State.QUEUED, title="thread", created_ns=1
                )
                index.add(one)
                index.latest(Query(text="thread", most=1))
                index.forget([one.id])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert index.counts() == {}
    index.close()


def test_states_are_stored_by_their_words(project):
    index = Index(project, list)
    for number, state in enumerate(list(State)[: len(IDS)]):
        index.add(row(number, state=state))
    index.close()
    copy = f"{project.index}.copy"
    shutil.copy(project.index, copy)
    with sqlite3.connect(copy) as db:
        found = {state for (state,) in db.execute("SELECT state FROM executions")}
    db.close()
    assert found == {str(state) for state in list(State)[: len(IDS)]}
    assert found <= {str(state) for state in LIVE | ENDED}


@pytest.mark.promise("X9")
@pytest.mark.parametrize("words", [1, 16, 17, 40])
def test_a_beginning_finds_all_words_however_many(tmp_path, words):
    index = Index(project_in(tmp_path), list)
    for number in range(words):
        index.add(row(0, id=f"{number:08x}{IDS[0][8:]}", title=f"alpha{number:02}"))
    index.add(row(0, id=f"{words:08x}{IDS[0][8:]}", title="alpine"))
    found = index.latest(Query(text="Alpha", most=None))
    assert len(found) == words
    assert not index.latest(Query(text="alphabet"))
    index.close()
