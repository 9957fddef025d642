import os
import struct
import zlib

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tapes import (
    MAGIC,
    Written,
    as_written,
    folder_with,
    histories,
    raw,
    reading,
    tape_bytes,
)

from tenuto.keeper import frames
from tenuto.keeper.frames import ERR, EVENT, OUT
from tenuto.stores.tape import TapeReader

SMALL = [
    Written(0, 10, EVENT, b'{"type":"created"}'),
    Written(1, 11, OUT, b"hello\n"),
    Written(2, 11, ERR, b""),
    Written(5, 15, OUT, MAGIC + b"x"),
    Written(6, 16, EVENT, b'{"type":"ended"}'),
]


def read_all(tape: bytes) -> tuple[list[Written], int]:
    with reading(tape) as reader:
        return [as_written(frame) for frame in reader.frames()], reader.damaged


@pytest.mark.promise("X6")
@given(histories())
def test_what_was_written_is_read_back(written):
    assert read_all(tape_bytes(written)) == (written, 0)


def test_a_large_body_is_read_back():
    written = [Written(0, 1, EVENT, b"{}"), Written(1, 2, OUT, os.urandom(5_000_000)), SMALL[-1]]
    assert read_all(tape_bytes(written)) == (written, 0)


def test_many_small_frames_over_several_reads_are_read_back():
    written = [Written(n, n, OUT, bytes([n % 251]) * (n % 97)) for n in range(30_000)]
    assert read_all(tape_bytes(written)) == (written, 0)


def test_the_format_on_disk_does_not_change():
    """Version 1, byte for byte: tapes of a released version stay readable."""
    tape = tape_bytes([Written(7, 9, ERR, b"body")])
    block = b"\x89TENUTO\n" + MAGIC + struct.pack("<I", 1)
    block += struct.pack("<I", zlib.crc32(block))
    header = MAGIC + struct.pack("<BBHIQQ", 1, 2, 0, 4, 7, 9)
    crc = struct.pack("<I", zlib.crc32(header + b"body"))
    assert tape == block + block + header + b"body" + crc


# Truncation


@pytest.mark.promise("D5")
def test_a_tape_cut_at_any_byte_yields_a_prefix():
    tape = tape_bytes(SMALL)
    ends = [frames.PREAMBLE_SIZE]
    for one in SMALL:
        ends.append(ends[-1] + len(raw(one)))
    with folder_with(b"") as folder:
        for cut in range(len(tape) + 1):
            with open(os.path.join(folder, "tape"), "wb") as file:
                file.write(tape[:cut])
            with TapeReader(folder) as reader:
                found = [as_written(frame) for frame in reader.frames()]
            whole = sum(end <= cut for end in ends[1:])
            assert found == (SMALL[:whole] if cut >= frames.PREAMBLE_SIZE else [])
            assert reader.damaged == 0


@pytest.mark.promise("D5")
@given(histories(), st.data())
def test_any_tape_cut_anywhere_yields_a_prefix(written, data):
    tape = tape_bytes(written)
    cut = data.draw(st.integers(0, len(tape)))
    found, damaged = read_all(tape[:cut])
    assert found == written[: len(found)]
    assert damaged == 0


# Damage


def spans(written: list[Written]) -> list[tuple[int, int]]:
    found, start = [], frames.PREAMBLE_SIZE
    for one in written:
        found.append((start, start + len(raw(one))))
        start = found[-1][1]
    return found


def check_damaged(written: list[Written], tape: bytes, flips: list[int]) -> None:
    """Nothing invented, nothing lost but what was hit, and it is told."""
    found, damaged = read_all(tape)
    hit = {n for n, (start, end) in enumerate(spans(written)) for at in flips if start <= at < end}
    good = [one for n, one in enumerate(written) if n not in hit]
    assert found == good
    in_head = any(at < frames.PREAMBLE_SIZE for at in flips)
    before_a_good_one = any(written.index(one) > n for n in hit for one in good[-1:])
    if in_head or before_a_good_one:
        assert damaged > 0
    if not flips:
        assert damaged == 0


@pytest.mark.promise("D5")
def test_a_single_flipped_bit_costs_one_frame_at_most():
    tape = tape_bytes(SMALL)
    with folder_with(b"") as folder:
        for at in range(len(tape)):
            for bit in range(8):
                broken = bytearray(tape)
                broken[at] ^= 1 << bit
                with open(os.path.join(folder, "tape"), "wb") as file:
                    file.write(broken)
                with TapeReader(folder) as reader:
                    found = [as_written(frame) for frame in reader.frames()]
                    damaged = reader.damaged
                lost = [n for n, (start, end) in enumerate(spans(SMALL)) if start <= at < end]
                assert found == [one for n, one in enumerate(SMALL) if n not in lost]
                assert damaged or lost == [len(SMALL) - 1]  # the last one looks unfinished


@pytest.mark.promise("D5")
@given(histories(min_size=1), st.data())
def test_flipped_bits_anywhere_cost_only_the_frames_they_hit(written, data):
    tape = bytearray(tape_bytes(written))
    flips = data.draw(st.lists(st.integers(0, len(tape) - 1), max_size=5, unique=True))
    for at in flips:
        tape[at] ^= 1 << data.draw(st.integers(0, 7))
    head = [at for at in flips if at < frames.PREAMBLE_SIZE]
    first = any(0 <= at - frames.PREAMBLE_SIZE < len(raw(written[0])) for at in flips)
    assume(not (first and {at < 24 for at in head} == {True, False}))  # all three copies are gone
    check_damaged(written, bytes(tape), flips)


