"""Both ways in which a keeper starts a program: without a copy of itself, and by a fork."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from engine_help import PATIENCE, begun, folded

from tenuto import Engine, Limits, State
from tenuto.core.states import WaitingFor
from tenuto.engine import start
from tenuto.keeper import procfs

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=["spawned", "forked"])
async def engine(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Engine]:
    if request.param == "forked":
        monkeypatch.setenv("TENUTO_KEEPER_FORKS", "1")
    async with Engine(str(folder)) as engine:
        yield engine


@pytest.mark.promise("X13")
async def test_a_program_has_its_arguments_folder_and_environment(engine, tmp_path):
    words = ["sh", "-c", 'pwd; echo "$1" "$NAME"; echo err >&2; exit 7', "sh", "ä b"]
    snapshot = await engine.run(command=words, cwd=str(tmp_path), env={"NAME": "Ada"})
    assert (snapshot.state, snapshot.exit_code) == (State.FAILED, 7)
    assert snapshot.output == f"{tmp_path}\nä b Ada\nerr\n"


@pytest.mark.promise("X13")
async def test_code_gives_its_value_over_the_channel(engine):
    snapshot = await engine.run("import os\nos.getpid() == os.getsid(0)", language="python")
    assert snapshot.value is True


@pytest.mark.promise("X7")
async def test_a_terminal_is_its_controlling_one(engine):
    snapshot = await engine.run(command=["sh", "-c", "tty; : </dev/tty && echo mine"], pty=True)
    assert "mine" in snapshot.output
    assert "/dev/pts/" in snapshot.output


@pytest.mark.promise("X12")
async def test_what_cannot_be_executed_says_why(engine, tmp_path):
    text = tmp_path / "text"
    text.write_text("no program")
    text.chmod(text.stat().st_mode | stat.S_IXUSR)
    snapshot = await engine.run(command=[str(text)])
    assert (snapshot.state, snapshot.reason, snapshot.exit_code) == (State.FAILED, "exec", 126)
    assert "Exec format error" in snapshot.detail


@pytest.mark.promise("X12")
async def test_a_folder_that_vanished_meanwhile_is_named(engine, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    job = start._job

    def vanishing(*arguments):
        gone.rmdir()
        return job(*arguments)

    monkeypatch.setattr(start, "_job", vanishing)
    snapshot = await engine.run(command=["true"], cwd=str(gone))
    assert (snapshot.state, snapshot.reason, snapshot.exit_code) == (State.FAILED, "exec", 127)
    assert str(gone) in snapshot.detail


@pytest.mark.promise("X4")
async def test_limits_hold(engine):
    code = "import resource as r\n[r.getrlimit(x)[0] for x in (r.RLIMIT_NOFILE, r.RLIMIT_CORE)]"
    snapshot = await engine.run(code, language="python", limits=Limits(open_files=77))
    assert snapshot.value == [77, 0]


async def test_no_descriptor_of_the_keeper_reaches_the_program(engine, project):
    execution_id = await engine.start(command=["cat"])  # a shell has a pipe of its own for a moment
    assert (await engine.wait(execution_id, PATIENCE)).waiting_for is WaitingFor.INPUT
    started = folded(project, execution_id).started
    assert started is not None
    assert sorted(os.listdir(f"/proc/{started.pid}/fd")) == ["0", "1", "2"]


async def test_signals_have_their_default_actions_and_none_is_blocked(engine):
    snapshot = await engine.run(command=["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
    masks = [int(line.split()[1], 16) for line in snapshot.output.splitlines()]
    assert [mask & 0x7FFFFFFF for mask in masks] == [0, 0]  # the others are the C library's own


@pytest.mark.promise("X8")
async def test_the_program_dies_with_its_keeper(engine, project):
    execution_id = await engine.start(command=["sleep", "1000"])
    await begun(engine, execution_id)
    started = folded(project, execution_id).started
    assert started is not None
    os.kill(started.keeper_pid, signal.SIGKILL)
    snapshot = await engine.wait(execution_id, up_to=20)
    assert snapshot.state is State.LOST
    assert procfs.start_time(started.pid) != started.pid_start
