"""tenuto attach: the last lines, then everything as it comes, with our keyboard on its stdin."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from typing import TYPE_CHECKING

from tenuto.cli import exits, follow
from tenuto.cli.arguments import add_id, only_running, opened
from tenuto.cli.words import how_it_ended
from tenuto.core.errors import NotRunning
from tenuto.core.ids import short

if TYPE_CHECKING:
    import argparse

    from tenuto.cli.console import Console
    from tenuto.engine.blocking import BlockingEngine

_LINES_BEFORE = 10
_BYTES_BEFORE = 64 * 1024


def attach_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto attach`."""
    add_id(parser, optional=True)
    parser.add_argument("--no-stdin", action="store_true", help="only look; forward nothing")


def attach(args: argparse.Namespace, console: Console) -> int:
    """Join an execution until it ends or we detach."""
    with closing(opened()) as engine:
        execution_id = only_running(engine, args.id)
        execution = engine.execution(execution_id)
        if not execution.live:
            raise NotRunning(
                f"{short(execution_id)} has ended: {execution.state}",
                f"see: tenuto logs {short(execution_id)}",
            )
        pty = execution.spec is not None and execution.spec.pty
        with_input = not args.no_stdin and _has_stdin()
        code = 0
        try:
            left = _joined(engine, execution_id, console, pty, with_input)
        except KeyboardInterrupt:
            left, code = True, exits.INTERRUPTED
        if left:
            follow.say_still_running(console, engine.execution(execution_id))
            return code
        snapshot = engine.show(execution_id)
    if console.json:
        from tenuto.engine.documents import execution_document

        console.line(execution_document(snapshot, with_output=False))
    else:
        console.fresh_line()
        console.note(f"tenuto: {how_it_ended(snapshot, console)}")
    return exits.of_snapshot(snapshot)


def _has_stdin() -> bool:
    """Tell a keyboard, a pipe or a file from /dev/null: to have no input is not to end it."""
    try:
        status = os.fstat(0)
    except OSError:
        return False
    return not stat.S_ISCHR(status.st_mode) or os.isatty(0)


def _joined(
    engine: BlockingEngine, execution_id: str, console: Console, pty: bool, with_input: bool
) -> bool:
    """Stay until it ends, or until we detach: True."""
    from tenuto.cli.keyboard import Detached, Keyboard
    from tenuto.engine.goals import Waiting

    write = follow.writer(console)
    last = -1
    for chunk in engine.logs(execution_id, tail=_LINES_BEFORE, most=_BYTES_BEFORE):
        write(chunk)
        last = chunk.seq
    with engine.watch(execution_id, last) as watch:
        waiting = Waiting(watch, 0, early=False)
        if not with_input:
            follow.stay(waiting, write)
            return False
        try:
            with Keyboard(engine, execution_id, pty) as keyboard:
                if os.isatty(0):
                    console.note("Attached; Ctrl-P Ctrl-Q detaches.")
                follow.stay(waiting, write, keyboard=keyboard)
        except Detached:
            return True
    return False
