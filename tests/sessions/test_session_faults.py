"""Sudden death of everybody who takes part in a session, at labelled points and at random."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

import pytest
from engine_help import DEATH_S, alive, await_death, ended, folded, word
from session_help import Line, Python, processes

from tenuto import Engine, State
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio

RUN = ("run", "--lang", "python", "--session", "s1")
ANEW = "session s1 is new"


def cell(cli: Line, code: str, **env: str) -> Any:
    return cli(*RUN, code, **env)


@pytest.mark.promise("X14", "X11")
@pytest.mark.parametrize(
    ("point", "session_lives"),
    [
        ("keeper-taken", True),
        ("keeper-announced", None),  # it may have had its turn by then
        ("cell-queued", True),
        ("cell-turn", True),
        ("cell-passed", False),
        ("keeper-read", False),
    ],
)
async def test_death_of_a_cells_keeper_or_stem(
    cli: Line, project: Project, point: str, session_lives: bool | None
) -> None:
    assert cell(cli, "x = 1").returncode == 0
    (host,) = cli.json("sessions")
    code = "import os\nos.write(1, b'wrote')\nwhile True: pass"
    died = cell(cli, code, TENUTO_FAULT=point)
    assert died.returncode not in (0, 75), (died.stdout, died.stderr)
    told = cli.json("ps", "-a", "--text", "wrote")
    assert told[0]["state"] in ("lost", "failed"), told
    if session_lives is False:
        _, worker = processes(project, host["host"])
        assert await asyncio.to_thread(await_death, worker)
    after = cell(cli, "x")
    if session_lives or (session_lives is None and not after.stderr):
        assert (after.stdout, after.stderr) == ("1\n", "")
    else:
        assert ANEW in after.stderr
        assert "NameError" in after.stderr


@pytest.mark.promise("X14", "X11")
@pytest.mark.parametrize("point", ["session-hands:2", "session-done:2"])
async def test_death_of_a_sessions_keeper(cli: Line, project: Project, point: str) -> None:
    assert cell(cli, "x = 1", TENUTO_FAULT=point).returncode == 0
    (host,) = cli.json("sessions")
    _, worker = processes(project, host["host"])
    died = cli.json(*RUN, "x")
    assert (died["state"], died["reason"]) == ("failed", "session")
    assert "its keeper died" in died["detail"]
    assert await asyncio.to_thread(await_death, worker)
    after = cell(cli, "x")
    assert f"{ANEW}: the one before has ended (lost: its keeper died" in after.stderr
    assert cli.json("show", host["host"])["state"] == "lost"


@pytest.mark.promise("X14", "X11")
@pytest.mark.parametrize("point", ["start-indexed", "start-recorded", "start-handed-over"])
@pytest.mark.parametrize("time", [1, 2])
async def test_death_of_whoever_begins_a_session(cli: Line, point: str, time: int) -> None:
    died = cell(cli, "x = 1", TENUTO_FAULT=f"{point}:{time}")
    assert died.returncode == -signal.SIGKILL
    assert cell(cli, "y = 2").returncode == 0
    assert cell(cli, "y").stdout == "2\n"
    assert len(cli.json("sessions")) == 1


@pytest.mark.promise("X14", "X11")
@pytest.mark.parametrize("victim", ["worker", "keeper"])
async def test_a_session_that_dies_while_idle_is_begun_anew(
    engine: Engine, project: Project, victim: str
) -> None:
    cell = Python(engine)
    host = (await cell.run("x = 1")).host or ""
    keeper, worker = processes(project, host)
    os.kill(worker if victim == "worker" else keeper, signal.SIGKILL)
    assert await asyncio.to_thread(await_death, worker)
    assert await asyncio.to_thread(await_death, keeper)
    anew = await cell.run("2")
    assert anew.value == 2
    assert ANEW in anew.session_note
    assert (await engine.show(host)).done


@pytest.mark.promise("X14")
async def test_a_forged_word_harms_its_own_session_only(engine: Engine) -> None:
    own, other = Python(engine, "own"), Python(engine, "other")
    await own.value("import os, json, time")
    send = "os.write({0}, json.dumps({1}).encode() + b'\\n')\n"
    # where a session's process has its line: nothing hides it from Python code
    line = await own.value(
        "[int(fd) for fd in os.listdir('/proc/self/fd') if 'socket' in "
        "(os.readlink(f'/proc/self/fd/{fd}') if os.path.exists(f'/proc/self/fd/{fd}') else '')][0]"
    )
    for forged in (
        {"type": "cell_done", "n": 99, "code": 0},
        {"type": "cell_done", "n": "1", "code": 0},
        {"type": "cell_done", "code": []},
        {"type": "cell_ready"},
        {"type": "cell_started", "keeper": 1, "worker": 1},
        {"type": "cell_gone"},
        {"type": "cell_queued"},
    ):
        assert (
            await own.value(send.format(line, forged) + "time.sleep(0.1)\n'true word'")
            == "true word"
        ), forged
        assert await other.value("1") == 1
    # a cell that says too early that it is done has ended, and the next comes after what it does
    (number,) = [one.cells + 1 for one in await engine.sessions() if one.name == "own"]
    early = send.format(line, {"type": "cell_done", "n": number, "code": 0})
    ended_early = await own.run(f"{early}x = 0\nfor _ in range(3):\n    time.sleep(0.1); x += 1")
    assert ended_early.state is State.SUCCEEDED
    assert await own.value("x") == 3
    # the same over the cell's own line
    its = "int(max(os.listdir('/proc/self/fd'), key=int)) - 1"
    for forged in ({"type": "cell_gone", "reason": "a lie"}, {"type": "cell_done", "n": 1}):
        await own.run(f"line = {its}\n" + send.format("line", forged))
    assert await other.value("2") == 2


async def anybody(engine: Engine, project: Project, rng: random.Random) -> None:
    """Kill somebody who takes part, if there is anybody."""
    live = [one for one in await engine.list(running=True, most=None) if one.session]
    pids: list[int] = []
    for one in live:
        started = folded(project, one.id).started
        if started is not None:
            pids += [started.keeper_pid, started.pid]
    pids = [pid for pid in pids if alive(pid)]
    if pids:
        victim = rng.choice(pids)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return


@pytest.mark.promise("X14", "X11", "D5")
@pytest.mark.parametrize("seed", range(3))
async def test_random_kills_leave_a_true_record_and_nothing_else(
    engine: Engine, project: Project, seed: int
) -> None:
    rng = random.Random(seed)
    cell = Python(engine)
    ids: list[str] = []
    for _ in range(8):
        code = "import time\ntry:\n    n += 1\nexcept NameError:\n    n = 1\ntime.sleep(0.02)\nn"
        ids += [await cell.start(code) for _ in range(rng.randrange(1, 4))]
        await asyncio.sleep(rng.random() * 0.06)
        await anybody(engine, project, rng)
    for one in ids:
        async with asyncio.timeout(DEATH_S):
            told = await ended(engine, one)
        assert told.done
        if told.state is State.SUCCEEDED:
            assert told.value >= 1
        else:
            assert told.reason, told
    # whatever happened: a session of that name works, and there is one at the most
    assert await cell.value("1 + 1") == 2
    assert len(await engine.sessions()) == 1
    await engine.clear_session("s1")
    assert await engine.sessions() == []


@pytest.mark.promise("X14", "X11")
async def test_cells_outlive_the_engine_that_started_them(cli: Line, engine: Engine) -> None:
    """kill -9 of the command line while its cell runs and another waits: both come to their end."""
    first = cli.popen(*RUN, "print('up', flush=True)\ninput()\nx = 1")
    assert first.stdout is not None
    assert first.stdout.readline() == "up\n"
    second = cli.popen(*RUN, "x += 1\nprint('second', flush=True)\nx")
    async with asyncio.timeout(DEATH_S):
        while not (await engine.sessions())[0].queued:
            await asyncio.sleep(0.01)
    (session,) = await engine.sessions()
    (waiting,) = session.queued
    for process in (first, second):
        process.kill()
        process.communicate()
    await engine.send(session.current or "", "go")
    assert await word(engine, waiting, "second")
    assert (await ended(engine, waiting)).value == 2
