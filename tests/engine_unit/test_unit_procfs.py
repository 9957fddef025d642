import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenuto.keeper import blocked, cgroup, procfs

TREE = """
import os, signal, sys
for depth in range(2):
    if os.fork():
        break
os.write(1, b"x")
signal.pause()
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str, **options: Any) -> subprocess.Popen[bytes]:
        process: Any = subprocess.Popen(argv, start_new_session=True, **options)
        running.append(process)
        return process

    yield begin
    for process in running:
        try:
            os.killpg(process.pid, 9)
        except ProcessLookupError:
            pass
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def test_a_process_is_known_by_pid_and_start_until_it_is_reaped(start):
    child = start("sleep", "600")
    begin = procfs.start_time(child.pid)
    assert begin > 0
    assert procfs.parent(child.pid) == os.getpid()
    os.kill(child.pid, 9)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, not reaped
    assert procfs.start_time(child.pid) == 0
    child.wait()
    assert procfs.start_time(child.pid) == 0
    assert procfs.parent(child.pid) == 0
    assert procfs.command(child.pid) == "[]"


def test_a_name_with_spaces_and_brackets_confuses_nobody(start, tmp_path):
    program = tmp_path / ") R 1 (x"
    program.symlink_to("/bin/sleep")
    child = start(str(program), "600")
    assert procfs.parent(child.pid) == os.getpid()
    assert procfs.start_time(child.pid) > 0
    assert child.pid in procfs.children(os.getpid())


def test_descendants_are_found_both_ways_alike(start):
    child = start(sys.executable, "-c", TREE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    found = b""
    while len(found) < 3:
        found += child.stdout.read1(3)
    below = procfs.descendants(child.pid)
    assert len(below) == 2
    assert procfs._descendants_by_parent(child.pid, procfs.is_keeper) == below
    assert procfs.descendants(child.pid, lambda pid: pid == below[0]) == []
    assert procfs._descendants_by_parent(child.pid, lambda pid: pid == below[0]) == []
    assert set(below) < set(procfs.descendants(os.getpid()))


def test_the_mark_is_the_whole_value_and_nothing_less(start):
    environ = {procfs.MARK: "abc", "OTHER": f"{procfs.MARK}=xyz"}
    child = start("/bin/sleep", "600", env=environ)
    limit = time.monotonic() + 20
    while not procfs.carries_mark(child.pid, "abc"):  # the kernel shows it a moment after exec
        assert time.monotonic() < limit
    for other in ("ab", "abcd", "", "xyz"):
        assert not procfs.carries_mark(child.pid, other)


def test_a_program_blocked_on_its_stdin_is_seen(start):
    if not blocked.sees_blocked_reads():
        if os.environ.get("TENUTO_TEST_REQUIRE_ALL"):
            pytest.fail("/proc/PID/syscall cannot be read")
        pytest.skip("/proc/PID/syscall cannot be read here")
    child = start("cat", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert child.stdin is not None
    status = os.fstat(child.stdin.fileno())
    for _ in range(2000):
        if blocked.reads_from([child.pid], status.st_ino, status.st_dev):
            break
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
    else:
        pytest.fail("never seen")
    assert not blocked.reads_from([child.pid], status.st_ino + 1, status.st_dev)
    assert not blocked.reads_from([], status.st_ino, status.st_dev)
    busy = start("sleep", "600", stdin=child.stdin)
    assert not blocked.reads_from([busy.pid], status.st_ino, status.st_dev)


def test_pids_that_are_gone_are_no_trouble():
    gone = 2**22 + 5
    assert procfs.start_time(gone) == 0
    assert procfs.children(gone) == procfs.descendants(gone) == []
    assert not procfs.carries_mark(gone, "x")
    assert not blocked.reads_from([gone], 1, 1)
    assert not procfs.is_keeper(gone)


# Control groups, on a made-up tree


@pytest.mark.parametrize(
    ("own", "base"),
    [
        ("/", "tenuto"),
        ("/user.slice/a.scope", "user.slice/a.scope/tenuto"),
        ("/user.slice/tenuto", "user.slice/tenuto"),
        ("/user.slice/tenuto/12-ab", "user.slice/tenuto"),
        ("/tenuto/12-ab", "tenuto"),
        ("/tenuto", "tenuto"),
        ("/system.slice/mytenuto", "system.slice/mytenuto/tenuto"),
        ("/tenuto.service", "tenuto.service/tenuto"),
    ],
)
def test_groups_stand_side_by_side_under_the_starters_group(tmp_path, monkeypatch, own, base):
    monkeypatch.setattr(cgroup, "_mount_point", lambda: str(tmp_path))
    real = open

    def opening(path, *args, **kwargs):
        if path == "/proc/self/cgroup":
            fake = tmp_path / "self"
            fake.write_text(f"12:cpu:/x\n0::{own}\n")
            path = fake
        return real(path, *args, **kwargs)

    monkeypatch.setattr("builtins.open", opening)
    assert cgroup.find_base() == str(tmp_path / base)
    assert Path(tmp_path / base).is_dir()


def test_without_a_cgroup_tree_there_is_no_group(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroup, "_mount_point", lambda: "")
    assert cgroup.find_base() == ""
    monkeypatch.setattr(cgroup, "_mount_point", lambda: "/proc/1/nowhere")
    assert cgroup.find_base() == ""
    assert cgroup.create(str(tmp_path / "missing")) == ""
    assert cgroup.members(str(tmp_path)) == []
    assert not cgroup.join(str(tmp_path / "missing"))
    cgroup.kill(str(tmp_path / "missing"))
    cgroup.remove(str(tmp_path / "missing"))
