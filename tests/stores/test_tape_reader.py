import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tapes import (
    CREATED,
    MAGIC,
    Written,
    as_written,
    folder_with,
    histories,
    index_bytes,
    last_lines,
    raw,
    reading,
    tape_bytes,
)

from tenuto.core.events import Cleared, Lost, decode_event
from tenuto.keeper import frames, rewrite
from tenuto.keeper.frames import EVENT, OUT
from tenuto.stores.pen import Pen
from tenuto.stores.tape import TapeReader, is_kept


@st.composite
def indexes(draw: st.DrawFn, written: list[Written]) -> bytes | None:
    """No index, a right one, a lagging, cut or broken one, one of another tape, garbage."""
    right = index_bytes(written, every=draw(st.sampled_from([1, 50, 200])))
    longer = [*written, *(Written(900 + n, 10**9 + n, n % 2, b"x" * 30) for n in range(4))]
    kind = draw(st.sampled_from(["none", "right", "cut", "flipped", "ahead", "other", "garbage"]))
    match kind:
        case "none":
            return None
        case "right":
            return right
        case "cut":
            return right[: draw(st.integers(0, len(right)))]
        case "flipped":
            broken = bytearray(right or b"x")
            broken[draw(st.integers(0, len(broken) - 1))] ^= 1 << draw(st.integers(0, 7))
            return bytes(broken)
        case "ahead":
            return index_bytes(longer, every=1)
        case "other":
            foreign = [one._replace(time_ns=one.time_ns + 10**10) for one in draw(histories())]
            return index_bytes(foreign, every=1)
        case _:
            return draw(st.binary(max_size=200))


@st.composite
def tapes(draw: st.DrawFn) -> tuple[list[Written], bytes | None]:
    written = draw(histories())
    return written, draw(indexes(written))


@pytest.mark.promise("X6")
@given(tapes(), st.integers(-1, 40))
def test_after_a_cursor_comes_everything_behind_it(tape, after):
    written, index = tape
    with reading(tape_bytes(written), index) as reader:
        assert [as_written(f) for f in reader.frames(after)] == [
            w for w in written if w.seq > after
        ]
        assert reader.damaged == 0


@pytest.mark.promise("X6")
@given(tapes(), st.data())
def test_since_a_time_comes_everything_later(tape, data):
    written, index = tape
    times = [0, *(w.time_ns + step for w in written for step in (-1, 0, 1)), 10**12]
    moment = data.draw(st.sampled_from(times))
    with reading(tape_bytes(written), index) as reader:
        expected = [w for w in written if w.time_ns > moment]
        assert [as_written(f) for f in reader.since(moment)] == expected
        assert reader.damaged == 0


@pytest.mark.promise("X6")
@given(tapes(), st.integers(0, 9))
def test_the_tail_is_the_last_lines(tape, lines):
    written, index = tape
    with reading(tape_bytes(written), index) as reader:
        found = reader.tail(lines)
        assert b"".join(f.body for f in found) == last_lines(written, lines)
        assert all(f.stream != EVENT for f in found)
        by_seq = {w.seq: w for w in written}
        for frame in found:
            one = by_seq[frame.seq]
            assert (frame.stream, frame.time_ns) == (one.stream, one.time_ns)
            assert one.body.endswith(frame.body)
        assert reader.damaged == 0


@given(tapes(), st.integers(1, 50), st.integers(1, 2000))
def test_a_tail_is_no_longer_than_asked_for(tape, lines, most):
    written, index = tape
    with reading(tape_bytes(written), index) as reader:
        found = reader.tail(lines, most)
        assert b"".join(f.body for f in found) == last_lines(written, lines)[-most:]
        by_seq = {w.seq: w for w in written}
        assert all(by_seq[frame.seq].body.endswith(frame.body) for frame in found)


@pytest.mark.parametrize("most", [None, 4])
def test_what_a_tail_cuts_keeps_the_level_it_was_logged_at(most):
    body, level = b"first\nsecond\n", frames.LEVELS.index("warn")
    header, trailer = frames.pack(MAGIC, OUT, 1, 2000, body, level)
    tape = tape_bytes([Written(0, 1000, EVENT, b"{}")]) + header + body + trailer
    with reading(tape) as reader:
        (found,) = reader.tail(1, most)
    assert found.flags == level
    assert b"second\n".endswith(found.body)


