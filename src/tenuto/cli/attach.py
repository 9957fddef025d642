"""tenuto attach: the last lines, then everything as it comes, with our keyboard on its stdin."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from typing import TYPE_CHECKING

from tenuto.cli import exits, follow
from tenuto.cli.arguments import add_id, only_running, opened
from tenuto.cli.words import how_it_ended
from tenuto.core.errors import InvalidInput, NotRunning
from tenuto.core.ids import short

if TYPE_CHECKING:
    import argparse

    from tenuto.cli.console import Console
    from tenuto.engine.blocking import BlockingEngine
    from tenuto.engine.watch import Watch

_LINES_BEFORE = 10


def attach_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto attach`."""
    add_id(parser, optional=True)
    parser.add_argument("--no-stdin", action="store_true", help="only look; forward nothing")


def attach(args: argparse.Namespace, console: Console) -> int:
    """Join an execution until it ends or we detach."""
    if console.json:
        raise InvalidInput("attach is for people: it has no --json", "use: tenuto logs -f --json")
    with closing(opened()) as engine:
        execution_id = only_running(engine, args.id)
        execution = engine.execution(execution_id)
        if not execution.live:
            raise NotRunning(
                f"{short(execution_id)} has ended: {execution.state}",
                f"see: tenuto logs {short(execution_id)}",
            )
        pty = execution.spec is not None and execution.spec.pty
        last = -1
        write = follow.writer(console)
        for chunk in engine.logs(execution_id, tail=_LINES_BEFORE):
            write(chunk)
            last = chunk.seq
        with engine.watch(execution_id, last) as watch:
            return _joined(engine, watch, pty, not args.no_stdin and _has_stdin(), console)


def _has_stdin() -> bool:
    """Tell a keyboard, a pipe or a file from /dev/null: to have no input is not to end it."""
    try:
        status = os.fstat(0)
    except OSError:
        return False
    return not stat.S_ISCHR(status.st_mode) or os.isatty(0)


def _joined(
    engine: BlockingEngine, watch: Watch, pty: bool, with_input: bool, console: Console
) -> int:
    from tenuto.cli.keyboard import Detached, Keyboard
    from tenuto.engine.goals import Waiting

    waiting = Waiting(watch, 0, early=False)
    write = follow.writer(console)
    try:
        if with_input:
            if os.isatty(0):
                console.note("Attached; Ctrl-P Ctrl-Q detaches.")
            with Keyboard(engine, watch.id, pty) as keyboard:
                follow.stay(waiting, write, keyboard=keyboard)
        else:
            follow.stay(waiting, write)
    except Detached:
        follow.say_still_running(console, watch.execution, watch.next_seq)
        return 0
    except KeyboardInterrupt:
        follow.say_still_running(console, watch.execution, watch.next_seq)
        return exits.INTERRUPTED
    snapshot = engine.show(watch.id)
    console.fresh_line()
    console.note(f"tenuto: {how_it_ended(snapshot, console)}")
    return exits.of_snapshot(snapshot)
