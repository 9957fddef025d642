"""What an attack on spawning, on keepers that serve again, and on bulk output found."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_help import (
    PATIENCE,
    keeper_of,
    project_of,
    require,
    require_program,
    require_root,
    word,
)

from tenuto import Engine
from tenuto.core.states import State, WaitingFor
from tenuto.keeper import cgroup, procfs

pytestmark = pytest.mark.asyncio


@pytest.mark.promise("X1")
async def test_signals_that_the_caller_blocks_do_not_reach_keeper_or_program(folder: Path) -> None:
    """A supervisor blocks SIGCHLD and waits for it by sigwait: its keepers must not inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGALRM})
    try:
        async with Engine(str(folder)) as engine:
            words = ["grep", "^SigBlk", "/proc/self/status"]
            snapshot = await asyncio.wait_for(engine.run(command=words), 20)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert snapshot.state is State.SUCCEEDED
    assert int(snapshot.output.split()[1], 16) & 0x7FFFFFFF == 0


async def _waiting_keepers(engine: Engine, folder: Path) -> list[int]:
    """Return the keepers of an engine's zygote, once every one of them waits for a job."""
    snapshot = await engine.run(command=["true"])
    zygote = procfs.parent(keeper_of(project_of(folder), snapshot.id))
    async with asyncio.timeout(PATIENCE):
        while True:
            found = procfs.children(zygote)
            if found and all(procfs.name(pid) == procfs.IDLE_NAME for pid in found):
                return found
            await asyncio.sleep(0.01)  # nothing tells of it


def _leave_room_for(pid: int, more: int) -> None:
    """Limit the descriptors of a process to what it has and a few more."""
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    limit = 0
    while more:
        more -= limit not in taken
        limit += 1
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))


@pytest.mark.promise("X12")
async def test_no_terminal_left_is_a_failure_with_its_reason(engine: Engine, folder: Path) -> None:
    for pid in await _waiting_keepers(engine, folder):
        _leave_room_for(pid, 4)  # those that come with a job, and none for a terminal
    snapshot = await engine.run(command=["true"], pty=True)
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "exec"), snapshot
    assert "no process could be made" in snapshot.detail
    assert "Too many open files" in snapshot.detail


@pytest.mark.promise("X12")
@pytest.mark.parametrize("language", ["", "python"])
async def test_a_limit_on_processes_is_a_failure_with_its_reason(
    engine: Engine, folder: Path, language: str
) -> None:
    every = Path("/sys/fs/cgroup/pids")
    require(os.access(every / "cgroup.procs", os.W_OK), "a control group that counts processes")
    group = every / f"tenuto-test-{os.getpid()}"
    group.mkdir()
    try:
        keepers = await _waiting_keepers(engine, folder)
        for pid in keepers:
            (group / "cgroup.procs").write_text(str(pid))
        (group / "pids.max").write_text("1")
        if language:
            snapshot = await engine.run("1", language=language)
        else:
            snapshot = await engine.run(command=["true"])
        assert (snapshot.state, snapshot.reason) == (State.FAILED, "exec"), snapshot
        assert "no process could be made" in snapshot.detail
        assert "too many processes" in snapshot.hint
    finally:
        (group / "pids.max").write_text("max")
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (every / "cgroup.procs").write_text(pid)
        group.rmdir()


@pytest.mark.promise("X1")
async def test_a_keeper_told_to_stop_while_it_waits_does_not_stop_the_next_execution(
    engine: Engine, folder: Path
) -> None:
    for pid in await _waiting_keepers(engine, folder):
        os.kill(pid, signal.SIGTERM)
    snapshot = await engine.run(command=["echo", "untouched"])
    assert (snapshot.state, snapshot.output) == (State.SUCCEEDED, "untouched\n")


@pytest.mark.promise("X1")
async def test_a_keeper_that_serves_is_not_ended_by_the_alarm_of_its_idle_time(
    engine: Engine, folder: Path
) -> None:
    execution_id = await engine.start(command=["sh", "-c", "read x; echo $x"])
    assert (await engine.wait(execution_id, PATIENCE)).waiting_for is WaitingFor.INPUT
    os.kill(keeper_of(project_of(folder), execution_id), signal.SIGALRM)
    await engine.send(execution_id, "still here\n")
    snapshot = await engine.wait(execution_id, PATIENCE)
    assert (snapshot.state, snapshot.output) == (State.SUCCEEDED, "still here\n")


@pytest.fixture
def freezer(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """A file system of its own for the state, that can be frozen (-f) and thawed (-u)."""
    require_root()
    for program in ("mkfs.ext4", "fsfreeze", "mount"):
        require_program(program)
    image, place = tmp_path / "image", tmp_path / "state"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(200 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, place], check=False).returncode == 0
    require(mounted, "a loop device")
    try:
        yield lambda option: subprocess.run(["fsfreeze", option, place], check=True) and None
    finally:
        subprocess.run(["fsfreeze", "-u", place], check=False, capture_output=True)
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.promise("X4")
async def test_a_disk_that_stands_still_is_no_silence_of_the_program(
    freezer: Callable[[str], None], folder: Path
) -> None:
    flood = "yes | head -c 50000000; echo; echo end; read x"
    async with Engine(str(folder)) as engine:
        execution_id = await engine.start(command=["sh", "-c", flood], idle=0.5)
        await word(engine, execution_id, "y")
        freezer("-f")
        try:
            snapshot = await engine.wait(execution_id, 2)  # three times what it may be silent for
        finally:
            freezer("-u")
        assert snapshot.running
        snapshot = await engine.wait(execution_id, PATIENCE, until="end")
        assert (snapshot.matched, snapshot.running) == ("end", True), snapshot.detail
        await engine.kill(execution_id)


_HOPPING = """
import os
for _ in range(100_000):  # whoever looks at it finds it dead, and its child elsewhere
    if os.fork():
        os._exit(0)
    os.setsid()
"""
_WITHOUT_GROUPS = """
import asyncio, sys
from tenuto import Engine
from tenuto.keeper import procfs


async def main() -> None:
    async with Engine(".") as engine:
        for _ in range(24):
            snapshot = await engine.run(command=[sys.executable, "-S", "-c", sys.argv[1]])
            assert snapshot.left_behind, "nothing seems to be left"
            await engine.kill(snapshot.id)
            found = [pid for pid in procfs.all_pids() if procfs.carries_mark(pid, snapshot.id)]
            assert not [pid for pid in found if procfs.start_time(pid)], "it goes on"


asyncio.run(main())
"""


@pytest.mark.promise("X6")
async def test_a_process_that_always_moves_on_is_found_and_killed_without_a_control_group(
    folder: Path,
) -> None:
    require_root()
    require_program("unshare")
    mount = cgroup._mount_point()
    apart = f'{{ [ -z "{mount}" ] || umount "{mount}"; }} && exec "$@"'
    words = ["unshare", "-m", "sh", "-c", apart, "sh", sys.executable, "-c", _WITHOUT_GROUPS]
    process = await asyncio.create_subprocess_exec(
        *words, _HOPPING, cwd=folder, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
