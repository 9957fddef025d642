"""Dummies of the ports: small, in memory, and honest (they pass the same conformance suites)."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.confinement import Confinement, Subject
from tenuto.core.history import By, ExecutionRecord, Group, HistoryQuery, group, total
from tenuto.core.listing import Query, Row
from tenuto.core.states import LIVE

if TYPE_CHECKING:
    from tenuto.core.ports import News


class MemoryStore:
    """A `Store` that lives as long as its process."""

    def __init__(self) -> None:
        """Begin empty."""
        self._rows: dict[str, tuple[Row, str]] = {}
        self._records: dict[str, list[ExecutionRecord]] = {}

    def add(self, row: Row, text: str = "") -> None:
        """Record a new execution."""
        self._rows[row.id] = (row, f"{row.title} {text}")

    def settle_all(self, news: Sequence[News]) -> None:
        """Bring known rows to what their tapes say."""
        for row, records in news:
            self.settle(row, records)

    def settle(self, row: Row, records: Sequence[ExecutionRecord] | None = None) -> None:
        """Bring a known row to what its tape says."""
        known, text = self._rows.get(row.id, (row, ""))
        if records is not None and (known.ended_ns or 0) <= (row.ended_ns or 0):
            self._records[row.id] = list(records)
        if row.id in self._rows:
            settled = msgspec.structs.replace(
                known,
                state=row.state,
                reason=row.reason,
                exit_code=row.exit_code,
                is_async=known.is_async or row.is_async,
                started_ns=row.started_ns,
                ended_ns=row.ended_ns,
                has_left=row.has_left,
                size=row.size,
                lines=row.lines,
            )
            self._rows[row.id] = (settled, text)

    def mark_async(self, execution_id: str) -> None:
        """Remember that some wait for it gave up."""
        if execution_id in self._rows:
            row, text = self._rows[execution_id]
            self._rows[execution_id] = (msgspec.structs.replace(row, is_async=True), text)

    def forget(self, ids: Sequence[str]) -> None:
        """Drop rows; the records of their steps stay."""
        for one in ids:
            self._rows.pop(one, None)

    def records(self, query: HistoryQuery) -> list[ExecutionRecord]:
        """Return the records of steps that fit, newest first."""
        fitting = [one for some in self._records.values() for one in some if query.fits(one)]
        return sorted(fitting, key=lambda one: one.place, reverse=True)[: query.most]

    def totals(self, query: HistoryQuery, by: By | None = None) -> list[Group]:
        """Return what the records that fit come to, by group."""
        found = self.records(msgspec.structs.replace(query, most=None))
        if by is not None:
            return group(found, by)
        return [Group("", total(found))] if found else []

    def forget_records(self, ids: Sequence[str], before_ns: int = 0) -> None:
        """Drop the records of some tasks, and all that are older."""
        for name, some in list(self._records.items()):
            kept = [one for one in some if name not in ids and one.executed_ns >= before_ns]
            self._records[name] = kept

    def get(self, execution_id: str) -> Row | None:
        """Return one row by its whole id."""
        found = self._rows.get(execution_id)
        return found[0] if found else None

    def _sorted(self) -> list[Row]:
        return [self._rows[one][0] for one in sorted(self._rows)]

    def by_prefix(self, prefix: str, most: int = 5) -> list[Row]:
        """Return the first rows whose id begins so."""
        return [row for row in self._sorted() if row.id.startswith(prefix)][:most]

    def nearest(self, prefix: str) -> Row | None:
        """Return the row whose id shares the most with a wrong one."""

        def shared(row: Row) -> int:
            return len(os.path.commonprefix([prefix, row.id]))

        return max(self._sorted(), key=shared, default=None)

    def live(self) -> list[Row]:
        """Return the rows not known to have ended or to have left nothing behind."""
        return [row for row in self._sorted() if row.state in LIVE or row.has_left]

    def children(self, parent: str) -> list[Row]:
        """Return the executions started inside another."""
        return [row for row in self._sorted() if row.parent == parent]

    def latest(self, query: Query) -> list[Row]:
        """Return the rows that fit, newest first."""
        words = query.text.lower().split()
        found = [
            row
            for row in reversed(self._sorted())
            if (not query.states or row.state in query.states)
            and (not query.kind or row.kind == query.kind)
            and row.created_ns >= query.since_ns
            and (row.is_async or not query.only_async)
            and all(any(w.startswith(word) for w in self._words(row.id)) for word in words)
        ]
        return found if query.most is None else found[: query.most]

    def _words(self, execution_id: str) -> list[str]:
        text = self._rows[execution_id][1].lower()
        return "".join(c if c.isalnum() else " " for c in text).split()

    def counts(self) -> dict[str, int]:
        """Return how many executions there are in each state."""
        counted: dict[str, int] = {}
        for row, _ in self._rows.values():
            counted[str(row.state)] = counted.get(str(row.state), 0) + 1
        return counted

    def check(self) -> str:
        """Return what is wrong: nothing ever is."""
        return ""

    def rebuild(self) -> int:
        """Return how many rows there are; there is nothing to make them from."""
        return len(self._rows)

    def close(self) -> None:
        """Let go of nothing."""


class IdleDispatcher:
    """A `Dispatcher` whose jobs nobody takes; it remembers them."""

    def __init__(self) -> None:
        """Begin without jobs."""
        self.jobs: list[bytes] = []

    def launch(self, job: bytes, tape_fd: int, dir_fd: int) -> socket.socket:
        """Return a connection that ends without a byte."""
        del tape_fd, dir_fd
        self.jobs.append(job)
        near, far = socket.socketpair()
        far.close()
        return near

    def close(self) -> None:
        """Let go of nothing."""


class OpenRung:
    """A `Rung` that holds nothing and says so; `problem` makes it one that does not work here."""

    def __init__(self, name: str = "open", problem: str = "", lacking: Sequence[str] = ()) -> None:
        """Take what it is called, why it does not work, and what it says that it cannot hold."""
        self.name = name
        self._problem = problem
        self._lacking = list(lacking)

    def probe(self) -> str:
        """Return why it does not work."""
        return self._problem

    def refuses(self, subject: Subject) -> str:
        """Refuse nobody."""
        del subject
        return ""

    def lacks(self, subject: Subject) -> list[str]:
        """Return what it was told to say."""
        del subject
        return list(self._lacking)

    def confine(self, subject: Subject, missing: Sequence[str]) -> Confinement:
        """Return the program as it is."""
        report = {"level": self.name, "missing": list(missing), "net": "on"}
        words = {"kind": "limits", "groups": {}, "report": report}
        return Confinement(subject.argv, subject.cwd, subject.environ, words, {"core": 0})
