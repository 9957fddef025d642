"""What a provider would bill: kept by the scripted model itself, for ledgers to be held against."""

from __future__ import annotations

import threading

import msgspec

from tenuto.core.budget import Tokens


class Billed(msgspec.Struct, frozen=True):
    """One request that was begun to be answered; errors are not billed."""

    dialect: str
    model: str
    tokens: Tokens
    complete: bool
    """All of it was sent, the usage included."""
    status: int = 200


class Books:
    """Bills in the order in which answers began.

    An entry is written before the bytes that it is for, and put back if they could not be sent: who
    has read an answer to its end finds it in the books.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._bills: list[Billed] = []

    def open(self, dialect: str, model: str, tokens: Tokens) -> int:
        """Enter an answer that begins; return where."""
        with self._lock:
            self._bills.append(Billed(dialect, model, tokens, complete=False))
            return len(self._bills) - 1

    def change(self, place: int, tokens: Tokens, complete: bool = False) -> None:
        """Set what an answer has come to."""
        with self._lock:
            old = self._bills[place]
            self._bills[place] = msgspec.structs.replace(old, tokens=tokens, complete=complete)

    def all(self) -> list[Billed]:
        """Return the bills."""
        with self._lock:
            return list(self._bills)
