"""Places in an execution's output: the cursor at a moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tenuto.core.quantities import parse_moment
from tenuto.stores.tape import TapeReader

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine


def cursor_since(engine: BlockingEngine, execution_id: str, since: str) -> int:
    """Return the cursor after which everything is later than a moment (ISO, or an age as `10m`)."""
    # times are shown in microseconds: a line's own time is not later than the line
    moment = parse_moment(since, time.time_ns()) + 999
    first = next(engine.logs(execution_id, since_ns=moment), None)
    if first is not None:
        return first.seq - 1
    try:
        with TapeReader(engine.project.folder(execution_id)) as reader:
            return reader.last_seq()
    except (FileNotFoundError, NotADirectoryError):
        return -1