@pytest.mark.promise("X6")
@given(tapes())
def test_the_events_are_all_events_in_order(tape):
    written, index = tape
    with reading(tape_bytes(written), index) as reader:
        assert [as_written(f) for f in reader.events()] == [w for w in written if w.stream == EVENT]
        assert reader.damaged == 0


@given(tapes())
def test_the_last_number_is_the_last_frames(tape):
    written, index = tape
    with reading(tape_bytes(written), index) as reader:
        assert reader.last_seq() == (written[-1].seq if written else -1)


@pytest.mark.promise("X6")
@given(tapes(), st.integers(-1, 40))
def test_new_begins_where_it_was_told_and_no_damage_is_seen(tape, after):
    written, index = tape
    with reading(tape_bytes(written), index) as reader:
        reader.skip_to(after)
        assert [as_written(f) for f in reader.new()] == [w for w in written if w.seq > after]
        assert list(reader.new()) == []
        assert reader.damaged == 0


@pytest.mark.promise("D5")
@given(tapes(), st.data())
def test_damage_under_an_index_invents_nothing(tape, data):
    """Whatever the index says of a damaged tape, frames come in order and were written."""
    written, index = tape
    broken = bytearray(tape_bytes(written))
    for at in data.draw(st.lists(st.integers(frames.PREAMBLE_SIZE, len(broken) + 9), max_size=4)):
        if at < len(broken):
            broken[at] ^= 1 << data.draw(st.integers(0, 7))
    with reading(bytes(broken), index) as reader:
        good = [as_written(f) for f in reader.frames()]
        assert all(w in written for w in good)
        assert [w.seq for w in good] == sorted({w.seq for w in good})
        after = data.draw(st.integers(-1, 40))
        assert [as_written(f) for f in reader.frames(after)] == [w for w in good if w.seq > after]
        assert [as_written(f) for f in reader.events()] == [w for w in good if w.stream == EVENT]
        assert b"".join(f.body for f in reader.tail(3)) == last_lines(good, 3)
        assert reader.last_seq() == (good[-1].seq if good else -1)
        damaged = reader.damaged
        assert [as_written(f) for f in reader.frames()] == good
        assert reader.damaged == damaged  # the same damage is counted once


@pytest.mark.promise("X6")
def test_replayed_frames_in_a_damaged_place_that_the_index_names_are_not_taken():
    head = [Written(n, n, OUT, b"line %d\n" % n) for n in range(5)]
    printed = Written(5, 9, OUT, b"".join(map(raw, head)))
    after = Written(6, 9, OUT, b"end\n")
    written = [*head, printed, after]
    tape = bytearray(tape_bytes(written))
    at = len(tape_bytes(head)) + frames.HEADER.size + len(printed.body)
    tape[at] ^= 1  # its checksum
    with reading(bytes(tape), index_bytes(written, every=1)) as reader:
        assert b"".join(f.body for f in reader.tail(100)) == b"".join(
            w.body for w in [*head, after]
        )
        assert b"".join(f.body for f in reader.tail(1)) == b"end\n"
        assert [f.seq for f in reader.frames(after=4)] == [6]
        assert reader.last_seq() == 6
        reader.skip_to(4)
        assert [f.seq for f in reader.new()] == [6]


# Following


@pytest.mark.promise("X5", "X6")
@given(histories(max_size=8), st.data())
def test_a_follower_misses_nothing_and_repeats_nothing_wherever_writes_are_split(written, data):
    tape = tape_bytes(written)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tape)), max_size=9)))
    with folder_with(b"") as folder, TapeReader(folder) as reader:
        found: list[Written] = []
        for start, end in zip([0, *cuts], [*cuts, len(tape)], strict=True):
            with open(os.path.join(folder, "tape"), "ab") as file:
                file.write(tape[start:end])
            new = [as_written(frame) for frame in reader.new()]
            found += new
            complete = tape_bytes(found)
            assert tape.startswith(complete) or not found
        assert found == written
        assert reader.damaged == 0


class Appending:
    """Stands in for os.pread; at the n-th call the writer is faster."""

    def __init__(self, folder: str, rest: bytes, turn: int) -> None:
        self.path, self.rest, self.turn, self.real = f"{folder}/tape", rest, turn, os.pread

    def __call__(self, fd: int, size: int, offset: int) -> bytes:
        self.turn -= 1
        if self.turn == 0:
            with open(self.path, "ab") as file:
                file.write(self.rest)
        return self.real(fd, size, offset)


