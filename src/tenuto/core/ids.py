"""Execution ids: UUIDv7, sortable by birth, never recycled, any unique prefix accepted."""

from __future__ import annotations

import os
import threading
import time

from tenuto.core.errors import InvalidInput

ID_LENGTH = 36
_HEX = frozenset("0123456789abcdef")
_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """Return a new UUIDv7; ids made by one process always sort in the order of their making."""
    global _last  # noqa: PLW0603  monotonic per process, as RFC 9562 section 6.2 asks
    ticks = time.time_ns() * 4096 // 1_000_000  # milliseconds with 12 bits of fraction below
    with _lock:
        _last = ticks = max(ticks, _last + 1)
    milliseconds, fraction = divmod(ticks, 4096)
    tail = int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000
    number = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | fraction << 64 | tail
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def born_ms(execution_id: str) -> int:
    """Return when an id was made, in milliseconds since the epoch."""
    return int(execution_id[:8] + execution_id[9:13], 16)


def day_of(execution_id: str) -> str:
    """Return the UTC day (yyyymmdd) under which the execution's folder stands."""
    return time.strftime("%Y%m%d", time.gmtime(born_ms(execution_id) / 1000))


def short(execution_id: str) -> str:
    """Return the part of an id that people copy: its time of birth, fine enough to be unique."""
    return execution_id[:18]


def is_id(text: str) -> bool:
    """Tell whether the text is a whole id in canonical form."""
    return len(text) == ID_LENGTH and text == _canonical(text)


def check_prefix(text: str) -> str:
    """Return the text as an id prefix in canonical form, or raise InvalidInput."""
    prefix = _canonical(str(text).strip().lower())
    if prefix is None:
        raise InvalidInput(
            f"{text!r:.80} is not an execution id: ids are hexadecimal, such as 0193a5f2",
            "list them with: tenuto ps -a",
        )
    return prefix


def _canonical(text: str) -> str | None:
    digits = text.replace("-", "")
    if not digits or len(digits) > 32 or not _HEX.issuperset(digits):
        return None
    cuts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(cut for cut in cuts if cut)
