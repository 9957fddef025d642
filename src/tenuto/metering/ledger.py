"""The project's spend ledger: what was granted, reserved and spent, by every process together.

A file for each month of UTC under `<home>/ledger`, in the tape's format. One lock guards them all:
every append happens under it, and so does a check together with the reservation that follows from it.
Each process keeps what it has folded and reads only what others added since.

Always safe against `kill -9`: a record is there, whole, once its call has returned. Grants and resets
are on the disk then; requests are when someone calls `sync`, as the gateway does every second, so that
a power failure can lose the last second of them and nothing else.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal

import msgspec

from tenuto.core.budget import (
    Admission,
    BudgetLimits,
    Crossing,
    Estimate,
    Grant,
    Spend,
    Tokens,
    judge,
)
from tenuto.core.errors import DiskFull, EngineFault
from tenuto.core.ids import born_ms, is_id
from tenuto.metering.fold import Fold, month_of, step_key
from tenuto.metering.month import Month
from tenuto.metering.records import (
    AnyRecord,
    Bound,
    Granted,
    Recorded,
    Released,
    Reserved,
    Reset,
    Settled,
    Warned,
    Window,
)

UNLIMITED = BudgetLimits()
NOTHING = Spend()
_NAME = 6  # yyyymm


class Health(msgspec.Struct, frozen=True):
    """What is wrong with the ledger's files: records lost or unknown, ends that were mended."""

    lost: int = 0
    unknown: int = 0
    mended: int = 0
    aside: tuple[str, ...] = ()
    """Files that nobody could read, put aside; what they counted is not counted any more."""


