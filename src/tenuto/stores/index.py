"""The index over all executions: SQLite, through apsw only, and never the truth.

It may lag behind the tapes and may be deleted: whoever opens it next rebuilds it from the folders.
Users hold `index.lock` shared; replacing a broken database needs it exclusively.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import apsw
import msgspec

from tenuto.core.errors import EngineFault
from tenuto.core.states import LIVE, State
from tenuto.stores.layout import Project, as_error

_SCHEMA = 1
_BUSY_MS = 30_000
_LIVE = ", ".join(f"'{state}'" for state in sorted(LIVE))
_TEXT_MOST = 2000
_T = TypeVar("_T")

_TABLES = f"""
CREATE TABLE executions (
  row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, state TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '', title TEXT NOT NULL DEFAULT '', parent TEXT, exit_code INTEGER,
  is_async INTEGER NOT NULL DEFAULT 0, created_ns INTEGER NOT NULL, started_ns INTEGER,
  ended_ns INTEGER, starter TEXT NOT NULL DEFAULT '', text TEXT NOT NULL DEFAULT ''
);
CREATE INDEX executions_by_state ON executions (state, id);
CREATE INDEX executions_live ON executions (id) WHERE state IN ({_LIVE});
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
PRAGMA user_version = {_SCHEMA};
"""
_COLUMNS = (
    "id, kind, state, reason, title, parent, exit_code, is_async, created_ns, started_ns, ended_ns, "
    "starter"
)


class Row(msgspec.Struct, frozen=True):
    """One execution as the index knows it."""

    id: str
    kind: str
    state: State
    reason: str = ""
    title: str = ""
    parent: str | None = None
    exit_code: int | None = None
    is_async: bool = False
    created_ns: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    starter: str = ""


class Index:
    """Opens at first use, heals itself once, and may be shared by the threads of a process."""

    def __init__(self, project: Project, rows_from_folders: Callable[[], Iterable[Row]]) -> None:
        """Take the project and how to read all its rows from the tapes."""
        self._project = project
        self._rows_from_folders = rows_from_folders
        self._path = project.index
        self._db: apsw.Connection | None = None
        self._inode = 0
        self._lock_fd = -1
        self._threads = threading.RLock()  # a transaction belongs to the connection, not the thread

    # Writing

    def add(self, row: Row, text: str = "") -> None:
        """Record a new execution."""
        self._use(lambda db: self._insert(db, row, text))

    def _insert(self, db: apsw.Connection, row: Row, text: str) -> None:
        values = (
            row.id, row.kind, str(row.state), row.reason, row.title, row.parent, row.exit_code,
            int(row.is_async), row.created_ns, row.started_ns, row.ended_ns, row.starter,
            text[:_TEXT_MOST],
        )  # fmt: skip
        marks = ", ".join("?" * len(values))
        db.execute(f"INSERT OR REPLACE INTO executions ({_COLUMNS}, text) VALUES ({marks})", values)

    def settle(self, row: Row) -> None:
        """Bring a row to what its tape says; an ended one changes only by a resume."""
        values = (
            str(row.state), row.reason, row.exit_code, int(row.is_async), row.started_ns,
            row.ended_ns, row.id,
        )  # fmt: skip
        self._use(
            lambda db: db.execute(
                "UPDATE executions SET state = ?, reason = ?, exit_code = ?, "
                "is_async = max(is_async, ?), started_ns = ?, ended_ns = ? WHERE id = ?",
                values,
            )
        )

    def mark_async(self, execution_id: str) -> None:
        """Remember that some wait for it gave up."""
        sql = "UPDATE executions SET is_async = 1 WHERE id = ?"
        self._use(lambda db: db.execute(sql, (execution_id,)))

    def forget(self, ids: Sequence[str]) -> None:
        """Drop rows."""

        def drop(db: apsw.Connection) -> None:
            with db:
                for one in ids:
                    sql = "DELETE FROM executions WHERE id = ? RETURNING row"
                    for (row,) in db.execute(sql, (one,)).fetchall():
                        db.execute("DELETE FROM words WHERE rowid = ?", (row,))

        self._use(drop)

    # Reading

    def get(self, execution_id: str) -> Row | None:
        """Return one row by its whole id."""
        found = self._select("WHERE id = ?", (execution_id,))
        return found[0] if found else None

    def by_prefix(self, prefix: str, most: int = 5) -> list[Row]:
        """Return the first rows whose id begins so."""
        return self._select("WHERE id >= ? AND id < ? ORDER BY id LIMIT ?", (prefix, f"{prefix}g", most))

    def nearest(self, prefix: str) -> Row | None:
        """Return the row whose id shares the most with a wrong one."""
        below = self._select("WHERE id <= ? ORDER BY id DESC LIMIT 1", (prefix,))
        above = self._select("WHERE id > ? ORDER BY id LIMIT 1", (prefix,))
        both = below + above
        shared = [len(os.path.commonprefix([prefix, row.id])) for row in both]
        return both[shared.index(max(shared))] if both else None

    def live(self) -> list[Row]:
        """Return the rows that are not known to have ended, oldest first."""
        return self._select(f"WHERE state IN ({_LIVE}) ORDER BY id", ())

    def children(self, parent: str) -> list[Row]:
        """Return the executions started inside another, oldest first."""
        return self._select("WHERE parent = ? ORDER BY id", (parent,))

    def latest(
        self,
        most: int | None,
        states: Sequence[State] = (),
        kind: str = "",
        text: str = "",
        since_ns: int = 0,
        only_async: bool = False,
    ) -> list[Row]:
        """Return the latest rows that fit, newest first."""
        terms: list[str] = []
        values: list[Any] = []
        if states:
            terms.append(f"state IN ({', '.join('?' * len(states))})")
            values += map(str, states)
        if kind:
            terms.append("kind = ?")
            values.append(kind)
        if since_ns:
            terms.append("created_ns >= ?")
            values.append(since_ns)
        if only_async:
            terms.append("is_async = 1")
        if text:
            self._use(_catch_up_words)
            terms.append("row IN (SELECT rowid FROM words WHERE words MATCH ?)")
            values.append(_match(text))
        where = f"WHERE {' AND '.join(terms)}" if terms else ""
        values.append(-1 if most is None else most)
        return self._select(f"{where} ORDER BY id DESC LIMIT ?", values)

    def counts(self) -> dict[str, int]:
        """Return how many executions there are in each state."""
        sql = "SELECT state, number FROM counts WHERE number > 0"
        return {str(state): int(n) for state, n in self._use(lambda db: db.execute(sql).fetchall())}

    def _select(self, tail: str, values: Sequence[Any]) -> list[Row]:
        sql = f"SELECT {_COLUMNS} FROM executions {tail}"
        found = self._use(lambda db: db.execute(sql, tuple(values)).fetchall())
        return [_row(row) for row in found]

    # Opening, healing

    def check(self) -> str:
        """Return what is wrong with the database, or an empty text."""
        result = self._use(lambda db: db.execute("PRAGMA quick_check(1)").fetchall())
        return "" if result == [("ok",)] else str(result[0][0])

    def rebuild(self) -> int:
        """Make all rows anew from the folders and return how many there are."""

        def refill(db: apsw.Connection) -> int:
            return self._fill(db)

        return self._use(refill)

    def _fill(self, db: apsw.Connection) -> int:
        number = 0
        with db:
            db.execute("DELETE FROM executions")
            db.execute("DELETE FROM words")
            db.execute("DELETE FROM counts")
            for row in self._rows_from_folders():
                self._insert(db, row, row.title)
                number += 1
        return number

    def close(self) -> None:
        """Close the database."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _use(self, work: Callable[[apsw.Connection], _T]) -> _T:
        """Do something with the database; a broken one is put aside and rebuilt, once."""
        try:
            with self._threads:
                return work(self._connection())
        except (apsw.CorruptError, apsw.NotADBError):
            with self._threads:
                self._replace()
                return work(self._connection())
        except (apsw.FullError, apsw.IOError) as error:
            cause = OSError(28, "no space left on device, or the disk failed")
            raise as_error(cause, f"the index cannot be written ({error})") from error

    def _connection(self) -> apsw.Connection:
        if self._db is not None:
            try:
                if os.stat(self._path).st_ino == self._inode:
                    return self._db
            except FileNotFoundError:
                pass
            self.close()  # deleted or replaced under us
        self._hold(fcntl.LOCK_SH)
        fresh = not os.path.exists(self._path)
        self._db = self._open()
        if fresh and os.listdir(self._project.executions):
            self._fill(self._db)
        return self._db

    def _open(self) -> apsw.Connection:
        before = os.umask(0o077)
        try:
            db = apsw.Connection(self._path)
        except apsw.Error as error:
            raise EngineFault(f"cannot open the index {self._path}: {error}", "tenuto doctor") from error
        finally:
            os.umask(before)
        db.set_busy_timeout(_BUSY_MS)
        db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
        version = self._version(db)
        if version == 0:
            db.execute("BEGIN IMMEDIATE")
            if self._version(db) == 0:
                db.execute(_TABLES)
            db.execute("COMMIT")
        elif version > _SCHEMA:
            db.close()
            raise EngineFault(
                f"the index was made by a newer Tenuto (schema {version}, this one knows {_SCHEMA})",
                "upgrade Tenuto",
            )
        self._inode = os.stat(self._path).st_ino
        return db

    @staticmethod
    def _version(db: apsw.Connection) -> int:
        ((version,),) = db.execute("PRAGMA user_version").fetchall()
        return int(version)  # pyright: ignore

    def _hold(self, how: int) -> None:
        if self._lock_fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._lock_fd = os.open(f"{self._path.removesuffix('.db')}.lock", flags, 0o600)
        fcntl.flock(self._lock_fd, how)

    def _replace(self) -> None:
        """Put a broken database aside and make a new one from the folders."""
        self.close()
        limit = time.monotonic() + 10
        while True:
            try:
                self._hold(fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise EngineFault(
                        "the index is damaged and in use by another process",
                        "end the other tenuto processes, then: tenuto doctor --rebuild",
                    ) from None
                time.sleep(0.05)
        try:
            probe = self._open()
            healthy = probe.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
            probe.close()
        except (apsw.Error, EngineFault):
            healthy = False
        if not healthy:
            os.makedirs(self._project.quarantine, mode=0o700, exist_ok=True)
            stamp = f"index-{time.time_ns()}.db"
            os.replace(self._path, os.path.join(self._project.quarantine, stamp))
            for suffix in ("-wal", "-shm"):
                if os.path.exists(self._path + suffix):
                    os.replace(
                        self._path + suffix, os.path.join(self._project.quarantine, stamp + suffix)
                    )
        self._db = self._open()
        if not healthy:
            self._fill(self._db)
        self._hold(fcntl.LOCK_SH)


def _catch_up_words(db: apsw.Connection) -> None:
    """Index the words of rows added since the last search: starting must not wait for that."""
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
    )


def _match(text: str) -> str:
    """Return an FTS query for all the words of a text, the last one as a prefix."""
    words = [word.replace('"', '""') for word in text.split()]
    return " ".join(f'"{word}"*' for word in words) or '""'
