"""The spend ledger: right in parallel, after kills, damage, full disks, and when months change."""

import os
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.core.budget import BudgetLimits, Estimate, Grant, Spend, Tokens
from tenuto.core.errors import DiskFull, NewerTape
from tenuto.core.ids import new_id
from tenuto.keeper import frames
from tenuto.metering import month as month_file
from tenuto.metering.ledger import Ledger

WRITER = Path(__file__).parent / "writer.py"
CENT = Estimate(Tokens(10, 10), Decimal("0.01"))


class Clock:
    """A time that is set."""

    def __init__(self, moment="2026-03-31T23:59:50"):
        self.set(moment)

    def set(self, moment):
        self.now = int(time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S")) - time.timezone)
        self.now *= 10**9

    def __call__(self):
        return self.now


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(str(tmp_path))
    yield made
    made.close()


def file_of(home):
    (found,) = [one for one in (home / "ledger").iterdir() if one.name.isdecimal()]
    return found


def spend_one(ledger, execution, cost="0.02", step="s", **more):
    admission = ledger.admit(execution, step, "m", CENT)
    assert ledger.settle(admission.reservation, Tokens(5, 1), Decimal(cost), **more)


def read_anew(home, execution):
    other = Ledger(str(home))
    try:
        return other.spend(execution)
    finally:
        other.close()


# Counting


@pytest.mark.promise("B1")
def test_reserved_then_settled_is_seen_by_all(tmp_path, ledger):
    one = new_id()
    admission = ledger.admit(one, "s", "m", CENT)
    assert admission.verdict == "go"
    expected = Spend(reserved=Decimal("0.01"), reserved_tokens=20, unsettled=1)
    assert ledger.spend(one) == read_anew(tmp_path, one) == expected
    assert ledger.settle(admission.reservation, Tokens(5, 1, 2, 3), Decimal("0.02"), True, 200)
    expected = Spend(1, Tokens(5, 1, 2, 3), Decimal("0.02"), 0, 1)
    assert ledger.spend(one) == ledger.spend(one, "s") == read_anew(tmp_path, one) == expected
    assert ledger.window("daily") == ledger.window("monthly") == expected
    assert ledger.spend(one, "other") == Spend()
    assert not ledger.settle(admission.reservation, Tokens(5), Decimal(1)), "once is enough"
    assert ledger.spend(one) == expected


def test_a_released_reservation_was_no_request(ledger):
    one = new_id()
    admission = ledger.admit(one, "s", "m", CENT)
    assert ledger.release(admission.reservation)
    assert not ledger.release(admission.reservation)
    assert ledger.spend(one) == Spend()


def test_spend_that_is_told_afterwards_counts(ledger):
    one = new_id()
    ledger.record(one, "s", "m", Tokens(7, 7), None, estimated=True)
    assert ledger.spend(one) == Spend(1, Tokens(7, 7), Decimal(0), 1, 1)


def test_nothing_is_made_by_looking(tmp_path, ledger):
    assert ledger.spend(new_id()) == ledger.window("daily") == Spend()
    assert ledger.judge(new_id()).verdict == "go"
    assert ledger.health().lost == 0
    assert not (tmp_path / "ledger").exists()


@pytest.mark.promise("B2")
def test_a_reset_window_counts_from_zero_and_what_was_under_way_stays_outside(ledger):
    one = new_id()
    spend_one(ledger, one)
    before = ledger.admit(one, "s", "m", CENT)
    ledger.reset("daily")
    assert ledger.window("daily") == Spend()
    ledger.settle(before.reservation, Tokens(1), Decimal(1))
    assert ledger.window("daily") == Spend()
    assert ledger.window("monthly").requests == 2
    spend_one(ledger, one)
    assert ledger.window("daily").requests == 1
    ledger.reset("monthly")
    assert ledger.window("monthly") == Spend()
    assert ledger.window("daily").requests == 1
    assert ledger.spend(one).requests == 3, "an execution's own sum knows no reset"
    assert sum(one.requests for one in ledger.days().values()) == 3


@pytest.mark.promise("B1")
def test_months_and_days_change_at_utc_midnight(tmp_path):
    clock = Clock("2026-03-31T23:59:50")
    ledger = Ledger(str(tmp_path), clock)
    digits = f"{clock.now // 10**6:012x}"  # an id that was made then
    one = f"{digits[:8]}-{digits[8:]}-7000-8000-000000000000"
    ledger.grant(Grant(one, max_cost=Decimal(1), hard=True))
    spend_one(ledger, one, "0.50")
    late = ledger.admit(one, "s", "m", CENT)
    clock.set("2026-04-01T00:00:10")
    assert ledger.window("daily") == ledger.window("monthly") == Spend()
    assert ledger.spend(one).cost == Decimal("0.50")
    ledger.settle(late.reservation, Tokens(1), Decimal("0.30"))
    assert ledger.window("monthly") == Spend(), "it counts where it was admitted"
    spend_one(ledger, one, "0.20")
    assert ledger.window("monthly").cost == Decimal("0.20")
    assert ledger.spend(one).cost == Decimal("1.00"), "all months together"
    assert ledger.admit(one, "s", "m", CENT).verdict == "stop", "the grant of March still holds"
    assert sorted(os.listdir(tmp_path / "ledger")) == ["202603", "202604", "lock"]
    clock.set("2026-04-02T00:00:00")
    assert ledger.window("daily") == Spend()
    assert ledger.window("monthly").requests == 1
    ledger.close()
    again = Ledger(str(tmp_path), clock)
    assert again.spend(one).cost == Decimal("1.00")
    assert again.executions()[one].requests == 3
    again.close()


# Admission


@pytest.mark.promise("B2", "B3")
@pytest.mark.parametrize("mode", ["warn", "ask"])
def test_a_hard_cap_stops_in_every_mode(ledger, mode):
    one = new_id()
    ledger.grant(Grant(one, max_cost=Decimal("0.03"), mode=mode, hard=True, approved=Decimal(99)))
    verdicts = [ledger.admit(one, "s", "m", CENT).verdict for _ in range(5)]
    assert verdicts == ["go", "go", "go", "stop", "stop"], "what is only reserved counts too"
    crossing = ledger.judge(one).crossings[0]
    assert (crossing.spent, crossing.reserved) == (Decimal("0.03"), Decimal("0.03"))


def test_the_newest_grant_holds_and_covers_what_was_approved(ledger):
    one = new_id()
    ledger.grant(Grant(one, max_cost=Decimal("0.02"), mode="ask"))
    spend_one(ledger, one)
    assert ledger.admit(one, "s", "m", CENT).verdict == "ask"
    assert ledger.spend(one).unsettled == 0, "nothing is reserved for who has to ask"
    ledger.grant(Grant(one, max_cost=Decimal("0.02"), mode="ask", approved=Decimal("0.04")))
    spend_one(ledger, one)
    assert ledger.admit(one, "s", "m", CENT).verdict == "ask", "that was all that was approved"
    granted = ledger.granted(one)
    assert granted is not None
    assert granted.approved == Decimal("0.04")


def test_limits_of_the_project_hold_where_a_task_has_none_of_its_own(ledger):
    one, limits = new_id(), BudgetLimits(task=Decimal("0.02"), daily=Decimal(100))
    ledger.record(one, "s", "m", Tokens(1), Decimal("0.02"))
    (crossing,) = ledger.judge(one, limits=limits).crossings
    assert (crossing.scope, crossing.hard) == ("execution", False)
    ledger.grant(Grant(one, max_cost=Decimal(1)))
    assert ledger.judge(one, limits=limits).verdict == "go"
    ledger.record(new_id(), "s", "m", Tokens(1), Decimal(100))
    assert ledger.judge(one, limits=limits).crossings[0].scope == "daily"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60), st.booleans()), max_size=30))
