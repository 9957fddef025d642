import fcntl
import multiprocessing
import os
import resource
import signal
import stat
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tapes import CREATED, MAGIC, Written, as_written, folder_with, histories, tape_bytes

from tenuto.core.errors import NotFinished
from tenuto.core.events import Cleared, Lost, Repaired, decode_event
from tenuto.keeper import frames
from tenuto.keeper.frames import EVENT, OUT
from tenuto.stores.pen import Pen
from tenuto.stores.tape import TapeReader, is_kept

SPAWN = multiprocessing.get_context("spawn")


def events_in(folder: Path | str) -> list[object]:
    with TapeReader(str(folder)) as reader:
        return [decode_event(frame.body) for frame in reader.events()]


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "20260101" / "e"


@pytest.mark.promise("X1")
def test_frame_0_is_there_and_locked_before_anything_runs(folder):
    pen = Pen.create(str(folder), CREATED)
    assert is_kept(str(folder))
    assert events_in(folder) == [CREATED]
    assert pen.next_seq == 1
    pen.put_down()
    assert not is_kept(str(folder))


@pytest.mark.promise("X16")
def test_a_tape_is_for_its_user_alone(folder):
    before = os.umask(0)
    try:
        Pen.create(str(folder), CREATED).put_down()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(os.stat(one).st_mode) for one in (folder.parent, folder, folder / "tape")]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.promise("X1")
def test_an_id_is_never_taken_twice(folder):
    Pen.create(str(folder), CREATED).put_down()
    with pytest.raises(FileExistsError):
        Pen.create(str(folder), CREATED)
    assert events_in(folder) == [CREATED]


def test_every_tape_has_a_magic_of_its_own(tmp_path):
    pens = [Pen.create(str(tmp_path / str(n)), CREATED) for n in range(20)]
    assert len({pen.magic for pen in pens}) == 20
    for pen in pens:
        pen.put_down()


def limited_create(folder: str, answers) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, 60))
    try:
        Pen.create(folder, CREATED)
    except OSError as error:
        answers.put(type(error).__name__)


def test_an_execution_that_cannot_be_recorded_leaves_nothing(folder):
    answers = SPAWN.Queue()
    process = SPAWN.Process(target=limited_create, args=(str(folder), answers))
    process.start()
    assert answers.get(timeout=60) == "OSError"
    process.join(60)
    assert not folder.exists()


def test_an_append_that_fails_leaves_no_torn_frame(folder, monkeypatch):
    pen = Pen.create(str(folder), CREATED)
    before = (folder / "tape").read_bytes()
    real, sizes = os.write, iter([7])

    def failing(fd: int, data: bytes) -> int:
        size = next(sizes, None)
        if size is None:
            raise OSError(28, "x")
        return real(fd, data[:size])

    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(OSError, match="x"):
        pen.append(Lost(reason="r"))
    monkeypatch.undo()
    assert (folder / "tape").read_bytes() == before
    pen.append(Lost(reason="again"))
    pen.put_down()
    assert events_in(folder) == [CREATED, Lost(reason="again")]


# Taking up


@pytest.mark.promise("D5")
@settings(max_examples=60)
@given(histories(min_size=1), st.data())
def test_only_the_next_writer_cuts_a_torn_tail_and_says_so(written, data):
    tape = tape_bytes(written)
    torn = tape[: data.draw(st.integers(frames.PREAMBLE_SIZE, len(tape)))]
    junk = data.draw(st.sampled_from([b"", b"\0" * 50, b"\0" * (3 << 20), MAGIC, MAGIC + b"\0"]))
    with folder_with(torn + junk) as folder:
        with TapeReader(folder) as reader:
            good = [as_written(f) for f in reader.frames()]
        assert Path(folder, "tape").read_bytes() == torn + junk  # readers never write
        pen = Pen.take_up(folder)
        assert pen is not None
        pen.append(Lost(reason="r"))
        pen.put_down()
        with TapeReader(folder) as reader:
            found = [as_written(f) for f in reader.frames()]
            assert reader.damaged == 0
        assert found[: len(good)] == good
        told = [decode_event(one.body) for one in found[len(good) :]]
        left = (torn + junk)[len(tape_bytes(good)) :]
        lost_bytes = len(left.rstrip(b"\0"))  # zeros were laid ahead: nothing was written there
        assert told == ([Repaired(size=lost_bytes)] if lost_bytes else []) + [Lost(reason="r")]
        first = good[-1].seq + 1 if good else 0
        assert [one.seq for one in found[len(good) :]] == list(range(first, first + len(told)))
        times = [one.time_ns for one in found]
        assert times == sorted(times)


def test_a_whole_tape_is_taken_up_without_a_change(folder):
    Pen.create(str(folder), CREATED).put_down()
    before = (folder / "tape").read_bytes()
    pen = Pen.take_up(str(folder))
    assert pen is not None
    assert pen.next_seq == 1
    pen.put_down()
    assert (folder / "tape").read_bytes() == before


