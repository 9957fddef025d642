"""A disk that is full, as a small file system of its own."""

import hashlib
import os
import subprocess
import threading

import pytest
from fault_help import PYTHON, alive, eventually, needs, read, settled

from tenuto.core.errors import DiskFull
from tenuto.core.events import Ended, decode_event
from tenuto.core.states import State, WaitingFor
from tenuto.dispatch.launch import ZygoteLauncher
from tenuto.stores.tape import TapeReader, is_kept

SMALL = 3 * 1024 * 1024
LARGE = 64 * 1024 * 1024
# more than the disk and everything between the program and the disk hold
FLOOD = (
    "import hashlib, os, random, sys\n"
    "source = random.Random(7)\n"
    "whole = hashlib.sha256()\n"
    "for _ in range(int(sys.argv[1]) // 65536):\n"
    "    part = source.randbytes(65536)\n"
    "    whole.update(part)\n"
    "    while part: part = part[os.write(1, part):]\n"
    "os.write(2, whole.hexdigest().encode())\n"
)
FLOOD_SIZE = 16 * 1024 * 1024


def flood(size):
    return [*PYTHON, FLOOD, str(size)]


class Disk:
    """The file system that holds the state folder."""

    def __init__(self, path):
        self.path = path
        self._filler = path / "filler"

    def mount(self, size):
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tenuto-test", self.path]
        return subprocess.run(words, check=False, capture_output=True).returncode == 0

    def grow(self, size=LARGE):
        subprocess.run(["mount", "-o", f"remount,size={size}", self.path], check=True)

    def fill(self, but=0):
        """Take all the room there is, but for some bytes."""
        with open(self._filler, "ab", buffering=0) as file:
            for size in (65536, 4096):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue
        if but:
            os.truncate(self._filler, max(0, os.stat(self._filler).st_size - but))

    def free(self):
        os.unlink(self._filler)

    def unmount(self):
        subprocess.run(["umount", "-l", self.path], check=True)


@pytest.fixture
def disk(world):
    needs(os.geteuid() == 0, "mounting a small file system takes root")
    made = Disk(world.home)
    needs(made.mount(SMALL), "a tmpfs cannot be mounted here")
    world.before_end(made.grow)
    world.after_end(made.unmount)
    return made


def waits_for_disk(engine, execution_id):
    return engine.show(execution_id).waiting_for is WaitingFor.DISK


def exit_records(engine, execution_id):
    with TapeReader(engine.project.folder(execution_id)) as reader:
        events = [(frame.seq, decode_event(frame.body)) for frame in reader.events()]
    return [(seq, event) for seq, event in events if isinstance(event, Ended)]


@pytest.mark.promise("X2", "X6")
def test_a_program_is_held_back_by_a_full_disk_and_ends_with_every_byte(world, disk):
    engine = world.engine()
    execution_id = world.start(engine, flood(FLOOD_SIZE))
    collected = hashlib.sha256()

    def follow():
        with world.fresh() as other:
            for chunk in other.follow(execution_id):
                if chunk.stream == "out":
                    collected.update(chunk.data)

    follower = threading.Thread(target=follow)
    follower.start()
    eventually(lambda: waits_for_disk(engine, execution_id), what="waiting: disk")
    pid = world.started(execution_id).pid
    assert alive(pid), "the program is held back, not ended"
    with world.fresh() as other:  # seen by others too, through the index and the tape
        (listed,) = other.list(running=True)
        assert listed.waiting_for is WaitingFor.DISK
    disk.grow()
    snapshot = engine.wait(execution_id, 30, after=engine_last(engine, execution_id))
    while snapshot.running:
        snapshot = engine.wait(execution_id, 30, after=snapshot.next_seq)
    follower.join(30)
    assert snapshot.state is State.SUCCEEDED
    output = read(engine, execution_id)
    told = b"".join(c.data for c in engine.logs(execution_id) if c.stream == "err").decode()
    assert len(output) == FLOOD_SIZE
    assert hashlib.sha256(output).hexdigest() == told == collected.hexdigest()
    assert len(exit_records(engine, execution_id)) == 1


def engine_last(engine, execution_id):
    with TapeReader(engine.project.folder(execution_id)) as reader:
        return reader.last_seq()


@pytest.mark.promise("X8", "X2")
def test_kill_works_on_a_full_disk_and_is_recorded(world, disk):
    engine = world.engine()
    execution_id = world.start(engine, flood(FLOOD_SIZE))
    eventually(lambda: waits_for_disk(engine, execution_id), what="waiting: disk")
    disk.fill()  # what another program takes is not the room that was set aside
    before = read(engine, execution_id)
    pid = world.started(execution_id).pid
    assert engine.kill(execution_id).state is State.KILLED
    assert not alive(pid)
    assert [event.state for _, event in exit_records(engine, execution_id)] == [State.KILLED]
    with world.fresh() as other:
        assert other.show(execution_id).state is State.KILLED
        assert [one.state for one in other.list()] == [State.KILLED]
        assert other.list(running=True) == []
    assert before.startswith(read(engine, execution_id)[: len(before)])
    disk.free()
    disk.grow()
    eventually(lambda: not is_kept(engine.project.folder(execution_id)), what="the keeper's end")
    assert settled(engine, execution_id, before).state is State.KILLED


