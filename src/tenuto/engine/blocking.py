"""The engine for callers that block: the command line, and the async engine's worker threads."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from tenuto.core.errors import (
    AmbiguousId,
    DiskFull,
    InvalidInput,
    KeeperUnreachable,
    NotOwned,
    NotRunning,
    UnknownExecution,
)
from tenuto.core.execution import Chunk, Execution, Snapshot
from tenuto.core.ids import check_prefix, is_id, short
from tenuto.core.listing import Query, Row
from tenuto.core.ports import Connection, Dispatcher, Store
from tenuto.core.states import LIVE, State
from tenuto.dispatch import control
from tenuto.dispatch.launch import FreshLauncher
from tenuto.engine import ending, hints, recover
from tenuto.engine.advice import advise
from tenuto.engine.goals import Waiting
from tenuto.engine.holding import by_default
from tenuto.engine.settings import Settings, load_settings
from tenuto.engine.start import Starter
from tenuto.engine.watch import Watch, as_chunk, is_output
from tenuto.engine.work import Options, Work, code_work, command_work
from tenuto.stores.index import Index
from tenuto.stores.layout import Project, current_folder, find_project, make_home, owner_elsewhere
from tenuto.stores.tape import TapeReader

_NAMED = 5
_DAY_S = 86400
_ASIDE_S = 2.0  # for what is only said on the side: a stopped keeper must not stop an answer


class BlockingEngine:
    """One project's executions. Cheap to make; holds nothing that an execution depends on."""

    def __init__(
        self,
        project: Project,
        settings: Settings,
        launcher: Dispatcher,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Take the parts; `open_here` finds them."""
        make_home(project)
        self.project = project
        self.settings = settings
        self.launcher = launcher
        self.environ = dict(os.environ if environ is None else environ)
        self.index: Store = Index(
            project,
            lambda: recover.rows_from_folders(project),
            lambda tasks: recover.records_from_folders(project, tasks),
        )
        self.starter = Starter(project, settings, self.index, launcher)

    @classmethod
    def open_here(
        cls,
        launcher: Dispatcher | None = None,
        without_settings: Callable[[InvalidInput], None] | None = None,
    ) -> BlockingEngine:
        """Return the engine of the project around the current folder.

        Settings that cannot be taken are refused, or told to `without_settings` and left aside.
        """
        project = find_project(current_folder(), os.environ)
        try:
            settings, _ = load_settings(project.root, os.environ)
        except InvalidInput as error:
            if without_settings is None:
                raise
            without_settings(error)
            settings = Settings()
        return cls(project, settings, launcher or FreshLauncher())

    def close(self) -> None:
        """Let go of everything; executions go on."""
        self.launcher.close()
        self.index.close()

    # Start

    def command(self, argv: Sequence[str], options: Options) -> Work:
        """Return checked work for a command line."""
        return command_work(argv, by_default(options, self.settings), self.environ)

    def code(self, code: str, language: str, options: Options) -> Work:
        """Return checked work for code."""
        settings = self.settings
        options = by_default(options, settings)
        return code_work(
            code, language, options, self.environ, settings.programs, settings.code_memory
        )

    def start(self, work: Work) -> tuple[str, Connection]:
        """Start and return the id and a connection that watches."""
        if work.spec.session is not None:
            from tenuto.engine import sessions  # only for those who use them

            return sessions.start(self, work)
        return self.starter.start(work)

    def resume(
        self, execution_id: str, force: bool, from_seq: int | None = None, by: str = "",
        cwd: str | None = None, fork_id: str = "",
    ) -> tuple[str, Connection]:  # fmt: skip
        """Run an interrupted or lost execution again; for code and commands that takes `force`.

        With `from_seq` a new task goes on from that checkpoint of this one, as `fork_id` if given;
        `cwd` is another folder.
        """
        from tenuto.engine.resume import resume  # few need it

        whole, sock = resume(self, execution_id, force, from_seq, by, cwd, fork_id)
        self._index_state(whole)
        return whole, sock

    # Wait and read

    def watch(self, execution_id: str, after: int = -1, sock: Connection | None = None) -> Watch:
        """Return a watch on an execution, by its whole id."""
        try:
            return Watch(self.project, execution_id, after, sock)
        except (FileNotFoundError, NotADirectoryError):
            raise UnknownExecution(
                f"{execution_id} has no tape: {recover.NEVER_STARTED}", "run the work anew"
            ) from None

    def wait(
        self,
        execution_id: str,
        up_to: float | None = None,
        after: int = -1,
        until: str | None = None,
        sock: Connection | None = None,
    ) -> Snapshot:
        """Wait for the end, for `until`, or for someone being waited for; hand over at `up_to`."""
        began = time.monotonic()
        limit = began + (self.settings.wait if up_to is None else up_to)
        with self.watch(execution_id, after, sock) as watch:
            waiting = Waiting(watch, self.settings.output_inline, until)
            while not waiting.take(watch.look()):
                left = limit - time.monotonic()
                if left <= 0:
                    break
                sleep(watch, left)
            return self.conclude(waiting, time.monotonic() - began)

    def conclude(self, waiting: Waiting, waited_s: float) -> Snapshot:
        """Return what a wait found; whoever leaves a live execution has handed it over."""
        execution = waiting.watch.execution
        if not execution.live:
            self.note_end(execution)
        elif waiting.matched is None:
            self.gave_up(execution, waited_s)
        return self.found(waiting)

    def note_end(self, execution: Execution) -> None:
        """Tell the index how an execution ended; it may lag, but not for long."""
        recover.tell_end(self.project, self.index, execution)

    def found(self, waiting: Waiting) -> Snapshot:
        """Return an execution with what a wait gathered."""
        execution = waiting.watch.execution
        return self._snapshot(
            execution,
            chunks=tuple(waiting.chunks),
            next_seq=waiting.next_seq - 1,
            truncated=waiting.truncated,
            handed_over=execution.live and waiting.matched is None,
            matched=waiting.matched,
            damaged=waiting.watch.damaged,
        )

    def gave_up(self, execution: Execution, waited_s: float) -> None:
        """Record that a caller left: from here on it counts as async."""
        if execution.is_async:
            return
        execution.is_async = True
        with suppress(DiskFull):
            self.index.mark_async(execution.id)
        try:
            folder = self.project.folder(execution.id)
            control.request(folder, "note", _ASIDE_S, after_s=round(waited_s, 3))
        except (control.NoKeeper, KeeperUnreachable):
            return

    def logs(
        self,
        execution_id: str,
        after: int = -1,
        since_ns: int | None = None,
        tail: int | None = None,
        most: int | None = None,
    ) -> Iterator[Chunk]:
        """Yield the output on the tape: all of it, after a cursor, since a time, or the last lines.

        With `most`, so many bytes of the last lines.
        """
        try:
            reader = TapeReader(self.project.folder(execution_id))
        except (FileNotFoundError, NotADirectoryError):
            return
        with reader:
            if tail is not None:
                found: Iterator[object] = iter(reader.tail(tail, most))
            elif since_ns is not None:
                found = reader.since(since_ns)
            else:
                found = reader.frames(after)
            for frame in found:
                if is_output(frame):  # pyright: ignore[reportArgumentType]
                    yield as_chunk(frame)  # pyright: ignore[reportArgumentType]

    def follow(
        self, execution_id: str, after: int = -1, sock: Connection | None = None
    ) -> Iterator[Chunk]:
        """Yield the output as it comes, until the execution ends."""
        with self.watch(execution_id, after, sock) as watch:
            while True:
                for frame in watch.look():
                    if is_output(frame):
                        yield as_chunk(frame)
                if watch.over:
                    return
                sleep(watch, None)

    def execution(self, execution_id: str) -> Execution:
        """Return what is true of an execution, settled."""
        whole = self.resolve(execution_id)
        found = recover.find_out(self.project, whole)
        row = self.index.get(whole)
        if row is not None and (found is None or not found.execution.live):
            recover.tell(self.project, self.index, [(row, found)])
        return found.execution if found is not None else Execution(whole)

    def show(self, execution_id: str) -> Snapshot:
        """Return an execution as it is now, without its output."""
        execution = self.execution(execution_id)
        row = self.index.get(execution.id)
        if execution.spec is None and row is not None:
            return from_row(row)
        return self._snapshot(execution)

    def _snapshot(self, execution: Execution, **extra: object) -> Snapshot:
        if execution.live:
            extra |= self._live_counts(execution)
        hint = advise(self.project, self.index, execution)
        return execution.snapshot(time.time_ns(), hint=hint, **extra)

    def _live_counts(self, execution: Execution) -> dict[str, object]:
        try:
            status = control.request(self.project.folder(execution.id), "status", _ASIDE_S)
        except (control.NoKeeper, KeeperUnreachable, OSError):
            return {}
        return {"output_bytes": status["size"], "output_lines": status["lines"]}

    # List

    def settle_live(self) -> list[Row]:
        """Bring every row that is not known to have ended to what is true now.

        Returns the rows that found no room in the index.
        """
        found = [(row, recover.find_out(self.project, row.id)) for row in self.index.live()]
        return recover.tell(self.project, self.index, found)

    def list(
        self,
        running: bool = False,
        states: Sequence[State] = (),
        kind: str = "",
        text: str = "",
        since_ns: int = 0,
        most: int | None = 50,
        only_async: bool = False,
    ) -> list[Snapshot]:
        """Return executions, newest first."""
        unwritten = self.settle_live()
        wanted = tuple(LIVE) if running else tuple(states)
        query = Query(
            most=most,
            states=wanted,
            kind=kind,
            text=text,
            since_ns=since_ns,
            only_async=only_async,
        )
        rows = self.index.latest(query)
        if unwritten:
            rows = corrected(rows, unwritten, query)
        return [self._listed(row) for row in rows]

    def _listed(self, row: Row) -> Snapshot:
        if row.state in LIVE or row.has_left:
            execution = recover.load(self.project, row.id)
            if execution is not None and execution.spec is not None:
                extra = self._live_counts(execution)
                hint = hints.suggest(execution, "")
                return execution.snapshot(time.time_ns(), hint=hint, **extra)
        return from_row(row)

    def at_work(self) -> list[Snapshot]:
        """Return what has processes, newest first: live executions, and ended ones that left some."""
        self.settle_live()
        return [self._listed(row) for row in reversed(self.index.live())]

    def resolve(self, execution_id: str) -> str:
        """Return the whole id for an id or a unique prefix of one."""
        prefix = check_prefix(execution_id)
        found = self.index.by_prefix(prefix, _NAMED)
        if len(found) == 1:
            return found[0].id
        if len(found) > 1:
            names = "; ".join(f"{short(row.id)} {row.state} {row.title[:30]}" for row in found)
            more = "" if len(found) < _NAMED else ", and maybe more"
            raise AmbiguousId(
                f"{execution_id} fits several executions: {names}{more}", "write more of it"
            )
        if is_id(prefix):
            if os.path.isdir(self.project.folder(prefix)):  # the index may lag
                return prefix
            if owner_elsewhere(self.project, prefix, self.environ):
                raise NotOwned(
                    f"execution {short(prefix)} belongs to another project",
                    "go to the folder it was started in",
                )
        near = self.index.nearest(prefix)
        hint = f"the nearest is {short(near.id)} ({near.title[:40]})" if near else "tenuto ps -a"
        raise UnknownExecution(f"there is no execution {execution_id} in this project", hint)

    # Act

    def send(self, execution_id: str, data: bytes, eof: bool = False) -> str:
        """Write to its stdin and return delivered, queued or closed."""
        whole = self.resolve(execution_id)
        row = self.index.get(whole)
        if row is not None and row.kind == "task":
            raise InvalidInput(
                f"{short(whole)} is a task, which reads no stdin",
                f"to decide what it asks: tenuto approve {short(whole)}",
            )
        try:
            return control.send(self.project.folder(whole), data, eof)
        except (control.NoKeeper, NotRunning):
            execution = self.execution(whole)
            raise NotRunning(
                f"{short(whole)} is {execution.state}: it takes no more input",
                f"see: tenuto show {short(whole)}",
            ) from None

    def kill(self, execution_id: str, signal_name: str = "KILL") -> Snapshot:
        """End it, its whole tree and what was started inside it; return once that is verified."""
        whole = self.resolve(execution_id)
        ending.kill(self.project, self.index, whole, signal_name)
        return self.show(whole)

    def interrupt(self, execution_id: str) -> Snapshot:
        """Ask it to stop, insist after a while, and return once it has; the hint says what is saved."""
        whole = self.resolve(execution_id)
        grace = self.settings.interrupt_grace
        now = ending.interrupt(self.project, self.index, whole, grace)
        snapshot = self.show(whole)
        if snapshot.kind != "task":
            return snapshot
        # what its agents left running is part of it
        ending.interrupt_children(self.project, self.index, whole, grace)
        from tenuto.engine.stopped import told  # code and commands need none of it

        return told(self, snapshot, now)

    def resize(self, execution_id: str, rows: int, cols: int) -> None:
        """Tell the execution's terminal its size."""
        whole = self.resolve(execution_id)
        try:
            control.request(self.project.folder(whole), "resize", rows=rows, cols=cols)
        except control.NoKeeper:
            return

    def clear(self, execution_id: str) -> Snapshot:
        """Drop its output; events and sequence numbers stay."""
        whole = self.resolve(execution_id)
        ending.clear(self.project, whole)
        return self.show(whole)

    def _index_state(self, execution_id: str) -> None:
        execution = recover.load(self.project, execution_id)
        if execution is not None:
            self.note_end(execution)


def sleep(watch: Watch, at_most: float | None) -> None:
    """Sleep until a watch has news, or for so long."""
    time.sleep(watch.rest)
    bounds = [bound for bound in (at_most, watch.pause) if bound is not None]
    timeout = min(bounds) if bounds else None
    if watch.fileno() < 0:
        time.sleep(timeout or 0)
        return
    poller = select.poll()
    poller.register(watch.fileno(), select.POLLIN)
    # whole days are looked through in between: the system counts milliseconds in 32 bits
    poller.poll(None if timeout is None else min(timeout, _DAY_S) * 1000)


def corrected(rows: Sequence[Row], unwritten: Sequence[Row], query: Query) -> list[Row]:
    """Return a listing with what the index could not be told."""
    merged = {row.id: row for row in rows}
    for row in unwritten:
        found = row.id in merged or not query.text
        if found and query.kind in ("", row.kind) and row.created_ns >= query.since_ns:
            merged[row.id] = row
    fitting = [row for row in merged.values() if not query.states or row.state in query.states]
    fitting = [row for row in fitting if row.is_async or not query.only_async]
    return sorted(fitting, key=lambda row: row.id, reverse=True)[: query.most]


def from_row(row: Row) -> Snapshot:
    """Return an ended execution as the index has it, without opening its tape."""
    begin = row.started_ns or row.created_ns
    end = row.ended_ns or begin
    return Snapshot(
        id=row.id,
        kind=row.kind,
        title=row.title,
        state=row.state,
        reason=row.reason,
        exit_code=row.exit_code,
        is_async=row.is_async,
        parent=row.parent,
        created_ns=row.created_ns,
        started_ns=row.started_ns,
        ended_ns=row.ended_ns,
        duration_s=max(0, end - begin) / 1e9,
        output_bytes=row.size,
        output_lines=row.lines,
    )
