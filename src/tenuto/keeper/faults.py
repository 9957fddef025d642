"""Labelled points at which a test can have this very process killed, as a crash would.

TENUTO_FAULT names one label, with an optional `:n` for the n-th time it is passed, and an optional
`@file` that it waits for before it dies. In normal use the variable is absent and a point costs one
comparison.
"""

from __future__ import annotations

import os
import signal
import time

_words, _, _file = os.environ.get("TENUTO_FAULT", "").partition("@")
_label, _, _times = _words.partition(":")
WANTED = bool(_label)
_left = int(_times) if _times.isdecimal() else 1


def point(label: str) -> None:
    """Die here if that was asked for."""
    global _left  # noqa: PLW0603  a countdown for the whole process
    if label == _label:
        _left -= 1
        if _left <= 0:
            while _file and not os.path.exists(_file):
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)


def describe(error: BaseException | None) -> str:
    """Return an exception and where it came from, in one line."""
    trace = error.__traceback__ if error is not None else None
    lines: list[str] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append(f"{code.co_filename}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return f"{error!r} at {' < '.join(reversed(lines))}"[:4000]
