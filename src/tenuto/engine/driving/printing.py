"""What a task prints: the agents' words as they come, one line at a time where several speak."""

from __future__ import annotations

import sys


class Printer:
    """Writes to stdout, which the task's keeper records."""

    def __init__(self, several: bool) -> None:
        """With several steps each line says whose it is."""
        self.several = several
        self._rest: dict[str, str] = {}
        self._open = False

    def say(self, step: str, text: str) -> None:
        """Print a piece of what an agent says."""
        if not self.several:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open = bool(text) and not text.endswith("\n")
            return
        *whole, rest = (self._rest.get(step, "") + text).split("\n")
        self._rest[step] = rest
        if whole:
            sys.stdout.write("".join(f"[{step}] {line}\n" for line in whole))
            sys.stdout.flush()

    def end(self, step: str) -> None:
        """Finish the line that an agent was at."""
        if self.several:
            rest = self._rest.pop(step, "")
            if rest:
                self.note(f"[{step}] {rest}")
        elif self._open:
            self._open = False
            self.note("")

    def note(self, line: str) -> None:
        """Print a line of our own."""
        if self._open and not self.several:
            sys.stdout.write("\n")
            self._open = False
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
