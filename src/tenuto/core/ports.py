"""The seams of the engine, as small protocols. Each has a dummy and a conformance suite in testing/.

Ports are added with the part that needs them: summarizers bring theirs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tenuto.core.confinement import Confinement, Subject
from tenuto.core.listing import Query, Row
from tenuto.core.runs import Capabilities, ChildEnd, Probe, RunEvent, RunRequest

if TYPE_CHECKING:
    from tenuto.core.history import By, ExecutionRecord, Group, HistoryQuery

    News = tuple[Row, Sequence[ExecutionRecord] | None]
    """A row as it should be, and the records of its steps where they changed with it."""


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

    def settle(self, row: Row, records: Sequence[ExecutionRecord] | None = None) -> None:
        """Bring a known row to what its tape says; unknown ones stay unknown.

        Where records are given, the task has these and no others from then on.
        """
        ...

    def settle_all(self, news: Sequence[News]) -> None:
        """Do so with many, all of them or none."""
        ...

    def mark_async(self, execution_id: str) -> None:
        """Remember that some wait for it gave up."""
        ...

    def forget(self, ids: Sequence[str]) -> None:
        """Drop rows; the records of their steps stay."""
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

    def records(self, query: HistoryQuery) -> list[ExecutionRecord]:
        """Return the records of steps that fit, newest first."""
        ...

    def totals(self, query: HistoryQuery, by: By | None = None) -> list[Group]:
        """Return what the records that fit come to, by group; all of them are one without `by`."""
        ...

    def forget_records(self, ids: Sequence[str], before_ns: int = 0) -> None:
        """Drop the records of some tasks, and all that are older."""
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


class Child(Protocol):
    """A runtime's process: an execution of its own, under a keeper, that dies with the driver."""

    @property
    def id(self) -> str:
        """The execution's id."""
        ...

    async def send(self, data: bytes) -> None:
        """Write to its stdin, as it is; what it is too late for is dropped."""
        ...

    async def close_input(self) -> None:
        """Let it read the end of its stdin."""
        ...

    def lines(self) -> AsyncIterator[bytes]:
        """Yield each line of its stdout without the line's end, until it has ended."""
        ...

    async def last_words(self) -> str:
        """Return the end of what it wrote to stderr."""
        ...

    async def signal(self, name: str) -> None:
        """Send a signal to its whole tree; none if it has ended."""
        ...

    async def kill(self) -> None:
        """End its whole tree; return once that is verified. None if it has ended."""
        ...

    async def wait(self) -> ChildEnd:
        """Return how it ended, once it has."""
        ...


class Nursery(Protocol):
    """Where runners have their processes from."""

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str] = {},
        unset: Sequence[str] = (),
        title: str = "",
    ) -> Child:
        """Start a process; `env` is put over the driver's own, without the names in `unset`."""
        ...


class AgentSession(Protocol):
    """A conversation with an agent."""

    @property
    def session(self) -> str:
        """The id by which it can be taken up; empty while that is not known."""
        ...

    def prompt(self, text: str) -> AsyncIterator[RunEvent]:
        """Yield what comes of a prompt; the last is always Finished. One prompt at a time."""
        ...

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None:
        """Answer a PermissionAsked."""
        ...

    async def interrupt(self) -> None:
        """Stop the current turn softly; its Finished follows. None if no turn runs."""
        ...

    async def close(self) -> None:
        """End it, by force if need be; nothing of it is left afterwards. May be called twice."""
        ...


class Runner(Protocol):
    """A kind of agent: how it is found, and how a session with it is opened."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    @property
    def family(self) -> str:
        """Runners of one family may stand in for each other."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        """Look, by running it, whether it can be used here."""
        ...

    async def open(self, request: RunRequest, nursery: Nursery) -> AgentSession:
        """Open a session, or take one up; raises RunnerFailed if that cannot be."""
        ...
