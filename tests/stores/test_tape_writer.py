import os
import socket
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tapes import CREATED, Running, Written, as_written

from tenuto.core.events import Cleared, Continued, Raised, ValueReturned, Waited, decode_event
from tenuto.core.states import WaitingFor
from tenuto.keeper import frames, linux
from tenuto.keeper.frames import ERR, EVENT, OUT
from tenuto.keeper.keeper import Keeper
from tenuto.stores.tape import TapeReader


@pytest.fixture
def running(tmp_path) -> Running:
    return Running(tmp_path / "e")


def bodies(found: list[Written], stream: int | None = None) -> bytes:
    wanted = (OUT, ERR) if stream is None else (stream,)
    return b"".join(one.body for one in found if one.stream in wanted)


def events(found: list[Written]) -> list[object]:
    return [decode_event(one.body) for one in found if one.stream == EVENT]


@pytest.mark.promise("X5")
def test_frames_stand_on_the_tape_in_the_order_they_were_given(running):
    for number in range(3000):
        running.writer.output(ERR if number % 3 else OUT, b"%d," % number)
        if number % 100 == 0:
            running.writer.event("input_sent", size=number)
    found = running.finish()
    assert [one.seq for one in found] == list(range(3031))
    assert bodies(found) == b"".join(b"%d," % number for number in range(3000))
    assert all(a.time_ns <= b.time_ns for a, b in pairwise(found))
    assert events(found)[0] == CREATED
    assert running.writer.backlog == 0
    assert running.writer.kept == len(bodies(found))


@pytest.mark.promise("X5")
def test_output_and_events_keep_their_order_between_each_other(running):
    running.writer.output(OUT, b"question? ")
    running.writer.event("waited", on="input")
    running.writer.output(ERR, b"oops")
    running.writer.event("continued")
    found = running.finish()
    assert [one.stream for one in found] == [EVENT, OUT, EVENT, ERR, EVENT]


def test_a_large_write_is_one_frame_and_whole(running):
    data = os.urandom(3_000_000)
    running.writer.output(OUT, data)
    found = running.finish()
    assert found[1].body == data


@pytest.mark.promise("X6")
def test_times_never_decrease_when_the_clock_jumps_back(running, monkeypatch):
    clock = iter([10**19, 10**18, 5, 2 * 10**19 - 10**19, 7, 10**18])
    monkeypatch.setattr(time, "time_ns", lambda: next(clock, 3))
    for number in range(4):
        running.writer.output(OUT, b"%d" % number)
    running.writer.clear()
    running.writer.event("continued")
    found = running.finish()
    times = [one.time_ns for one in found]
    assert times == sorted(times)
    assert times[-1] == 10**19


@pytest.mark.promise("X5")
def test_whoever_watches_is_woken_by_every_append(running):
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(20)
        running.writer.watchers.add(near)
        with TapeReader(str(running.folder)) as reader:
            list(reader.new())
            for number in range(20):
                running.writer.output(OUT, b"%d" % number)
                assert set(far.recv(64)) == {ord("\n")}
                running.settle()
                assert [f.body for f in reader.new()] == [b"%d" % number]
        running.writer.watchers.remove(near)
        running.writer.output(OUT, b"unseen")
        running.settle()
        far.setblocking(False)
        with pytest.raises(BlockingIOError):
            far.recv(64)


def test_a_watcher_that_does_not_read_or_is_gone_holds_nobody_up(running):
    lazy, unread = socket.socketpair()
    gone, other = socket.socketpair()
    other.close()
    with lazy, unread, gone:
        running.writer.watchers.add(lazy)
        running.writer.watchers.add(gone)
        for number in range(5000):
            running.writer.output(OUT, b"%d\n" % number)
            if number % 50 == 0:
                running.settle()
        assert bodies(running.finish()).count(b"\n") == 5000


# Text that is no text, values that are large


