"""An attempt at a step: what the agent is sent with, how it went, and what is said to it first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tenuto.core.runs import Capabilities, Finished, RunEvent
from tenuto.core.texts import sound


class Brief(msgspec.Struct, frozen=True):
    """What a step is sent with: who it is for, on which model, and what is said."""

    role: str
    model: Callable[[str], str]
    """The model's name for a runtime."""
    system: str
    text: str
    reason: str
    cwd: str
    alone: str = ""
    """The same, for a session that is new where one was to go on; empty where there is none."""


class Tries(msgspec.Struct):
    """How an attempt went."""

    finished: Finished
    tools: int = 0
    said: str = ""
    over: str = ""
    """The hard cap that was reached while it ran, uncounted by a gateway."""
    fault: str = ""
    """Why it could not be answered: it would wait for ever."""

    def verdict(self) -> Finished:
        """Return how it ended; what we stopped ended for our reason."""
        end = self.finished
        if end.ok or not (self.over or self.fault):
            return end
        kind = "budget" if self.over else "crash"
        return Finished(ok=False, text=end.text, kind=kind, message=self.over or self.fault)


def valid(event: RunEvent) -> RunEvent:
    """Return what an agent told with texts that can be kept and passed on: no half characters."""
    broken: dict[str, Any] = {}
    for name in event.__struct_fields__:
        value: Any = getattr(event, name)
        try:
            if isinstance(value, (dict, list)):
                msgspec.json.encode(value)
            elif isinstance(value, str) and not value.isascii():
                value.encode()
        except UnicodeEncodeError:
            broken[name] = sound(msgspec.to_builtins(value))
    return msgspec.structs.replace(event, **broken) if broken else event


def opening(can: Capabilities, brief: Brief, text: str, cut_short: bool, anew: bool) -> str:
    """Return what an agent is told first; `anew` where the session that was cut short is gone."""
    if cut_short:
        text = (
            "You were interrupted in the middle of this task. Look at what is done already, then go"
            f" on where you stopped. The task was:\n\n{text}"
        )
    goes_on = cut_short and not anew
    if brief.system and not goes_on and not can.system:
        return f"{brief.system}\n\n{text}"
    return text


def handed_on(text: str, tries: Tries) -> str:
    """Return what another agent is told that takes over."""
    return (
        f"{text}\n\n# Handoff\n\nAnother agent began this task, used {tries.tools} tools and stopped."
        " Files may have been changed already: look before you go on. The last it said was:\n\n"
        f"{tries.said}"
    )
