"""Kill: the whole tree, daemons too, verified; what stays behind stays under the keeper."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from engine_help import (
    PATIENCE,
    alive,
    await_death,
    end,
    ended,
    events_of,
    folded,
    keeper_of,
    marked_processes,
    number_after,
    output,
    word,
)

from tenuto import Engine, InvalidInput, NotRunning, State
from tenuto.keeper import procfs
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio

DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
for name in list(os.environ):
    del os.environ[name]
print(f"daemon={os.getpid()};", flush=True)
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 0)
%s
os.execve("/bin/sleep", ["sleep", "1000"], {})
"""
QUIET = "os.dup2(null, 1); os.dup2(null, 2)"
TREES = {
    "shell with grandchildren": "sh -c 'sleep 1000 & sleep 1000; true' & sh -c 'sleep 1000; true'",
    "own sessions": "setsid sleep 1000 & setsid -f sleep 1000; sleep 1000",
    "ignores everything": "trap '' TERM INT HUP QUIT USR1; (trap '' TERM; sleep 1000) & "
    "while true; do sleep 0.1; done",
    "stopped": "sleep 1000 & kill -STOP $!; kill -STOP $$",
    "detached from output": "exec >/dev/null 2>&1; nohup sleep 1000 & sleep 1000",
}


@pytest.mark.promise("X8")
@pytest.mark.parametrize("tree", TREES)
async def test_kill_ends_the_whole_tree_before_it_answers(engine: Engine, tree: str) -> None:
    running = await engine.start("echo ready; " + TREES[tree], language="bash")
    await word(engine, running, "ready")
    snapshot = await engine.kill(running)
    assert not marked_processes([running])
    assert (snapshot.state, snapshot.reason) == (State.KILLED, "killed")
    assert snapshot.signal == "SIGKILL" and not snapshot.left_behind


@pytest.mark.promise("X8")
@pytest.mark.parametrize("quiet", ["", QUIET], ids=["holds the pipes", "let go of everything"])
async def test_kill_finds_a_daemon_without_environment(engine: Engine, quiet: str) -> None:
    daemon_code = DAEMON % quiet
    code = f"""import subprocess, sys, time
subprocess.run([sys.executable, '-c', {daemon_code!r}])
time.sleep(1000)"""
    running = await engine.start(code, language="python")
    daemon = await number_after(engine, running, "daemon")
    assert alive(daemon)
    await engine.kill(running)
    assert not alive(daemon)


@pytest.mark.promise("X8")
async def test_kill_outruns_a_program_that_keeps_forking(engine: Engine) -> None:
    """Each process forks its successor and goes: nobody holds still long enough to be listed."""
    code = """
import os, time
print("ready", flush=True)
for _ in range(4):
    if os.fork() == 0:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
        os._exit(0)
time.sleep(1000)
"""
    running = await engine.start(code, language="python")
    await word(engine, running, "ready")
    snapshot = await engine.kill(running)
    assert snapshot.state is State.KILLED
    assert not marked_processes([running])


@pytest.mark.promise("X8")
async def test_kill_keeps_the_output_so_far(engine: Engine) -> None:
    running = await engine.start("seq 1000; echo ready; sleep 1000", language="bash")
    await word(engine, running, "ready")
    await engine.kill(running)
    expected = b"".join(b"%d\n" % n for n in range(1, 1001)) + b"ready\n"
    assert await output(engine, running) == expected


@pytest.mark.promise("X8")
@pytest.mark.parametrize("n", range(5))
async def test_kill_in_the_very_moment_after_the_start(engine: Engine, n: int) -> None:
    running = await engine.start(command=["sleep", "1000"])
    assert (await engine.kill(running)).state is State.KILLED
    assert not marked_processes([running])


@pytest.mark.promise("X8")
async def test_what_is_killed_cannot_be_killed_again(engine: Engine, project: Project) -> None:
    running = await engine.start(command=["sleep", "1000"])
    await engine.kill(running)
    for _ in range(3):
        with pytest.raises(NotRunning):
            await engine.kill(running)
    assert len(events_of(project, running, "ended")) == 1


@pytest.mark.promise("X8")
async def test_many_kills_at_once_are_all_answered(engine: Engine) -> None:
    running = await engine.start(command=["sleep", "1000"])
    answers = await asyncio.gather(
        *(engine.kill(running) for _ in range(5)), return_exceptions=True
    )
    done = [one for one in answers if not isinstance(one, BaseException)]
    assert done and all(one.state is State.KILLED for one in done)
    assert all(isinstance(one, NotRunning) for one in answers if isinstance(one, BaseException))


