"""The states an execution can be in and the moves between them.

queued ──▶ running ◀──▶ waiting            input, approval, budget, host, disk
   │          │            │
   └──────────┴────────────┴──▶ succeeded | failed | killed | interrupted | lost
                                             interrupted, lost ──▶ queued (resume)
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where an execution stands."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    INTERRUPTED = "interrupted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"


class WaitingFor(StrEnum):
    """Whom a waiting execution waits for."""

    INPUT = "input"
    APPROVAL = "approval"
    BUDGET = "budget"
    HOST = "host"
    DISK = "disk"


LIVE = frozenset({State.QUEUED, State.RUNNING, State.WAITING})
ENDED = frozenset(State) - LIVE
RESUMABLE = frozenset({State.INTERRUPTED, State.LOST})

_MOVES: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.RUNNING}) | ENDED,
    State.RUNNING: frozenset({State.WAITING}) | ENDED,
    State.WAITING: frozenset({State.RUNNING, State.WAITING}) | ENDED,
    State.INTERRUPTED: frozenset({State.QUEUED}),
    State.LOST: frozenset({State.QUEUED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.KILLED: frozenset(),
}


def may_move(here: State, there: State) -> bool:
    """Tell whether an execution may go from one state to the other."""
    return there in _MOVES[here]
