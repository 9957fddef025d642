"""What can stand on a tape besides output: events, in the past tense, as JSON with a `type`.

The keeper writes them as plain dictionaries (it imports nothing of ours); the shapes here are the
contract, and `tests/core/test_events.py` holds the keeper to it. Unknown fields and unknown types are
kept out of the way, not refused: an older reader must still read a newer keeper's tape. The events of
tasks stand in `task_events`, read by those who know tasks; for all others they are Unknown.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tenuto.core.event import Event
from tenuto.core.specs import Spec
from tenuto.core.states import State, WaitingFor


class Created(Event, frozen=True, tag="created"):
    """Frame 0: the id and the spec exist before anything runs."""

    id: str
    spec: Spec
    version: str = ""


class Started(Event, frozen=True, tag="started"):
    """The main process runs. Start times are in clock ticks since boot, as /proc has them."""

    pid: int
    pid_start: int
    keeper_pid: int
    keeper_start: int
    boot: str
    cgroup: str = ""


class Enqueued(Event, frozen=True, tag="enqueued"):
    """A cell has its place in the queue of its session; the fields are those of a start."""

    pid: int
    pid_start: int
    keeper_pid: int
    keeper_start: int
    boot: str
    cgroup: str = ""


class Waited(Event, frozen=True, tag="waited"):
    """The execution began to wait for someone."""

    on: WaitingFor
    detail: str = ""


class Continued(Event, frozen=True, tag="continued"):
    """What it waited for came."""


class BecameInteractive(Event, frozen=True, tag="became_interactive"):
    """The first write to its stdin; interactive until its end."""


class InputSent(Event, frozen=True, tag="input_sent"):
    """A write to its stdin was accepted. The bytes themselves are not recorded."""

    size: int = 0
    eof: bool = False


class WaitGaveUp(Event, frozen=True, tag="wait_gave_up"):
    """Some caller stopped waiting: from here on the execution counts as async."""

    after_s: float = 0.0


class Signalled(Event, frozen=True, tag="signalled"):
    """A signal was sent to its processes on request."""

    signal: str
    processes: int = 0


class ValueReturned(Event, frozen=True, tag="value_returned"):
    """The value of the last expression: exact as JSON where it can be, else its printed form."""

    json: Any = None
    repr: str | None = None


class Raised(Event, frozen=True, tag="raised"):
    """The program's own uncaught exception, told by the language's runner."""

    name: str
    message: str = ""
    line: int | None = None
    column: int | None = None
    stack: str = ""
    """Where in the user's code, frame by frame; only of languages whose runner tells."""


class Confined(Event, frozen=True, tag="confined"):
    """What holds the program, told by whoever put it there, before its first instruction."""

    level: str
    """The mechanisms at work, joined by +, such as bwrap+seccomp+cgroup."""
    missing: tuple[str, ...] = ()
    """What was wished for and could not be had here, in words."""
    net: str = ""
    """The network it really has: on, loopback or off."""
    scratch: str = ""
    """A private folder outside the state folder that goes with it, if it has one."""


class HostAttached(Event, frozen=True, tag="host_attached"):
    """Someone began to serve the functions; calls without an answer were passed on again."""

    pid: int = 0
    again: int = 0


class HostCalled(Event, frozen=True, tag="host_called"):
    """The code called a function of its caller's; calls are numbered from 1 without gaps."""

    n: int
    name: str
    args: Any = None


class HostAnswered(Event, frozen=True, tag="host_answered"):
    """A call came back, with a value or an error (name, message); values as codemode/wire has them."""

    n: int
    ok: bool
    value: Any = None
    error: Any = None


class ToolsUsed(Event, frozen=True, tag="tools_used"):
    """How often the code called composed tools, by name; told at its end."""

    tools: dict[str, int] = msgspec.field(default_factory=dict)


class Cleared(Event, frozen=True, tag="cleared"):
    """Output up to a sequence number was dropped on request."""

    upto: int
    size: int = 0


class Repaired(Event, frozen=True, tag="repaired"):
    """A torn tail was cut by the next writer."""

    size: int


class LeftBehind(msgspec.Struct, frozen=True):
    """A process that outlived the main one."""

    pid: int
    start: int
    command: str = ""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the processes used, as the kernel counted it."""

    user_s: float = 0.0
    system_s: float = 0.0
    max_rss: int = 0


class Ended(Event, frozen=True, tag="ended"):
    """The exit record: the first one after a start counts."""

    state: State
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None
    signal: str | None = None
    usage: Usage = Usage()
    size: int = 0
    lines: int = 0
    left: tuple[LeftBehind, ...] = ()


class LeftBehindEnded(Event, frozen=True, tag="left_behind_ended"):
    """The last process that had outlived the main one is gone."""

    killed: bool = False


class Lost(Event, frozen=True, tag="lost"):
    """Its keeper died without an exit record; what it left was swept first."""

    reason: str
    swept: int = 0
    size: int = 0
    lines: int = 0


class Resumed(Event, frozen=True, tag="resumed"):
    """An interrupted or lost execution was started again on the same tape."""

    argv: tuple[str, ...] = ()
    by: str = ""
    """`auto` where nobody asked for it but its own spec."""
    forced: bool = False
    """It was resumed although not all was as it had been."""
    cwd: str = ""
    """The folder that it works in from here on, where that is another than before."""


class Faulted(Event, frozen=True, tag="faulted"):
    """Something in the keeper itself went wrong; it went on."""

    text: str = ""


class Unknown(Event, frozen=True, tag="unknown"):
    """An event of a newer release, or one that does not parse."""

    type_name: str = ""


AnyEvent = (
    Created
    | Enqueued
    | Started
    | Waited
    | Continued
    | BecameInteractive
    | InputSent
    | WaitGaveUp
    | Signalled
    | ValueReturned
    | Raised
    | Confined
    | HostAttached
    | HostCalled
    | HostAnswered
    | ToolsUsed
    | Cleared
    | Repaired
    | Ended
    | LeftBehindEnded
    | Lost
    | Resumed
    | Faulted
    | Unknown
)

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_encoder = msgspec.json.Encoder()


def decode_event(body: bytes) -> AnyEvent:
    """Return the event in a frame's body; anything else comes back as Unknown, never as an error."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        raw: Any = msgspec.json.decode(body)
        return Unknown(type_name=str(raw["type"]))
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError, KeyError):
        return Unknown()


def encode_event(event: Event) -> bytes:
    """Return the JSON of an event, as it stands in a frame."""
    return _encoder.encode(event)
