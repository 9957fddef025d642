"""Output in pages: as much as one answer holds, and the cursor to go on without a gap or a repeat.

A cursor is a frame's number on the tape, `41`, or `41+4096` where a page ended inside frame 42 of the
same numbering: everything up to 41 and 4096 bytes of what follows was given. In a task's result, which
is put together from what its steps said, it is the number of bytes given, `r4096`.
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
STAMP = 31  # what a line's time takes
MOST_LINES = 1500  # OpenCode cuts an answer at 2000
_PAIRS = b'"\\\n\r\t'  # written as two characters
_NO_PAIRS = bytes(set(range(256)) - set(_PAIRS))
_NO_CODES = bytes(set(range(256)) - set(range(32)) | set(_PAIRS))  # all that needs no \u001b


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


class Room:
    """What one answer still has room for: so much text as JSON writes it, and so many lines.

    Clients show the text or the data; in the data a newline or a quote takes two characters. Some
    of them cut long answers in their own way, and the cursor with it: by lines, too.
    """

    def __init__(self, limit: int, per_line: int) -> None:
        """Take the size, and what each line takes in addition."""
        self._size = limit
        self._lines = MOST_LINES
        self._per_line = per_line

    def take(self, data: bytes) -> int:
        """Return how many of the bytes fit, whole lines if possible; they are taken."""
        at = 0
        while at < len(data):
            end = data.find(b"\n", at) + 1 or len(data)
            ends = data[end - 1] == 10  # a piece that ends no line takes no more than itself
            takes = _written(data[at:end]) + self._per_line * ends
            if takes > self._size or not self._lines:
                return at + self._part(data[at:end])
            self._size -= takes
            self._lines -= ends
            at = end
        return at

    def _part(self, line: bytes) -> int:
        """Return how much of a line fits that does not fit as a whole."""
        size = self._size - self._per_line if self._lines else 0
        end = min(len(line), max(0, size))
        while end and (takes := _written(line[:end])) > size:
            end = end * size // takes
        return end

    def end(self, data: bytes) -> int:
        """Return how many bytes of the end fit, whole lines if possible; they are taken."""
        at = len(data)
        while at:
            begin = data.rfind(b"\n", 0, at - 1) + 1
            ends = data[at - 1] == 10
            takes = _written(data[begin:at]) + self._per_line * ends
            if takes > self._size or not self._lines:
                # as much of the newest line as there is room for, rather than nothing at all
                return len(data) - at or self._part(data[begin:at][::-1])
            self._size -= takes
            self._lines -= ends
            at = begin
        return len(data)


def _written(data: bytes) -> int:
    """Return how many characters JSON takes for it."""
    return (
        len(data) + len(data.translate(None, _NO_PAIRS)) + 5 * len(data.translate(None, _NO_CODES))
    )


def page_of(snapshot: Snapshot, place: Cursor, limit: int, stamps: bool, tail: str = "") -> Page:
    """Return the snapshot's output from a place on, at most `limit` bytes of it.

    Where it is cut, the text says so, with the last lines (`tail`) behind.
    """
    chunks, cursor, cut = _fit(snapshot, place, limit, STAMP if stamps else 0)
    text = stamped(chunks) if stamps else _plain(chunks)
    if cut:
        text += (
            f"\n[… cut at {brief_size(limit)}; go on with output(execution_id="
            f'"{snapshot.id}", cursor="{cursor}")'
        )
        text += f"; its last lines:]\n{tail}" if tail else "]"
    return Page(text, str(cursor), cut, tail)


def parse_result(given: object) -> int | None:
    """Return the place in a task's result that a cursor names (`r4096`), or None for one of output."""
    text = str(given).strip() if given is not None else ""
    return int(text[1:]) if text[:1] == "r" and text[1:].isdecimal() and len(text) < 20 else None


def result_page(text: str, begin: int, limit: int, execution_id: str) -> Page:
    """Return a task's result from a place on, at most `limit` bytes of it."""
    rest = text.encode("utf-8", "replace")[begin:]
    fits = Room(limit, 0).take(rest)
    piece = Chunk(seq=0, time_ns=0, stream="out", data=rest[:fits])
    cut = fits < len(rest)
    kept = _to_line([piece])[0].data if cut else piece.data
    cursor = f"r{begin + len(kept)}"
    shown = kept.decode("utf-8", "replace").rstrip("\n")
    if cut:
        shown += (
            f"\n[… cut at {brief_size(limit)}; the rest of the result: "
            f'output(execution_id="{execution_id}", cursor="{cursor}")]'
        )
    return Page(shown, cursor, cut)


def _fit(
    snapshot: Snapshot, place: Cursor, limit: int, per_line: int
) -> tuple[list[Chunk], Cursor, bool]:
    """Return what fits, where it ends, and whether there is more."""
    kept: list[Chunk] = []
    sizes: dict[int, tuple[int, int]] = {}  # by frame: what was given before, and how large it is
    room = Room(limit, per_line)
    cut = snapshot.truncated
    for chunk in snapshot.chunks:
        # where the frame is another one, the history was cleared meanwhile
        given = place.skip if chunk.seq == place.after + 1 else 0
        data = chunk.data[given:]
        sizes[chunk.seq] = (given, len(chunk.data))
        fits = room.take(data)
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
