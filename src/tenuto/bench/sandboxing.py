"""What a sandbox costs at the start: each rung that works here, beside the same program without one."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tenuto.bench.place import Place
from tenuto.bench.table import Row, at_most, median
from tenuto.core.specs import Limits, Sandbox
from tenuto.engine.engine import Engine
from tenuto.sandboxes import Ladder

_TRUE = ["/bin/true"]
_WITHOUT = "TENUTO_SANDBOX_WITHOUT"
_MOST_MS = 8.0
# What any use of bubblewrap pays for the same namespaces, and for a few mounts instead of ours.
_BARE = (
    "bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc",
    "--dev", "/dev", "--tmpfs", "/tmp",
)  # fmt: skip
_LIMITS = Limits(memory=256 * 1024 * 1024, pids=64)


def sandbox(quick: bool) -> Iterator[Row]:
    """Measure start to exit of /bin/true on every rung, and without any, in turn."""
    yield from asyncio.run(_sandbox(3 if quick else 60))


async def _sandbox(rounds: int) -> list[Row]:
    before = os.environ.get(_WITHOUT)
    cases = _cases()
    times: dict[str, list[float]] = {name: [] for name in cases}
    bare: dict[str, list[float]] = {"plain": [], "bwrap": []}
    try:
        with Place() as place:
            async with place.engine() as engine:
                for turn in range(rounds + 1):
                    for name, (without, options) in cases.items():
                        os.environ[_WITHOUT] = without
                        spent = await _timed(engine, options)
                        if turn:  # the first one pays for the probe
                            times[name].append(spent)
                    if "bwrap" in cases:
                        bare["plain"].append(_bare(_TRUE))
                        bare["bwrap"].append(_bare([*_BARE, *_TRUE]))
    finally:
        os.environ.pop(_WITHOUT, None)
        if before is not None:
            os.environ[_WITHOUT] = before
    plain = median(times.pop("plain"))
    rows = [Row(what="start → exit of true without a sandbox, p50", ours=plain)]
    for name, spent in times.items():
        more = median(spent) - plain
        floor = None
        if name.startswith("bwrap"):
            floor = max(0.0, median(bare["bwrap"]) - median(bare["plain"]))
        rows.append(at_most(f"  more in {name}, p50", max(0.0, more), _MOST_MS, floor=floor))
    return rows


def _bare(argv: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(argv, executable=shutil.which(argv[0]), check=True)
    return (time.perf_counter() - begin) * 1000


def _cases() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return each way to start it: what to do without, and the options."""
    cases: dict[str, tuple[str, Mapping[str, Any]]] = {"plain": ("", {})}
    passed: list[str] = []
    for found in Ladder().examine():
        if not found.problem:
            held = {"sandbox": Sandbox("auto")}
            cases[found.name] = (",".join(passed), held)
            cases[f"{found.name}, with limits"] = (",".join(passed), {**held, "limits": _LIMITS})
        passed.append(found.name)
    return cases


async def _timed(engine: Engine, options: Mapping[str, Any]) -> float:
    begin = time.perf_counter()
    snapshot = await engine.run(command=_TRUE, **options)
    snapshot.raise_for_state()
    return (time.perf_counter() - begin) * 1000