@pytest.mark.parametrize(
    ("sent", "read"),
    [("\ud800 half", "? half"), ("\U0001f600", "\U0001f600"), ("\0\x1f\u2028", "\0\x1f\u2028")],
)
def test_any_text_in_an_event_can_be_read_back(running, sent, read):
    running.writer.event("raised", name="E", message=sent)
    running.writer.event("value_returned", json={"text": sent})
    found = events(running.finish())
    assert found[1:] == [Raised(name="E", message=read), ValueReturned(json={"text": read})]


def test_a_value_of_many_letters_still_fits_in_a_frame(running):
    text = "\u00e9" * 9_000_000
    running.writer.event("value_returned", json=text)
    assert events(running.finish())[1] == ValueReturned(json=text)


# The index


def entries(folder: Path) -> list[tuple[int, int, int, int]]:
    data = (folder / "tape.idx").read_bytes()
    assert len(data) % frames.INDEX_ENTRY.size == 0
    found = [frames.read_entry(data, at) for at in range(0, len(data), frames.INDEX_ENTRY.size)]
    assert None not in found
    return [one for one in found if one is not None]


def test_a_small_tape_has_no_index(running):
    running.writer.output(OUT, b"x" * (frames.INDEX_FROM - 2000))
    running.writer.event("continued")
    running.finish()
    assert not (running.folder / "tape.idx").exists()


def test_the_index_of_a_large_tape_names_every_event_and_enough_output(running):
    for number in range(400):
        running.writer.output(OUT, b"%04d" % number * 500)
        if number % 40 == 0:
            running.writer.event("input_sent", size=number)
    found = running.finish()
    with TapeReader(str(running.folder)) as reader:
        places = {f.offset: f for f in reader.frames()}
        assert [as_written(f) for f in reader.events()] == [w for w in found if w.stream == EVENT]
    made = entries(running.folder)
    for seq, time_ns, offset, stream in made:
        frame = places[offset]
        assert (frame.seq, frame.time_ns, frame.stream) == (seq, time_ns, stream)
    assert [e[0] for e in made if e[3] == EVENT] == [w.seq for w in found if w.stream == EVENT]
    offsets = [e[2] for e in made]
    assert offsets == sorted(offsets)
    most = max(b - a for a, b in pairwise(offsets))
    assert most < 2 * frames.INDEX_EVERY
    mode = (running.folder / "tape.idx").stat().st_mode
    assert mode & 0o777 == 0o600


def test_an_index_that_cannot_be_written_is_dropped_and_the_tape_goes_on(running):
    (running.folder / "tape.idx").mkdir()
    running.writer.output(OUT, b"x" * 300_000)
    running.writer.output(OUT, b"y" * 300_000)
    assert len(bodies(running.finish())) == 600_000


# Clearing


@pytest.mark.promise("X6")
def test_clearing_drops_output_keeps_events_and_goes_on(running):
    with TapeReader(str(running.folder)) as follower:
        running.writer.output(OUT, b"a" * 200_000)
        running.writer.event("became_interactive")
        running.writer.output(ERR, b"b")
        running.settle()
        assert [f.seq for f in follower.new()] == [0, 1, 2, 3]
        assert (running.folder / "tape.idx").exists()
        running.writer.clear()
        running.settle()
        assert running.writer.kept == 0
        assert running.is_locked()
        assert not (running.folder / "tape.idx").exists()
        running.writer.output(OUT, b"c")
        found = running.finish()
        assert [(w.seq, w.stream) for w in found] == [(0, EVENT), (2, EVENT), (4, EVENT), (5, OUT)]
        assert events(found)[-1] == Cleared(upto=3, size=200_001)
        assert [f.seq for f in follower.new()] == [4, 5]
        assert follower.damaged == 0
    assert sorted(os.listdir(running.folder)) == ["tape"]


def test_clearing_twice_and_clearing_nothing_are_recorded(running):
    running.writer.clear()
    running.writer.clear()
    found = events(running.finish())
    assert found[1:] == [Cleared(upto=0, size=0)] * 2


