"""What a month's records come to: sums by day, execution and step, and what is still open."""

from __future__ import annotations

import time
from decimal import Decimal

import msgspec

from tenuto.core.budget import Grant, Spend, Tokens
from tenuto.metering.records import (
    AnyRecord,
    Bound,
    Granted,
    Mended,
    Recorded,
    Released,
    Reserved,
    Reset,
    Settled,
    Warned,
)

_NOTHING = Decimal(0)
_DEPTH_MOST = 16


class Sum(msgspec.Struct):
    """A Spend that grows."""

    requests: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: Decimal = _NOTHING
    unpriced: int = 0
    estimated: int = 0
    reserved: Decimal = _NOTHING
    reserved_tokens: int = 0
    unsettled: int = 0

    def count(self, tokens: Tokens, cost: Decimal | None, estimated: bool) -> None:
        """Add one request."""
        self.requests += 1
        self.input += tokens.input
        self.output += tokens.output
        self.cache_read += tokens.cache_read
        self.cache_write += tokens.cache_write
        if cost is None:
            self.unpriced += tokens.total > 0
        else:
            self.cost += cost
        self.estimated += estimated

    def reserve(self, amount: Decimal, tokens: int, by: int = 1) -> None:
        """Set something aside, or with `by` -1 give it back."""
        self.reserved += amount * by
        self.reserved_tokens += tokens * by
        self.unsettled += by

    def spend(self) -> Spend:
        """Return it as a value."""
        return Spend(
            self.requests,
            Tokens(self.input, self.output, self.cache_read, self.cache_write),
            self.cost,
            self.unpriced,
            self.estimated,
            self.reserved,
            self.reserved_tokens,
            self.unsettled,
        )


class Open(msgspec.Struct):
    """A reservation that is not settled, and the windows it counts in."""

    execution: str
    step: str
    model: str
    amount: Decimal
    tokens: int
    pid: int
    time_ns: int
    day: str
    month: str


class Given(msgspec.Struct):
    """A grant and when it was given."""

    grant: Grant
    time_ns: int


class Fold(msgspec.Struct):
    """Everything the ledger has to know about one month."""

    days: dict[str, Sum] = {}
    months: dict[str, Sum] = {}
    executions: dict[str, Sum] = {}
    steps: dict[str, Sum] = {}
    open: dict[str, Open] = {}
    grants: dict[str, Given] = {}
    warned: dict[str, int] = {}
    bound: dict[str, str] = {}
    day_resets: int = 0
    month_resets: int = 0
    lost: int = 0
    """Records that were damaged, and could not be read any more."""
    unknown: int = 0
    """Records of a newer Tenuto."""
    mended: int = 0
    """Times that a torn end was cut, or a file put aside."""

    def day_key(self, time_ns: int) -> str:
        """Return the window of a day as it stands now: a reset begins another."""
        return f"{day_of(time_ns)}.{self.day_resets}"

    @property
    def month_key(self) -> str:
        """The window of the month as it stands now."""
        return str(self.month_resets)

    def take(self, record: AnyRecord, time_ns: int) -> None:
        """Take one record into account."""
        match record:
            case Reserved():
                self._reserve(record, time_ns)
            case Settled():
                held = self._give_back(record.id)
                day, month = (
                    (held.day, held.month) if held else (self.day_key(time_ns), self.month_key)
                )
                for one in self._sums(record.execution, record.step, day, month):
                    one.count(record.tokens, record.cost, record.estimated)
            case Recorded():
                day = self.day_key(time_ns)
                for one in self._sums(record.execution, record.step, day, self.month_key):
                    one.count(record.tokens, record.cost, record.estimated)
            case Released():
                self._give_back(record.id)
            case _:
                self._note(record, time_ns)

    def _note(self, record: AnyRecord, time_ns: int) -> None:
        """Take a record that counts nothing by itself."""
        match record:
            case Granted():
                key = step_key(record.grant.execution, record.grant.step)
                self.grants[key] = Given(record.grant, time_ns)
            case Reset():
                if record.window == "daily":
                    self.day_resets += 1
                else:
                    self.month_resets += 1
            case Bound():
                self.bound[step_key(record.execution, record.step)] = record.to
            case Warned():
                self.warned[f"{record.execution} {record.key}"] = 1
            case Mended():
                self.mended += 1
            case _:
                pass

    def _reserve(self, record: Reserved, time_ns: int) -> None:
        amount = record.amount or _NOTHING
        day, month = self.day_key(time_ns), self.month_key
        self.open[record.id] = Open(
            record.execution, record.step, record.model, amount, record.tokens, record.pid,
            time_ns, day, month,
        )  # fmt: skip
        for one in self._sums(record.execution, record.step, day, month):
            one.reserve(amount, record.tokens)

    def _give_back(self, reservation: str) -> Open | None:
        held = self.open.pop(reservation, None)
        if held is not None:
            for one in self._sums(held.execution, held.step, held.day, held.month):
                one.reserve(held.amount, held.tokens, -1)
        return held

    def _sums(self, execution: str, step: str, day: str, month: str) -> tuple[Sum, ...]:
        return (
            _at(self.days, day),
            _at(self.months, month),
            _at(self.executions, execution),
            _at(self.steps, step_key(execution, step)),
            *(_at(self.executions, one) for one in self.around(execution)),
        )

    def around(self, execution: str) -> list[str]:
        """Return the tasks inside of which an execution spends, the nearest first."""
        found: list[str] = []
        here = self.grants.get(step_key(execution, ""))
        while here is not None and here.grant.within and len(found) < _DEPTH_MOST:
            found.append(here.grant.within)
            here = self.grants.get(step_key(here.grant.within, ""))
        return found


def _at(sums: dict[str, Sum], key: str) -> Sum:
    found = sums.get(key)
    if found is None:
        found = sums[key] = Sum()
    return found


def step_key(execution: str, step: str) -> str:
    """Return the key of a step's sums and grant."""
    return f"{execution}/{step}"


def day_of(time_ns: int) -> str:
    """Return the day of UTC, as yyyymmdd."""
    return time.strftime("%Y%m%d", time.gmtime(time_ns // 1_000_000_000))


def month_of(time_ns: int) -> str:
    """Return the month of UTC, as yyyymm."""
    return day_of(time_ns)[:6]
