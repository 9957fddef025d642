"""The time between a start and its end, or its handover."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING

from tenuto.cli import exits, follow
from tenuto.cli.console import ERR, CannotWrite, Console, ReaderGone, one_line, width
from tenuto.cli.words import how_it_ended, plural, printed_value
from tenuto.core.ids import short
from tenuto.core.states import WaitingFor
from tenuto.engine.goals import Waiting

if TYPE_CHECKING:
    import argparse

    from tenuto.core.execution import Chunk, Snapshot
    from tenuto.core.ports import Connection
    from tenuto.engine.blocking import BlockingEngine


class Stay:
    """One execution that was just started, and how its starter waits for it."""

    def __init__(
        self,
        engine: BlockingEngine,
        console: Console,
        execution_id: str,
        sock: Connection,
        after: int = -1,
    ) -> None:
        """Watch from after a sequence number, over the connection that the start returned."""
        self._engine = engine
        self._console = console
        self._id = execution_id
        self._watch = engine.watch(execution_id, after, sock)
        self._began = time.monotonic()
        self._reported = 0

    def until_the_end(self, args: argparse.Namespace, interruption: list[int]) -> int:
        """Stay as the arguments ask for, and return the exit code."""
        with closing(self._watch):
            if args.detach:
                return self._leave_at_once()
            wait = args.wait
            if wait is None and not args.interactive:  # whoever types is not sent away mid-line
                wait = self._engine.settings.wait
            inline = self._engine.settings.output_inline
            waiting = Waiting(self._watch, inline, early=not args.interactive)
            try:
                if interruption:  # Ctrl-C came while it started
                    raise KeyboardInterrupt
                left = self._wait(waiting, wait, args)
            except KeyboardInterrupt:
                return self._left(waiting, exits.INTERRUPTED)
            except ReaderGone as gone:
                full = isinstance(gone, CannotWrite)
                return self._left(waiting, exits.FAULT if full else exits.PIPE_CLOSED)
            return self._left(waiting, 0) if left else self._finish(waiting, wait)

    def _leave_at_once(self) -> int:
        if self._console.json:
            from tenuto.engine.documents import execution_document

            self._console.document(execution_document(self._engine.show(self._id)))
        else:
            self._console.out(self._id)
        return 0

    def _wait(self, waiting: Waiting, wait: float | None, args: argparse.Namespace) -> bool:
        """Wait; True if the person detached."""
        limit = None if wait is None else self._began + wait
        write = None if self._console.json else self._pass_on
        if not args.interactive:
            every = 0 if self._console.quiet else self._engine.settings.report_every
            ticker = follow.Ticker(every, self._report)
            follow.stay(waiting, write, limit, ticker, tell=self._tell)
            return False
        from tenuto.cli.keyboard import Detached, Keyboard

        try:
            with Keyboard(self._engine, self._id, args.pty) as keyboard:
                follow.stay(waiting, write, limit, keyboard=keyboard)
        except Detached:
            return True
        return False

    def _finish(self, waiting: Waiting, wait: float | None) -> int:
        console = self._console
        snapshot = self._engine.conclude(waiting, time.monotonic() - self._began)
        if console.json:
            from tenuto.engine.documents import execution_document

            console.document(execution_document(snapshot))
        elif snapshot.done:
            self._tell_end(snapshot)
        else:
            self._tell_handover(snapshot, wait)
        return exits.of_snapshot(snapshot)

    def _left(self, waiting: Waiting, code: int) -> int:
        self._engine.conclude(waiting, time.monotonic() - self._began)
        follow.say_still_running(self._console, self._watch.execution, self._watch.next_seq)
        return code

    def _tell(self, time_ns: int, body: bytes) -> None:
        """Say something about an event, where there is something to say."""

    def _pass_on(self, chunk: Chunk) -> None:
        follow.writer(self._console)(chunk)
        self._reported = 0

    def _report(self) -> None:
        """Put the execution report on stderr, in place of the last one if nothing came since."""
        from tenuto.engine.reports import report

        lines = report(self._engine).text().splitlines()
        if os.isatty(ERR):
            room = width(ERR) - 1
            lines = [one_line(line)[:room] for line in lines]
            if self._reported:
                self._console.write(ERR, b"\x1b[%dA\x1b[J" % self._reported)
            self._reported = len(lines)
        self._console.message("\n".join(lines))

    def _tell_end(self, snapshot: Snapshot) -> None:
        console = self._console
        value = printed_value(self._watch.execution)
        if value is not None:
            console.fresh_line(anywhere=True)
            console.out(value)
        if not snapshot:
            console.message(f"tenuto: {how_it_ended(snapshot, console)}")
            if snapshot.hint:
                console.message(f"  {snapshot.hint}")
        if snapshot.left_behind:
            what = plural(len(snapshot.left_behind), "process")
            console.note(f"tenuto: it left {what} behind: tenuto tree {short(snapshot.id)}")

    def _tell_handover(self, snapshot: Snapshot, wait: float | None) -> None:
        console = self._console
        console.fresh_line()
        if snapshot.waiting_for is not None:
            detail = f" ({snapshot.detail})" if snapshot.detail != snapshot.waiting_for else ""
            console.message(
                f"Execution waits for {snapshot.waiting_for}{detail}; it goes on when that comes."
            )
        else:
            console.message(f"Execution moved to async mode after {wait or 0:g} seconds.")
        console.message(f"id: {snapshot.id}")
        task = snapshot.kind == "task"
        for line in follow.next_commands(snapshot.id, self._watch.next_seq, task):
            console.note(line)
        if snapshot.waiting_for is WaitingFor.INPUT and _input_given():
            console.note("  what is in our own stdin is not passed on without -i")
        if snapshot.waiting_for is WaitingFor.DISK:
            console.note(f"  tenuto clear {short(snapshot.id)}")


def _input_given() -> bool:
    """Tell whether somebody piped something into this command, or gave it a file."""
    import select
    import stat

    try:
        status = os.fstat(0)
    except OSError:
        return False
    if stat.S_ISREG(status.st_mode):
        return status.st_size > 0
    poller = select.poll()
    poller.register(0, select.POLLIN)
    return stat.S_ISFIFO(status.st_mode) and any(
        event & select.POLLIN for _, event in poller.poll(0)
    )
