"""Exit codes: the child's own; 128+n by signal; 2 usage; 75 handed over; 124 deadline; 125 fault; 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenuto.core.errors import (
    DiskFull,
    EngineFault,
    InvalidInput,
    InvalidPlan,
    KeeperUnreachable,
    TenutoError,
    UnknownName,
)
from tenuto.core.states import State

if TYPE_CHECKING:
    from tenuto.core.execution import Snapshot

REFUSED = 1
USAGE = 2
HANDED_OVER = 75
DEADLINE = 124
FAULT = 125
INTERRUPTED = 130
KILLED = 137
PIPE_CLOSED = 141


def of_error(error: TenutoError) -> int:
    """Return the exit code for an error of ours."""
    if isinstance(error, (InvalidInput, InvalidPlan, UnknownName)):
        return USAGE
    if isinstance(error, (EngineFault, KeeperUnreachable, DiskFull)):
        return FAULT
    return REFUSED


def of_snapshot(snapshot: Snapshot) -> int:
    """Return the exit code that tells how an execution stands."""
    if not snapshot.done:
        return HANDED_OVER
    if snapshot.state is State.LOST or snapshot.reason == "keeper":
        return FAULT
    if snapshot.state is State.FAILED and snapshot.reason in ("deadline", "idle"):
        return DEADLINE  # as timeout(1) has it; the signal was ours
    if snapshot.exit_code:
        return snapshot.exit_code
    if snapshot.signal:
        return 128 + _signal_number(snapshot.signal)
    if snapshot.state is State.KILLED:
        return KILLED
    if snapshot.state is State.INTERRUPTED:
        return INTERRUPTED
    return 0 if snapshot else REFUSED


def _signal_number(name: str) -> int:
    import signal

    if name.startswith("signal "):  # one without a name of its own
        return int(name.removeprefix("signal "))
    return int(signal.Signals[name])
