"""A driver of its own that starts an agent: writes down when it does, and when the agent has answered.

usage: first_start.py NOTES DATA [hang]
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from acp_help import COMMAND

from tenuto.core.ports import Child
from tenuto.core.runs import Capabilities, Probe, RunRequest
from tenuto.runners.acp import AcpRunner, Launch
from tenuto.testing.nursery import PlainNursery

notes, data, *more = sys.argv[1:]


def note(word: str) -> None:
    fd = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{word}\n".encode())
    os.close(fd)


class Noting(PlainNursery):
    async def spawn(self, *words: Any, **given: Any) -> Child:
        note("begins")
        open(os.path.join(data, "database"), "a").close()  # there, but not yet whole
        if more:
            await asyncio.Event().wait()
        return await super().spawn(*words, **given)


async def look(environ: object) -> Probe:
    return Probe(True)


async def main() -> None:
    runner = AcpRunner(
        "scripted", family="scripted", look=look, capabilities=Capabilities(),
        launch=lambda _: Launch(argv=COMMAND, env={"SCRIPTED_HOME": data}),
        data=lambda _: data,
        fresh=lambda _: not os.path.exists(os.path.join(data, "database")),
    )  # fmt: skip
    nursery = Noting()
    note("waits")
    try:
        session = await runner.open(RunRequest(cwd=data if os.path.isdir(data) else "/"), nursery)
        note("answered")
        await session.close()
    finally:
        await nursery.close()


asyncio.run(main())
