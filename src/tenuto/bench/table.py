"""What a benchmark found: rows with a floor, our own figure and a target, printed or as JSON."""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence

import msgspec

_WIDTHS = (46, 12, 12, 8, 16, 4)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of ours beside its floor; `met` is None where there is nothing to meet."""

    what: str
    ours: float
    unit: str = "ms"
    floor: float | None = None
    target: str = ""
    met: bool | None = None
    exact: bool = False
    """It is about being right, not about speed: a miss is a defect on any machine."""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over the floor."""
        return self.ours / self.floor if self.floor else None


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the smallest sample that so many percent do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def median(samples: Sequence[float]) -> float:
    """Return the middle sample."""
    return percentile(samples, 50)


def at_most(
    what: str,
    ours: float,
    bound: float,
    unit: str = "ms",
    floor: float | None = None,
    note: str = "",
) -> Row:
    """Return a row whose figure must not pass a bound of its own unit."""
    target = f"≤ {bound:g} {unit}"
    met = ours <= bound
    return Row(what=what, ours=ours, unit=unit, floor=floor, target=target, met=met, note=note)


def times_at_most(what: str, ours: float, floor: float, bound: float) -> Row:
    """Return a row that may cost at most so many floors."""
    return Row(what=what, ours=ours, floor=floor, target=f"≤ {bound:g}×", met=ours <= bound * floor)


def times_at_least(what: str, ours: float, floor: float, bound: float, unit: str) -> Row:
    """Return a row that must reach so much of the floor."""
    target, met = f"≥ {bound:g}×", ours >= bound * floor
    return Row(what=what, ours=ours, floor=floor, unit=unit, target=target, met=met)


def none_of(what: str, wrong: int, unit: str, note: str = "") -> Row:
    """Return a row that counts what must not happen."""
    return Row(what=what, ours=wrong, unit=unit, target="0", met=not wrong, exact=True, note=note)


def busy() -> float:
    """Return what share of the processors is in use now, before we use any."""
    before = _ticks()
    time.sleep(0.3)
    total, idle = (after - then for after, then in zip(_ticks(), before, strict=True))
    return 1 - idle / max(1, total)


def _ticks() -> tuple[int, int]:
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(word) for word in file.readline().split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def conditions() -> dict[str, str]:
    """Return what the figures depend on besides our code."""
    load = " ".join(f"{one:.2f}" for one in os.getloadavg())
    return {
        "load": load,
        "busy": f"{busy():.0%}",
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }


def heading() -> str:
    """Return the table's first lines."""
    names = ("what", "floor", "ours", "ratio", "target", "met")
    return f"{_line(names)}\n{_line(['-' * width for width in _WIDTHS])}"


def line(row: Row) -> str:
    """Return a row as text."""
    cells = (
        row.what,
        "" if row.floor is None else _figure(row.floor, row.unit),
        _figure(row.ours, row.unit),
        "" if row.ratio is None else f"{row.ratio:.2f}×",
        row.target,
        "" if row.met is None else "yes" if row.met else "NO",
    )
    return _line(cells) + (f"  {row.note}" if row.note else "")


def _line(cells: Iterable[str]) -> str:
    padded = [
        cell.ljust(width) if column in (0, 4, 5) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ]
    return "  ".join(padded).rstrip()


def _figure(value: float, unit: str) -> str:
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2
    if 0 < value < 0.1:
        digits = 4
    return f"{value:.{digits}f} {unit}"


def as_document(benchmark: str, row: Row) -> dict[str, object]:
    """Return a row for --json."""
    return {"benchmark": benchmark, **msgspec.structs.asdict(row), "ratio": row.ratio}


def say(text: str) -> None:
    """Print at once: a benchmark takes its time."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
