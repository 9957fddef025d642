"""Where words go: data to stdout, messages to stderr, as text or as JSON, in colour or not.

Bytes are written straight to the descriptors: a program's output passes through unchanged, and
nothing is left in a buffer when a reader goes away or Ctrl-C arrives.
"""

from __future__ import annotations

import os
from contextlib import suppress

OUT, ERR = 1, 2

_COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36, "grey": 90, "bold": 1}
_BY_STATE = {
    "queued": "cyan",
    "running": "cyan",
    "waiting": "yellow",
    "succeeded": "green",
    "failed": "red",
    "killed": "red",
    "lost": "red",
    "interrupted": "yellow",
}


class ReaderGone(Exception):
    """Whoever read our stdout has closed it: there is nobody left to write for."""


class CannotWrite(ReaderGone):
    """Our stdout takes no more, and that is nobody's wish: a full disk, a terminal that is gone."""


class Console:
    """One terminal, or what stands in for it."""

    def __init__(self, json: bool = False, colour: bool = True, quiet: bool = False) -> None:
        """Take what the flags ask for; the terminal is looked at when something is written."""
        self.json = json
        self.quiet = quiet
        self._colour = colour
        self._mid_line = False

    # Bytes

    def write(self, fd: int, data: bytes) -> None:
        """Write all of it; a reader of stdout that is gone ends the command quietly."""
        if not data:
            return
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                _until_writable(fd)
            except OSError as error:
                if fd == OUT:
                    raise self._lost(error) from error
                return  # nobody reads our messages: go on without them
        if fd == OUT:
            self._mid_line = not data.endswith(b"\n")

    def _lost(self, error: OSError) -> ReaderGone:
        import errno

        if error.errno in (errno.EPIPE, errno.EBADF):
            return ReaderGone()
        self.message(f"{self.paint('tenuto: error:', 'red', ERR)} cannot write: {error.strerror}")
        return CannotWrite()

    def out(self, text: str) -> None:
        """Print a line of data."""
        self.write(OUT, encoded(text) + b"\n")

    def fresh_line(self, anywhere: bool = False) -> None:
        """End the program's last line if it did not itself; a pipe gets its bytes as they are."""
        if self._mid_line and (anywhere or os.isatty(OUT)):
            self.write(OUT, b"\n")

    def message(self, text: str) -> None:
        """Print a line for the person, on stderr."""
        self.write(ERR, encoded(text) + b"\n")

    def note(self, text: str) -> None:
        """Print a line that -q leaves out."""
        if not self.quiet:
            self.message(text)

    def document(self, document: object) -> None:
        """Print one JSON document on one line; on a terminal with indents."""
        import msgspec

        data = msgspec.json.encode(document)
        if os.isatty(OUT):
            data = msgspec.json.format(data, indent=2)
        self.write(OUT, data + b"\n")

    def line(self, document: object) -> None:
        """Print one document of a stream: NDJSON, wherever it goes."""
        import msgspec

        self.write(OUT, msgspec.json.encode(document) + b"\n")

    def error(self, code: str, message: str, hint: str) -> None:
        """Say what went wrong and what to do next."""
        if self.json:
            error = {"code": code, "message": message, "hint": hint}
            with suppress(ReaderGone):
                self.document({"schema": 1, "error": error})
        self.message(f"{self.paint('tenuto: error:', 'red', ERR)} {message}")
        if hint:
            self.message("\n".join(f"  {line}" for line in hint.splitlines()))

    # Looks

    def colours(self, fd: int = OUT) -> bool:
        """Tell whether colours are wanted there."""
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "") in ("", "dumb")
        return self._colour and not plain and os.isatty(fd)

    def paint(self, text: str, colour: str, fd: int = OUT) -> str:
        """Return the text in a colour, where there are colours."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colours(fd) else text

    def paint_state(self, text: str, fd: int = OUT) -> str:
        """Return a state in its colour; `waiting: input` counts as waiting."""
        return self.paint(text, _BY_STATE.get(text.strip().partition(":")[0], "bold"), fd)


def encoded(text: str) -> bytes:
    """Return text as bytes; names that were no UTF-8 come out as they came in."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def width(fd: int = OUT) -> int:
    """Return how many columns there are; so many that nothing is cut if it is no terminal."""
    try:
        return os.get_terminal_size(fd).columns or 80
    except OSError:
        return 10_000


def one_line(text: str) -> str:
    """Return text without line breaks and control characters: it cannot steer the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def _until_writable(fd: int) -> None:
    import select

    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    poller.poll()
