"""Unknown programs' output on a terminal: colours stay, whatever else steers it is shown."""

from __future__ import annotations

import codecs
import re

# An SGR sequence (colours, bold) is let through; any other control character is made visible:
# C0 but tab, newline and carriage return, DEL, and C1, which some terminals obey in UTF-8 too.
_PARTS = re.compile(r"\x1b\[[0-9;:]*m|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BEGUN = re.compile(r"\x1b(?:\[[0-9;:]{0,64})?\Z")


class Tamed:
    """One stream on its way to a terminal; sequences cut by a chunk's end are put together."""

    def __init__(self) -> None:
        """Begin with nothing held back."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes, last: bool = False) -> bytes:
        """Return what can be shown now; `last` lets go of what was held back."""
        text = self._held + self._decoder.decode(data, last)
        self._held = ""
        begun = None if last else _BEGUN.search(text)
        if begun is not None:
            text, self._held = text[: begun.start()], begun.group()
        return _PARTS.sub(_shown, text).encode("utf-8", "replace")


def _shown(found: re.Match[str]) -> str:
    text = found.group()
    if len(text) > 1:
        return text
    code = ord(text)
    if code < 0x20:
        return f"^{chr(code + 0x40)}"
    return "^?" if code == 0x7F else f"<{code:02x}>"
