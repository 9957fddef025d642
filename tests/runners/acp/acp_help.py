"""The scripted agent, opened as the driver would open it, and what comes of a prompt."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tenuto.core.ports import AgentSession
from tenuto.core.runs import Finished, RunEvent, RunRequest, Said
from tenuto.runners.acp_session import AcpSession
from tenuto.runners.agents_known import by_command
from tenuto.testing.nursery import PlainNursery

COMMAND = (sys.executable, str(Path(__file__).with_name("scripted_agent.py")))
During = Callable[[RunEvent], Coroutine[Any, Any, None]]


async def told(session: AgentSession, text: str, during: During | None = None) -> list[RunEvent]:
    """Prompt and return all events; `during` is called with each as it comes."""
    events: list[RunEvent] = []
    async for event in session.prompt(text):
        events.append(event)
        if during is not None:
            await during(event)
    assert isinstance(events[-1], Finished)
    assert sum(isinstance(event, Finished) for event in events) == 1
    return events


def end(events: list[RunEvent]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last


def text_of(events: list[RunEvent]) -> str:
    """Return what was said aloud."""
    return "".join(one.text for one in events if isinstance(one, Said) and not one.thought)


class Agents:
    """Opens sessions with the scripted agent."""

    def __init__(self, folder: Path, nursery: PlainNursery) -> None:
        self.folder = folder
        self.nursery = nursery
        self.home = folder / "sessions"
        self.home.mkdir()

    async def open(self, able: str = "load", options: str = "", **given: Any) -> AcpSession:
        env = {"SCRIPTED_HOME": str(self.home), "SCRIPTED_ABLE": able}
        if options:
            env["SCRIPTED_OPTIONS"] = options
        request = RunRequest(cwd=str(self.folder), env=env, **given)
        return await by_command("scripted", COMMAND).open(request, self.nursery)


def gone(pid: int, patience: float = 10.0) -> bool:
    """Wait until a process has ended; tell whether it has."""
    try:
        waiting = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([waiting], [], [], patience)
    os.close(waiting)
    return bool(ended)
