"""Output in pages: as much as one answer holds, and the cursor to go on without a gap or a repeat.

A cursor is a frame's number on the tape, `41`, or `41+4096` where a page ended inside frame 42 of the
same numbering: everything up to 41 and 4096 bytes of what follows was given.
"""

from __future__ import annotations

import codecs
from typing import Any

import msgspec

from tenuto.core.errors import InvalidInput
from tenuto.core.execution import Chunk, Snapshot
from tenuto.core.quantities import brief_size, iso

_MOST = 2**62
_NEAR = 4096
_STAMP = 31  # what a line's time takes


class Cursor(msgspec.Struct, frozen=True):
    """A place in an execution's output."""

    after: int = -1
    skip: int = 0

    def __str__(self) -> str:
        return f"{self.after}+{self.skip}" if self.skip else str(self.after)


START = Cursor()


def parse_cursor(given: object) -> Cursor:
    """Return the place that a client's cursor names."""
    if given is None or given == "":
        return START
    head, _, tail = str(given).strip().partition("+")
    try:
        cursor = Cursor(int(head), int(tail or 0))
    except ValueError:
        cursor = Cursor(-2)
    if isinstance(given, bool) or not (-1 <= cursor.after < _MOST and 0 <= cursor.skip < _MOST):
        raise InvalidInput(
            f"{str(given)[:80]!r} is not a cursor", "give one from an earlier answer, or none"
        )
    return cursor


class Page(msgspec.Struct, frozen=True):
    """A piece of output as it is shown."""

    text: str
    cursor: str
    truncated: bool = False
    tail: str = ""

    def data(self) -> dict[str, Any]:
        """Return it for an answer's data."""
        shown: dict[str, Any] = {"output": self.text, "cursor": self.cursor}
        if self.truncated:
            shown["truncated"] = True
        return shown


def page_of(snapshot: Snapshot, place: Cursor, limit: int, stamps: bool, tail: str = "") -> Page:
    """Return the snapshot's output from a place on, at most `limit` bytes of it.

    Where it is cut, the text says so, with the last lines (`tail`) behind.
    """
    chunks, cursor, cut = _fit(snapshot, place, limit, _STAMP if stamps else 0)
    text = stamped(chunks) if stamps else _plain(chunks)
    if cut:
        text += (
            f"\n[… cut at {brief_size(limit)}; go on with output(execution_id="
            f'"{snapshot.id}", cursor="{cursor}")'
        )
        text += f"; its last lines:]\n{tail}" if tail else "]"
    return Page(text, str(cursor), cut, tail)


def _fit(
    snapshot: Snapshot, place: Cursor, limit: int, per_line: int
) -> tuple[list[Chunk], Cursor, bool]:
    """Return what fits, where it ends, and whether there is more."""
    kept: list[Chunk] = []
    sizes: dict[int, tuple[int, int]] = {}  # by frame: what was given before, and how large it is
    room = limit
    cut = snapshot.truncated
    for chunk in snapshot.chunks:
        # where the frame is another one, the history was cleared meanwhile
        given = place.skip if chunk.seq == place.after + 1 else 0
        data = chunk.data[given:]
        sizes[chunk.seq] = (given, len(chunk.data))
        fits = _share(data, room, per_line)
        room -= len(data) + per_line * data.count(b"\n")
        if fits:
            kept.append(msgspec.structs.replace(chunk, data=data[:fits]))
        if fits < len(data):
            cut = True
            break
    if not kept or (snapshot.done and not cut):
        return kept, Cursor(max(place.after, snapshot.next_seq)), cut
    kept = _to_line(kept) if cut else _to_character(kept)
    last = kept[-1]
    given, size = sizes[last.seq]
    if given + len(last.data) < size:
        return kept, Cursor(last.seq - 1, given + len(last.data)), cut
    return kept, Cursor(last.seq if cut else max(last.seq, snapshot.next_seq)), cut


def _share(data: bytes, room: int, per_line: int) -> int:
    """Return how many bytes fit, where each line takes some more."""
    if not per_line:
        return min(max(0, room), len(data))
    at = 0
    while room > 0 and at < len(data):
        line = data.find(b"\n", at) + 1 or len(data)
        takes = line - at + per_line
        if takes > room:
            return at + min(line - at, max(0, room - per_line))
        at, room = line, room - takes
    return at


def _to_line(kept: list[Chunk]) -> list[Chunk]:
    """Return a page that was cut without the beginning of its last line, if that is short."""
    near = _NEAR
    for number in range(len(kept) - 1, -1, -1):
        data = kept[number].data
        end = data.rfind(b"\n") + 1
        near -= len(data) - end
        if near <= 0:
            break
        if end:
            return [*kept[:number], msgspec.structs.replace(kept[number], data=data[:end])]
    return _to_character(kept)


def _to_character(kept: list[Chunk]) -> list[Chunk]:
    """Return a page without the beginning of a character that is not all there."""
    data = kept[-1].data
    end = len(data) - _unfinished(data)
    return [*kept[:-1], msgspec.structs.replace(kept[-1], data=data[:end])] if end else kept


def _unfinished(data: bytes) -> int:
    """Return how many bytes at the end begin a character that is not all there."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            size = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return back if size > back else 0
    return 0


def _plain(chunks: list[Chunk]) -> str:
    return b"".join(chunk.data for chunk in chunks).decode("utf-8", "replace").rstrip("\n")


def stamped(chunks: list[Chunk]) -> str:
    """Return output with each line's time, and its stream where that is stderr.

    A line that came in pieces has the time of its first one.
    """
    lines: list[str] = []
    unfinished = ""
    decoders: dict[str, codecs.IncrementalDecoder] = {}
    for chunk in chunks:
        if chunk.stream not in decoders:
            decoders[chunk.stream] = codecs.getincrementaldecoder("utf-8")("replace")
        mark = f"[{iso(chunk.time_ns)}] " + ("stderr: " if chunk.stream == "err" else "")
        *whole, rest = decoders[chunk.stream].decode(chunk.data).split("\n")
        for line in whole:
            _put(lines, unfinished == chunk.stream, mark, line)
            unfinished = ""
        if rest:
            _put(lines, unfinished == chunk.stream, mark, rest)
            unfinished = chunk.stream
    return "\n".join(lines)


def _put(lines: list[str], joins: bool, mark: str, text: str) -> None:
    if joins and lines:
        lines[-1] += text
    else:
        lines.append(mark + text)
