"""A client in a process of its own, so that its memory can be measured: reads all output of one id.

Run as `python -m tenuto.bench.reading FOLDER ID logs|follow`; prints a JSON object.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time

from tenuto.dispatch.launch import FreshLauncher
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.engine import Engine
from tenuto.engine.settings import Settings
from tenuto.stores.layout import find_project


def main(folder: str, execution_id: str, how: str) -> None:
    """Read everything and tell what it was and what it took."""
    digest = hashlib.sha256()
    size = 0
    begin = time.perf_counter()
    if how == "logs":
        project = find_project(folder, os.environ)
        engine = BlockingEngine(project, Settings(), FreshLauncher())
        for chunk in engine.logs(execution_id):
            digest.update(chunk.data)
            size += len(chunk.data)
        engine.close()
    else:

        async def follow() -> None:
            nonlocal size
            async with Engine(folder, settings=Settings()) as engine:
                async for chunk in engine.follow(execution_id):
                    digest.update(chunk.data)
                    size += len(chunk.data)

        asyncio.run(follow())
    took = time.perf_counter() - begin
    print(
        json.dumps({"sha256": digest.hexdigest(), "size": size, "seconds": took, "peak": _peak()})
    )


def _peak() -> int:
    """Return the most memory that this process ever held."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(text.split()[1]) * 1024 for text in file if text.startswith("VmHWM:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
