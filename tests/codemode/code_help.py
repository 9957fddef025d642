"""What the code-mode tests share: tapes, processes, and an engine's own image."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tenuto import Engine, Snapshot

FULL = "landlock+seccomp+rlimits"


def status_of(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text()
    return dict(line.split(":", 1) for line in text.splitlines())


def private_bytes(pid: int) -> int:
    """What is this process's alone."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1]) * 1024
    return total


def anonymous_bytes(pid: int) -> int:
    """What it has of memory beside files, shared with its forks or not: they come and go."""
    (line,) = re.findall(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(line) * 1024


async def js(engine: Engine, code: str, **options: Any) -> Snapshot:
    """Run JavaScript to its end."""
    snapshot = await engine.run(code, language="js", **{"wait": 60, **options})
    assert snapshot.done, (snapshot.state, snapshot.output)
    return snapshot


async def value_of(engine: Engine, code: str, **options: Any) -> Any:
    snapshot = await js(engine, code, **options)
    assert snapshot, (snapshot.reason, snapshot.detail, snapshot.output)
    return snapshot.value
