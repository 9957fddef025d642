"""A plan that survives `kill -9` in the middle of a step, with a runner of one's own for its agents.

Run it with `python examples/durable.py`. Everything happens in a temporary folder.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from tenuto import Engine
from tenuto.agents import (
    AgentSession,
    Capabilities,
    Finished,
    Nursery,
    Plan,
    Probe,
    RunEvent,
    RunRequest,
    Said,
    Step,
)

PLAN = Plan(
    steps=(
        Step(id="design", task="Design it"),
        Step(id="build", task="Build it", depends_on=("design",)),
        Step(id="test", task="Test it", depends_on=("build",)),
    )
)


class Clumsy:
    """An agent whose whole process is killed when it builds for the first time."""

    name = family = "clumsy"
    capabilities = Capabilities()

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        return Probe(available=True, version="1")

    async def open(self, request: RunRequest, nursery: Nursery) -> AgentSession:
        return ClumsySession(Path(request.cwd), request.title.split(": ")[1])


class ClumsySession:
    session = ""

    def __init__(self, folder: Path, step: str) -> None:
        self._folder = folder
        self._step = step

    async def prompt(self, text: str) -> AsyncIterator[RunEvent]:
        with (self._folder / "runs.txt").open("a") as file:
            print(self._step, file=file)
        stumbled = self._folder / "stumbled"
        if self._step == "build" and not stumbled.exists():
            stumbled.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield Said(text=f"{self._step}: done\n")
        yield Finished(ok=True, text=f"{self._step} is done")

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None: ...

    async def interrupt(self) -> None: ...

    async def close(self) -> None: ...


async def main() -> None:
    async with Engine() as engine:
        first = await engine.task("A small program", plan=PLAN, runtime="clumsy", wait=60)
        print(f"first: {first.state} ({first.detail})")
        second = await engine.resume(first.id, wait=60)
        print("then:", second.state)
        progress = await engine.progress(first.id)
        print({name: one.output for name, one in progress.steps.items()})
        print("ran:", *Path("runs.txt").read_text().split())


if __name__ == "__main__":
    here = str(Path(__file__).resolve().parent)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["TENUTO_HOME"] = os.path.join(folder, "state")
        os.environ["PYTHONPATH"] = here  # where the task's driver finds the runner
        Path("tenuto.toml").write_text('[runners]\nclumsy = "durable:Clumsy"\n')
        asyncio.run(main())
        os.chdir("/")
