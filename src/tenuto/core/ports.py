"""The seams of the engine, as small protocols. Each has a dummy and a conformance suite in testing/.

Ports are added with the part that needs them: runners and summarizers bring theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tenuto.core.confinement import Confinement, Subject
from tenuto.core.listing import Query, Row


class Connection(Protocol):
    """Our end of a stream socket to a keeper."""

    def recv(self, size: int, /) -> bytes:
        """Return what came, nothing at the end."""
        ...

    def settimeout(self, seconds: float | None, /) -> None:
        """Bound how long `recv` may block."""
        ...

    def setblocking(self, flag: bool, /) -> None:
        """Choose whether `recv` blocks at all."""
        ...

    def fileno(self) -> int:
        """Return the descriptor."""
        ...

    def shutdown(self, how: int, /) -> None:
        """Refuse what is sent from now on; what came before can still be read."""
        ...

    def close(self) -> None:
        """Close our end."""
        ...


class Dispatcher(Protocol):
    """Hands a job to a keeper that did not exist before.

    The connection carries one byte as soon as a keeper has taken the job; if it ends without that
    byte, nobody took the job and it may be offered again.
    """

    def launch(self, job: bytes, tape_fd: int, dir_fd: int) -> Connection:
        """Return our connection to whoever will keep the job, watching from the first frame."""
        ...

    def close(self) -> None:
        """Let go; keepers go on."""
        ...


class Store(Protocol):
    """The list of all executions. It may lag behind the tapes, and can be made anew from them."""

    def add(self, row: Row, text: str = "") -> None:
        """Record a new execution and the text it can be found by."""
        ...

    def settle(self, row: Row) -> None:
        """Bring a known row to what its tape says; unknown ones stay unknown."""
        ...

    def mark_async(self, execution_id: str) -> None:
        """Remember that some wait for it gave up."""
        ...

    def forget(self, ids: Sequence[str]) -> None:
        """Drop rows."""
        ...

    def get(self, execution_id: str) -> Row | None:
        """Return one row by its whole id."""
        ...

    def by_prefix(self, prefix: str, most: int = 5) -> list[Row]:
        """Return the first rows whose id begins so, oldest first."""
        ...

    def nearest(self, prefix: str) -> Row | None:
        """Return the row whose id shares the most with a wrong one."""
        ...

    def live(self) -> list[Row]:
        """Return the rows not known to have ended or to have left nothing behind, oldest first."""
        ...

    def children(self, parent: str) -> list[Row]:
        """Return the executions started inside another, oldest first."""
        ...

    def latest(self, query: Query) -> list[Row]:
        """Return the rows that fit, newest first."""
        ...

    def counts(self) -> dict[str, int]:
        """Return how many executions there are in each state."""
        ...

    def check(self) -> str:
        """Return what is wrong with the store, or an empty text."""
        ...

    def rebuild(self) -> int:
        """Make all rows anew from the folders and return how many there are."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Rung(Protocol):
    """One mechanism that can hold an execution; a ladder of them is tried from the strictest down."""

    @property
    def name(self) -> str:
        """What it is called in reports."""
        ...

    def probe(self) -> str:
        """Return why it does not work here, or nothing. Tried by running it."""
        ...

    def refuses(self, subject: Subject) -> str:
        """Return why it must not be used for this one, whatever else is missing, or nothing."""
        ...

    def lacks(self, subject: Subject) -> list[str]:
        """Return what it cannot hold of what this one asks for."""
        ...

    def confine(self, subject: Subject, missing: Sequence[str]) -> Confinement:
        """Return how to start it; `missing` goes into the report."""
        ...
