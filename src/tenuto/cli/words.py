"""How an execution is put into words, the same everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenuto.cli.console import ERR, Console, one_line
from tenuto.core.ids import short

if TYPE_CHECKING:
    from tenuto.core.execution import Execution, Snapshot


def state_of(snapshot: Snapshot) -> str:
    """Return the state, with whom it waits for."""
    if snapshot.waiting_for is not None:
        return f"waiting: {snapshot.waiting_for}"
    return str(snapshot.state)


def how_it_ended(snapshot: Snapshot, console: Console, fd: int = ERR) -> str:
    """Return state, reason and detail in one line, with the id."""
    text = console.paint_state(str(snapshot.state), fd)
    if snapshot.reason and snapshot.reason != str(snapshot.state):
        text += f": {snapshot.reason}"
    if snapshot.detail and snapshot.detail != snapshot.reason:
        text += f" ({one_line(snapshot.detail)})"
    return f"{text}  {short(snapshot.id)}"


def printed_value(execution: Execution) -> str | None:
    """Return the value of the last expression as it is printed; None if there is none to show."""
    value = execution.value
    if value is None:
        return None
    if value.repr is not None:
        return value.repr
    if value.json is None:
        return None  # a statement's worth: print() and the like
    import msgspec

    return msgspec.json.encode(value.json).decode()


def plural(number: int, noun: str) -> str:
    """Return `1 line`, `2 lines`, `3 processes`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}es" if noun.endswith("s") else f"{number} {noun}s"
