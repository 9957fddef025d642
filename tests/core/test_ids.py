import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.core import ids
from tenuto.core.errors import InvalidInput


class Clock:
    """A wall clock that the test sets."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock(time.time_ns())
    monkeypatch.setattr(time, "time_ns", clock)
    monkeypatch.setattr(ids, "_last", 0)
    return clock


@pytest.mark.promise("X1")
def test_a_hundred_thousand_ids_are_unique_and_sort_by_their_making():
    made = [ids.new_id() for _ in range(100_000)]
    assert len(set(made)) == len(made)
    assert made == sorted(made)


@pytest.mark.promise("X1")
def test_ids_still_sort_when_the_clock_jumps_back(clock):
    made = [ids.new_id()]
    for jump in (-1, -1_000_000_000, -86_400_000_000_000, 5, 0, -7):
        clock.now_ns += jump
        made += [ids.new_id(), ids.new_id()]
    assert made == sorted(set(made))


@pytest.mark.promise("X1")
def test_ids_made_by_threads_at_once_are_unique():
    with ThreadPoolExecutor(8) as pool:
        lists = list(pool.map(lambda _: [ids.new_id() for _ in range(2_000)], range(8)))
    assert all(made == sorted(made) for made in lists)
    assert len({one for made in lists for one in made}) == 16_000


def test_an_id_is_a_version_7_uuid_with_its_time(clock):
    clock.now_ns = 1_700_000_000_123_456_789
    made = uuid.UUID(ids.new_id())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert ids.born_ms(str(made)) == 1_700_000_000_123
    assert ids.is_id(str(made))


@pytest.mark.parametrize(
    ("seconds", "day"),
    [(0, "19700101"), (951_782_400, "20000229"), (1_700_000_000, "20231114"), (2**33, "22420316")],
)
def test_the_day_is_the_utc_day_of_birth(clock, seconds, day):
    clock.now_ns = seconds * 1_000_000_000 + 999
    assert ids.day_of(ids.new_id()) == day


def test_the_day_changes_at_midnight_utc(clock):
    clock.now_ns = 1_700_006_399_999_000_000
    assert ids.day_of(ids.new_id()) == "20231114"
    clock.now_ns += 1_000_000
    assert ids.day_of(ids.new_id()) == "20231115"


@given(st.integers(0, 2**128 - 1))
def test_every_id_has_a_day(number):
    assert ids.day_of(str(uuid.UUID(int=number))).isdecimal()


@pytest.mark.promise("X1")
@given(st.uuids(), st.integers(1, 36), st.booleans(), st.booleans())
def test_any_prefix_is_accepted_however_it_is_written(whole, length, upper, dashed):
    text = str(whole)[:length]
    written = text if dashed else text.replace("-", "")
    prefix = ids.check_prefix(f"  {written.upper() if upper else written}\n")
    assert prefix == text.rstrip("-")
    assert str(whole).startswith(prefix)
    assert ids.check_prefix(prefix) == prefix


@given(st.text(max_size=50))
def test_what_is_no_prefix_is_invalid_input_and_nothing_else(text):
    try:
        prefix = ids.check_prefix(text)
    except InvalidInput as error:
        assert "tenuto ps" in error.hint
    else:
        assert set(prefix) <= set("0123456789abcdef-")
        assert 1 <= len(prefix) <= ids.ID_LENGTH


@pytest.mark.parametrize("text", ["", "-", "----", "xyz", "g" * 8, "0" * 33, "٣", "0193a5f2/.."])
def test_such_texts_are_refused(text):
    with pytest.raises(InvalidInput):
        ids.check_prefix(text)


def test_only_whole_canonical_ids_are_ids():
    whole = ids.new_id()
    assert ids.is_id(whole)
    for wrong in (whole.upper(), whole.replace("-", ""), whole[:-1], f"{whole}0", "-" * 36, ""):
        assert not ids.is_id(wrong)


def test_the_short_form_is_a_prefix_that_holds_the_whole_time():
    whole = ids.new_id()
    assert whole.startswith(ids.short(whole))
    assert ids.check_prefix(ids.short(whole)) == ids.short(whole)