@pytest.mark.promise("X8")
async def test_every_waiter_learns_of_a_kill(engine: Engine) -> None:
    running = await engine.start(command=["sleep", "1000"])
    waits = [asyncio.create_task(engine.wait(running, PATIENCE)) for _ in range(3)]
    await asyncio.sleep(0)
    await engine.kill(running)
    assert {one.state for one in await asyncio.gather(*waits)} == {State.KILLED}


@pytest.mark.promise("X8")
async def test_kill_all(engine: Engine) -> None:
    ids = [await engine.start(command=["sleep", "1000"]) for _ in range(4)]
    done = await engine.run(command=["true"])
    killed = await engine.kill_all()
    assert {one.id for one in killed} == set(ids)
    assert {one.state for one in killed} == {State.KILLED}
    assert (await engine.show(done.id)).state is State.SUCCEEDED
    assert not marked_processes(ids)


# Named signals


@pytest.mark.promise("X8")
async def test_a_named_signal_is_only_sent_and_the_program_decides(
    engine: Engine, project: Project
) -> None:
    code = "trap 'echo cleaning up; exit 0' TERM; echo ready; while true; do sleep 0.05; done"
    running = await engine.start(code, language="bash")
    await word(engine, running, "ready")
    await engine.kill(running, signal="TERM")
    snapshot = await ended(engine, running)
    assert snapshot.state is State.SUCCEEDED and snapshot.exit_code == 0
    assert snapshot.stdout == b"ready\ncleaning up\n"
    (signalled,) = events_of(project, running, "signalled")
    assert signalled["signal"] == "SIGTERM" and signalled["processes"] >= 1


@pytest.mark.promise("X8")
async def test_a_program_that_dies_of_the_signal_that_was_asked_for_is_killed(
    engine: Engine,
) -> None:
    running = await engine.start(command=["sleep", "1000"])
    await engine.kill(running, signal="hup")
    snapshot = await ended(engine, running)
    assert (snapshot.state, snapshot.signal) == (State.KILLED, "SIGHUP")


@pytest.mark.promise("X8")
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1"])
async def test_a_signal_in_the_very_moment_after_the_start_is_not_lost(
    engine: Engine, name: str
) -> None:
    for _ in range(5):
        running = await engine.start(command=["sleep", "1000"])
        await engine.kill(running, signal=name)
        snapshot = await ended(engine, running)
        assert (snapshot.state, snapshot.signal) == (State.KILLED, f"SIG{name}")


@pytest.mark.promise("X8")
async def test_a_signal_that_the_program_ignores_ends_nothing(engine: Engine) -> None:
    code = "trap 'echo got it' USR1; trap '' TERM; echo ready; while true; do sleep 0.05; done"
    running = await engine.start(code, language="bash")
    await word(engine, running, "ready")
    assert (await engine.kill(running, signal="TERM")).running
    # only the shell has a handler: what dies of it is the sleep of the moment
    await engine.kill(running, signal="USR1")
    await word(engine, running, "got it")
    assert (await engine.show(running)).state is State.RUNNING


@pytest.mark.promise("X8")
async def test_an_unknown_signal_is_refused(engine: Engine) -> None:
    running = await engine.start(command=["sleep", "1000"])
    with pytest.raises(InvalidInput, match="not a signal"):
        await engine.kill(running, signal="NONSENSE")
    assert (await engine.show(running)).running


@pytest.mark.promise("X8", "X2")
async def test_an_interrupted_program_may_stop_in_its_own_way(engine: Engine) -> None:
    running = await engine.start(
        "import time\ntry:\n    print('ready', flush=True); time.sleep(1000)\n"
        "except KeyboardInterrupt:\n    print('stopping', flush=True)",
        language="python",
    )
    await word(engine, running, "ready\n")
    snapshot = await engine.interrupt(running)
    assert snapshot.state is State.INTERRUPTED
    assert await output(engine, running) == b"ready\nstopping\n"
    with pytest.raises(NotRunning):
        await engine.interrupt(running)


@pytest.mark.promise("X8", "X2")
async def test_a_program_that_is_deaf_to_an_interrupt_is_ended_in_the_end(folder: Path) -> None:
    from tenuto import Settings

    async with Engine(settings=Settings(interrupt_grace=0.2)) as engine:
        deaf = await engine.start(
            "trap '' INT TERM; echo ready; while true; do sleep 0.05; done", language="bash"
        )
        await word(engine, deaf, "ready")
        assert (await engine.interrupt(deaf)).state is State.INTERRUPTED
        assert not marked_processes([deaf])


