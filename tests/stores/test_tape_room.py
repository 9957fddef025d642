"""Room that is laid out ahead of a tape's end: nobody reads it, and nothing is lost by it."""

import os
import shutil
import threading
from pathlib import Path

import pytest
from tapes import Running, as_written
from test_tape_writer import bodies, crowd_out, events, fill, free, small_disk

from tenuto.core.events import Repaired, decode_event
from tenuto.keeper import frames
from tenuto.keeper.frames import EVENT, OUT
from tenuto.stores.pen import Pen
from tenuto.stores.tape import TapeReader

__all__ = ["small_disk"]


@pytest.fixture
def running(tmp_path) -> Running:
    return Running(tmp_path / "e")


def sync(running: Running) -> str:
    done = threading.Event()
    errors: list[str] = []

    def saved(error: str) -> None:
        errors.append(error)
        done.set()

    running.writer.sync(saved)
    assert done.wait(20)
    running.settle()  # what is laid out comes after the answer
    return errors[0]


def laid(folder: Path) -> int:
    """Return how many zeros stand behind the last frame, and that there is nothing else."""
    data = (folder / "tape").read_bytes()
    with TapeReader(str(folder)) as reader:
        end = max(frame.end for frame in reader.frames())
    assert not data[end:].strip(b"\0")
    return len(data) - end


@pytest.mark.promise("D2", "X5")
def test_zeros_ahead_of_the_end_are_no_frames_and_go_with_the_writer(running):
    assert sync(running) == ""
    assert laid(running.folder) >= 16 * 1024
    for number in range(300):
        running.writer.event("input_sent", size=number)
        running.writer.output(OUT, b"%d\n" % number + b"x" * 3000 + b"\n")
        if number % 7 == 0:
            assert sync(running) == ""
    assert sync(running) == ""
    assert laid(running.folder) > 0
    found = running.read()
    assert [one.seq for one in found] == list(range(601))
    with TapeReader(str(running.folder)) as reader:
        assert reader.last_seq() == 600
        assert b"".join(one.body for one in reader.tail(2)) == b"299\n" + b"x" * 3000 + b"\n"
        since = [as_written(one) for one in reader.since(found[400].time_ns)]
        assert since == [one for one in found if one.time_ns > found[400].time_ns]
        assert len(list(reader.events())) == 301
        assert reader.damaged == 0
    assert running.finish() == found
    assert laid(running.folder) == 0


@pytest.mark.promise("D2")
def test_a_follower_reads_on_where_the_zeros_were(running):
    with TapeReader(str(running.folder)) as follower:
        seen: list[int] = []
        for number in range(50):
            running.writer.event("input_sent", size=number)
            assert sync(running) == ""
            new = [frame.seq for frame in follower.new()]
            assert new[-1] == number + 1
            seen += new
        assert seen == list(range(51))
        assert follower.damaged == 0
    running.finish()


@pytest.mark.promise("D5")
@pytest.mark.parametrize("torn", [b"", b"half a frame", b"\0\0half"])
def test_the_next_writer_takes_zeros_for_no_damage_and_half_a_frame_for_what_it_is(
    running, tmp_path, torn
):
    running.writer.event("input_sent", size=1)
    assert sync(running) == ""
    left = tmp_path / "left"
    shutil.copytree(running.folder, left)  # as it is when its keeper is killed
    zeros = laid(left)
    with open(left / "tape", "r+b") as file:
        file.seek(-zeros, os.SEEK_END)
        file.write(torn)
    pen = Pen.take_up(str(left))
    assert pen is not None
    pen.put_down()
    with TapeReader(str(left)) as reader:
        found = list(reader.frames())
        assert reader.damaged == 0
    told = [decode_event(frame.body) for frame in found[2:]]
    assert told == ([Repaired(size=len(torn))] if torn else [])
    assert (left / "tape").stat().st_size == found[-1].end
    assert len(running.finish()) == 2


@pytest.mark.promise("D5", "X6")
def test_what_a_failed_write_left_among_the_zeros_is_taken_back(running, monkeypatch):
    assert sync(running) == ""
    zeros = laid(running.folder)
    real = os.pwritev

    def failing(fd: int, buffers: list[bytes], offset: int) -> int:
        monkeypatch.setattr(os, "pwritev", real)
        os.pwrite(fd, b"".join(buffers)[:-1], offset)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwritev", failing)
    running.writer.event("input_sent", size=7)  # goes out again at once, behind what tells of it
    running.settle()
    found = running.read()
    assert [type(one).__name__ for one in events(found)] == ["Created", "Waited", "InputSent"]
    assert laid(running.folder) == zeros - sum(frames.OVERHEAD + len(one.body) for one in found[1:])
    running.until(lambda: not running.writer.disk_full)
    assert [type(one).__name__ for one in events(running.finish())][-1] == "Continued"


@pytest.mark.promise("X2", "X6")
def test_a_disk_without_room_to_lay_out_still_takes_what_is_to_be_safe_and_the_last_words(
    small_disk,
):
    running = Running(small_disk / "e")
    running.writer.output(OUT, b"x" * 10_000)
    running.settle()
    fill(small_disk)
    for number in range(20):
        running.writer.event("input_sent", size=number)
        assert sync(running) == ""
    assert laid(running.folder) == 0, "there was no room for it"
    crowd_out(running, small_disk, 100)
    assert len(events(running.read())) == 122
    free(small_disk)
    assert len(bodies(running.finish())) == 210_000


@pytest.mark.promise("X2", "X6")
def test_the_last_words_find_room_behind_what_was_laid_out(small_disk):
    running = Running(small_disk / "e")
    assert sync(running) == ""
    assert laid(running.folder) > 0
    fill(small_disk)
    running.writer.sync(lambda _: None)  # waits for room with all that is held
    crowd_out(running, small_disk, 300)
    assert sum(one.stream == EVENT for one in running.read()) == 302
    free(small_disk)
    assert len(bodies(running.finish())) == 200_000


@pytest.mark.promise("X2", "X6")
def test_whoever_writes_events_alone_waits_for_the_disk_only_as_long_as_it_is_full(small_disk):
    running = Running(small_disk / "e")
    running.writer.output(OUT, b"x" * 10_000)
    running.settle()
    fill(small_disk)
    number = 0
    while not running.writer.disk_full:  # up to the end of what was set aside
        running.writer.event("input_sent", size=number)
        running.settle()
        number += 1
    fill(small_disk)
    running.writer.event("input_sent", size=number)
    running.settle()
    told = [type(one).__name__ for one in events(running.read())]
    assert told == ["Created", *["InputSent"] * (number - 1), "Waited", *["InputSent"] * 2]
    assert running.writer.disk_full
    free(small_disk)
    running.until(lambda: not running.writer.disk_full)
    assert type(events(running.read())[-1]).__name__ == "Continued"
    running.finish()