@pytest.mark.promise("X6")
@pytest.mark.parametrize("damage", [False, True])
def test_a_frame_that_is_finished_while_it_is_read_is_not_skipped(monkeypatch, damage):
    """The writer appends between two reads of the same look."""
    written = [Written(n, n, OUT, b"%d" % n * 9) for n in range(6)]
    tape = bytearray(tape_bytes(written))
    start = len(tape_bytes(written[:2]))
    if damage:
        tape[start - 3] ^= 1
    for cut in range(start, len(tape)):
        for turn in range(1, 8):
            with folder_with(bytes(tape[:cut])) as folder, TapeReader(folder) as reader:
                append = Appending(folder, bytes(tape[cut:]), turn)
                monkeypatch.setattr(os, "pread", append)
                found = [as_written(f) for f in reader.new()]
                monkeypatch.undo()
                if append.turn > 0:
                    continue  # there were not so many reads
                found += [as_written(f) for f in reader.new()]
                assert found == [w for w in written if not damage or w.seq != 1]


@pytest.mark.promise("X6")
@given(histories(min_size=2), st.integers(0, 6))
def test_a_follower_that_stops_in_the_middle_goes_on_there(written, taken):
    with reading(tape_bytes(written)) as reader:
        first = [as_written(f) for f, _ in zip(reader.new(), range(taken), strict=False)]
        # zip takes one more from the first iterator when the range ends first
        rest = [as_written(f) for f in reader.new()]
        skipped = written[taken : taken + 1] if len(first) == taken < len(written) else []
        assert first + skipped + rest == written


@pytest.mark.promise("X6")
def test_a_cursor_beyond_the_end_waits_for_its_frames():
    written = [Written(n, n, OUT, b"%d" % n) for n in range(10)]
    with folder_with(tape_bytes(written[:3])) as folder, TapeReader(folder) as reader:
        reader.skip_to(6)
        assert list(reader.new()) == []
        with open(os.path.join(folder, "tape"), "ab") as file:
            file.write(b"".join(map(raw, written[3:])))
        assert [as_written(f) for f in reader.new()] == written[7:]
        assert reader.damaged == 0


def test_a_follower_survives_the_removal_of_the_tape():
    with (
        folder_with(tape_bytes([Written(0, 1, EVENT, b"{}")])) as folder,
        TapeReader(folder) as reader,
    ):
        assert len(list(reader.new())) == 1
        os.unlink(os.path.join(folder, "tape"))
        assert list(reader.new()) == []


def test_a_reader_that_comes_before_the_first_byte_finds_it_later():
    written = [Written(0, 1, EVENT, b"{}")]
    with folder_with(b"") as folder, TapeReader(folder) as reader:
        assert list(reader.new()) == list(reader.frames()) == []
        assert reader.damaged == 0
        Path(folder, "tape").write_bytes(tape_bytes(written))
        assert [as_written(f) for f in reader.new()] == written
        assert reader.damaged == 0


# Clearing


def clear(folder: str, next_seq: int, now_ns: int) -> None:
    dir_fd = os.open(folder, os.O_RDONLY)
    old = os.open("tape", os.O_RDWR, dir_fd=dir_fd)
    fcntl.flock(old, fcntl.LOCK_EX)
    try:
        new = rewrite.without_output(dir_fd, old, MAGIC, next_seq, now_ns)
        os.close(new)
    finally:
        os.close(dir_fd)