@pytest.mark.promise("D5")
def test_damage_in_the_middle_is_not_cut():
    written = [Written(n, n, OUT, b"line\n") for n in range(9)]
    tape = bytearray(tape_bytes(written))
    tape[len(tape) // 2] ^= 1
    with folder_with(bytes(tape)) as folder:
        pen = Pen.take_up(folder)
        assert pen is not None
        assert pen.next_seq == 9
        pen.put_down()
        assert Path(folder, "tape").read_bytes() == tape


@pytest.mark.parametrize("content", [b"", b"garbage", b"\0" * 500, os.urandom(300)])
def test_what_is_no_tape_cannot_be_taken_up_and_is_left_alone(content):
    with folder_with(content) as folder:
        assert Pen.take_up(folder) is None
        assert Path(folder, "tape").read_bytes() == content
        assert not is_kept(folder)


def test_a_missing_tape_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        Pen.take_up(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        Pen.take_up(str(tmp_path / "nowhere"))
    assert not is_kept(str(tmp_path / "nowhere"))


@pytest.mark.promise("X6")
def test_clearing_an_ended_execution_keeps_numbers_times_and_the_lock(folder, monkeypatch):
    pen = Pen.create(str(folder), CREATED)
    header, trailer = frames.pack(pen.magic, OUT, 1, pen.last_ns + 5, b"out")
    os.write(pen.fd, header + b"out" + trailer)
    pen.put_down()
    pen = Pen.take_up(str(folder))
    assert pen is not None
    pen.clear()
    assert is_kept(str(folder))
    monkeypatch.setattr(time, "time_ns", lambda: 1)  # the clock jumps back
    pen.append(Lost(reason="r"))
    pen.put_down()
    with TapeReader(str(folder)) as reader:
        found = [as_written(f) for f in reader.frames()]
    assert [(one.seq, one.stream) for one in found] == [(0, EVENT), (2, EVENT), (3, EVENT)]
    assert decode_event(found[1].body) == Cleared(upto=1, size=3)
    assert [one.time_ns for one in found] == sorted(one.time_ns for one in found)


# One writer


def try_to_write(folder: str, answers) -> None:
    try:
        pen = Pen.take_up(folder)
    except NotFinished:
        answers.put("held")
    else:
        answers.put("taken")
        assert pen is not None
        pen.put_down()


@pytest.mark.promise("X2")
def test_two_processes_are_never_both_the_writer(folder):
    answers = SPAWN.Queue()
    pen = Pen.create(str(folder), CREATED)

    def ask() -> str:
        process = SPAWN.Process(target=try_to_write, args=(str(folder), answers))
        process.start()
        process.join(60)
        return answers.get(timeout=60)

    assert ask() == "held"
    pen.put_down()
    assert ask() == "taken"


def test_two_pens_of_one_process_are_not_both_the_writer_either(folder):
    pen = Pen.create(str(folder), CREATED)
    with pytest.raises(NotFinished):
        Pen.take_up(str(folder))
    pen.put_down()
    again = Pen.take_up(str(folder))
    assert again is not None
    again.put_down()


def test_a_lock_that_was_passed_on_outlives_its_maker(folder):
    pen = Pen.create(str(folder), CREATED)
    keeper = os.dup(pen.fd)
    pen.put_down()
    assert is_kept(str(folder))
    os.close(keeper)
    assert not is_kept(str(folder))


def test_looking_whether_a_tape_is_kept_is_in_nobodys_way(folder):
    """`ps` looks at every lock; somebody who resumes at that moment must not be refused."""
    Pen.create(str(folder), CREATED).put_down()
    looker = os.open(folder / "tape", os.O_RDONLY)
    fcntl.flock(looker, fcntl.LOCK_SH)
    freed = threading.Timer(0.05, lambda: os.close(looker))
    freed.start()
    pen = Pen.take_up(str(folder))
    assert pen is not None
    pen.put_down()
    freed.join()


def test_many_who_take_up_at_once_take_turns(folder):
    Pen.create(str(folder), CREATED).put_down()
    inside, most, done = 0, 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most, done
        while True:
            try:
                pen = Pen.take_up(str(folder))
            except NotFinished:
                continue
            assert pen is not None
            with guard:
                inside += 1
                most = max(most, inside)
            pen.append(Lost(reason="r"))
            with guard:
                inside -= 1
                done += 1
            pen.put_down()
            return

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, done) == (1, 6)
    assert len(events_in(folder)) == 7


def test_a_tape_that_was_replaced_meanwhile_is_noticed(folder, monkeypatch):
    """Between opening and locking, somebody cleared the history: the old file is no tape any more."""
    Pen.create(str(folder), CREATED).put_down()
    real = fcntl.flock
    replaced = False

    def replacing(fd: int, how: int) -> None:
        nonlocal replaced
        if not replaced:
            replaced = True
            other = Pen.take_up(str(folder))
            assert other is not None
            other.clear()
            other.put_down()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", replacing)
    pen = Pen.take_up(str(folder))
    assert pen is not None
    pen.append(Lost(reason="r"))
    assert os.fstat(pen.fd).st_ino == os.stat(folder / "tape").st_ino
    pen.put_down()
    assert [type(one).__name__ for one in events_in(folder)] == ["Created", "Cleared", "Lost"]


def test_a_tape_that_is_removed_meanwhile_is_missing(folder, monkeypatch):
    Pen.create(str(folder), CREATED).put_down()
    real = fcntl.flock

    def removing(fd: int, how: int) -> None:
        (folder / "tape").unlink()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", removing)
    with pytest.raises(FileNotFoundError):
        Pen.take_up(str(folder))
