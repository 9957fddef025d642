"""The index over all executions: never the truth, always rebuildable from the folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tenuto.core.listing import Query, Row
from tenuto.core.states import LIVE, State
from tenuto.stores.database import Connection, Database
from tenuto.stores.layout import Project

if TYPE_CHECKING:
    from tenuto.core.history import By, ExecutionRecord, Group, HistoryQuery
    from tenuto.core.ports import News

_SCHEMA = 2
_LIVE = ", ".join(f"'{state}'" for state in sorted(LIVE))
_TEXT_MOST = 2000

_TABLES = """
CREATE TABLE executions (
  row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, state TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '', title TEXT NOT NULL DEFAULT '', parent TEXT, exit_code INTEGER,
  is_async INTEGER NOT NULL DEFAULT 0, created_ns INTEGER NOT NULL, started_ns INTEGER,
  ended_ns INTEGER, starter TEXT NOT NULL DEFAULT '', has_left INTEGER NOT NULL DEFAULT 0,
  size INTEGER NOT NULL DEFAULT 0, lines INTEGER NOT NULL DEFAULT 0,
  text TEXT NOT NULL DEFAULT ''
);
CREATE INDEX executions_by_state ON executions (state, id);
CREATE INDEX executions_with_left ON executions (id) WHERE has_left = 1;
CREATE INDEX executions_by_parent ON executions (parent) WHERE parent IS NOT NULL;
CREATE VIRTUAL TABLE words USING fts5(text, content='', contentless_delete=1);
CREATE TABLE counts (state TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER count_new AFTER INSERT ON executions BEGIN
  INSERT INTO counts VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET number = number + 1;
END;
CREATE TRIGGER count_gone AFTER DELETE ON executions BEGIN
  UPDATE counts SET number = number - 1 WHERE state = old.state;
END;
CREATE TRIGGER count_moved AFTER UPDATE OF state ON executions WHEN old.state <> new.state BEGIN
  UPDATE counts SET number = number - 1 WHERE state = old.state;
  INSERT INTO counts VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET number = number + 1;
END;
CREATE TABLE records (
  execution TEXT NOT NULL, seq INTEGER NOT NULL, step TEXT NOT NULL, status TEXT NOT NULL,
  executed_ns INTEGER NOT NULL, attempt INTEGER NOT NULL, task_id TEXT NOT NULL,
  change TEXT NOT NULL, workflow TEXT NOT NULL, role TEXT NOT NULL, model TEXT NOT NULL,
  runtime TEXT NOT NULL, strategy TEXT NOT NULL, kind TEXT NOT NULL, input INTEGER NOT NULL,
  output INTEGER NOT NULL, cache_read INTEGER NOT NULL, cache_write INTEGER NOT NULL,
  cost INTEGER, unmetered INTEGER NOT NULL, duration INTEGER NOT NULL,
  UNIQUE (execution, seq)
);
CREATE INDEX records_by_time ON records (executed_ns, execution, seq);
CREATE INDEX records_by_change ON records (change, executed_ns) WHERE change <> '';
CREATE INDEX records_by_task ON records (task_id, executed_ns) WHERE task_id <> '';
CREATE INDEX records_without_success ON records (executed_ns, execution, seq)
  WHERE status <> 'completed';
"""
_SPELLED = 16
_COLUMNS = (
    "id, kind, state, reason, title, parent, exit_code, is_async, created_ns, started_ns, ended_ns, "
    "starter, has_left, size, lines"
)


class Index:
    """All executions of a project, in SQLite; see `core.ports.Store`."""

    def __init__(
        self,
        project: Project,
        rows_from_folders: Callable[[], Iterable[Row]],
        records_of: Callable[[Sequence[str]], Iterable[ExecutionRecord]] = lambda _: (),
    ) -> None:
        """Take the project, and how to read all its rows, and the records of tasks, from the tapes."""
        self._rows_from_folders = rows_from_folders
        self._records_of = records_of
        self._database = Database(project, _SCHEMA, _TABLES, self._fill)

    # Writing

    def add(self, row: Row, text: str = "") -> None:
        """Record a new execution."""
        self._database.use(lambda db: self._insert(db, row, text))

    def _insert(self, db: Connection, row: Row, text: str) -> None:
        values = (
            row.id, row.kind, str(row.state), row.reason, row.title, row.parent, row.exit_code,
            int(row.is_async), row.created_ns, row.started_ns, row.ended_ns, row.starter,
            int(row.has_left), row.size, row.lines, text[:_TEXT_MOST],
        )  # fmt: skip
        marks = ", ".join("?" * len(values))
        db.execute(f"INSERT INTO executions ({_COLUMNS}, text) VALUES ({marks})", values)

    def settle(self, row: Row, records: Sequence[ExecutionRecord] | None = None) -> None:
        """Bring a row to what its tape says; an ended one changes only by a resume.

        The records of its steps, where they are given, are written with it or not at all.
        """
        self.settle_all([(row, records)])

    def settle_all(self, news: Sequence[News]) -> None:
        """Do so with many, in one transaction."""

        def settle(db: Connection) -> None:
            with db:
                for row, records in news:
                    if records is not None:
                        self._replace(db, row, records)
                    self._update(db, row)

        self._database.use(settle)

    def _replace(self, db: Connection, row: Row, records: Sequence[ExecutionRecord]) -> None:
        from tenuto.stores import history  # only tasks have any

        sql = "SELECT 1 FROM executions WHERE id = ? AND ended_ns > ?"
        if not db.execute(sql, (row.id, row.ended_ns)):  # nobody has read a later end
            history.replace(db, row.id, records)

    def _update(self, db: Connection, row: Row) -> None:
        values = (
            str(row.state), row.reason, row.exit_code, int(row.is_async), row.started_ns,
            row.ended_ns, int(row.has_left), row.size, row.lines, row.id,
        )  # fmt: skip
        db.execute(
            "UPDATE executions SET state = ?, reason = ?, exit_code = ?, "
            "is_async = max(is_async, ?), started_ns = ?, ended_ns = ?, has_left = ?, "
            "size = ?, lines = ? WHERE id = ?",
            values,
        )

    def mark_async(self, execution_id: str) -> None:
        """Remember that some wait for it gave up."""
        sql = "UPDATE executions SET is_async = 1 WHERE id = ?"
        self._database.use(lambda db: db.execute(sql, (execution_id,)))

    def forget(self, ids: Sequence[str]) -> None:
        """Drop rows; the records of their steps stay."""

        def drop(db: Connection) -> None:
            with db:
                for one in ids:
                    sql = "DELETE FROM executions WHERE id = ? RETURNING row"
                    for (row,) in db.execute(sql, (one,)):
                        db.execute("DELETE FROM words WHERE rowid = ?", (row,))

        self._database.use(drop)

    # Reading

    def get(self, execution_id: str) -> Row | None:
        """Return one row by its whole id."""
        found = self._select("WHERE id = ?", (execution_id,))
        return found[0] if found else None

    def by_prefix(self, prefix: str, most: int = 5) -> list[Row]:
        """Return the first rows whose id begins so."""
        return self._select(
            "WHERE id >= ? AND id < ? ORDER BY id LIMIT ?", (prefix, f"{prefix}g", most)
        )

    def nearest(self, prefix: str) -> Row | None:
        """Return the row whose id shares the most with a wrong one."""
        below = self._select("WHERE id <= ? ORDER BY id DESC LIMIT 1", (prefix,))
        above = self._select("WHERE id > ? ORDER BY id LIMIT 1", (prefix,))
        both = below + above
        shared = [len(os.path.commonprefix([prefix, row.id])) for row in both]
        return both[shared.index(max(shared))] if both else None

    def live(self) -> list[Row]:
        """Return the rows not known to have ended or to have left nothing behind, oldest first."""
        return self._select(f"WHERE state IN ({_LIVE}) OR has_left = 1 ORDER BY id", ())

    def children(self, parent: str) -> list[Row]:
        """Return the executions started inside another, oldest first."""
        return self._select("WHERE parent = ? ORDER BY id", (parent,))

    def latest(self, query: Query) -> list[Row]:
        """Return the rows that fit, newest first."""
        terms: list[str] = []
        values: list[Any] = []
        if query.states:
            terms.append(f"state IN ({', '.join('?' * len(query.states))})")
            values += map(str, query.states)
        if query.kind:
            terms.append("kind = ?")
            values.append(query.kind)
        if query.since_ns:
            terms.append("created_ns >= ?")
            values.append(query.since_ns)
        if query.only_async:
            terms.append("is_async = 1")
        if query.text:
            self._database.use(_catch_up_words)
            terms.append("words MATCH ?")
            values.append(self._database.use(lambda db: _match(db, query.text)))
        where = f"WHERE {' AND '.join(terms)}" if terms else ""
        values.append(-1 if query.most is None else query.most)
        if not query.text:
            return self._select(f"{where} ORDER BY id DESC LIMIT ?", values)
        # the words come newest first, and the search stops when enough of them fit
        sql = (
            f"SELECT {_COLUMNS} FROM words CROSS JOIN executions ON executions.row = words.rowid "
            f"{where} ORDER BY words.rowid DESC LIMIT ?"
        )
        found = self._database.use(lambda db: db.execute(sql, tuple(values)))
        return sorted((_row(row) for row in found), key=lambda row: row.id, reverse=True)

    def counts(self) -> dict[str, int]:
        """Return how many executions there are in each state."""
        sql = "SELECT state, number FROM counts WHERE number > 0"
        return {str(state): int(n) for state, n in self._database.use(lambda db: db.execute(sql))}

    def _select(self, tail: str, values: Sequence[Any]) -> list[Row]:
        sql = f"SELECT {_COLUMNS} FROM executions {tail}"
        found = self._database.use(lambda db: db.execute(sql, tuple(values)))
        return [_row(row) for row in found]

    # History

    def records(self, query: HistoryQuery) -> list[ExecutionRecord]:
        """Return the records of steps that fit, newest first."""
        from tenuto.stores import history

        return self._database.use(lambda db: history.select(db, query))

    def totals(self, query: HistoryQuery, by: By | None = None) -> list[Group]:
        """Return what the records that fit come to, by group; all of them are one without `by`."""
        from tenuto.stores import history

        return self._database.use(lambda db: history.totals(db, query, by))

    def forget_records(self, ids: Sequence[str], before_ns: int = 0) -> None:
        """Drop the records of some tasks, and all that are older."""
        from tenuto.stores import history

        self._database.use(lambda db: history.drop(db, ids, before_ns))

    # Health

    def check(self) -> str:
        """Return what is wrong with the database, or an empty text."""
        result = self._database.use(lambda db: db.execute("PRAGMA quick_check(1)"))
        return "" if result == [("ok",)] else str(result[0][0])

    def rebuild(self) -> int:
        """Make all rows anew from the folders and return how many there are."""
        if self.check():
            self._database.replace()
        return self._database.use(self._fill)

    def _fill(self, db: Connection) -> int:
        with db:
            sql = f"SELECT {_COLUMNS} FROM executions WHERE state = ?"
            starting = [_row(values) for values in db.execute(sql, (str(State.QUEUED),))]
            db.script(
                "DELETE FROM executions; DELETE FROM words; DELETE FROM counts; DELETE FROM records"
            )
            rows = {row.id: row for row in self._rows_from_folders()}
            for row in starting:  # no folder yet, or nothing in it; listing finds out if it is lost
                if row.id not in rows or rows[row.id].state is State.LOST:
                    rows[row.id] = row
            for row in rows.values():
                self._insert(db, row, row.text)
            self._fill_records(db, [row.id for row in rows.values() if row.kind == "task"])
        return len(rows)

    def _fill_records(self, db: Connection, tasks: Sequence[str]) -> None:
        records = iter(self._records_of(tasks))
        if (first := next(records, None)) is not None:
            from itertools import chain

            from tenuto.stores import history

            history.insert(db, chain((first,), records))

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _catch_up_words(db: Connection) -> None:
    """Index the words of rows added since the last search: starting must not wait for that."""
    ((last,),) = db.execute("SELECT coalesce(max(row), 0) FROM executions")
    ((known,),) = db.execute("SELECT coalesce(max(rowid), 0) FROM words")
    if known >= last:
        return
    with db:
        db.execute(
            "INSERT INTO words (rowid, text) SELECT row, title || ' ' || text FROM executions "
            "WHERE row > (SELECT coalesce(max(rowid), 0) FROM words)"
        )


def _row(values: Sequence[Any]) -> Row:
    return Row(
        id=values[0],
        kind=values[1],
        state=State(values[2]),
        reason=values[3],
        title=values[4],
        parent=values[5],
        exit_code=values[6],
        is_async=bool(values[7]),
        created_ns=values[8],
        started_ns=values[9],
        ended_ns=values[10],
        starter=values[11],
        has_left=bool(values[12]),
        size=values[13],
        lines=values[14],
    )


def _match(db: Connection, text: str) -> str:
    """Return an FTS query for rows that have all the words of a text, each as a beginning of one."""
    plain = text.replace("\0", " ").encode("utf-8", "replace").decode()
    return " AND ".join(_beginning(db, word) for word in plain.split()) or '""'


def _beginning(db: Connection, word: str) -> str:
    """Return the query for words that begin so.

    For a prefix SQLite first merges the rows of all such words, however many; for words that are
    spelled out it reads only as many rows as are wanted. So the few words that there are get spelled.
    """
    found: list[str] = []
    at = beginning = word.lower()
    if word.isascii() and word.isalnum():
        db.execute(
            "CREATE VIRTUAL TABLE IF NOT EXISTS temp.terms USING fts5vocab(main, words, instance)"
        )
        while len(found) <= _SPELLED:
            rows = list(db.execute("SELECT term FROM temp.terms WHERE term >= ? LIMIT 1", (at,)))
            if not rows or not str(rows[0][0]).startswith(beginning):
                break
            found.append(str(rows[0][0]))
            at = found[-1] + "\x01"
    if not 0 < len(found) <= _SPELLED:
        return '"' + word.replace('"', '""') + '"*'
    return "(" + " OR ".join(f'"{term}"' for term in found) + ")"
