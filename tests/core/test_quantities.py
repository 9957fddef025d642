import datetime
import math
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenuto.core.errors import InvalidInput
from tenuto.core.quantities import (
    brief_duration,
    brief_size,
    iso,
    money,
    parse_duration,
    parse_moment,
    parse_size,
)

NOW = 1_800_000_000_123_456_789
LETTERS = st.text(alphabet="0123456789.smhdwkgtib eE+-_:TZ\u0663\uff11", max_size=20)
ANYTHING = st.one_of(LETTERS, st.text(max_size=30))
HUGE = "9" * 400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("30", 30), ("30s", 30), ("1.5h", 5400), ("1h30m", 5400), (" 10M ", 600),
        ("250ms", 0.25), ("7d", 604800), ("1w", 604800), (12, 12), (0.5, 0.5), ("1d2h3m4s", 93784),
    ],
)  # fmt: skip
def test_durations_as_people_write_them(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "s", "-1", "-1s", "1x", "1h30", "nan", "inf", "1..2s", ".s", "1e400", f"{HUGE}d",
        -1, math.nan, math.inf, 10**400, True, None, [], {}, datetime.date(2026, 1, 1), b"30s",
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_duration(text)


@given(ANYTHING)
@example("1e400")
@example(f"{HUGE}s")
def test_a_duration_is_never_negative_and_nothing_else_is_raised(text):
    try:
        assert 0 <= parse_duration(text) < math.inf
    except InvalidInput as error:
        assert error.hint


@given(st.floats(0, 1e12))
def test_a_duration_written_as_a_number_comes_back(seconds):
    assert parse_duration(repr(seconds)) == seconds
    assert parse_duration(seconds) == seconds


@given(st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h", "d", "w"]))
def test_a_duration_of_two_parts_is_their_sum(number, unit):
    assert parse_duration(f"{number}{unit}7s") == pytest.approx(
        parse_duration(f"{number}{unit}") + 7
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("512", 512), ("512M", 512 << 20), ("2GiB", 2 << 30), ("64k", 64 << 10),
        ("1kb", 1024), ("1.5 MB", 3 << 19), ("3T", 3 << 40), ("7b", 7), (9, 9), (2**70, 2**70),
    ],
)  # fmt: skip
def test_sizes_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "M",
        "-1",
        "1x",
        "1mm",
        "nan",
        "inf",
        "1e3",
        HUGE,
        f"{HUGE}T",
        -1,
        1.5,
        True,
        None,
        [],
        b"1",
    ],
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_size(text)


@given(ANYTHING)
@example(HUGE)
def test_a_size_is_a_whole_number_and_nothing_else_is_raised(text):
    try:
        size = parse_size(text)
    except InvalidInput as error:
        assert error.hint
    else:
        assert isinstance(size, int)
        assert size >= 0


@given(st.integers(0, 2**50))
def test_a_size_written_in_bytes_comes_back(size):
    assert parse_size(str(size)) == size
    assert parse_size(f"{size}b") == size
    assert parse_size(f"{size}k") == size * 1024


@given(st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9))
@example(0)
@example(-1)
def test_a_moment_comes_back_to_the_microsecond(time_ns):
    text = iso(time_ns)
    assert text.endswith("Z")
    assert parse_moment(text, NOW) == time_ns // 1000 * 1000


@given(st.datetimes(timezones=st.just(datetime.timezone(datetime.timedelta(hours=5, minutes=30)))))
def test_a_moment_with_an_offset_is_that_moment(moment):
    delta = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    expected = (delta // datetime.timedelta(microseconds=1)) * 1000
    assert parse_moment(moment.isoformat(), NOW) == expected


@pytest.mark.parametrize(
    ("text", "ago"), [("10m", 600), ("1h30m", 5400), ("1.5s", 1.5), ("7d", 604800)]
)
def test_an_age_counts_back_from_now(text, ago):
    assert parse_moment(text, NOW) == NOW - int(ago * 10**9)


@pytest.mark.parametrize(
    "text", ["20261115", "2026-11-15", "2026-11-15T10:00:00", "2026-11-15 10:00"]
)
def test_a_moment_without_an_offset_is_local_time(text):
    local = datetime.datetime.fromisoformat(text).astimezone()
    assert parse_moment(text, NOW) == int(local.timestamp()) * 10**9


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "30", "-5", "inf", "nan", "1e400", f"{HUGE}d", f"{HUGE}.0", "0001-01-01",
     "0001-01-01T00:00:00", "9999-12-31T23:59:59", "2026-13-01"],
)  # fmt: skip
def test_a_moment_out_of_reach_is_refused_or_read_but_never_anything_else(text):
    try:
        assert isinstance(parse_moment(text, NOW), int)
    except InvalidInput as error:
        assert error.hint


@given(st.one_of(ANYTHING, st.datetimes().map(str), st.dates().map(str)))
@example("inf")
@example(f"{HUGE}w")
def test_no_text_raises_anything_but_invalid_input(text):
    try:
        assert isinstance(parse_moment(text, NOW), int)
    except InvalidInput as error:
        assert error.hint


@given(st.integers(0, 2**64 - 1))
def test_every_time_that_a_tape_can_hold_can_be_shown(time_ns):
    assert len(iso(time_ns)) == 27


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.35, "350ms"), (1.26, "1.3s"), (12.3, "12s"), (185, "3m05s"), (7800, "2h10m"),
     (90000, "1d01h"), (0.9996, "1.0s"), (9.96, "10s"), (59.7, "1m00s"), (3599.8, "1h00m")],
)  # fmt: skip
def test_durations_as_people_say_them(seconds, text):
    assert brief_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (812, "812 B"), (1434, "1.4 KB"), (500 << 20, "500.0 MB"), (3 << 40, "3.0 TB")],
)
def test_sizes_as_people_say_them(size, text):
    assert brief_size(size) == text


@given(st.floats(0, 1e9), st.integers(0, 2**60))
def test_every_duration_and_size_can_be_said_briefly(seconds, size):
    assert len(brief_duration(seconds)) <= 9
    assert len(brief_size(size)) <= 13


@pytest.mark.parametrize(
    ("dollars", "text"),
    [("0", "$0.00"), ("0.01", "$0.01"), ("0.009758", "$0.00976"), ("0.0000000001", "$0.0000000001"),
     ("0.5", "$0.50"), ("0.123", "$0.123"), ("0.9999", "$1.00"), ("1", "$1.00"), ("1.005", "$1.00"),
     ("2.5", "$2.50"), ("1234.567", "$1234.57"), ("1e30", f"${10**30}.00"), (None, "unknown"),
     (0.00375, "$0.00375")],
)  # fmt: skip
def test_money_as_people_write_it(dollars, text):
    amount = Decimal(dollars) if isinstance(dollars, str) else dollars
    assert money(amount) == text


@given(st.decimals(0, 10**12, allow_nan=False, places=10), st.decimals(0, 10**12, places=10))
def test_no_spend_looks_like_nothing_and_more_never_looks_like_less(one, other):
    assert (money(one) == "$0.00") == (one == 0)
    less, more = sorted((one, other))
    assert Decimal(money(less)[1:]) <= Decimal(money(more)[1:])
