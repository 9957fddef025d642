"""What stands in the ledger, one record to a frame."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

import msgspec

from tenuto.core.budget import Grant, Tokens

Window = Literal["daily", "monthly"]


class Record(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Superclass of all records."""


class Granted(Record, frozen=True, tag="granted"):
    """What an execution or a step may spend from here on."""

    grant: Grant


class Reserved(Record, frozen=True, tag="reserved"):
    """A request was admitted; until it is settled it counts as this much."""

    id: str
    execution: str
    step: str = ""
    model: str = ""
    amount: Decimal | None = None
    """None where the price is not known."""
    tokens: int = 0
    pid: int = 0


class Settled(Record, frozen=True, tag="settled"):
    """What a request came to. Complete in itself: it counts even if its reservation was lost."""

    id: str
    execution: str
    step: str = ""
    model: str = ""
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    estimated: bool = False
    status: int = 0
    """The HTTP status; 0 where no answer came."""


class Released(Record, frozen=True, tag="released"):
    """A reservation that was not used: no request was made."""

    id: str


class Recorded(Record, frozen=True, tag="recorded"):
    """Spend that was told after the fact, by a runtime that no gateway stood before."""

    execution: str
    step: str = ""
    model: str = ""
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    estimated: bool = False


class Reset(Record, frozen=True, tag="reset"):
    """A window counts from zero again; what was admitted before belongs to the old one."""

    window: Window
    by: str = ""


class Bound(Record, frozen=True, tag="bound"):
    """Requests under a step's token count for another one, which speaks in its session by now."""

    execution: str
    step: str
    to: str


class Warned(Record, frozen=True, tag="warned"):
    """Somebody was told that a bound is reached: once is enough."""

    execution: str
    key: str


class Mended(Record, frozen=True, tag="mended"):
    """A torn end of so many bytes was cut off, or a file that nobody can read was put aside."""

    size: int
    aside: str = ""


AnyRecord = Granted | Reserved | Settled | Released | Recorded | Reset | Bound | Warned | Mended

_decoder: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)
encode = msgspec.json.Encoder().encode


def decode(body: bytes) -> AnyRecord | None:
    """Return the record in a frame's body, or None for one that this Tenuto does not know."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError):
        return None
