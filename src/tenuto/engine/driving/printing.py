"""What a task prints: the agents' words as they come, one line at a time where several speak."""

from __future__ import annotations

import sys

_LINE_MOST = 64 * 1024


def plain(text: str) -> str:
    """Return text for a line of our own: nothing in it can end the line or steer a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


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
            self._write(text)
            self._open = bool(text) and not text.endswith("\n")
            return
        *whole, rest = (self._rest.get(step, "") + text).split("\n")
        if len(rest) > _LINE_MOST:  # a line that does not end is not waited for
            whole.append(rest)
            rest = ""
        self._rest[step] = rest
        if whole:
            self._write("".join(f"[{step}] {line}\n" for line in whole))

    def end(self, step: str) -> None:
        """Finish the line that an agent was at."""
        if self.several:
            rest = self._rest.pop(step, "")
            if rest:
                self._write(f"[{step}] {rest}\n")
        elif self._open:
            self._open = False
            self._write("\n")

    def note(self, line: str) -> None:
        """Print a line of our own; words of an agent in it are shown as they are, and do nothing."""
        if self._open and not self.several:
            self._open = False
            line = f"\n{plain(line)}"
        else:
            line = plain(line)
        self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