@pytest.mark.promise("D5")
@given(histories(min_size=1))
def test_a_tape_without_any_copy_of_its_magic_yields_nothing_and_says_so(written):
    tape = bytearray(tape_bytes(written))
    for at in (3, 27, frames.PREAMBLE_SIZE + 20):
        tape[at] ^= 1
    found, damaged = read_all(bytes(tape))
    assert (found, damaged) == ([], len(tape))


@pytest.mark.promise("D5")
@given(histories(min_size=2), st.binary(min_size=1, max_size=60), st.data())
def test_bytes_lost_or_put_in_cost_only_what_they_touch(written, junk, data):
    """A lost sector, or one that belongs to another file."""
    tape = tape_bytes(written)
    start = data.draw(st.integers(frames.PREAMBLE_SIZE, len(tape)))
    end = data.draw(st.integers(start, len(tape)))
    found, _ = read_all(tape[:start] + junk + tape[end:])
    assert all(one in written for one in found)
    assert [one.seq for one in found] == sorted({one.seq for one in found})
    places = zip(written, spans(written), strict=True)
    assert {one for one, (a, b) in places if b <= start or a >= end} <= set(found)


@given(st.binary(max_size=200))
@example(frames.preamble(MAGIC))
@example(frames.preamble(MAGIC) + MAGIC * 30)
def test_no_file_makes_the_reader_raise(tape):
    with reading(tape) as reader:
        assert list(reader.frames()) == []
        assert list(reader.events()) == []
        assert list(reader.new()) == []
        assert list(reader.since(0)) == []
        assert reader.tail(5) == []
        assert reader.last_seq() == -1


# Forgery

FORGED = Written(9, 99, EVENT, b'{"type":"ended","state":"succeeded"}')


def forgeries(seq: int) -> st.SearchStrategy[bytes]:
    """What a program can print: any frame under another magic, or one it read from its own tape."""
    return st.one_of(
        st.binary(min_size=8, max_size=8)
        .filter(lambda m: m != MAGIC)
        .map(lambda m: raw(FORGED, m)),
        st.integers(0, seq).map(lambda low: raw(FORGED._replace(seq=low))),
        st.just(tape_bytes([FORGED], b"\0" * 8)),
        st.just(MAGIC * 5),
    )


@pytest.mark.promise("X6")
@given(histories(min_size=1, max_size=5), st.binary(max_size=9), st.data())
def test_a_frame_that_a_program_prints_is_output_and_nothing_else(written, around, data):
    last = written[-1]
    forged = data.draw(forgeries(last.seq))
    printed = Written(last.seq + 1, last.time_ns, OUT, around + forged + around)
    after = Written(last.seq + 2, last.time_ns, EVENT, b"{}")
    everything = [*written, printed, after]
    assert read_all(tape_bytes(everything)) == (everything, 0)
    start, end = spans(everything)[-2]
    body = start + frames.HEADER.size
    for at in (start, start + 8, start + 15, body - 1, end - 1):  # damage right before, and behind
        tape = bytearray(tape_bytes(everything))
        tape[at] ^= 0x10
        found, damaged = read_all(bytes(tape))
        assert found == [*written, after]
        assert damaged == end - start


@pytest.mark.promise("X6")
@given(histories(min_size=1, max_size=5), st.data())
def test_a_forged_frame_is_not_taken_while_its_output_is_half_written(written, data):
    last = written[-1]
    forged = data.draw(forgeries(last.seq))
    printed = Written(last.seq + 1, last.time_ns, OUT, forged + b"more to come")
    tape = tape_bytes([*written, printed])
    for cut in range(1, 20):
        found, damaged = read_all(tape[:-cut])
        assert (found, damaged) == (written, 0)


def test_a_program_that_prints_its_whole_tape_changes_nothing():
    copied = Written(7, 20, OUT, tape_bytes(SMALL))
    after = Written(8, 21, OUT, b"end\n")
    everything = [*SMALL, copied, after]
    assert read_all(tape_bytes(everything)) == (everything, 0)
    for at in range(*spans(everything)[5]):
        tape = bytearray(tape_bytes(everything))
        tape[at] ^= 1
        found, damaged = read_all(bytes(tape))
        assert found == [*SMALL, after]
        assert damaged == len(raw(copied))


# The sparse index's entries


@given(*[st.integers(0, 2**64 - 1)] * 3, st.integers(0, 2**32 - 1), st.integers(0, 255))
def test_an_index_entry_is_read_back_or_refused(seq, time_ns, offset, stream, at):
    entry = frames.pack_entry(seq, time_ns, offset, stream)
    assert len(entry) == frames.INDEX_ENTRY.size
    assert frames.read_entry(b"xx" + entry, 2) == (seq, time_ns, offset, stream)
    broken = bytearray(entry)
    broken[at % 32] ^= 1 << at // 32
    assert frames.read_entry(bytes(broken)) is None
    assert frames.read_entry(entry[:-1]) is None


@settings(max_examples=30)
@given(histories(min_size=1))
def test_one_frame_is_read_by_its_offset_alone(written):
    with (
        folder_with(tape_bytes(written)) as folder,
        open(os.path.join(folder, "tape"), "rb") as file,
    ):
        places = {start: one for one, (start, _) in zip(written, spans(written), strict=True)}
        for offset in range(os.fstat(file.fileno()).st_size + 2):
            found = frames.read_one(file.fileno(), MAGIC, offset)
            assert (found and as_written(found)) == places.get(offset)
