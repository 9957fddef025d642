"""A keeper that has kept its execution to the end keeps the next one; nothing of the last one stays."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tenuto.core.states import State
from tenuto.dispatch.launch import ZygoteLauncher
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.recover import load
from tenuto.engine.settings import Settings
from tenuto.engine.work import Options
from tenuto.keeper import procfs
from tenuto.stores.layout import Project


@pytest.fixture
def engine(tmp_path: Path):
    project = Project(root=str(tmp_path), home=str(tmp_path / "state"))
    engine = BlockingEngine(project, Settings(), ZygoteLauncher(1))
    yield engine
    for snapshot in engine.at_work():
        engine.kill(snapshot.id)
    engine.close()


def keeper_of(engine: BlockingEngine, execution_id: str) -> int:
    execution = load(engine.project, execution_id)
    assert execution is not None
    assert execution.started is not None
    return execution.started.keeper_pid


def run(engine: BlockingEngine, number: int):
    """Run something of another kind each time; each says its number."""
    kind = number % 5
    options = Options(pty=kind == 1, deadline=60 if kind == 2 else None)
    if kind == 3:
        work = engine.code(f"print(input())\n{number}", "python", options)
    elif kind == 4:
        work = engine.command(
            ["/bin/sh", "-c", f"echo {number}; echo {number} >&2; exit 3"], options
        )
    else:
        work = engine.command(["/bin/echo", str(number)], options)
    execution_id, sock = engine.start(work)
    if kind == 3:
        engine.send(execution_id, f"{number}\n".encode())
    return engine.wait(execution_id, up_to=60, sock=sock)


@pytest.mark.promise("X13")
def test_one_keeper_keeps_many_executions_and_mixes_nothing(engine: BlockingEngine) -> None:
    keepers: list[int] = []
    open_files: dict[int, set[int]] = {}
    for number in range(40):
        snapshot = run(engine, number)
        words = snapshot.output.split()
        assert words == [str(number)] * (2 if number % 5 == 4 else 1)
        assert snapshot.state is (State.FAILED if number % 5 == 4 else State.SUCCEEDED)
        assert snapshot.value == (number if number % 5 == 3 else None)
        assert snapshot.interactive == (number % 5 == 3)
        keeper = keeper_of(engine, snapshot.id)
        keepers.append(keeper)
        if procfs.start_time(keeper):
            open_files.setdefault(keeper, set()).add(len(os.listdir(f"/proc/{keeper}/fd")))
    assert len(set(keepers)) < len(keepers) / 2, "keepers were not used again"
    assert all(max(seen) < 40 for seen in open_files.values())


@pytest.mark.promise("X17")
def test_a_start_does_not_wait_for_a_busy_keeper_of_a_dead_zygote(engine: BlockingEngine) -> None:
    first = run(engine, 0)
    code = "import signal\nprint('ready', flush=True)\nsignal.pause()"
    busy, sock = engine.start(engine.command([sys.executable, "-c", code], Options()))
    assert engine.wait(busy, up_to=60, until="ready", sock=sock).matched
    assert keeper_of(engine, first.id)
    zygote = procfs.parent(keeper_of(engine, busy))
    assert procfs.name(zygote) == procfs.ZYGOTE_NAME
    os.kill(zygote, signal.SIGKILL)
    for number in (5, 6, 7):
        assert run(engine, number).output.split() == [str(number)]
    assert engine.show(busy).state is State.RUNNING
    assert engine.kill(busy).state is State.KILLED