@pytest.mark.promise("X6")
@given(tapes(), st.data())
def test_clearing_keeps_events_and_numbers_and_says_what_it_dropped(tape, data):
    written, index = tape
    next_seq = written[-1].seq + 1 if written else 0
    now = written[-1].time_ns if written else 5
    seen = data.draw(st.integers(0, len(written)))
    with folder_with(tape_bytes(written[:seen])) as folder, TapeReader(folder) as reader:
        assert [as_written(f) for f in reader.new()] == written[:seen]
        with open(os.path.join(folder, "tape"), "ab") as file:
            file.write(b"".join(map(raw, written[seen:])))
        if index is not None:
            Path(folder, "tape.idx").write_bytes(index)
        clear(folder, next_seq, now)
        assert sorted(os.listdir(folder)) == ["tape"]
        output = [w for w in written if w.stream != EVENT]
        size = sum(len(w.body) for w in output)
        with TapeReader(folder) as other:
            *kept, last = [as_written(f) for f in other.frames()]
        assert kept == [w for w in written if w.stream == EVENT]
        assert (last.seq, last.stream, last.time_ns) == (next_seq, EVENT, now)
        cleared = decode_event(last.body)
        assert cleared == Cleared(upto=output[-1].seq if output else 0, size=size)

        # whoever had the old file open goes on in the new one
        with open(os.path.join(folder, "tape"), "ab") as file:
            file.write(raw(Written(next_seq + 1, now, OUT, b"later")))
        rest = [as_written(f) for f in reader.new()]
        assert rest[:-2] == [w for w in written[seen:] if w.stream == EVENT]
        assert [w.seq for w in rest[-2:]] == [next_seq, next_seq + 1]
        assert reader.damaged == 0


def test_the_lock_is_never_free_while_a_tape_is_cleared():
    with folder_with(tape_bytes([Written(0, 1, EVENT, b"{}")])) as folder:
        dir_fd = os.open(folder, os.O_RDONLY)
        old = os.open("tape", os.O_RDWR, dir_fd=dir_fd)
        fcntl.flock(old, fcntl.LOCK_EX)
        new = rewrite.without_output(dir_fd, old, MAGIC, 1, 2)
        assert is_kept(folder)
        os.close(new)
        assert not is_kept(folder)
        os.close(dir_fd)


# Readers write nothing


@pytest.mark.promise("X6")
@settings(max_examples=30)
@given(tapes(), st.data())
def test_reading_consumes_and_changes_nothing(tape, data):
    written, index = tape
    whole = tape_bytes(written)
    torn = whole[: data.draw(st.integers(0, len(whole)))]
    with folder_with(torn, index) as folder:
        os.chmod(os.path.join(folder, "tape"), 0o400)
        before = {name: Path(folder, name).read_bytes() for name in os.listdir(folder)}
        with TapeReader(folder) as reader:
            reads = [
                lambda: [as_written(f) for f in reader.frames()],
                lambda: [as_written(f) for f in reader.events()],
                lambda: [as_written(f) for f in reader.since(1001)],
                lambda: [as_written(f) for f in reader.tail(2)],
                reader.last_seq,
            ]
            first = [read() for read in reads]
            list(reader.new())
            assert [read() for read in reads] == first
        assert not is_kept(folder)
        assert {name: Path(folder, name).read_bytes() for name in os.listdir(folder)} == before


def test_a_large_tape_is_read_by_its_index_alone(monkeypatch):
    """The end of a large tape is found without reading its beginning."""
    written = [Written(n, n, OUT if n % 50 else EVENT, b"%06d\n" % n * 100) for n in range(5000)]
    with reading(tape_bytes(written), index_bytes(written, frames.INDEX_EVERY)) as reader:
        reads = 0
        real = os.pread

        def counting(fd: int, size: int, offset: int) -> bytes:
            nonlocal reads
            data = real(fd, size, offset)
            reads += len(data)
            return data

        monkeypatch.setattr(os, "pread", counting)
        assert [f.seq for f in reader.frames(after=4990)] == list(range(4991, 5000))
        assert [f.seq for f in reader.since(4995)] == [4996, 4997, 4998, 4999]
        assert b"".join(f.body for f in reader.tail(2)) == b"004999\n" * 2
        assert reader.last_seq() == 4999
        assert reads < 1_000_000
        assert [f.seq for f in reader.events()] == list(range(0, 5000, 50))
        assert reads < 1_500_000
        assert reader.size == 3_500_000 + 48 + 36 * 5000


def test_events_behind_the_index_are_found(tmp_path):
    """What a finder appends after the keeper's death has no entry."""
    pen = Pen.create(str(tmp_path / "e"), CREATED)
    first = Written(0, pen.last_ns, EVENT, b"")
    (tmp_path / "e" / "tape.idx").write_bytes(index_bytes([first], 1))
    pen.append(Lost(reason="r"))
    pen.put_down()
    with TapeReader(str(tmp_path / "e")) as reader:
        assert [f.seq for f in reader.events()] == [0, 1]
        assert reader.damaged == 0
