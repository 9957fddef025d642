"""Plain aligned columns: made for eyes and for awk, without the cost of a table library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tenuto.cli.console import one_line

_GAP = "  "

Paint = Callable[[str], str]


def cells(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, most: int) -> str:
    """Return the text in at most so many columns, with an ellipsis where it was cut."""
    if cells(text) <= most:
        return text
    kept = text[: max(0, most - 1)]
    while kept and cells(kept) > most - 1:
        kept = kept[:-1]
    return f"{kept}…"


def wrapped(text: str, most: int) -> list[str]:
    """Return the text in lines of at most so many columns, broken between words where it can be."""
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cells(joined) <= most:
            lines[-1] = joined
            continue
        lines += [word] if lines[-1] else []
        lines[-1] = word
        while cells(lines[-1]) > most:
            rest = lines[-1]
            end = next(n for n in range(len(rest), 0, -1) if n == 1 or cells(rest[:n]) <= most)
            lines[-1:] = [rest[:end], rest[end:]]
    return lines


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    most: int,
    right: Sequence[int] = (),
    paint: Mapping[int, Paint] | None = None,
    wrap: bool = False,
) -> list[str]:
    """Return lines of aligned columns, the last one cut to fit; `right` are aligned to the right.

    Colours come last, per column: they must not count in the widths. With `wrap` nothing is cut: a row
    goes on in further lines, in the same text.
    """
    clean = [[one_line(value) for value in row] for row in (header, *rows)]
    last = len(header) - 1
    widths = [max(cells(row[n]) for row in clean) for n in range(last)]
    room = max(10, most - sum(widths) - len(_GAP) * last)
    lines: list[str] = []
    for number, row in enumerate(clean):
        parts: list[str] = []
        for n, value in enumerate(row):
            if n == last and wrap:
                indent = "\n" + " " * (sum(widths) + len(_GAP) * last)
                text = indent.join(wrapped(value, room))
            elif n == last:
                text = cut(value, room)
            else:
                pad = " " * (widths[n] - cells(value))
                text = pad + value if n in right else value + pad
            painter = (paint or {}).get(n) if number else None
            parts.append(painter(text) if painter else text)
        lines.append(_GAP.join(parts).rstrip())
    return lines


def pairs(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return `name  value` lines with the values under each other."""
    wide = max((cells(name) for name, _ in rows), default=0)
    return [f"{name}{' ' * (wide - cells(name))}{_GAP}{value}".rstrip() for name, value in rows]
