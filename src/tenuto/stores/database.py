"""The index's SQLite file: opened at first use, healed when broken, shared by threads.

Through apsw only: it carries a SQLite without the WAL-reset bug of older ones, and two libraries on
one file in one process would drop each other's locks. Each use holds `index.lock` shared; making or
replacing the database needs it exclusively, so that none is taken away while it is used. A new one is
made whole under another name first, and whoever has the old one open notices at its next use.
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
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import apsw

from tenuto.core.errors import EngineFault
from tenuto.stores.layout import Project, as_error

_BUSY_MS = 30_000
_OPEN_MS = 2_000
_REPLACE_S = 10.0
_TRIES = 3
_BESIDE = ("-wal", "-shm")
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
        self._apsw.set_busy_timeout(_OPEN_MS)  # nobody takes long to open a sound one
        self.execute("PRAGMA journal_mode = WAL")
        self.execute("PRAGMA synchronous = NORMAL")
        self._apsw.set_busy_timeout(_BUSY_MS)
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

    @contextmanager
    def reading(self) -> Generator[None]:
        """Read all of it as it stands at one moment, whatever others write meanwhile."""
        self._apsw.execute("BEGIN")
        try:
            yield
        finally:
            self._apsw.execute("COMMIT")

    def close(self) -> None:
        """Close it."""
        self._apsw.close()

    def abandon(self) -> None:
        """Close it after its file was deleted: the log beside it may be another database's by now."""
        self._apsw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._apsw.close()


class _Unusable(Exception):
    """There is no database that could be opened: it is missing, empty or not ours."""


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
        self._threads = threading.Lock()  # a transaction belongs to the connection, not the thread

    def use(self, work: Callable[[Connection], _T]) -> _T:
        """Do something with the database; a broken or missing one is made anew first."""
        with self._threads, _told():
            for _ in range(_TRIES):
                try:
                    with self._locked(fcntl.LOCK_SH):
                        connection = self._connection()
                        result = work(connection)
                        if self._is_current(connection):
                            return result  # else it was deleted meanwhile, with what was written
                except FileNotFoundError:
                    pass  # deleted in this very moment
                except _DAMAGE as error:
                    if isinstance(error, apsw.IOError) and not _is_cut(error):
                        raise
                with suppress(FileNotFoundError):
                    self._replace()
            with self._locked(fcntl.LOCK_SH):
                return work(self._connection())

    def replace(self) -> None:
        """Put a broken database aside and make a new one from the folders; a sound one stays."""
        with self._threads, _told():
            self._replace()

    def close(self) -> None:
        """Close the database and its lock."""
        self._let_go()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _let_go(self) -> None:
        if self._open is not None:
            if self._is_current(self._open):
                self._open.close()
            else:
                self._open.abandon()
            self._open = None

    def _connection(self) -> Connection:
        if self._open is not None and not self._is_current(self._open):
            self._let_go()  # deleted, emptied or replaced under us
        if self._open is None:
            self._open = self._opened()
        return self._open

    def _is_current(self, connection: Connection) -> bool:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return False
        return status.st_ino == connection.inode and status.st_size > 0

    def _opened(self) -> Connection:
        if not _has_content(self._path):
            raise _Unusable
        connection = Connection(self._path)
        try:
            version = self._version(connection)
            if version < self._schema:  # none of ours, or an older one: cheaper made than moved
                raise _Unusable
            if version > self._schema:
                raise EngineFault(
                    f"the index is of schema {version}, made by a newer Tenuto than this one",
                    "upgrade Tenuto",
                )
        except BaseException:
            connection.close()
            raise
        return connection

    @staticmethod
    def _version(connection: Connection) -> int:
        return int(connection.execute("PRAGMA user_version")[0][0])

    @contextmanager
    def _locked(self, how: int) -> Generator[None]:
        """Hold index.lock; not one use within another."""
        if self._lock_fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            try:
                self._lock_fd = os.open(f"{self._project.home}/index.lock", flags, 0o600)
            except OSError as error:
                raise as_error(error, "the index cannot be locked") from error
        if how == fcntl.LOCK_EX:
            self._lock_alone()
        else:
            fcntl.flock(self._lock_fd, how)
        try:
            yield
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _lock_alone(self) -> None:
        limit = time.monotonic() + _REPLACE_S
        while True:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise EngineFault(
                        "the index must be made anew and another process is using it",
                        "see which with: fuser index.lock (in the state folder)",
                    ) from None
                time.sleep(0.01)

    def _replace(self) -> None:
        self._let_go()
        with self._locked(fcntl.LOCK_EX):
            if not self._sound():
                self._make()

    def _sound(self) -> bool:
        """Tell whether there is a good one, perhaps because somebody else has healed it meanwhile."""
        try:
            connection = self._opened()
        except (apsw.Error, _Unusable):
            return False
        try:
            for table in re.findall(r"TABLE (\w+)", self._tables):
                connection.execute(f"SELECT 1 FROM {table} LIMIT 1")
            return connection.execute("PRAGMA quick_check(1)") == [("ok",)]
        except apsw.Error:
            return False
        finally:
            connection.close()

    def _make(self) -> None:
        """Make a new one, filled from the folders, and put it in the place of the old one."""
        new = f"{self._path}.new"
        for suffix in ("", *_BESIDE):
            _unlink(new + suffix)
        connection = Connection(new)
        try:
            with connection:
                connection.script(f"{self._tables}; PRAGMA user_version = {self._schema}")
                self._fill(connection)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all of it is in the file now
        finally:
            connection.close()
        self._put_aside()
        os.replace(new, self._path)

    def _put_aside(self) -> None:
        """Keep a broken one for whoever wants to look; others may still have it open."""
        if not _has_content(self._path):
            for suffix in _BESIDE:  # of no use without the file itself
                _unlink(self._path + suffix)
            return
        os.makedirs(self._project.quarantine, mode=0o700, exist_ok=True)
        aside = os.path.join(self._project.quarantine, f"index-{time.time_ns()}.db")
        for suffix in ("", *_BESIDE):
            if os.path.exists(self._path + suffix):
                os.replace(self._path + suffix, aside + suffix)


_DAMAGE = (
    _Unusable, apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.BusyError, apsw.IOError
)  # fmt: skip


def _is_cut(error: apsw.IOError) -> bool:
    """Tell a file that is shorter than it should be from a disk that fails or is full."""
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHORT_READ


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except FileNotFoundError:
        return False


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


@contextmanager
def _told() -> Generator[None]:
    """Raise what SQLite or the file system cannot do as our own errors."""
    try:
        yield
    except OSError as error:
        raise as_error(error, "the index cannot be made") from error
    except (apsw.FullError, apsw.IOError) as error:
        cause = OSError(errno.ENOSPC, str(error))
        raise as_error(cause, "the index cannot be written") from error
    except apsw.Error as error:
        raise EngineFault(f"the index cannot be used: {error}", "see: tenuto doctor") from error
