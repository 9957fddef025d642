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
import threading
import time
from collections.abc import Callable, Sequence
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
        self._apsw.execute("BEGIN IMMEDIATE")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._apsw.execute("COMMIT" if kind is None else "ROLLBACK")

    def close(self) -> None:
        """Close it."""
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
            with self._threads:
                return work(self._connection())
        except (apsw.CorruptError, apsw.NotADBError):
            with self._threads:
                self._replace()
                return work(self._connection())
        except (apsw.FullError, apsw.IOError) as error:
            cause = OSError(errno.ENOSPC, str(error))
            raise as_error(cause, "the index cannot be written") from error

    def close(self) -> None:
        """Close the database and let go of its lock."""
        if self._open is not None:
            self._open.close()
            self._open = None
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _connection(self) -> Connection:
        if self._open is not None:
            try:
                if os.stat(self._path).st_ino == self._open.inode:
                    return self._open
            except FileNotFoundError:
                pass
            self.close()  # deleted or replaced under us
        self._hold(fcntl.LOCK_SH)
        fresh = not os.path.exists(self._path)
        self._open = self._opened()
        if fresh and os.listdir(self._project.executions):
            self._fill(self._open)
        return self._open

    def _opened(self) -> Connection:
        connection = Connection(self._path)
        version = self._version(connection)
        if version == 0:
            with connection:
                if self._version(connection) == 0:  # another process may have been faster
                    connection.script(f"{self._tables}; PRAGMA user_version = {self._schema}")
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

    def _replace(self) -> None:
        """Put a broken database aside and make a new one from the folders."""
        self.close()
        self._hold_alone()
        if not self._sound():
            os.makedirs(self._project.quarantine, mode=0o700, exist_ok=True)
            aside = os.path.join(self._project.quarantine, f"index-{time.time_ns()}.db")
            for suffix in ("", "-wal", "-shm"):
                if os.path.exists(self._path + suffix):
                    os.replace(self._path + suffix, aside + suffix)
            self._open = self._opened()
            self._fill(self._open)
        self._hold(fcntl.LOCK_SH)

    def _sound(self) -> bool:
        """Tell whether somebody else has healed it meanwhile."""
        try:
            connection = self._opened()
        except (apsw.Error, EngineFault):
            return False
        try:
            return connection.execute("PRAGMA quick_check(1)") == [("ok",)]
        except apsw.Error:
            return False
        finally:
            connection.close()
