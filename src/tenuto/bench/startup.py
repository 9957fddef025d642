"""How long the command line takes to start, beside a bare interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

from tenuto.bench.place import Place
from tenuto.bench.table import Row, median, none_of, times_at_most

_HEAVY = ("mcp", "starlette", "pydantic")
_LOADED = (
    "import sys\n"
    "from tenuto.cli.main import main\n"
    "main(sys.argv[1:])\n"
    "sys.stderr.write('\\n'.join(sys.modules))"
)


def tenuto_words(*words: str) -> list[str]:
    """Return the command line as it is installed."""
    script = os.path.join(os.path.dirname(sys.executable), "tenuto")
    if os.path.exists(script):
        return [script, *words]
    return [sys.executable, "-m", "tenuto.cli.main", *words]


def seconds(argv: list[str], folder: str) -> tuple[float, bool]:
    """Return how long a command took, and whether it succeeded."""
    # as installed: with its bytecode kept, whatever this shell is set to
    unset = "PYTHONDONTWRITEBYTECODE"
    environ = {name: value for name, value in os.environ.items() if name != unset}
    begin = time.perf_counter()
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, check=False)
    return time.perf_counter() - begin, done.returncode == 0


def cold_run(quick: bool) -> Iterator[Row]:
    """Measure `tenuto run -- true` in a new process."""
    yield from _against_python(tenuto_words("run", "--", "true"), "tenuto run -- true", 6, quick)


def ps(quick: bool) -> Iterator[Row]:
    """Measure `tenuto ps` in a new process, and see what it imports."""
    yield from _against_python(tenuto_words("ps"), "tenuto ps", 8, quick)
    with Place() as place:
        done = subprocess.run(
            [sys.executable, "-c", _LOADED, "ps"],
            cwd=place.folder,
            capture_output=True,
            check=False,
        )
    loaded = {name.partition(".")[0] for name in done.stderr.decode().split()}
    heavy = sorted(loaded.intersection(_HEAVY))
    note = ", ".join(heavy) or f"{len(done.stderr.split())} modules"
    yield none_of("  heavy packages imported", len(heavy) + done.returncode, "found", note)


def _against_python(argv: list[str], what: str, bound: float, quick: bool) -> Iterator[Row]:
    bare: list[float] = []
    ours: list[float] = []
    failed = 0
    with Place() as place:
        seconds(argv, place.folder)  # makes the project and the compiled files
        for _ in range(3 if quick else 15):
            bare.append(seconds([sys.executable, "-c", "pass"], place.folder)[0] * 1000)
            took, good = seconds(argv, place.folder)
            ours.append(took * 1000)
            failed += not good
    yield times_at_most(f"{what}, median", median(ours), median(bare), bound)
    yield times_at_most("  min", min(ours), min(bare), bound)
    yield none_of("  runs that failed", failed, "runs")
