import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from unit_help import SPEC, begun, project_in, write_output

from tenuto.core import events as ev
from tenuto.core.errors import NewerTape
from tenuto.core.ids import born_ms, new_id
from tenuto.core.listing import Row
from tenuto.core.specs import Spec
from tenuto.core.states import State
from tenuto.engine import recover
from tenuto.keeper import frames, procfs
from tenuto.keeper.sweep import members, sweep
from tenuto.stores.layout import Project
from tenuto.stores.pen import Pen
from tenuto.stores.tape import TapeReader

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def project(tmp_path) -> Project:
    return project_in(tmp_path)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes and ends those that are left."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str, mark: str = "", **options: Any) -> subprocess.Popen[bytes]:
        environ = {**os.environ, procfs.MARK: mark}
        process: Any = subprocess.Popen(argv or ("sleep", "600"), env=environ, **options)
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def events_of(project: Project, execution_id: str) -> list[object]:
    with TapeReader(project.folder(execution_id)) as reader:
        return [ev.decode_event(frame.body) for frame in reader.events()]


# Settling


def test_an_execution_with_a_live_writer_is_left_alone(project):
    execution_id, pen = begun(project, pid=os.getpid())
    before = Path(project.folder(execution_id), "tape").read_bytes()
    execution = recover.settle(project, execution_id)
    assert execution is not None
    assert execution.state is State.RUNNING
    assert Path(project.folder(execution_id), "tape").read_bytes() == before
    pen.put_down()


@pytest.mark.promise("X2", "D5")
def test_a_dead_keepers_program_is_ended_before_it_is_called_lost(project, start):
    child = start()
    execution_id, pen = begun(project, pid=child.pid)
    pen.put_down()
    execution = recover.settle(project, execution_id)
    assert execution is not None
    assert execution.state is State.LOST
    assert child.wait(20) == -signal.SIGKILL
    last = events_of(project, execution_id)[-1]
    assert isinstance(last, ev.Lost)
    assert last.swept == 1
    assert "keeper died" in last.reason


@pytest.mark.promise("X2")
def test_settling_again_changes_nothing(project):
    execution_id, pen = begun(project)
    pen.put_down()
    first = recover.settle(project, execution_id)
    tape = Path(project.folder(execution_id), "tape").read_bytes()
    second = recover.settle(project, execution_id)
    assert first is not None
    assert second is not None
    assert (second.state, second.transitions) == (first.state, first.transitions)
    assert Path(project.folder(execution_id), "tape").read_bytes() == tape


@pytest.mark.promise("X2")
def test_many_who_settle_at_once_write_one_end(project):
    execution_id, pen = begun(project)
    pen.put_down()
    found: list[State] = []

    def work() -> None:
        execution = recover.settle(project, execution_id)
        assert execution is not None
        found.append(execution.state)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert State.LOST in found
    assert [type(one).__name__ for one in events_of(project, execution_id)] == ["Created", "Lost"]


@pytest.mark.promise("X2")
@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.KILLED, State.INTERRUPTED])
def test_an_ended_one_stays_as_it_ended(project, state):
    execution_id, pen = begun(project)
    pen.append(ev.Ended(state=state))
    pen.put_down()
    execution = recover.settle(project, execution_id)
    assert execution is not None
    assert execution.state is state


@pytest.mark.promise("D5")
def test_a_torn_tail_is_cut_when_it_is_settled(project):
    execution_id, pen = begun(project)
    write_output(pen, b"kept")
    os.write(pen.fd, pen.magic + b"torn")
    pen.put_down()
    recover.settle(project, execution_id)
    names = [type(one).__name__ for one in events_of(project, execution_id)]
    assert names == ["Created", "Repaired", "Lost"]
    with TapeReader(project.folder(execution_id)) as reader:
        assert [frame.body for frame in reader.frames() if frame.stream] == [b"kept"]
        assert reader.damaged == 0


@pytest.mark.promise("D5")
@pytest.mark.parametrize("content", [b"garbage" * 100, b"\0" * 4096])
def test_a_tape_that_cannot_be_read_is_lost_and_left_alone(project, content):
    execution_id, pen = begun(project)
    pen.put_down()
    tape = Path(project.folder(execution_id), "tape")
    tape.write_bytes(content)
    execution = recover.settle(project, execution_id)
    assert execution is not None
    assert execution.state is State.LOST
    assert execution.lost is not None
    assert execution.lost.reason == recover.UNREADABLE
    assert tape.read_bytes() == content


@pytest.mark.promise("D5")
@pytest.mark.parametrize("method", ["append", "take_up"])
def test_where_nothing_can_be_written_it_is_lost_all_the_same(project, monkeypatch, method):
    execution_id, pen = begun(project)
    pen.put_down()

    def refused(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Pen, method, refused)
    execution = recover.settle(project, execution_id)
    assert execution is not None
    assert execution.state is State.LOST
    monkeypatch.undo()
    assert [type(one).__name__ for one in events_of(project, execution_id)] == ["Created"]
    again = Pen.take_up(project.folder(execution_id))  # its lock is free
    assert again is not None
    again.put_down()


@pytest.mark.parametrize(
    "kind", ["no folder", "no tape", "a file for a folder", "a folder for a tape"]
)
def test_an_execution_without_a_tape_is_none(project, kind):
    execution_id = new_id()
    folder = Path(project.folder(execution_id))
    folder.parent.mkdir(parents=True)
    match kind:
        case "no tape":
            folder.mkdir()
        case "a file for a folder":
            folder.write_text("")
        case "a folder for a tape":
            (folder / "tape").mkdir(parents=True)
    assert recover.load(project, execution_id) is None
    assert recover.settle(project, execution_id) is None


