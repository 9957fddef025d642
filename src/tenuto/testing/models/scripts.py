"""Which step is next: by what the client's conversation holds, or by how often it asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal

from tenuto.testing.models.steps import MUTE, Answer, Call, Cut, Say, Seen, Slow, Step

By = Literal["spoken", "request"]
END = "That is all."


class Script:
    """Steps, and how far they are used up.

    By "spoken", as many steps as the model has spoken before are done. Steps that leave no trace in
    a conversation (failures, cuts, silence) stand before the next answer and are used up by requests.
    By "request", every request takes the next step, whoever sends it.
    """

    def __init__(
        self, steps: Sequence[Step], by: By = "spoken", fits: Callable[[Seen], bool] | None = None
    ) -> None:
        """Begin at the first step; `fits` says which requests it is for."""
        self.steps = list(steps)
        self.by = by
        self.fits = fits
        self._left = [getattr(one, "times", 1) if isinstance(one, MUTE) else 1 for one in steps]
        self._lock = threading.Lock()

    def next(self, seen: Seen) -> tuple[int, Step]:
        """Return the step for a request and its number, and use it up if it is of that kind."""
        with self._lock:
            found = self._by_request() if self.by == "request" else self._by_spoken(seen.spoken)
            return found if found is not None else (len(self.steps), END)

    def _by_request(self) -> tuple[int, Step] | None:
        for number, step in enumerate(self.steps):
            if self._left[number] > 0:
                self._left[number] -= 1
                return number, step
        return None

    def _by_spoken(self, spoken: int) -> tuple[int, Step] | None:
        passed = 0
        for number, step in enumerate(self.steps):
            mute = isinstance(step, MUTE)
            if passed < spoken:
                passed += not mute
            elif not mute:
                return number, step
            elif self._left[number] > 0:
                self._left[number] -= 1
                return number, step
        return None


def resolve(step: Step, seen: Seen) -> Answer:
    """Return the answer that a step gives to a request, with every tool it calls checked."""
    answer = step(seen) if callable(step) else step
    say = spoken(answer)
    for part in say.parts if say is not None else ():
        if isinstance(part, Call) and part.tool not in seen.tools:
            raise AssertionError(f"no tool {part.tool} among {sorted(seen.tools)}")
    return answer


def spoken(answer: object) -> Say | None:
    """Return what is said in an answer, however it is sent; None if nothing is."""
    if isinstance(answer, (Cut, Slow)):
        return spoken(answer.answer)
    if isinstance(answer, (str, Call)):
        return Say(answer)
    return answer if isinstance(answer, Say) else None
