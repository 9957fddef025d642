"""The records of tasks that were cleaned away: all that is left of them, in files of their own.

While a task has a tape, its records are read from there. Before the tape goes they are written here,
a file for each month of UTC in the tape's format, one frame for each task, and on disk before anything
is removed. Files that cannot be read are put aside, never deleted; a torn end is cut off.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from tenuto.core.errors import NewerTape
from tenuto.core.history import ExecutionRecord
from tenuto.core.quantities import iso
from tenuto.keeper import frames
from tenuto.stores.layout import Project, as_error

_MODE = 0o600
_BATCH = 1000
_NAME = 6  # yyyymm
_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[list[ExecutionRecord]] = msgspec.json.Decoder(list[ExecutionRecord])


class ArchiveHealth(msgspec.Struct, frozen=True):
    """What the files hold, and what is wrong with them."""

    records: int = 0
    damaged: int = 0
    """Bytes that are no records any more."""


class Archive:
    """A project's archive; every call opens what it needs, under one lock."""

    def __init__(self, project: Project) -> None:
        """Take the project; the folder is made with the first record."""
        self.folder = project.history
        self._quarantine = project.quarantine

    def keep(self, records: Iterable[ExecutionRecord]) -> None:
        """Write records down; they are on disk when this returns. Raises DiskFull."""
        months: dict[str, dict[str, list[ExecutionRecord]]] = {}
        for one in records:
            name = iso(one.executed_ns)[:7].replace("-", "")
            months.setdefault(name, {}).setdefault(one.execution, []).append(one)
        if not months:
            return
        try:
            with self._locked(fcntl.LOCK_EX):
                for name, tasks in months.items():
                    self._append(name, tasks.values())
        except OSError as error:
            raise as_error(error, "the history cannot be written") from error

    def records(self) -> Iterator[ExecutionRecord]:
        """Yield every record, month by month; what is damaged is left out."""
        for name in self._names():
            try:
                with self._locked(fcntl.LOCK_SH):
                    found, _ = self._read(name)
            except OSError as error:
                raise as_error(error, "the history cannot be read") from error
            yield from found

    def drop(self, executions: Collection[str], before_ns: int = 0) -> None:
        """Forget the records of some tasks, and all that are older."""
        gone = frozenset(executions)

        def stays(one: ExecutionRecord) -> bool:
            return one.execution not in gone and one.executed_ns >= before_ns

        self._rewrite(stays, healing=False)

    def heal(self) -> None:
        """Write damaged files anew with what can be read of them; the old ones are put aside."""
        self._rewrite(lambda _: True, healing=True)

    def health(self) -> ArchiveHealth:
        """Return what there is and what is wrong."""
        records = damaged = 0
        for name in self._names():
            with self._locked(fcntl.LOCK_SH):
                found, bad = self._read(name)
            records, damaged = records + len(found), damaged + bad
        return ArchiveHealth(records, damaged)

    # Files

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in names if len(name) == _NAME and name.isdecimal())

    @contextmanager
    def _locked(self, how: int) -> Generator[None]:
        os.makedirs(self.folder, 0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(os.path.join(self.folder, "lock"), flags, _MODE)
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)

    def _read(self, name: str) -> tuple[list[ExecutionRecord], int]:
        """Return a month's records, and how many of its bytes are none."""
        found: list[ExecutionRecord] = []
        damaged = 0
        try:
            fd = os.open(os.path.join(self.folder, name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return found, damaged
        try:
            magic = self._magic(fd, name)
            size = os.fstat(fd).st_size
            if not magic:
                return found, size
            end = frames.PREAMBLE_SIZE
            for frame in frames.read_frames(fd, magic):
                if isinstance(frame, frames.Gap):
                    damaged += frame.end - frame.offset
                    continue
                end = frame.end
                try:
                    found += _decoder.decode(frame.body)
                except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError):
                    damaged += len(frame.body)
            return found, damaged + max(0, size - end)
        finally:
            os.close(fd)

    @staticmethod
    def _magic(fd: int, name: str) -> bytes:
        found = frames.find_magic(fd)
        if found is not None and found[1] > frames.FORMAT:
            raise NewerTape(
                f"the history of {name} was written by a newer Tenuto", "use that one here"
            )
        return found[0] if found is not None else b""

    def _append(self, name: str, tasks: Iterable[list[ExecutionRecord]]) -> None:
        path = os.path.join(self.folder, name)
        fd = self._opened(path, name)
        try:
            magic = self._magic(fd, name)
            end, seq = frames.PREAMBLE_SIZE, -1
            for frame in frames.read_frames(fd, magic):
                if isinstance(frame, frames.Frame):
                    end, seq = frame.end, frame.seq
            os.ftruncate(fd, end)  # a writer died here
            try:
                _write_all(fd, _packed(magic, tasks, seq + 1), end)
                os.fdatasync(fd)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(fd, end)
                raise
        finally:
            os.close(fd)

    def _opened(self, path: str, name: str) -> int:
        """Return the month's file, open for writing; made, or made anew, where there is none."""
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if self._magic(fd, name):
                return fd
            os.close(fd)
            self._put_aside(name)
        self._write_new(name, [])
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def _put_aside(self, name: str) -> None:
        os.makedirs(self._quarantine, 0o700, exist_ok=True)
        aside = os.path.join(self._quarantine, f"history-{name}-{time.time_ns()}")
        os.replace(os.path.join(self.folder, name), aside)

    def _rewrite(self, stays: Callable[[ExecutionRecord], bool], healing: bool) -> None:
        names = self._names()
        if not names:
            return
        try:
            with self._locked(fcntl.LOCK_EX):
                for name in names:
                    found, damaged = self._read(name)
                    kept = [one for one in found if stays(one)]
                    if damaged if healing else len(kept) < len(found):
                        self._exchange(name, kept, damaged)
        except OSError as error:
            raise as_error(error, "the history cannot be written anew") from error

    def _exchange(self, name: str, kept: list[ExecutionRecord], damaged: int) -> None:
        if damaged:
            self._put_aside(name)
        if kept:
            self._write_new(name, kept)
        elif not damaged:
            os.unlink(os.path.join(self.folder, name))

    def _write_new(self, name: str, records: list[ExecutionRecord]) -> None:
        """Make a month's file whole before anybody can see it."""
        fresh = os.path.join(self.folder, f"{name}.new")
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        try:
            magic = frames.new_magic()
            head = frames.preamble(magic)
            batches = (records[at : at + _BATCH] for at in range(0, len(records), _BATCH))
            _write_all(fd, head + _packed(magic, batches, 0), 0)
            os.fdatasync(fd)
            os.rename(fresh, os.path.join(self.folder, name))
        except OSError:
            with suppress(OSError):
                os.unlink(fresh)
            raise
        finally:
            os.close(fd)
        _sync_folder(self.folder)


def _packed(magic: bytes, batches: Iterable[list[ExecutionRecord]], seq: int) -> bytes:
    parts: list[bytes] = []
    for number, batch in enumerate(batches, seq):
        body = _encode(batch)
        header, trailer = frames.pack(magic, frames.EVENT, number, batch[-1].executed_ns, body)
        parts += [header, body, trailer]
    return b"".join(parts)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        wrote = os.pwrite(fd, view, offset)
        view, offset = view[wrote:], offset + wrote


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
