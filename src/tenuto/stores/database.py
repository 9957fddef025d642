"""The index's SQLite file: opened at first use, healed when broken, shared by threads.

Through apsw only: it carries a SQLite without the WAL-reset bug of older ones, and two libraries on
one file in one process would drop each other's locks. Users hold `index.lock` shared; replacing a
broken database needs it exclusively, so that a live one is never unlinked.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# apsw's stubs leave the values of a row partly unknown; they are Any for everyone else from here on.

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import apsw

from tenuto.core.errors import EngineFault
from tenuto.stores.layout import Project, as_error

_BUSY_MS = 30_000
_REPLACE_S = 10.0
_T = TypeVar("_T")


class Connection:
    """One open database."""

    def __init__(self, path: str) -> None:
        """Open or make the file, for our user only."""
        before = os.umask(0o077)
        try:
            self._apsw = apsw.Connection(path)
        except apsw.CantOpenError as error:
            hint = "check the folder's rights"
            raise EngineFault(f"cannot open the index {path}: {error}", hint) from error
        finally:
            os.umask(before)
        self._depth = 0
        self._apsw.set_busy_timeout(_BUSY_MS)
        self.execute("PRAGMA journal_mode = WAL")
        self.execute("PRAGMA synchronous = NORMAL")
        self.inode = os.stat(path).st_ino

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return all its rows."""
        return self._apsw.execute(sql, tuple(values)).fetchall()

    def script(self, sql: str) -> None:
        """Run several statements."""
        self._apsw.execute(sql)

    def __enter__(self) -> Connection:
        if self._depth == 0:
            self._apsw.execute("BEGIN IMMEDIATE")
        self._depth += 1
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._apsw.execute("COMMIT" if kind is None else "ROLLBACK")

    def close(self) -> None:
        """Close it."""
        self._apsw.close()

    def abandon(self) -> None:
        """Close it after its file was deleted: the log beside it may be another database's by now."""
        self._apsw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._apsw.close()


class Database:
    """Gives work an open connection to a sound database of the right schema."""

    def __init__(
        self, project: Project, schema: int, tables: str, fill: Callable[[Connection], int]
    ) -> None:
        """Take the schema, and how to fill an empty database from the folders."""
        self._project = project
        self._path = project.index
        self._schema = schema
        self._tables = tables
        self._fill = fill
        self._open: Connection | None = None
        self._lock_fd = -1
        self._threads = threading.RLock()  # a transaction belongs to the connection, not the thread

    def use(self, work: Callable[[Connection], _T]) -> _T:
        """Do something with the database; a broken one is put aside and rebuilt, once."""
        try:
            with self._threads, _told():
                return work(self._connection())
        except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError):
            with self._threads, _told():
                self.replace()
                return work(self._connection())

    def close(self) -> None:
        """Close the database and let go of its lock."""
        if self._open is not None:
            if self._is_current(self._open):
                self._open.close()
            else:
                self._open.abandon()
            self._open = None
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _connection(self) -> Connection:
        if self._open is not None:
            if self._is_current(self._open):
                return self._open
            self._open.abandon()  # deleted or replaced under us
            self._open = None
        self._hold(fcntl.LOCK_SH)
        self._open = self._opened()
        return self._open

    def _is_current(self, connection: Connection) -> bool:
        try:
            return os.stat(self._path).st_ino == connection.inode
        except FileNotFoundError:
            return False

    def _make_file(self) -> None:
        """Make an empty file without what a deleted one left beside it: SQLite would believe that."""
        guard = os.open(self._project.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if not os.path.exists(self._path):
                for suffix in ("-wal", "-shm"):
                    if os.path.exists(self._path + suffix):
                        os.unlink(self._path + suffix)
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        finally:
            os.close(guard)

    def _opened(self) -> Connection:
        if not os.path.exists(self._path):
            self._make_file()
        connection = Connection(self._path)
        version = self._version(connection)
        if version == 0:
            with connection:  # new or emptied: nobody sees it before it is filled from the folders
                if self._version(connection) == 0:  # another process may have been faster
                    connection.script(f"{self._tables}; PRAGMA user_version = {self._schema}")
                    self._fill(connection)
        elif version > self._schema:
            connection.close()
            raise EngineFault(
                f"the index is of schema {version}, made by a newer Tenuto than this one",
                "upgrade Tenuto",
            )
        return connection

    @staticmethod
    def _version(connection: Connection) -> int:
        return int(connection.execute("PRAGMA user_version")[0][0])

    def _hold(self, how: int) -> None:
        if self._lock_fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            try:
                self._lock_fd = os.open(f"{self._project.home}/index.lock", flags, 0o600)
            except OSError as error:
                raise as_error(error, "the index cannot be locked") from error
        fcntl.flock(self._lock_fd, how)

    def _hold_alone(self) -> None:
        limit = time.monotonic() + _REPLACE_S
        while True:
            try:
                self._hold(fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise EngineFault(
                        "the index is damaged and in use by another process",
                        "end the other tenuto processes, then: tenuto doctor --rebuild",
                    ) from None
                time.sleep(0.05)

    def replace(self) -> None:
        """Put a broken database aside and make a new one from the folders; a sound one stays."""
        self.close()
        self._hold_alone()
        if not self._sound():
            os.makedirs(self._project.quarantine, mode=0o700, exist_ok=True)
            aside = os.path.join(self._project.quarantine, f"index-{time.time_ns()}.db")
            for suffix in ("", "-wal", "-shm"):
                if os.path.exists(self._path + suffix):
                    os.replace(self._path + suffix, aside + suffix)
            self._open = self._opened()
        self._hold(fcntl.LOCK_SH)

    def _sound(self) -> bool:
        """Tell whether somebody else has healed it meanwhile."""
        try:
            connection = self._opened()
        except (apsw.Error, EngineFault):
            return False
        try:
            for table in re.findall(r"TABLE (\w+)", self._tables):
                connection.execute(f"SELECT 1 FROM {table} LIMIT 1")
            return connection.execute("PRAGMA quick_check(1)") == [("ok",)]
        except apsw.Error:
            return False
        finally:
            connection.close()


@contextmanager
def _told() -> Generator[None]:
    """Raise what SQLite cannot do as our own errors; damage and unknown tables are healed above."""
    try:
        yield
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError):
        raise
    except (apsw.FullError, apsw.IOError) as error:
        cause = OSError(errno.ENOSPC, str(error))
        raise as_error(cause, "the index cannot be written") from error
    except apsw.Error as error:
        raise EngineFault(f"the index cannot be used: {error}", "see: tenuto doctor") from error
