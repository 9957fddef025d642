"""Starters killed with everything around them: their executions go on, whole."""

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import termios

import pytest
from fault_help import HERE, alive, descends_from, eventually, gone, lines, marked, settled

from tenuto.core.states import State

LAST = 150
WAYS = pytest.mark.parametrize("way", ["fresh", "zygote"])


def words(world, way, *more):
    programs = [[*world.chatty(LAST)], ["sh", "-c", "echo line 1; sleep 0.2; echo line 2"]]
    return [sys.executable, str(HERE / "starter.py"), way, json.dumps(programs), *more]


def told(source):
    """Read what the starter says until it has started everything."""
    fd = source if isinstance(source, int) else source.fileno()
    data = b""
    while b"started\n" not in data.replace(b"\r", b""):
        part = os.read(fd, 4096)
        assert part, data
        data += part
    return data.decode().split()[:-1]


def whole(world, ids):
    with world.fresh() as engine:
        for execution_id, last in zip(ids, (LAST, 2), strict=True):
            assert engine.wait(execution_id, 30).state is State.SUCCEEDED
            settled(engine, execution_id, lines(last), lines(last))
    assert world.runs() == 1


def in_a_shell(world, way):
    """A shell that has the starter as its child, in a session of its own."""
    script = f"{shlex.join(words(world, way))}; true"
    return subprocess.Popen(
        ["sh", "-c", script], env=world.environ, stdout=subprocess.PIPE, start_new_session=True
    )


@pytest.mark.promise("X11")
@WAYS
def test_work_outlives_the_process_group_of_its_starter(world, way):
    with in_a_shell(world, way) as shell:
        ids = told(shell.stdout)
        os.killpg(shell.pid, signal.SIGKILL)
    whole(world, ids)


@pytest.mark.promise("X11")
@WAYS
def test_work_outlives_a_walk_through_its_starters_tree(world, way):
    with in_a_shell(world, way) as shell:
        ids = told(shell.stdout)
        os.kill(shell.pid, signal.SIGSTOP)
        victims = [shell.pid, *descends_from(shell.pid)]
        assert len(victims) >= 2
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
    assert not gone(victims)
    whole(world, ids)


@pytest.mark.promise("X11")
@WAYS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_work_outlives_signals_to_the_group(world, way, number):
    with in_a_shell(world, way) as shell:
        ids = told(shell.stdout)
        os.killpg(shell.pid, number)
    whole(world, ids)


@pytest.mark.promise("X11")
@WAYS
def test_work_outlives_the_terminal_of_its_starter(world, way):
    pid, master = pty.fork()
    if pid == 0:
        argv = words(world, way)
        os.execve(argv[0], argv, world.environ)
    modes = termios.tcgetattr(master)
    assert modes
    ids = told(master)
    os.close(master)  # the line is cut: SIGHUP to the session
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGHUP
    whole(world, ids)


@pytest.mark.promise("X11")
@WAYS
def test_nothing_of_the_starter_is_held_open(world, way):
    """A pipe that only the starter had ends with it, though what it started runs on."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    argv = [["sleep", "1000"]]
    process = world.spawn("starter.py", way, json.dumps(argv), "leave", pass_fds=[write], stdin=0)
    os.close(write)
    out, _ = process.communicate(timeout=30)
    (execution_id, _) = out.decode().split()
    poller = select.poll()
    poller.register(read, select.POLLIN)
    assert eventually(lambda: marked(execution_id), what="its process")
    held = not poller.poll(5000)
    os.close(read)
    with world.fresh() as engine:
        assert engine.kill(execution_id).state is State.KILLED
    assert not held, "somebody holds the starter's pipe open"


@pytest.mark.promise("X8", "X11")
@WAYS
def test_killing_a_parent_takes_its_children_along_but_its_end_does_not(world, way):
    """An execution started inside another one."""
    inner = [sys.executable, str(HERE / "starter.py"), way, json.dumps([["sleep", "1000"]])]
    with world.fresh() as engine:
        for ending in ("leave", "stay"):
            outer = world.start(engine, [*inner, ending])
            text = engine.wait(outer, 30, until="started").output
            if ending == "leave":
                assert engine.wait(outer, 30).state is State.SUCCEEDED
            child = text.split()[0]
            assert engine.show(child).running
            assert engine.show(child).parent == outer
            pid = world.started(child).pid
            if ending == "leave":
                engine.kill(child)
            else:
                assert engine.kill(outer).state is State.KILLED
                assert engine.show(child).state is State.KILLED
            assert not alive(pid)
