"""Asking a program to stop: politely, then with emphasis, then by force."""

from __future__ import annotations

import os
import signal

from tenuto.keeper import verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tenuto.keeper.keeper import Keeper


def interrupt(keeper: Keeper, reason: str, grace: float) -> None:
    """Ask the program to stop; insist after a while, twice."""
    if keeper.ended or keeper.outcome is not None:
        return
    keeper.outcome = verdict.interrupted(reason)
    keeper.writer.event("signalled", signal="SIGINT", processes=1)
    _signal_group(keeper, signal.SIGINT)

    def insist() -> None:
        if not keeper.ended:
            _signal_group(keeper, signal.SIGTERM)
            keeper.loop.after(grace, keeper.kill_tree)

    keeper.loop.after(grace, insist)


def _signal_group(keeper: Keeper, number: int) -> None:
    leader = keeper.child.pid
    if keeper.held is not None:
        leader = keeper.held.leader(leader)
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return
