"""A task's driver and its keeper: what the driver tells goes on the tape, what clients say goes to it.

The driver is ours and trusted with the task's own events, and with no others. Whoever asked for an
event to be safe is answered once it is on disk; what came meanwhile goes with the same sync.
"""

from __future__ import annotations

import json
from functools import partial

from tenuto.keeper import verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tenuto.keeper.keeper import Keeper

_WAITS = ("approval", "budget")
_STATES = ("succeeded", "failed", "interrupted")


class Driven:
    """The keeper's side of a driver."""

    def __init__(self, keeper: Keeper, tells: list[str]) -> None:
        """Take the names of the events that it may tell."""
        self._keeper = keeper
        self._tells = frozenset(tells)
        self.outcome: verdict.Outcome | None = None
        self.telling = False  # the last thing it said was an event

    def said(self, kind: object, message: dict[str, Any]) -> None:
        """Take a message of the driver's."""
        self.telling = kind == "tell"
        if kind == "tell":
            self.told(message)
        elif kind == "waiting":
            self._waits(str(message["on"]), str(message.get("detail", ""))[:4096])
        elif kind == "continuing":
            if self._keeper.waiting in _WAITS:
                self._keeper.continued()
        elif kind == "outcome" and message["state"] in _STATES:
            self.outcome = verdict.Outcome(
                message["state"], str(message.get("reason", "")), str(message.get("detail", ""))
            )

    def told(self, message: dict[str, Any], here: bool = False) -> None:
        """Put its events on the tape; `here` in the writer's thread, which then read them itself."""
        number = message.get("n")
        try:
            bodies = [self._body(event) for event in message["events"]]
        except (ValueError, TypeError, KeyError) as error:  # it would wait for an answer for ever
            if number is not None:
                self._answer(number, str(error))
            return
        writer = self._keeper.writer
        saved = None if number is None else partial(self._answer, number)
        self._keeper.clock.moved()
        if here:
            writer.append(bodies, saved)
            return
        for body in bodies:
            writer.record(body)
        if saved is not None:
            writer.sync(saved)
        self._keeper.hold_back()

    def _body(self, event: dict[str, Any]) -> bytes:
        if event["type"] not in self._tells:
            raise ValueError(f"a driver tells no {event['type']!r}")
        return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "replace"
        )

    def _answer(self, number: object, error: str) -> None:
        """Answer from any thread: waking the loop for it would take as long as a sync."""
        answer: dict[str, Any] = {"type": "told", "n": number}
        if error:
            answer["error"] = error
        if not self._keeper.channel.send_now(_line(answer)):
            self._keeper.writer.pass_on(lambda: self.send(answer))

    def _waits(self, on: str, detail: str) -> None:
        keeper = self._keeper
        if on in _WAITS and not keeper.ended:
            keeper.waiting = on
            keeper.writer.event("waited", in_turn=True, on=on, detail=detail)

    def send(self, message: dict[str, Any]) -> None:
        """Say something to the driver."""
        self._keeper.channel.send(_line(message))


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
