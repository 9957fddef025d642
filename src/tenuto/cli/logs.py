"""tenuto logs: what an execution wrote, all of it or a part, as it is or as it comes."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import closing
from typing import TYPE_CHECKING

from tenuto.cli import exits, follow
from tenuto.cli.arguments import add_id, only_running, opened, whole
from tenuto.cli.console import ERR, OUT, Console
from tenuto.core.errors import InvalidInput
from tenuto.core.quantities import iso, parse_moment

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from tenuto.cli.safe import Tamed
    from tenuto.core.execution import Chunk
    from tenuto.engine.blocking import BlockingEngine


def logs_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto logs`."""
    add_id(parser, optional=True)
    add = parser.add_argument
    add(
        "-f", "--follow", action="store_true", help="go on until it ends; Ctrl-C only stops reading"
    )
    add("-n", "--tail", metavar="N", default="all", help="only the last N lines (default: all)")
    add("--since", metavar="T", help="only after a time, or an age such as 10m")
    add("--after", metavar="SEQ", type=whole, default=-1, help="only after a sequence number")
    add("-t", "--timestamps", action="store_true", help="the time before each line")
    add("--stream", choices=("out", "err"), help="only one of the two, on stdout")


def logs(args: argparse.Namespace, console: Console) -> int:
    """Print output; stdout to stdout and stderr to stderr, unless one was asked for."""
    tail = _tail(args.tail)
    since = parse_moment(args.since, time.time_ns()) if args.since else None
    with closing(opened()) as engine:
        execution_id = only_running(engine, args.id)
        printer = Printer(console, args.stream, args.timestamps)
        printer.last = args.after
        try:
            for chunk in _chosen(engine, execution_id, args, since, tail):
                printer.write(chunk)
            if tail == 0:  # nothing of what is there: what follows begins behind it
                seen = [chunk.seq for chunk in engine.logs(execution_id, tail=1, most=1)]
                printer.last = max(printer.last, *seen, -1)
            if args.follow:
                _follow(engine, execution_id, since, printer)
        except KeyboardInterrupt:
            follow.say_still_running(console, engine.execution(execution_id), printer.last + 1)
            return exits.INTERRUPTED
        printer.finish()
        cleared = engine.execution(execution_id).cleared_upto
        if cleared > args.after:
            console.note(f"tenuto: output up to sequence number {cleared} was dropped on request")
    return 0


def _tail(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise InvalidInput(f"-n {text!r} is not a number of lines", "write a number, or all")
    return int(text)


def _chosen(
    engine: BlockingEngine,
    execution_id: str,
    args: argparse.Namespace,
    since: int | None,
    tail: int | None,
) -> Iterable[Chunk]:
    whole_tape = args.after < 0 and since is None and args.stream is None
    if tail is not None and whole_tape:
        return engine.logs(execution_id, tail=tail)  # by the tape's index, without reading it all
    if args.after >= 0:
        chunks = engine.logs(execution_id, after=args.after)
    else:
        chunks = engine.logs(execution_id, since_ns=since)
    fitting = (
        chunk
        for chunk in chunks
        if (since is None or chunk.time_ns > since) and args.stream in (None, chunk.stream)
    )
    return fitting if tail is None else _last_lines(fitting, tail)


def _last_lines(chunks: Iterable[Chunk], tail: int) -> Iterator[Chunk]:
    """Yield the last lines of what was chosen, holding no more than those."""
    import msgspec

    kept: deque[Chunk] = deque()
    lines = 0
    for chunk in chunks:
        kept.append(chunk)
        lines += chunk.data.count(b"\n")
        while kept and lines - (first := kept[0].data.count(b"\n")) > tail:
            lines -= first
            kept.popleft()
    if kept and not kept[-1].data.endswith(b"\n"):
        lines += 1
    surplus = lines - tail
    for chunk in kept:
        if surplus <= 0:
            yield chunk
            continue
        pieces = chunk.data.split(b"\n", surplus)
        surplus -= len(pieces) - 1
        if surplus <= 0 and pieces[-1]:
            yield msgspec.structs.replace(chunk, data=pieces[-1])


def _follow(engine: BlockingEngine, execution_id: str, since: int | None, printer: Printer) -> None:
    from tenuto.engine.goals import Waiting

    def write(chunk: Chunk) -> None:
        if since is None or chunk.time_ns > since:
            printer.write(chunk)

    with engine.watch(execution_id, printer.last) as watch:
        follow.stay(Waiting(watch, 0, early=False), write)


class Printer:
    """Writes chunks as the flags ask for: raw, tamed for a terminal, with times, or as JSON."""

    def __init__(self, console: Console, stream: str | None, timestamps: bool) -> None:
        """Take what `tenuto logs` was told."""
        self.last = -1  # the last sequence number that was seen, wanted or not
        self._console = console
        self._stream = stream
        self._timestamps = timestamps
        self._at_line_start = {"out": True, "err": True}
        self._tamed: dict[str, Tamed] = {}
        for name in ("out", "err"):
            if os.isatty(self._fd(name)):
                from tenuto.cli.safe import Tamed

                self._tamed[name] = Tamed()

    def _fd(self, stream: str) -> int:
        return OUT if self._stream is not None or stream == "out" else ERR

    def write(self, chunk: Chunk) -> None:
        """Print one chunk, if its stream is wanted."""
        self.last = max(self.last, chunk.seq)
        if self._stream not in (None, chunk.stream):
            return
        if self._console.json:
            follow.writer(self._console)(chunk)
            return
        data = chunk.data
        tamed = self._tamed.get(chunk.stream)
        if tamed is not None:
            data = tamed.feed(data)
        if self._timestamps:
            data = self._stamped(chunk, data)
        self._console.write(self._fd(chunk.stream), data)

    def _stamped(self, chunk: Chunk, data: bytes) -> bytes:
        """Return the data with the time before every line that begins in it."""
        if not data:
            return data
        stamp = iso(chunk.time_ns).encode() + b" "
        ends = data.endswith(b"\n")
        body = data[:-1] if ends else data
        stamped = body.replace(b"\n", b"\n" + stamp)
        if self._at_line_start[chunk.stream]:
            stamped = stamp + stamped
        self._at_line_start[chunk.stream] = ends
        return stamped + b"\n" if ends else stamped

    def finish(self) -> None:
        """Write what was held back."""
        for name, tamed in self._tamed.items():
            self._console.write(self._fd(name), tamed.feed(b"", last=True))