@pytest.mark.promise("X6")
def test_what_is_held_back_comes_before_the_end(world, disk):
    """The program fits into the keeper's memory and ends, while its output finds no room."""
    engine = world.engine()
    size = 2 * 1024 * 1024
    go = world.folder / "go"
    os.mkfifo(go)
    execution_id = world.start(engine, ["sh", "-c", f"read _ < {go}; exec {shell(flood(size))}"])
    world.started(execution_id)
    disk.fill(but=512 * 1024)
    seen = []

    def follow():
        with world.fresh() as other:
            seen.extend(chunk for chunk in other.follow(execution_id))

    follower = threading.Thread(target=follow)
    follower.start()
    go.write_text("go\n")
    eventually(lambda: waits_for_disk(engine, execution_id), what="waiting: disk")
    pid = world.started(execution_id).pid
    eventually(lambda: not alive(pid), what="the program's end")
    disk.grow()
    follower.join(30)
    snapshot = engine.wait(execution_id, 30)
    assert snapshot.state is State.SUCCEEDED
    output = b"".join(chunk.data for chunk in seen if chunk.stream == "out")
    told = b"".join(chunk.data for chunk in seen if chunk.stream == "err")
    assert len(output) == size
    assert hashlib.sha256(output).hexdigest() == told.decode()
    ((seq, _),) = exit_records(engine, execution_id)
    assert seq > seen[-1].seq


def shell(argv):
    import shlex

    return shlex.join(argv)


@pytest.mark.promise("X2", "X11")
def test_a_keeper_killed_on_a_full_disk_is_seen_as_lost(world, disk):
    engine = world.engine()
    execution_id = world.start(engine, flood(FLOOD_SIZE))
    eventually(lambda: waits_for_disk(engine, execution_id), what="waiting: disk")
    disk.fill()
    before = read(engine, execution_id)
    os.kill(world.started(execution_id).keeper_pid, 9)
    with world.fresh() as other:
        eventually(lambda: other.show(execution_id).state is State.LOST)
        assert settled(other, execution_id, before).state is State.LOST
    disk.grow()
    with world.fresh() as other:
        assert settled(other, execution_id, before).state is State.LOST


@pytest.mark.promise("X1")
@pytest.mark.parametrize("way", ["fresh", "zygote"])
@pytest.mark.parametrize("room", [0, 4096, 16384, 32768, 65536])
def test_nothing_is_half_made_on_a_full_disk(world, disk, way, room):
    engine = world.engine(ZygoteLauncher(1) if way == "zygote" else None)
    done = world.start(engine, ["true"])
    assert engine.wait(done, 20).state is State.SUCCEEDED
    eventually(lambda: not is_kept(engine.project.folder(done)))
    disk.fill(but=room)
    with pytest.raises(DiskFull) as caught:
        for _ in range(100):  # there may be room for a few
            one = world.start(engine, ["true"])
            assert engine.wait(one, 20).state is State.SUCCEEDED
    assert caught.value.hint
    for _ in range(3):
        with pytest.raises(DiskFull):
            world.start(engine, ["true"])
    listed = engine.list(most=None)
    assert {one.state for one in listed} == {State.SUCCEEDED}
    ids = {one.id for one in listed}
    assert ids == set(engine.project.all_ids())
    disk.free()
    again = world.start(engine, ["true"])
    assert engine.wait(again, 20).state is State.SUCCEEDED
    with world.fresh() as other:
        assert {one.id for one in other.list(most=None)} == ids | {again}
        other.index.rebuild()
        assert {one.id for one in other.list(most=None)} == ids | {again}


@pytest.mark.promise("X1")
def test_a_new_project_on_a_full_disk_says_so(world, disk):
    disk.fill()
    with pytest.raises(DiskFull):
        world.start(world.engine(), ["true"])


@pytest.mark.promise("X9")
def test_listing_works_on_a_full_disk(world, disk):
    """What ended while the index could not be written is shown as it is, by every engine."""
    engine = world.engine()
    go = world.folder / "go"
    os.mkfifo(go)
    execution_id = world.start(engine, ["sh", "-c", f"read _ < {go}; exit 3"])
    lasting = world.start(engine, ["sleep", "1000"])
    world.started(execution_id)
    world.started(lasting)
    disk.fill()
    go.write_text("go\n")
    eventually(lambda: not is_kept(engine.project.folder(execution_id)), what="the end")
    for one in (engine, world.engine()):
        assert one.show(execution_id).state is State.FAILED
        assert one.show(execution_id).exit_code == 3
        states = {listed.id: listed.state for listed in one.list()}
        assert states == {execution_id: State.FAILED, lasting: State.RUNNING}
        assert [listed.id for listed in one.list(running=True)] == [lasting]
        assert [listed.id for listed in one.list(states=(State.FAILED,))] == [execution_id]
        assert one.wait(lasting, 0).handed_over
    assert engine.kill(lasting).state is State.KILLED