# Whom a sweep ends


def test_a_process_of_another_boot_or_another_start_is_spared(project, start):
    child = start()
    for boot, offset in (("another boot", 0), (procfs.boot_id(), 1)):
        execution_id, pen = begun(project)
        begin = procfs.start_time(child.pid) + offset
        pen.append(
            ev.Started(pid=child.pid, pid_start=begin, keeper_pid=0, keeper_start=0, boot=boot)
        )
        pen.put_down()
        execution = recover.settle(project, execution_id)
        assert execution is not None
        assert execution.state is State.LOST
    assert child.poll() is None


DAEMON = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
sys.stdout.write(str(os.getpid())); sys.stdout.flush()
os.close(1)
import signal
signal.pause()
"""


@pytest.mark.promise("X8")
def test_a_daemon_that_left_its_parents_is_found_by_its_mark(start):
    execution_id = new_id()
    other = start(mark=new_id())
    daemon = start(sys.executable, "-c", DAEMON, mark=execution_id, stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    pid = int(daemon.stdout.read())
    assert daemon.wait(20) == 0
    limit = time.monotonic() + 20
    while members(execution_id, "") != [pid]:  # the one between may still be about to exit
        assert time.monotonic() < limit
    begin = procfs.start_time(pid)
    assert sweep(execution_id, "", [], 20) == 1
    assert procfs.start_time(pid) != begin
    assert members(execution_id, "") == []
    assert other.poll() is None


def test_whoever_sweeps_is_never_swept(start):
    """`tenuto ps` inside an execution whose keeper died must not end itself."""
    execution_id = new_id()
    script = (
        "import sys\nfrom tenuto.keeper.sweep import members, sweep\n"
        "assert members(sys.argv[1], '') == []\nassert sweep(sys.argv[1], '', [], 5) == 0"
    )
    child = start(sys.executable, "-c", script, execution_id, mark=execution_id)
    assert child.wait(60) == 0


# Rows


def test_a_row_whose_starter_lives_is_about_to_get_its_tape(project):
    row = Row(new_id(), "code", State.QUEUED, starter=recover.starter_mark(os.getpid()))
    assert recover.settle_row(project, row) == row


@pytest.mark.promise("X2")
def test_a_row_whose_starter_died_first_is_lost(project, start):
    child = start()
    mark = recover.starter_mark(child.pid)
    child.kill()
    child.wait()
    never = f"{child.pid}:0:{procfs.boot_id()}"
    for starter in (mark, never, "", "nonsense", f"{os.getpid()}:1:{procfs.boot_id()}"):
        row = Row(new_id(), "code", State.QUEUED, title="t", created_ns=5, starter=starter)
        settled = recover.settle_row(project, row)
        assert (settled.state, settled.reason) == (State.LOST, recover.NEVER_STARTED)
        assert (settled.title, settled.kind, settled.created_ns) == ("t", "code", 5)
        assert settled.ended_ns


@pytest.mark.promise("D5")
def test_every_folder_gives_a_row_whatever_is_in_it(project):
    spec = Spec(kind="code", argv=("python3",), cwd="/", code="needle = 1", title="t", parent="p")
    good, pen = begun(project, spec=spec)
    pen.append(ev.Ended(state=State.FAILED, reason="exit", exit_code=3))
    pen.put_down()
    live, held = begun(project, pid=os.getpid())
    broken, pen = begun(project)
    pen.put_down()
    Path(project.folder(broken), "tape").write_bytes(b"x" * 300)
    empty = new_id()
    os.makedirs(project.folder(empty))
    rows = {row.id: row for row in recover.rows_from_folders(project)}
    assert list(rows) == [good, live, broken, empty]
    assert (rows[good].state, rows[good].exit_code, rows[good].reason) == (State.FAILED, 3, "exit")
    assert (rows[good].parent, rows[good].title, rows[good].text) == ("p", "t", "needle = 1")
    assert (rows[live].state, rows[live].text) == (State.RUNNING, " ".join(SPEC.argv))
    for one in (broken, empty):
        assert (rows[one].state, rows[one].reason) == (State.LOST, recover.UNREADABLE)
        assert rows[one].created_ns == born_ms(one) * 1_000_000
    held.put_down()


# A tape of a newer Tenuto


def made_newer(project: Project) -> tuple[str, bytes]:
    """An execution whose tape is of a format yet to come; with its bytes."""
    execution_id, pen = begun(project)
    write_output(pen, b"of later\n")
    path = Path(project.folder(execution_id), "tape")
    block = frames.preamble(pen.magic)[: frames.PREAMBLE_SIZE // 2 - 8]
    block += struct.pack("<I", frames.FORMAT + 1)
    block += struct.pack("<I", zlib.crc32(block))
    pen.put_down()
    data = block + block + path.read_bytes()[frames.PREAMBLE_SIZE :] + b"half a frame"
    path.write_bytes(data)
    return execution_id, data


@pytest.mark.promise("D5")
def test_a_tape_of_a_newer_format_is_left_as_it_is_and_told_of(project):
    execution_id, data = made_newer(project)
    settled = recover.settle(project, execution_id)
    assert settled is not None and settled.lost is not None
    assert settled.state is State.LOST and settled.lost.reason == recover.NEWER
    (row,) = recover.rows_from_folders(project)
    assert (row.state, row.reason) == (State.LOST, recover.NEWER)
    assert Pen.take_up(project.folder(execution_id)) is None
    with pytest.raises(NewerTape, match=f"format {frames.FORMAT + 1}"):
        TapeReader(project.folder(execution_id))
    assert Path(project.folder(execution_id), "tape").read_bytes() == data
