"""tenuto ps: what needs someone, what runs, what can go on, what is done."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

from tenuto.cli.arguments import count, opened
from tenuto.cli.console import OUT, Console, width
from tenuto.cli.table import table
from tenuto.cli.words import state_of
from tenuto.core.ids import short
from tenuto.core.quantities import brief_duration
from tenuto.core.states import ENDED, LIVE, RESUMABLE, State
from tenuto.engine.reports import serves

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tenuto.core.execution import Snapshot
    from tenuto.engine.blocking import BlockingEngine

_DONE_MOST = 50
_STOPPED_MOST = 5
_HEADER = ("ID", "STATE", "TIME", "LINES", "TITLE")


def ps_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto ps`."""
    add = parser.add_argument
    add(
        "-a",
        "--all",
        action="store_true",
        help="ended ones too (the latest 50), sessions, the gateway",
    )
    states = [str(state) for state in State]
    add("--state", choices=states, metavar="S", help=f"one of {', '.join(states)}")
    kinds = ("code", "command", "task", "step")
    add("--kind", choices=kinds, metavar="K", help=f"one of {', '.join(kinds)}")
    add("--text", metavar="T", default="", help="words of the title, the code or the command")
    add("--async", dest="only_async", action="store_true", help="those nobody waits for any more")
    add("-n", metavar="N", type=count, help="at most so many of each group, the newest")
    add("--watch", action="store_true", help="again every second, on a terminal")


def ps(args: argparse.Namespace, console: Console) -> int:
    """List executions."""
    with closing(opened()) as engine:
        if args.watch and os.isatty(OUT) and not console.json:
            return _watch(engine, args, console)
        found = _found(engine, args)
        more = False
        if not console.json and not console.quiet:
            stopped, more = _stopped(engine, args, found)
            found += stopped
        if console.json:
            from tenuto.engine.documents import execution_document

            console.document([execution_document(one, with_output=False) for one in found])
        elif console.quiet:
            for one in found:
                console.out(one.id)
        elif found:
            console.out("\n".join(_lines(found, console)))
            if more:
                console.note(f"more can go on: tenuto ps -n {(args.n or _STOPPED_MOST) * 10}")
        else:
            console.message("Nothing is running." if not args.all else "There is none.")
    return 0


def _found(engine: BlockingEngine, args: argparse.Namespace) -> list[Snapshot]:
    """Return the live ones (newest first), then the ended ones if those are wanted."""

    def listed(states: Sequence[State], most: int | None) -> list[Snapshot]:
        return engine.list(
            states=states, kind=args.kind or "", text=args.text, most=most,
            only_async=args.only_async,
        )  # fmt: skip

    def shown(found: list[Snapshot], most: int | None) -> list[Snapshot]:
        """Leave out what only serves others, unless all is asked for."""
        return [one for one in found if args.all or one.done or not serves(one)][:most]

    if args.state is not None:
        state, most = State(args.state), args.n or _DONE_MOST
        return shown(listed((state,), None if state in LIVE else most), most)
    live = shown(listed(tuple(LIVE), None), args.n)
    if args.all:
        return live + listed(tuple(ENDED), args.n or _DONE_MOST)
    narrowed = args.kind or args.text or args.only_async
    return live if narrowed else live + [one for one in engine.at_work() if one.done]


def _stopped(
    engine: BlockingEngine, args: argparse.Namespace, found: Sequence[Snapshot]
) -> tuple[list[Snapshot], bool]:
    """Return the newest tasks that can be resumed, and whether there are more.

    None where something narrower was asked for.
    """
    narrowed = args.all or args.state or args.text or args.only_async
    if narrowed or args.kind not in (None, "task"):
        return [], False
    most = args.n or _STOPPED_MOST
    stopped = engine.list(states=tuple(RESUMABLE), kind="task", most=most + 1)
    known = {one.id for one in found}
    return [one for one in stopped[:most] if one.id not in known], len(stopped) > most


def _can_go_on(one: Snapshot) -> bool:
    return one.kind == "task" and one.state in RESUMABLE and not one.left_behind


def _lines(found: Sequence[Snapshot], console: Console) -> list[str]:
    groups = {
        "Needs you": [one for one in found if one.waiting_for is not None],
        "Running": [one for one in found if one.running and one.waiting_for is None],
        "Left processes behind": [one for one in found if one.left_behind],
        "Can go on: tenuto resume ID": [one for one in found if _can_go_on(one)],
        "Done": [one for one in found if one.done and not one.left_behind and not _can_go_on(one)],
    }
    ordered = [one for group in groups.values() for one in group]
    # one table, so that the columns of all groups stand under each other
    lines = table(
        _HEADER,
        [_row(one) for one in ordered],
        width(),
        right=(2, 3),
        paint={1: console.paint_state},
    )
    result = [console.paint(lines.pop(0), "grey")]
    for name, group in groups.items():
        if group:
            result.append(console.paint(name, "bold"))
            result += [lines.pop(0) for _ in group]
    return result


def _row(one: Snapshot) -> tuple[str, ...]:
    duration = brief_duration(one.duration_s)
    return (short(one.id), state_of(one), duration, str(one.output_lines), one.title)


def _watch(engine: BlockingEngine, args: argparse.Namespace, console: Console) -> int:
    import time

    try:
        while True:
            found = _found(engine, args)
            found += _stopped(engine, args, found)[0]
            lines = _lines(found, console) if found else ["Nothing is running."]
            rows = os.get_terminal_size(OUT).lines or 1000  # 0: it does not say
            text = "\r\n".join(lines[: max(1, rows - 1)])
            console.write(OUT, b"\x1b[H\x1b[2J" + text.encode("utf-8", "replace") + b"\r\n")
            time.sleep(1)
    except KeyboardInterrupt:
        return 0
