"""tenuto wait: until executions end, until one needs somebody, or until a text appears."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from tenuto.cli import exits, follow
from tenuto.cli.arguments import only_running, opened
from tenuto.cli.console import OUT
from tenuto.cli.words import how_it_ended, state_of
from tenuto.core.ids import short
from tenuto.core.quantities import parse_duration

if TYPE_CHECKING:
    import argparse

    from tenuto.cli.console import Console
    from tenuto.core.execution import Snapshot
    from tenuto.engine.goals import Waiting


def wait_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto wait`."""
    add = parser.add_argument
    add("ids", metavar="ID", nargs="*", help="executions (default: the only running one)")
    add("--up-to", metavar="T", type=parse_duration, help="at most so long (default: no limit)")
    add("--any", action="store_true", help="until one of them has ended, not all")
    add("--until", metavar="TEXT", help="until a text, or a /regex/, stands in the output")


def wait(args: argparse.Namespace, console: Console) -> int:
    """Wait; the exit code is the execution's own, 75 if it still runs."""
    from tenuto.engine.goals import Waiting

    with closing(opened()) as engine, ExitStack() as stack:
        ids = [only_running(engine, one) for one in args.ids or [None]]
        inline = engine.settings.output_inline if console.json else 0
        watches = [stack.enter_context(engine.watch(one)) for one in dict.fromkeys(ids)]
        for watch in watches:
            watch.only_events = not console.json and args.until is None
        waits = [Waiting(watch, inline, args.until) for watch in watches]
        began = time.monotonic()
        limit = None if args.up_to is None else began + args.up_to
        try:
            over = _watch_all(waits, limit, args.any)
        except KeyboardInterrupt:
            for one in waits:
                engine.conclude(one, time.monotonic() - began)
                follow.say_still_running(console, one.watch.execution, one.watch.next_seq)
            return exits.INTERRUPTED
        found = [engine.conclude(one, time.monotonic() - began) for one in waits]
        if args.any and over:
            found = [one for one in found if one.id == over[0].watch.id]
        return _answer(found, args, console)


def _watch_all(waits: list[Waiting], limit: float | None, any_one: bool) -> list[Waiting]:
    """Return the waits that are over, in the order in which that was seen."""
    over: list[Waiting] = []
    while True:
        pending = [one for one in waits if one not in over]
        over += [one for one in pending if one.take(one.watch.look())]
        pending = [one for one in pending if one not in over]
        now = time.monotonic()
        if not pending or (any_one and over) or (limit is not None and now >= limit):
            return over
        bounds = [one.watch.pause for one in pending]
        bounds.append(None if limit is None else limit - now)
        follow.rest([one.watch.fileno() for one in pending], bounds)


def _answer(found: list[Snapshot], args: argparse.Namespace, console: Console) -> int:
    if console.json:
        from tenuto.engine.documents import execution_document

        documents = [execution_document(one) for one in found]
        console.document(documents[0] if len(args.ids) <= 1 else documents)
    elif not console.quiet:
        for one in found:
            console.out(_line(one, args.until, console))
            if one.hint:
                console.message(f"  {one.hint}")
    codes = [_code(one, args.until) for one in found]
    return next((code for code in codes if code), 0)


def _line(one: Snapshot, until: str | None, console: Console) -> str:
    if one.matched is not None:
        return f"{short(one.id)}  {console.paint_state(state_of(one))}  found {one.matched!r}"
    if one.done:
        code = "" if one.exit_code is None else f"  exit {one.exit_code}"
        missed = f"  without {until!r}" if until is not None else ""
        return f"{how_it_ended(one, console, OUT)}{code}{missed}"
    return f"{console.paint_state(state_of(one))}  {short(one.id)}"


def _code(one: Snapshot, until: str | None) -> int:
    if one.matched is not None:
        return 0
    code = exits.of_snapshot(one)
    return code or (exits.REFUSED if until is not None else 0)
