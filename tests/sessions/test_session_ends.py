"""How cells and sessions end: killed, interrupted, crashed, cleared, and by the death of keepers."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from engine_help import (
    PATIENCE,
    alive,
    await_death,
    begun,
    ended,
    number_after,
    word,
)
from session_help import Line, Python, all_dead, processes

from tenuto import (
    Engine,
    InvalidInput,
    Limits,
    Sandbox,
    Settings,
    Snapshot,
    State,
    UnknownExecution,
)
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio

BUSY = "print('up', flush=True)\nwhile True: pass"


async def host_of(engine: Engine, cell_id: str) -> Snapshot:
    return await engine.show((await engine.show(cell_id)).host or "")


@pytest.mark.promise("X14", "X8")
async def test_a_cell_killed_while_it_runs_takes_its_session_along(
    engine: Engine, project: Project
) -> None:
    cell = Python(engine)
    await cell.value("import subprocess; x = 1; helper = subprocess.Popen(['sleep', '600'])")
    helper = await cell.value("helper.pid")
    running = await cell.start(BUSY)
    await word(engine, running, "up")
    waiting = await cell.start("'never'")
    host = (await engine.show(running)).host or ""
    pids = (*processes(project, host), processes(project, running)[1], helper)
    killed = await engine.kill(running)
    assert all_dead(*pids[1:])  # at once: the answer comes after it is verified
    assert (killed.state, killed.reason) == (State.KILLED, "killed")
    shown = await engine.show(host)
    assert shown.state is State.KILLED
    assert running in shown.detail
    never = await ended(engine, waiting)
    assert (never.state, never.reason) == (State.FAILED, "session")
    anew = await cell.run("x")
    assert anew.state is State.FAILED
    for text in (anew.session_note, anew.hint):
        assert "session s1 is new: the one before has ended (killed" in text
    assert (await cell.run("1")).session_note == ""


@pytest.mark.promise("X14", "X8")
async def test_a_cell_killed_before_its_turn_leaves_the_session_alone(engine: Engine) -> None:
    cell = Python(engine)
    await cell.value("x = 1")
    first = await cell.start("input(); x += 1")
    second = await cell.start("x = 100")
    third = await cell.start("x += 10")
    killed = await engine.kill(second)
    assert (killed.state, killed.started_ns) == (State.KILLED, None)
    await engine.send(first, "go")
    assert await ended(engine, third)
    assert await cell.value("x") == 12


@pytest.mark.promise("X14")
async def test_an_interrupt_reaches_a_program_that_is_only_just_started(engine: Engine) -> None:
    cell = Python(engine)
    await cell.value("import os, signal, time; x, got = 5, []")
    # Whoever waits for a program, as os.system does, may not listen; and this one was not there yet.
    code = (
        "old = signal.signal(signal.SIGINT, lambda *_: got.append(1))\n"
        "print('up', flush=True)\n"
        "while not got: time.sleep(0.01)\n"
        "how = os.waitpid(os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '600'), 0)[1]\n"
        "signal.signal(signal.SIGINT, old)\n"
    )
    running = await cell.start(code)
    await word(engine, running, "up")
    await engine.interrupt(running)
    assert await cell.value("[x, os.WTERMSIG(how)]") == [5, signal.SIGINT]


@pytest.mark.promise("X14")
async def test_an_interrupt_is_a_keyboard_interrupt_and_the_session_lives(engine: Engine) -> None:
    cell = Python(engine)
    await cell.value("import time, os, subprocess; seen = []")
    background = await cell.value("server = subprocess.Popen(['sleep', '600']); server.pid")
    code = (
        "try:\n    print('up', flush=True)\n    {0}\n"
        "except KeyboardInterrupt:\n    seen.append({1!r})\n    raise\n"
    )
    for what in ("while True: x = 1", "time.sleep(600)", "os.system('sleep 600')", "input()"):
        running = await cell.start(code.format(what, what))
        await word(engine, running, "up")
        stopped = await engine.interrupt(running)
        assert stopped.state is State.INTERRUPTED, what
    waits = await cell.start("import asyncio; print('up', flush=True)\nawait asyncio.sleep(600)")
    await word(engine, waits, "up")
    assert (await engine.interrupt(waits)).state is State.INTERRUPTED
    assert len(await cell.value("seen")) >= 3
    assert alive(background)  # what an earlier cell started is not meant
    first = await cell.start("input()")
    queued = await cell.start("1")
    assert (await engine.interrupt(queued)).state is State.INTERRUPTED
    await engine.send(first, "go")
    assert (await ended(engine, first)).value == "go"


@pytest.mark.promise("X14")
async def test_a_cell_that_ignores_an_interrupt_is_killed_with_its_session(
    folder: Path, project: Project
) -> None:
    async with Engine(str(folder), settings=Settings(interrupt_grace=0.2)) as engine:
        cell = Python(engine)
        code = (
            "import os, signal, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "while True:\n"
            "    try:\n"
            "        print('up', flush=True)\n"
            "        while True: time.sleep(0.01)\n"
            "    except KeyboardInterrupt:\n"
            "        print('no', flush=True)\n"
        )
        running = await cell.start(code)
        await word(engine, running, "up")
        _, worker = processes(project, (await host_of(engine, running)).id)
        stopped = await engine.interrupt(running)
        assert stopped.state is State.INTERRUPTED
        assert await asyncio.to_thread(await_death, worker), (await engine.wait(running)).output
        assert "no" in (await engine.wait(running)).output
        assert "is new" in (await cell.run("1")).session_note


@pytest.mark.promise("X14")
async def test_other_signals_reach_the_code(engine: Engine) -> None:
    cell = Python(engine)
    code = (
        "import os, signal, time\n"
        "got = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: got.append(os.write(1, b'usr1\\n')))\n"
        "print('up', flush=True)\n"
        "while not got: time.sleep(0.01)\n"  # it may come before pause() would wait for it
    )
    running = await cell.start(code)
    await word(engine, running, "up")
    await engine.kill(running, signal="USR1")
    assert (await ended(engine, running)).output == "up\nusr1\n"


@pytest.mark.promise("X14", "X12")
@pytest.mark.parametrize(
    ("crash", "code", "number"),
    [
        ("os._exit(3)", 3, None),
        ("os._exit(0)", 1, None),
        ("os.kill(os.getpid(), signal.SIGSEGV)", None, "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", None, "SIGKILL"),
        ("os.closerange(3, 200)", None, None),
    ],
)
async def test_a_crash_ends_the_cell_with_the_reason(
    engine: Engine, crash: str, code: int | None, number: str | None
) -> None:
    cell = Python(engine)
    await cell.value("import os, signal; x = 1")
    failed = await cell.run(f"print('before', flush=True)\n{crash}")
    assert failed.state is State.FAILED
    assert failed.stdout == b"before\n"
    if "closerange" in crash:
        assert failed.stderr.startswith(b"tenuto: this cell closed the descriptors of its session")
    assert failed.reason == "session"
    assert "session s1 ended while this cell ran" in failed.detail
    assert failed.signal == number
    if code is not None:
        assert failed.exit_code == code
    assert "begins it anew" in failed.hint
    anew = await cell.run("1")
    assert anew.value == 1
    assert "session s1 is new" in anew.session_note


@pytest.mark.promise("X14", "S1")
async def test_a_session_in_a_sandbox_holds_its_cells(engine: Engine, project: Project) -> None:
    cell = Python(engine)
    first = await cell.run("import os, time; x = 1", sandbox=Sandbox("auto", "off"))
    if first.state is State.FAILED:
        pytest.fail(first.output)
    second = await cell.run("x")
    assert second.value == 1
    assert second.confinement is not None
    assert second.confinement == first.confinement
    assert second.confinement.net == "off"
    hidden = await cell.run(f"os.listdir({project.home!r})")
    assert hidden.state is State.FAILED or hidden.value == []
    asks = await cell.run("input()")
    assert asks.needs_input
    await engine.send(asks.id, "here")
    assert (await ended(engine, asks.id)).value == "here"
    for code in ("while True: x = 1", "time.sleep(600)"):
        running = await cell.start(f"print('up', flush=True)\n{code}")
        await word(engine, running, "up")
        assert (await engine.interrupt(running)).state is State.INTERRUPTED
    assert await cell.value("x") == 1
    with pytest.raises(InvalidInput, match="another sandbox"):
        await cell.run("1", sandbox=Sandbox("auto", "on"))


@pytest.mark.promise("X14", "S1")
async def test_memory_is_bounded_for_the_session(engine: Engine) -> None:
    cell = Python(engine)
    await cell.value("x = 1", limits=Limits(memory=400 << 20))
    failed = await cell.run("y = bytearray(1 << 30)")
    assert (failed.state, failed.reason) == (State.FAILED, "limit")
    assert "memory" in failed.detail
    assert await cell.value("x") == 1


@pytest.mark.promise("X14")
async def test_clearing_ends_everything_of_a_session(engine: Engine, project: Project) -> None:
    cell = Python(engine)
    running = await cell.start(
        "import subprocess; p = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL)\n"
        "print(f'child={p.pid};', flush=True)\nwhile True: pass"
    )
    child = await number_after(engine, running, "child")
    waiting = await cell.start("1")
    host = (await host_of(engine, running)).id
    pids = processes(project, host)
    was = await engine.clear_session("s1")
    assert (was.name, was.current, was.queued) == ("s1", running, (waiting,))
    assert all_dead(pids[1], child)
    assert await engine.sessions() == []
    for one in (running, waiting):
        told = await engine.show(one)
        assert (told.state, told.reason) == (State.FAILED, "session")
    with pytest.raises(UnknownExecution, match="there is no session s1"):
        await engine.clear_session("s1")
    assert (await cell.run("1")).session_note == ""


@pytest.mark.promise("X14")
async def test_another_language_is_refused(engine: Engine, cli: Line) -> None:
    await Python(engine).value("1")
    refused = cli("run", "--lang", "node", "--session", "s1", "1")
    assert refused.returncode == 2


@pytest.mark.promise("X14", "X11")
async def test_sessions_survive_whoever_started_them(cli: Line, project: Project) -> None:
    first = cli.popen("run", "--lang", "python", "--session", "s1", "x = 5\nprint('up')\ninput()")
    assert first.stdout is not None
    assert first.stdout.readline() == "up\n"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    (one,) = cli.json("sessions")
    assert one["state"] == "busy"
    assert cli("send", one["current"], "go").returncode == 0
    assert cli("wait", one["current"]).returncode == 0
    assert cli("run", "--lang", "python", "--session", "s1", "x").stdout == "5\n"


@pytest.mark.promise("X14", "X11")
async def test_an_engine_finds_the_session_of_another(folder: Path) -> None:
    async with Engine(str(folder)) as first:
        await Python(first).value("x = 5")
    async with Engine(str(folder)) as second:
        assert await Python(second).value("x") == 5
        (one,) = await second.sessions()
        assert one.cells == 2


@pytest.mark.promise("X14")
async def test_two_that_begin_a_session_at_once_get_one(cli: Line) -> None:
    code = "import os; print(os.getpid())"
    both = [cli.popen("run", "--lang", "python", "--session", "s1", code) for _ in range(4)]
    pids = {process.communicate(timeout=PATIENCE)[0] for process in both}
    assert len(pids) == 1
    assert len(cli.json("sessions")) == 1


@pytest.mark.promise("X14", "X8")
async def test_what_a_cell_started_elsewhere_is_killed_with_the_session(
    engine: Engine, project: Project
) -> None:
    cell = Python(engine)
    code = (
        "import subprocess, sys\n"
        "run = [sys.executable, '-m', 'tenuto.cli.main', 'run', '-d', '--', 'sleep', '600']\n"
        "print(subprocess.run(run, capture_output=True, text=True).stdout, flush=True)\n"
    )
    inside = (await cell.run(code)).output.strip()
    assert (await engine.show(inside)).running
    running = await cell.start(BUSY)
    await word(engine, running, "up")
    await engine.kill(running)
    assert (await engine.show(inside)).state is State.KILLED


@pytest.mark.promise("X14")
async def test_killing_all_ends_sessions_too(engine: Engine, project: Project) -> None:
    cell = Python(engine)
    await cell.value("1")
    running = await cell.start("input()")
    await begun(engine, running)
    await engine.kill_all()
    assert await engine.sessions() == []
    assert (await engine.show(running)).state is State.KILLED
