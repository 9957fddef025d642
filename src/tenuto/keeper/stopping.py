"""Ends that come from outside the program: deadlines, and being asked to stop."""

from __future__ import annotations

import os
import select
import signal
import time

from tenuto.keeper import procfs, verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tenuto.keeper.keeper import Keeper

_WIND_UP_S = 5.0


class Clock:
    """The deadlines that were asked for: one from the start, one from the last thing that moved."""

    def __init__(self, keeper: Keeper) -> None:
        """Measure for this keeper, from `start` on."""
        self._keeper = keeper
        self._quiet_since = 0.0
        self._tether = -1

    def start(self) -> None:
        """Begin to measure."""
        self.moved()
        keeper = self._keeper
        for name, call in (("deadline", self.deadline), ("idle", self.idle)):
            if keeper.job.get(name):
                keeper.loop.after(float(keeper.job[name]), call)
        if keeper.job.get("tether"):
            self._tie(*keeper.job["tether"])

    def moved(self) -> None:
        """Something moved: silence begins anew."""
        self._quiet_since = time.monotonic()

    def deadline(self) -> None:
        """End it: it ran for as long as it may."""
        self._over(verdict.deadline(float(self._keeper.job["deadline"])))

    def idle(self) -> None:
        """End it if nothing moved for as long as it may be silent, or look again later."""
        keeper = self._keeper
        quiet = time.monotonic() - self._quiet_since
        bound = float(keeper.job["idle"])
        waits = keeper.waiting or keeper.host.busy or keeper.paused or keeper.away
        if waits or quiet < bound:  # for someone, or for our disk: that is not silence of its own
            keeper.loop.after(max(0.01, bound - quiet) if not waits else bound, self.idle)
        else:
            self._over(verdict.idle(bound))

    def _over(self, outcome: verdict.Outcome) -> None:
        """End it; a task's driver may stop its agents and say how far they came first, and soon."""
        keeper = self._keeper
        if keeper.driven is None or keeper.exited:
            keeper.end_by(outcome)
            return
        keeper.outcome = keeper.outcome or outcome
        keeper.driven.send({"type": "over", "reason": outcome.reason, "text": outcome.detail})
        keeper.loop.after(_WIND_UP_S, keeper.kill_tree)

    def _tie(self, pid: int, start: int) -> None:
        """End it when that process ends: it runs on its behalf only."""
        try:
            self._tether = os.pidfd_open(pid)
        except OSError:
            self._cut()
            return
        if procfs.start_time(pid) != start:
            self._cut()
        elif not self._keeper.ended:
            self._keeper.loop.on(self._tether, select.EPOLLIN, lambda _: self._cut())

    def _cut(self) -> None:
        self.untie()
        self._keeper.end_by(verdict.orphaned())

    def untie(self) -> None:
        """Care no more."""
        if self._tether >= 0:
            self._keeper.loop.off(self._tether)
            os.close(self._tether)
            self._tether = -1


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
