"""What a step is sent with, and how its prompt opens: the first time, again, or for another agent."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


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


def opening(brief: Brief, text: str, cut_short: bool, anew: bool, takes_system: bool) -> str:
    """Return a prompt; one that was cut short before is told so, in its own session or `anew`."""
    if cut_short:
        text = (
            "You were interrupted in the middle of this task. Look at what is done already, then go"
            f" on where you stopped. The task was:\n\n{text}"
        )
    goes_on = cut_short and not anew
    if brief.system and not goes_on and not takes_system:
        return f"{brief.system}\n\n{text}"
    return text


def handed_on(text: str, tools: int, said: str) -> str:
    """Return a prompt for an agent that takes over from another one."""
    return (
        f"{text}\n\n# Handoff\n\nAnother agent began this task, used {tools} tools and stopped."
        " Files may have been changed already: look before you go on. The last it said was:\n\n"
        f"{said}"
    )