def test_a_tape_that_grows_large_again_after_a_clear_has_a_right_index(running):
    running.writer.output(OUT, b"a" * 200_000)
    running.writer.clear()
    for _ in range(10):
        running.writer.output(OUT, b"b" * 30_000)
    found = running.finish()
    with TapeReader(str(running.folder)) as reader:
        places = {f.offset: (f.seq, f.time_ns, f.stream) for f in reader.frames()}
        assert [f.seq for f in reader.frames(after=8)] == [w.seq for w in found if w.seq > 8]
    for seq, time_ns, offset, stream in entries(running.folder):
        assert places[offset] == (seq, time_ns, stream)


def test_a_clear_that_fails_is_told_and_costs_nothing(running):
    (running.folder / "tape.new").mkdir()
    running.writer.output(OUT, b"kept")
    running.writer.clear()
    running.writer.output(OUT, b" too")
    found = running.finish()
    assert bodies(found) == b"kept too"
    assert b"clear_history failed" in found[2].body
    assert running.is_locked()


# A full disk


def need_mount(folder: Path, size: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tenuto-test", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if os.environ.get("TENUTO_TEST_REQUIRE_ALL"):
        pytest.fail(f"a small file system is required: {done.stderr}")
    pytest.skip(f"no small file system can be mounted here (root can): {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    need_mount(folder, "1M")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Take all the room there is, to the last byte."""
    with open(disk / "ballast", "ab", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                if file.write(b"\0" * size) < size:
                    size //= 2
            except OSError:
                size //= 2


def crowd_out(running: Running, disk: Path, events: int) -> None:
    """Hold output back for want of room, then write events, while others take all that is free."""
    running.writer.output(OUT, b"y" * 200_000)
    running.until(lambda: bool(running.writer.disk_full))
    for number in range(events):
        fill(disk)
        running.writer.event("input_sent", size=number)
    running.settle()


def free(disk: Path) -> None:
    (disk / "ballast").unlink()


@pytest.mark.promise("X2", "X6")
def test_on_a_full_disk_output_is_held_events_pass_and_nothing_is_lost(small_disk):
    running = Running(small_disk / "e")
    first = os.urandom(100_000)
    running.writer.output(OUT, first)
    running.settle()
    fill(small_disk)
    second = [os.urandom(50_000) for _ in range(10)]
    for data in second:
        running.writer.output(OUT, data)
    running.until(lambda: bool(running.writer.disk_full))
    fill(small_disk)  # whatever became free is taken by others at once
    running.writer.event("became_interactive")
    running.settle()
    found = running.read()
    held = len(b"".join(second)) - (len(bodies(found)) - len(first))
    assert held > 0
    assert held <= running.writer.backlog <= held + 256 * len(second)  # what a frame itself costs
    assert bodies(found) == (first + b"".join(second))[: len(bodies(found))]
    told = events(found)
    assert Waited(on=WaitingFor.DISK, detail="No space left on device") in told
    assert type(told[-1]).__name__ == "BecameInteractive"
    running.writer.finish()
    running.writer.event("wait_gave_up")
    running.settle()
    assert not running.writer.finished
    free(small_disk)
    running.until(lambda: running.writer.finished)
    assert running.writer.disk_full == ""
    assert running.writer.backlog == 0
    found = running.read()
    assert bodies(found) == first + b"".join(second)
    assert Continued() in events(found)
    assert [one.seq for one in found] == list(range(len(found)))


@pytest.mark.promise("X6")
def test_what_fits_on_a_nearly_full_disk_is_not_held_for_the_sake_of_more_room(tmp_path):
    """Room is set aside by the megabyte where there is plenty; a little is enough to go on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    need_mount(disk, "16M")
    try:
        running = Running(disk / "e")
        running.writer.output(OUT, b"x" * (5 << 20))
        running.settle()
        fill(disk)
        os.truncate(disk / "ballast", (disk / "ballast").stat().st_size - (512 << 10))
        for _ in range(68):  # all that is set aside by now, and half of what is left
            running.writer.output(OUT, b"y" * (64 << 10))
        running.settle()
        assert running.writer.disk_full == "" and running.writer.backlog == 0
        found = running.finish()
        assert len(bodies(found)) == (5 << 20) + 68 * (64 << 10)
        assert not any(isinstance(one, Waited) for one in events(found))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.promise("X2")
@pytest.mark.parametrize("full", ["No space left on device", ""])
def test_a_keeper_that_reads_on_says_so_only_if_nothing_waits_for_room_any_more(full):
    """Most of what was held may be written, and the rest, the end itself even, still find no room."""
    told: list[str] = []
    keeper: Any = SimpleNamespace(
        writer=SimpleNamespace(backlog=0, disk_full=full),
        host=SimpleNamespace(review=lambda: None),
        paused=True, waiting="disk", ended=False, _status=None, _quiet_since=0.0,
        _answer=lambda: None, _over_quota=lambda: False, _watch_outputs=lambda: None,
        continued=lambda: told.append("continued"), _drain=lambda: None,
    )  # fmt: skip
    Keeper._woken(keeper)  # pyright: ignore[reportPrivateUsage]
    assert not keeper.paused, "it does read on"
    assert told == ([] if full else ["continued"])
    assert keeper.waiting == ("disk" if full else "")


@pytest.mark.promise("X6")
def test_held_output_comes_out_while_the_program_keeps_on_printing(small_disk):
    """A program that never falls silent does not keep its own output held."""
    running = Running(small_disk / "e")
    running.writer.output(OUT, b"0")
    running.settle()
    fill(small_disk)
    total = b"0"
    running.writer.output(OUT, b"x" * 50_000)
    total += b"x" * 50_000
    running.until(lambda: bool(running.writer.disk_full))
    free(small_disk)
    running.woken.clear()
    for number in range(1000):
        running.writer.output(OUT, b"%d\n" % number)
        total += b"%d\n" % number
        if running.woken.wait(0.01) and not running.writer.disk_full:
            break
    else:
        pytest.fail("the output was held for ten seconds after there was room")
    assert bodies(running.finish()) == total


@pytest.mark.promise("X6")
@pytest.mark.parametrize("reserving", [True, False], ids=["reserving", "no room can be set aside"])
def test_a_follower_on_a_full_disk_sees_no_gap_and_no_repeat(small_disk, monkeypatch, reserving):
    if not reserving:
        monkeypatch.setattr(linux, "reserve", lambda *_: False)
    (small_disk / "ballast").write_bytes(b"x" * 600_000)
    running = Running(small_disk / "e")
    with TapeReader(str(running.folder)) as follower:
        found: list[Written] = []
        sent = b""
        for number in range(100):
            data = b"%05d" % number * 1000
            sent += data
            running.writer.output(OUT, data)
            found += [as_written(f) for f in follower.new()]
        running.until(lambda: bool(running.writer.disk_full))
        found += [as_written(f) for f in follower.new()]
        assert len(bodies(found)) < len(sent)
        free(small_disk)
        running.writer.finish()
        running.until(lambda: running.writer.finished)
        found += [as_written(f) for f in follower.new()]
        assert [one.seq for one in found] == list(range(len(found)))
        assert bodies(found) == sent
        assert follower.damaged == 0
        told = [type(one).__name__ for one in events(found)]
        assert told == ["Created", "Waited", "Continued"]


@pytest.mark.promise("X6")
def test_clearing_the_history_makes_room_on_a_full_disk(small_disk):
    running = Running(small_disk / "e")
    running.writer.output(OUT, b"x" * 300_000)
    running.settle()
    fill(small_disk)
    running.writer.output(OUT, b"y" * 200_000)
    running.until(lambda: bool(running.writer.disk_full))
    fill(small_disk)
    running.writer.clear()
    found = running.finish()
    assert bodies(found) == b"y" * 200_000
    told = [type(one).__name__ for one in events(found)]
    assert told == ["Created", "Waited", "Cleared", "Continued"]


def test_the_room_for_the_last_words_is_kept_from_others(small_disk):
    running = Running(small_disk / "e")
    running.writer.output(OUT, b"x" * 10_000)
    running.settle()
    fill(small_disk)
    crowd_out(running, small_disk, 100)
    told = events(running.read())
    assert len(told) == 102
    assert len(bodies(running.read())) == 10_000
    free(small_disk)
    assert len(bodies(running.finish())) == 210_000
