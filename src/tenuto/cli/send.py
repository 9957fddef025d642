"""tenuto send: write to an execution's stdin, now or before it asks."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from tenuto.cli import exits
from tenuto.cli.arguments import add_id, opened
from tenuto.cli.console import encoded
from tenuto.core.errors import InvalidInput
from tenuto.core.ids import short

if TYPE_CHECKING:
    import argparse

    from tenuto.cli.console import Console

_READ = 1024 * 1024


def send_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto send`."""
    add_id(parser)
    parser.add_argument("text", metavar="TEXT", nargs="?", help="what to write; - reads our stdin")
    parser.add_argument("--raw", action="store_true", help="add no newline")
    parser.add_argument("--eof", action="store_true", help="close its stdin after that")


def send(args: argparse.Namespace, console: Console) -> int:
    """Send a line, bytes, or the end of input, and say what became of it."""
    if args.text is None and not args.eof:
        raise InvalidInput("there is nothing to send", "give TEXT, or - for stdin, or --eof")
    with closing(opened()) as engine:
        whole = engine.resolve(args.id)
        data = b"" if args.text is None else _data(args.text)
        if args.text is not None and not args.raw and not data.endswith(b"\n"):
            data += b"\n"
        fate = engine.send(whole, data, eof=args.eof)
    if console.json:
        console.document({"schema": 1, "id": whole, "fate": fate, "bytes": len(data)})
    elif not console.quiet:
        console.out(fate)
    if fate == "closed":
        console.message(f"{short(whole)} has closed its stdin: nothing more can be sent")
        return exits.REFUSED
    return 0


def _data(text: str) -> bytes:
    if text != "-":
        return encoded(text)
    import sys

    return sys.stdin.buffer.read()