# Left behind

SERVER = """
(while true; do read -t 1000 line < %s && echo "served $line"; done) &
disown
echo started
"""


@pytest.mark.promise("X8")
async def test_a_server_left_behind_is_listed_and_lives_on_with_its_output(
    engine: Engine, project: Project, folder: Path
) -> None:
    import os

    os.mkfifo(folder / "fifo")
    snapshot = await engine.run(SERVER % "fifo", language="bash")
    assert snapshot.state is State.SUCCEEDED and snapshot.output == "started\n"
    (server,) = snapshot.left_behind
    assert alive(server.pid) and procfs.start_time(server.pid) == server.start
    assert "bash" in server.command
    assert (await engine.show(snapshot.id)).left_behind == snapshot.left_behind
    assert not await engine.list(running=True)
    # it serves, and what it says is still kept
    with open(folder / "fifo", "w") as fifo:
        fifo.write("one\n")
    await _on_tape(engine, snapshot.id, b"served one")
    shown = await engine.kill(snapshot.id)
    assert not alive(server.pid) and not shown.left_behind
    assert shown.state is State.SUCCEEDED, "the execution had ended well before"
    (gone,) = events_of(project, snapshot.id, "left_behind_ended")
    assert gone["killed"] is True
    with pytest.raises(NotRunning):
        await engine.kill(snapshot.id)


async def _on_tape(engine: Engine, execution_id: str, wanted: bytes) -> None:
    """Nobody tells of output after the end: look until it is there."""
    limit = time.monotonic() + PATIENCE
    while wanted not in await output(engine, execution_id):
        assert time.monotonic() < limit, "the output after the end did not come"


@pytest.mark.promise("X8")
async def test_an_execution_ends_though_others_hold_its_pipes(engine: Engine) -> None:
    began = time.monotonic()
    snapshot = await engine.run("sleep 1000 & echo done", language="bash", wait=PATIENCE)
    assert snapshot.state is State.SUCCEEDED and snapshot.output == "done\n"
    assert time.monotonic() - began < PATIENCE
    (left,) = snapshot.left_behind
    assert "sleep 1000" in left.command  # perhaps still the shell that is about to become it


@pytest.mark.promise("X8")
async def test_a_flooding_process_left_behind_does_not_hold_up_the_end(engine: Engine) -> None:
    snapshot = await engine.run("yes & echo main; exit 6", language="bash", wait=PATIENCE)
    assert snapshot.exit_code == 6
    assert len(snapshot.left_behind) == 1
    await engine.kill(snapshot.id)


@pytest.mark.promise("X8")
async def test_the_keeper_goes_when_the_last_one_left_behind_ends(
    engine: Engine, project: Project, folder: Path
) -> None:
    import os

    os.mkfifo(folder / "fifo")
    snapshot = await engine.run("(read x < fifo; echo bye) & disown", language="bash")
    keeper = keeper_of(project, snapshot.id)
    assert snapshot.left_behind and alive(keeper)
    with open(folder / "fifo", "w") as fifo:
        fifo.write("go\n")
    assert await_death(keeper)
    assert await output(engine, snapshot.id) == b"bye\n"
    shown = await engine.show(snapshot.id)
    assert not shown.left_behind
    (gone,) = events_of(project, snapshot.id, "left_behind_ended")
    assert not gone.get("killed")


@pytest.mark.promise("X8")
async def test_what_was_left_behind_does_not_hold_up_the_engine(folder: Path) -> None:
    async with Engine() as engine:
        snapshot = await engine.run("sleep 1000 & disown", language="bash")
    (left,) = snapshot.left_behind
    assert alive(left.pid)
    async with Engine() as engine:
        await engine.kill(snapshot.id)
    assert not alive(left.pid)


# Stopped keepers


@pytest.mark.promise("X8")
async def test_a_stopped_keeper_is_killed_through(engine: Engine, project: Project) -> None:
    running = await engine.start("echo ready; setsid sleep 1000 & sleep 1000", language="bash")
    await word(engine, running, "ready")
    keeper = keeper_of(project, running)
    end(keeper, signal.SIGSTOP)
    shown = await engine.show(running)  # answers all the same
    assert shown.running
    (listed,) = await engine.list(running=True)
    assert listed.id == running
    snapshot = await engine.kill(running)
    assert snapshot.state is State.KILLED
    assert "did not answer" in snapshot.detail
    assert (snapshot.output_bytes, snapshot.output_lines) == (6, 1)
    assert await_death(keeper) and not marked_processes([running])
    assert folded(project, running).state is State.KILLED