class Ledger:
    """One project's ledger, for one process; its methods may be called from any thread."""

    def __init__(self, home: str, clock: Callable[[], int] = time.time_ns) -> None:
        """Take the project's home; the folder is made at the first record."""
        self._clock = clock
        self.folder = os.path.join(home, "ledger")
        self._months: dict[str, Month] = {}
        self._lock_fd = -1
        self._thread = threading.Lock()
        self._dirty: set[str] = set()

    # Write

    def grant(self, grant: Grant) -> None:
        """Say what an execution or a step may spend; it holds from the next request on."""
        self._append_alone(Granted(grant))

    def reset(self, window: Window, by: str = "") -> None:
        """Let a window count from zero; what is under way still belongs to the old one."""
        self._append_alone(Reset(window, by))

    def bind(self, execution: str, step: str, to: str) -> None:
        """Let requests under a step's token count for another step, or for itself again.

        Those that are under way stay with the step for which they began.
        """
        self._append_alone(Bound(execution, step, to))

    def admit(
        self,
        execution: str,
        step: str,
        model: str,
        estimate: Estimate,
        limits: BudgetLimits = UNLIMITED,
    ) -> Admission:
        """Decide on a request and, if it may be made, reserve what it may come to."""
        with self._alone() as now:
            admission = self._judged(execution, step, limits, now)
            if not admission.admitted:
                return admission
            month = self._month(month_of(now))
            if admission.news:
                for one in admission.crossings:
                    month.append(Warned(execution, _key(one)), now)
            reservation = f"{month.name}-{secrets.token_hex(6)}"
            amount, tokens = estimate.cost, estimate.tokens.total
            month.append(
                Reserved(reservation, execution, step, model, amount, tokens, os.getpid()), now
            )
            self._dirty.add(month.name)
            return msgspec.structs.replace(admission, reservation=reservation)

    def warned(self, execution: str, crossings: Sequence[Crossing]) -> None:
        """Note that somebody was warned of these bounds: they are no news any more."""
        with self._alone() as now:
            month = self._month(month_of(now))
            for one in crossings:
                if not self._warned(execution, _key(one), now):
                    month.append(Warned(execution, _key(one)), now)

    def settle(
        self,
        reservation: str,
        tokens: Tokens,
        cost: Decimal | None,
        estimated: bool = False,
        status: int = 0,
        model: str = "",
    ) -> bool:
        """Replace a reservation by what the request came to; False if that was done before.

        It counts on the day and in the month in which it was admitted.
        """
        with self._alone() as now:
            month = self._month(reservation[:_NAME])
            held = month.look().open.get(reservation)
            if held is None:
                return False
            named = model or held.model
            month.append(
                Settled(
                    reservation, held.execution, held.step, named, tokens, cost, estimated, status
                ),
                now,
            )
            self._dirty.add(month.name)
            return True

    def release(self, reservation: str) -> bool:
        """Give a reservation back: no request was made."""
        with self._alone() as now:
            month = self._month(reservation[:_NAME])
            if reservation not in month.look().open:
                return False
            month.append(Released(reservation), now)
            return True

    def record(
        self,
        execution: str,
        step: str,
        model: str,
        tokens: Tokens,
        cost: Decimal | None,
        estimated: bool = False,
    ) -> None:
        """Count spend that was told after the fact."""
        with self._alone() as now:
            month = self._month(month_of(now))
            month.append(Recorded(execution, step, model, tokens, cost, estimated), now)
            self._dirty.add(month.name)

    def sync(self) -> None:
        """Bring every request so far to the disk."""
        while self._dirty:
            with suppress(KeyError):
                self._months[self._dirty.pop()].sync()

    # Read

    def judge(
        self,
        execution: str,
        step: str = "",
        limits: BudgetLimits = UNLIMITED,
        ahead: Estimate | None = None,
    ) -> Admission:
        """Say what a request would meet now, or after so much more, without making one."""
        more = NOTHING
        if ahead is not None:
            more = Spend(reserved=ahead.cost or Decimal(0), reserved_tokens=ahead.tokens.total)
        with self._shared() as now:
            return self._judged(execution, step, limits, now, more)

    def spend(self, execution: str, step: str | None = None) -> Spend:
        """Return what an execution, or one step of it, spent."""
        with self._shared() as now:
            return self._spent(execution, step, now)

    def window(self, window: Window) -> Spend:
        """Return what was spent today, or in this month, since the last reset."""
        with self._shared() as now:
            return self._window(window, now)

    def days(self) -> dict[str, Spend]:
        """Return each day of this month (yyyymmdd) with all that was spent on it, resets or not."""
        with self._shared() as now:
            found: dict[str, Spend] = {}
            for key, one in self._month(month_of(now)).look().days.items():
                day = key.partition(".")[0]
                found[day] = found.get(day, Spend()) + one.spend()
            return dict(sorted(found.items()))

    def executions(self) -> dict[str, Spend]:
        """Return what each execution spent that spent anything this month, in all its months."""
        with self._shared() as now:
            names = list(self._month(month_of(now)).look().executions)
            return {name: self._spent(name, None, now) for name in names}

    def granted(self, execution: str, step: str = "") -> Grant | None:
        """Return the newest grant of an execution or a step."""
        with self._shared() as now:
            return self._granted(execution, step, now)

    def bound(self, execution: str, step: str) -> str:
        """Return the step that requests under a step's token count for: mostly that one."""
        with self._shared() as now:
            key, found = step_key(execution, step), step
            for fold in self._folds(execution, now):
                found = fold.bound.get(key, found)
            return found

    def health(self) -> Health:
        """Return what is wrong with the files, all months together."""
        with self._shared():
            lost = unknown = mended = 0
            aside: list[str] = []
            for name in _listed(self.folder):
                if ".damaged-" in name:
                    aside.append(name)
                elif len(name) == _NAME and name.isdecimal():
                    fold = self._month(name).look()
                    lost += fold.lost
                    unknown += fold.unknown
                    mended += fold.mended
            return Health(lost, unknown, mended, tuple(aside))

    def close(self) -> None:
        """Let go of the files."""
        with self._thread:
            for month in self._months.values():
                month.close()
            self._months.clear()
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    # Under the lock

    def _judged(
        self, execution: str, step: str, limits: BudgetLimits, now: int, more: Spend = NOTHING
    ) -> Admission:
        grant = self._granted(execution, "", now) or Grant(execution)
        verdict, crossings = judge(
            self._spent(execution, None, now) + more,
            self._spent(execution, step, now) + more,
            self._window("daily", now) + more,
            self._window("monthly", now) + more,
            limits,
            grant,
            self._granted(execution, step, now) if step else None,
        )
        above = self._above(execution, limits, now, more)
        if above and verdict != "stop":
            return Admission("stop", above)
        news = verdict == "warn" and any(
            not self._warned(execution, _key(one), now) for one in crossings
        )
        return Admission(verdict, crossings, news=news)

    def _above(
        self, execution: str, limits: BudgetLimits, now: int, more: Spend
    ) -> tuple[Crossing, ...]:
        """Return the bounds that are reached of the tasks whose agents started this one.

        A bound that asks is one that stops here: the question is that task's own to put.
        """
        for one in self._month(month_of(now)).look().around(execution):
            grant = self._granted(one, "", now) or Grant(one)
            own = BudgetLimits(task=limits.task, hard=limits.hard)
            whole = self._spent(one, None, now) + more
            verdict, crossings = judge(whole, NOTHING, NOTHING, NOTHING, own, grant)
            if verdict in ("ask", "stop"):
                return crossings
        return ()

    def _folds(self, execution: str, now: int) -> Iterator[Fold]:
        """Yield the months in which an execution can have spent: those since it was made.

        Months to come are among them, where a clock was put back: what was spent stays spent.
        """
        this = month_of(now)
        first = month_of(born_ms(execution) * 1_000_000) if is_id(execution) else ""
        for name in _listed(self.folder):
            if len(name) == _NAME and name.isdecimal() and min(first, this) <= name != this:
                yield self._month(name).look()
        yield self._month(this).look()

    def _spent(self, execution: str, step: str | None, now: int) -> Spend:
        total = Spend()
        for fold in self._folds(execution, now):
            found = (
                fold.executions.get(execution)
                if step is None
                else fold.steps.get(step_key(execution, step))
            )
            if found is not None:
                total = total + found.spend()
        return total

    def _granted(self, execution: str, step: str, now: int) -> Grant | None:
        key = step_key(execution, step)
        newest = None
        for fold in self._folds(execution, now):
            newest = fold.grants.get(key, newest)
        return newest.grant if newest is not None else None

    def _warned(self, execution: str, key: str, now: int) -> bool:
        return any(f"{execution} {key}" in fold.warned for fold in self._folds(execution, now))

    def _window(self, window: Window, now: int) -> Spend:
        fold = self._month(month_of(now)).look()
        if window == "daily":
            found = fold.days.get(fold.day_key(now))
        else:
            found = fold.months.get(fold.month_key)
        return found.spend() if found is not None else Spend()

    def _month(self, name: str) -> Month:
        found = self._months.get(name)
        if found is None:
            found = self._months[name] = Month(self.folder, name)
        return found

    def _append_alone(self, record: AnyRecord) -> None:
        with self._alone() as now:
            month = self._month(month_of(now))
            month.append(record, now)
            month.sync()

    # The lock

    @contextmanager
    def _alone(self) -> Generator[int]:
        """Hold the lock alone and yield the time; what the disk refuses comes as our own error."""
        with self._thread:
            try:
                self._have_lock()
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
                try:
                    yield self._clock()
                finally:
                    fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
            except OSError as error:
                raise _as_error(error, self.folder) from error

    @contextmanager
    def _shared(self) -> Generator[int]:
        with self._thread:
            try:
                if self._lock_fd < 0 and not os.path.isdir(self.folder):
                    yield self._clock()  # nothing was ever recorded
                    return
                self._have_lock()
                fcntl.flock(self._lock_fd, fcntl.LOCK_SH)
                try:
                    yield self._clock()
                finally:
                    fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
            except OSError as error:
                raise _as_error(error, self.folder) from error

    def _have_lock(self) -> None:
        if self._lock_fd >= 0:
            return
        with suppress(FileExistsError):
            os.mkdir(self.folder, 0o700)
            os.chmod(self.folder, 0o700)
        path = os.path.join(self.folder, "lock")
        self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _key(crossing: Crossing) -> str:
    return f"{crossing.scope}/{crossing.unit}/{crossing.limit}"


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _as_error(error: OSError, folder: str) -> DiskFull | EngineFault:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"the spend ledger in {folder} finds no room, so that nothing can be admitted",
            "make room with: tenuto clean --older 7d",
        )
    return EngineFault(
        f"the spend ledger in {folder} cannot be used: {error.strerror}",
        "check the folder's owner and rights",
    )
