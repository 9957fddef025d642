"""Changes of a source text by position, applied together, so that every line keeps its number."""

from __future__ import annotations

import re

# What comes first where several changes start at the same byte.
INNER, CLOSE, SEMICOLON, OPEN, REPLACE = range(5)

_LINE_END = re.compile("\r\n|[\n\r\u2028\u2029]")
_VISIBLE = re.compile("[^\n\r\u2028\u2029]")


def encode(text: str) -> bytes:
    """Return the text as the parser reads it; a lone surrogate is no reason to fail."""
    return text.encode("utf-8", "surrogatepass")


def decode(text: bytes) -> str:
    """Return the text as the engine reads it."""
    return text.decode("utf-8", "surrogatepass")


class Edits:
    """Collects changes of one source, and puts them in."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._all: list[tuple[int, int, int, int, str]] = []
        self.moves: list[tuple[int, int, int]] = []

    def insert(self, at: int, text: str, rank: int) -> None:
        """Put text between two bytes."""
        self._all.append((at, rank, 0, len(self._all), text))

    def replace(self, start: int, end: int, text: str) -> None:
        """Put text for text; other changes inside it are dropped."""
        self._all.append((start, REPLACE, -end, len(self._all), text))

    def blank(self, start: int, end: int, first: str = "") -> None:
        """Put spaces for text, and `first` for the first of them (a semicolon that keeps apart)."""
        text = _VISIBLE.sub(" ", self.text(start, end))
        self.replace(start, end, first + text[len(first) :])

    def text(self, start: int, end: int) -> str:
        """Return a piece of the source."""
        return decode(self.source[start:end])

    def has_line_end(self, start: int, end: int) -> bool:
        """Tell whether a piece of the source spans lines."""
        return _LINE_END.search(self.text(start, end)) is not None

    def apply(self) -> str:
        """Return the text with all changes."""
        parts: list[str] = []
        done = length = 0
        for start, rank, negative_end, _, text in sorted(self._all):
            if start < done:
                continue  # inside what was replaced already
            end = -negative_end if rank == REPLACE else start
            kept = self.text(done, start)
            removed = len(self.text(start, end))
            length += len(kept)
            if len(text) != removed:
                self.moves.append((length, removed, len(text)))
            length += len(text)
            parts += (kept, text)
            done = end
        parts.append(self.text(done, len(self.source)))
        return "".join(parts)

    def column(self, text: str, line: int, column: int) -> int:
        """Return where a column of the new text (both from 1) stood on that line of the source."""
        start = 0
        for _ in range(line - 1):
            found = _LINE_END.search(text, start)
            if found is None:
                return column
            start = found.end()
        here = start + column - 1
        for at, removed, put in self.moves:
            if start <= at < here:
                column += removed - min(put, here - at)  # inside what was put in: its beginning
        return max(1, column)
