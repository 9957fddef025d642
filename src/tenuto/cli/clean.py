"""tenuto clean: remove ended executions, by age, number or size. Nothing that lives is touched."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from tenuto.cli import exits
from tenuto.cli.arguments import opened, whole
from tenuto.cli.words import plural
from tenuto.core.errors import InvalidInput
from tenuto.core.quantities import brief_size, parse_duration, parse_size

if TYPE_CHECKING:
    import argparse

    from tenuto.cli.console import Console


def clean_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto clean`."""
    add = parser.add_argument
    add("--older", metavar="T", type=parse_duration, help="those that ended longer ago than that")
    add("--keep", metavar="N", type=whole, help="all but the latest N")
    add("--max-size", metavar="S", type=parse_size, help="the oldest, until the rest fits")
    text = "and what their agents' steps came to; with --older, of all that is older"
    add("--history", action="store_true", help=text)


def clean(args: argparse.Namespace, console: Console) -> int:
    """Remove what the flags, or else the retention settings, say."""
    from tenuto.engine import retention

    asked = (args.older, args.keep, args.max_size)
    with closing(opened(strict=True)) as engine:
        if any(one is not None for one in asked):
            cleaned = retention.clean(engine, *asked, history=args.history)
        else:
            settings = engine.settings
            kept = (settings.retention_age, settings.retention_count, settings.retention_size)
            if all(one is None for one in kept):
                raise InvalidInput(
                    "what should go? No retention is set",
                    "add --older 7d, --keep 100 or --max-size 1G",
                )
            cleaned = retention.clean_by_settings(engine, args.history)
    if console.json:
        document = {"removed": cleaned.removed, "bytes": cleaned.size, "kept": cleaned.kept}
        document |= {"resumable": cleaned.resumable, "unfinished": cleaned.unfinished}
        console.document({"schema": 1, **document})
    else:
        console.out(f"removed {plural(cleaned.removed, 'execution')}, {brief_size(cleaned.size)}")
        if cleaned.resumable:
            tasks = plural(cleaned.resumable, "task")
            console.note(f"with them {tasks} that could have gone on")
        if cleaned.unfinished:
            tasks = plural(cleaned.unfinished, "task")
            console.note(
                f"{tasks} that can go on stayed: only --older removes what can (tenuto ps)"
            )
    if cleaned.kept:
        console.message(
            f"{plural(cleaned.kept, 'task')} stayed: no room to write down what their steps came to; "
            "make room, or let that go too with --history"
        )
    return exits.REFUSED if cleaned.kept else 0