@settings(max_examples=30, deadline=None)
def test_spent_and_reserved_never_pass_a_cap_by_more_than_was_under_way(tmp_path_factory, plan):
    ledger = Ledger(str(tmp_path_factory.mktemp("cap")))
    one, cap, under_way, spent = new_id(), Decimal(100), [], Decimal(0)
    ledger.grant(Grant(one, max_cost=cap, hard=True))
    for estimate, real, settles in plan:
        before = ledger.spend(one)
        admission = ledger.admit(one, "s", "m", Estimate(Tokens(1), Decimal(estimate)))
        assert admission.admitted == (before.cost + before.reserved < cap)
        if admission.admitted:
            under_way.append((admission.reservation, Decimal(real)))
        if settles and under_way:
            reservation, cost = under_way.pop(0)
            ledger.settle(reservation, Tokens(1), cost)
            spent += cost
    assert ledger.spend(one).cost == spent
    assert ledger.spend(one).unsettled == len(under_way)
    ledger.close()


# Many processes


def written_by(home, count, *words):
    """Let so many processes write at once; return what each of them said."""
    argv = [sys.executable, WRITER, str(home), *map(str, words), str(count)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        for _ in range(count):
            assert process.stdout.readline() == b"ready\n"
        process.stdin.close()
        said = process.stdout.read().decode().splitlines()
        assert process.wait(60) == 0
    assert len(said) == count
    return said


@pytest.mark.promise("B1")
def test_fifty_processes_write_at_once_and_nothing_is_lost(tmp_path):
    one = new_id()
    sums = [line.split() for line in written_by(tmp_path, 50, "spend", one, 20)]
    assert {count for count, _ in sums} == {"20"}
    ledger = Ledger(str(tmp_path))
    spend = ledger.spend(one)
    assert spend == ledger.window("daily") == ledger.window("monthly")
    assert (spend.requests, spend.unsettled) == (1000, 0)
    assert spend.cost == sum((Decimal(cost) for _, cost in sums), Decimal(0))
    assert spend.tokens == Tokens(1000 * 3, 1000 * 2)
    assert ledger.health().lost == ledger.health().mended == 0
    ledger.close()


@pytest.mark.promise("B3")
def test_many_processes_together_do_not_pass_a_hard_cap(tmp_path):
    one = new_id()
    ledger = Ledger(str(tmp_path))
    ledger.grant(Grant(one, max_cost=Decimal("1.00"), hard=True))
    admitted = sum(map(int, written_by(tmp_path, 10, "reserve", one, 40)))
    assert admitted == 100, "a cent each"
    assert ledger.spend(one).reserved == Decimal("1.00")
    ledger.close()


@pytest.mark.promise("B1", "B2")
def test_a_writer_that_is_killed_between_reserve_and_settle_still_counts(tmp_path):
    one = new_id()
    written_by(tmp_path, 3, "die", one, 1)
    ledger = Ledger(str(tmp_path))
    spend = ledger.spend(one)
    assert (spend.reserved, spend.unsettled, spend.requests) == (Decimal("0.03"), 3, 0)
    ledger.grant(Grant(one, max_cost=Decimal("0.03"), hard=True))
    assert ledger.admit(one, "s", "m", CENT).verdict == "stop"
    ledger.close()


# Damage


@pytest.mark.promise("B1", "D5")
@pytest.mark.parametrize("cut", [1, 20, 40, 100])
def test_a_torn_tail_is_cut_by_the_next_writer(tmp_path, ledger, cut):
    one = new_id()
    spend_one(ledger, one)
    spend_one(ledger, one)
    path = file_of(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    spend = read_anew(tmp_path, one)
    assert (spend.requests, spend.unsettled) == (1, 1), "the last settlement is torn"
    spend_one(ledger, one)
    after = read_anew(tmp_path, one)
    assert (after.requests, after.unsettled) == (2, 1)
    assert after == ledger.spend(one)
    assert ledger.health().mended == 1


@pytest.mark.promise("B1", "D5")
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_damage_anywhere_is_survived_and_reported(tmp_path_factory, data):
    home = tmp_path_factory.mktemp("damage")
    ledger = Ledger(str(home))
    one = new_id()
    for _ in range(4):
        spend_one(ledger, one)
    path = file_of(home)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    size = data.draw(st.integers(1, 60))
    content[at : at + size] = data.draw(st.binary(min_size=size, max_size=size))
    changed = bytes(content) != path.read_bytes()
    ledger.close()
    path.write_bytes(content)
    other = Ledger(str(home))
    before = other.spend(one)
    spend_one(other, one)
    after = other.spend(one)
    assert after.requests == before.requests + 1
    assert read_anew(home, one) == after
    if after.requests < 5 or after.unsettled:
        health = other.health()
        assert changed
        assert health.lost or health.mended or health.aside or health.unknown
    other.close()


def test_a_file_that_nobody_can_read_is_put_aside(tmp_path, ledger):
    one = new_id()
    spend_one(ledger, one)
    path = file_of(tmp_path)
    ledger.close()
    path.write_bytes(os.urandom(1000))
    other = Ledger(str(tmp_path))
    assert other.spend(one) == Spend()
    spend_one(other, one)
    assert other.spend(one).requests == 1
    (aside,) = other.health().aside
    assert (tmp_path / "ledger" / aside).stat().st_size == 1000
    other.close()


def test_two_processes_agree_when_one_of_them_puts_the_file_aside(tmp_path, ledger):
    one = new_id()
    spend_one(ledger, one)
    file_of(tmp_path).write_bytes(os.urandom(1000))
    other = Ledger(str(tmp_path))
    spend_one(other, one)
    spend_one(ledger, one)
    assert other.spend(one) == ledger.spend(one)
    assert other.spend(one).requests == 2
    other.close()


def test_a_file_of_a_newer_tenuto_is_left_alone(tmp_path, ledger, monkeypatch):
    spend_one(ledger, new_id())
    ledger.close()
    monkeypatch.setattr(frames, "FORMAT", 0)
    other = Ledger(str(tmp_path))
    with pytest.raises(NewerTape):
        other.admit(new_id(), "s", "m", CENT)
    other.close()


def test_a_settlement_counts_even_if_its_reservation_was_lost(tmp_path, ledger):
    one = new_id()
    spend_one(ledger, one)
    path = file_of(tmp_path)
    content = bytearray(path.read_bytes())
    content[frames.PREAMBLE_SIZE + frames.HEADER.size + 5] ^= 0xFF
    ledger.close()
    path.write_bytes(content)
    other = Ledger(str(tmp_path))
    assert other.spend(one) == Spend(1, Tokens(5, 1), Decimal("0.02"))
    assert other.health().lost == 1
    other.close()


def test_what_was_folded_is_kept_and_never_trusted_blindly(tmp_path, monkeypatch):
    monkeypatch.setattr(month_file, "_KEEP_EVERY", 4000)
    ledger = Ledger(str(tmp_path))
    one = new_id()
    for _ in range(30):
        spend_one(ledger, one)
    expected = ledger.spend(one)
    ledger.close()
    kept = Path(f"{file_of(tmp_path)}.fold")
    assert kept.stat().st_size > 100
    assert read_anew(tmp_path, one) == expected
    for broken in (b"", b"{}", kept.read_bytes()[:-7], b"0" * 500):
        kept.write_bytes(broken)
        assert read_anew(tmp_path, one) == expected


@pytest.mark.promise("B1", "X16")
def test_files_are_private(tmp_path, ledger):
    old = os.umask(0)
    try:
        spend_one(ledger, new_id())
    finally:
        os.umask(old)
    assert (tmp_path / "ledger").stat().st_mode & 0o777 == 0o700
    for one in (tmp_path / "ledger").iterdir():
        assert one.stat().st_mode & 0o777 == 0o600, one


@pytest.mark.promise("B1")
def test_on_a_full_disk_nothing_is_admitted_and_it_says_so(tmp_path):
    if os.geteuid() != 0:
        if os.environ.get("TENUTO_TEST_REQUIRE_ALL"):
            pytest.fail("mounting a small file system takes root")
        pytest.skip("mounting a small file system takes root")
    home = tmp_path / "home"
    home.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tenuto-test", str(home)]
    assert subprocess.run(words, check=False).returncode == 0
    ledger = Ledger(str(home))
    try:
        one = new_id()
        admission = ledger.admit(one, "s", "m", CENT)
        with open(home / "filler", "wb", buffering=0) as filler, pytest.raises(OSError):
            while True:
                filler.write(bytes(4096))
        with pytest.raises(DiskFull) as caught:
            for _ in range(1000):  # what is left of the last page may take some
                ledger.admit(one, "s", "m", CENT)
        assert "tenuto clean" in caught.value.hint
        before = ledger.spend(one)
        assert before == read_anew(home, one), "nothing half-written is left"
        with pytest.raises(DiskFull):
            ledger.admit(one, "s", "m", CENT)
        os.unlink(home / "filler")
        assert ledger.settle(admission.reservation, Tokens(1), Decimal(1))
        assert ledger.spend(one).requests == 1
        assert ledger.spend(one).unsettled == before.unsettled - 1
    finally:
        ledger.close()
        subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.mark.promise("B1", "B3")
def test_what_a_token_stands_for_is_known_to_others_and_in_the_next_month(tmp_path):
    clock = Clock()
    ledger, execution = Ledger(str(tmp_path), clock), "the task"
    assert ledger.bound(execution, "a") == "a"
    ledger.bind(execution, "a", "b")
    clock.set("2026-04-01T00:00:10")
    other = Ledger(str(tmp_path), clock)
    assert (other.bound(execution, "a"), other.bound(execution, "b")) == ("b", "b")
    assert other.bound("another", "a") == "a"
    other.bind(execution, "a", "c")
    assert ledger.bound(execution, "a") == "c"
    ledger.bind(execution, "a", "a")
    assert other.bound(execution, "a") == "a" and not other.health().unknown
    ledger.close()
    other.close()
