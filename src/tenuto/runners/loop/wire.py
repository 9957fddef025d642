"""The lines between the driver and the loop: commands in, events out, one JSON object each."""

from __future__ import annotations

from typing import Any

import msgspec

from tenuto.core.runs import (
    Finished,
    PermissionAsked,
    Retried,
    RunEvent,
    RunRequest,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)


class Command(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Superclass of what the driver asks."""


class Open(Command, frozen=True, tag="open"):
    """The first line: how the session is to be opened."""

    request: RunRequest


class Prompt(Command, frozen=True, tag="prompt"):
    """Begin a turn; its Finished follows."""

    text: str


class Answer(Command, frozen=True, tag="answer"):
    """The answer to a PermissionAsked."""

    id: str
    allow: bool
    why: str = ""


class Interrupt(Command, frozen=True, tag="interrupt"):
    """Stop the turn that runs."""


class Close(Command, frozen=True, tag="close"):
    """End; the end of stdin means the same."""


class Items(msgspec.Struct, frozen=True, tag_field="type", tag="items"):
    """What one request added to the conversation, and what the model said that it used.

    The driver passes over it; it is there for whoever reads the process's tape.
    """

    model: str
    usage: dict[str, Any]
    items: list[Any]


class Note(msgspec.Struct, frozen=True, tag_field="type", tag="note"):
    """Something worth knowing that belongs to no turn; it stays on the tape."""

    text: str


class _Tagged(msgspec.Struct, frozen=True):
    type: str


_command = msgspec.json.Decoder(Open | Prompt | Answer | Interrupt | Close)
_event = msgspec.json.Decoder(
    SessionOpened
    | Said
    | ToolBegan
    | ToolEnded
    | PermissionAsked
    | Used
    | Retried
    | Finished
    | Items
    | Note
)
_tagged = msgspec.json.Decoder(_Tagged)
_KNOWN = frozenset(
    str(kind.__struct_config__.tag)
    for kind in (
        *(SessionOpened, Said, ToolBegan, ToolEnded, PermissionAsked),
        *(Used, Retried, Finished, Items, Note),
    )
)


def read_command(line: bytes) -> Command:
    """Decode what the driver asks; raises msgspec.DecodeError."""
    return _command.decode(line)


def read_event(line: bytes) -> RunEvent | None:
    """Decode what the loop tells, None for what is not for the driver.

    Raises msgspec.DecodeError for a line that makes no sense; kinds that we do not know yet are
    passed over, so that an older driver understands a newer loop.
    """
    if _tagged.decode(line).type not in _KNOWN:
        return None
    event = _event.decode(line)
    return None if isinstance(event, Items | Note) else event


def line(message: Command | RunEvent | Items | Note) -> bytes:
    """Encode one message with its line's end."""
    return msgspec.json.encode(message) + b"\n"
