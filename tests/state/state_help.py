"""What the tests of durable state share: tasks whose agents need no model, and events of their tapes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenuto import Snapshot
from tenuto.core.plan import Plan, Step
from tenuto.dispatch.fresh import FreshLauncher
from tenuto.engine.blocking import BlockingEngine, sleep
from tenuto.engine.settings import load_settings
from tenuto.engine.tasks import checked, task_spec, task_work
from tenuto.engine.work import Options
from tenuto.keeper.frames import EVENT
from tenuto.stores.layout import Project

HERE = Path(__file__).parent
PATIENCE = 60.0
SETTINGS = """
[runtime]
preferred = "side"
order = ["side"]
[interrupt]
grace = 1
[runners]
side = "state_runners:SideRunner"
versioned = "state_runners:VersionedRunner"
program = "state_runners:ProgramRunner"
slow = "state_runners:SlowRunner"
late = "state_runners:LateRunner"
stubborn = "state_runners:StubbornRunner"
looked_for = "state_runners:LookedForRunner"
flaky = "state_runners:FlakyRunner"
tool = "state_runners:ToolRunner"
nest = "state_runners:NestRunner"
echo = "tenuto.testing.agents:EchoRunner"
"""
A = Step("a", "[[say:first]] one")
B = Step("b", "[[hang]] two", depends_on=("a",))
C = Step("c", "[[say:third]] three", depends_on=("b",))


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tenuto.toml").write_text(SETTINGS)
    monkeypatch.setenv("TENUTO_ECHO_HOME", str(folder.parent / "echo"))
    monkeypatch.setenv("TENUTO_TEST_SIDE", str(folder.parent / "side"))
    monkeypatch.setenv("TENUTO_TEST_VERSION", str(folder.parent / "version"))
    monkeypatch.setenv("TENUTO_TEST_GO", str(folder.parent / "go"))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    (folder.parent / "version").write_text("1.2.3")


@contextmanager
def blocking(project: Project) -> Iterator[BlockingEngine]:
    settings, _ = load_settings(project.root, os.environ)
    engine = BlockingEngine(project, settings, FreshLauncher())
    try:
        yield engine
    finally:
        engine.close()


def begin(engine: BlockingEngine, *steps: Step, **options: Any) -> str:
    """Start a task and return its id."""
    spec = checked(engine, task_spec("", plan=Plan(steps), **options))
    execution_id, sock = engine.start(task_work(engine, spec, Options(detached=True)))
    sock.close()
    return execution_id


def await_event(
    engine: BlockingEngine, execution_id: str, check: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Wait until an event of that kind is on the tape, and return it with its number."""
    limit = time.monotonic() + PATIENCE
    with engine.watch(execution_id) as watch:
        while True:
            for frame in watch.look():
                if frame.stream == EVENT:
                    event: dict[str, Any] = msgspec.json.decode(frame.body)
                    if check(event):
                        return {**event, "seq": frame.seq}
            assert not watch.over, f"it ended without: {watch.execution.state}"
            left = limit - time.monotonic()
            assert left > 0, "it did not come"
            sleep(watch, left)


def in_step(engine: BlockingEngine, execution_id: str, step: str) -> None:
    """Wait until a step's session is open."""
    await_event(engine, execution_id, lambda one: _has(one, "step_session", step))


def step_done(engine: BlockingEngine, execution_id: str, step: str) -> int:
    """Wait for the end of a step and return where on the tape it is."""
    return await_event(engine, execution_id, lambda one: _has(one, "step_finished", step))["seq"]


def _has(event: dict[str, Any], kind: str, step: str) -> bool:
    return event["type"] == kind and event["step"] == step


def stopped(engine: BlockingEngine) -> str:
    """Return a task that was interrupted in b, with a behind it and c before it."""
    execution_id = begin(engine, A, B, C)
    in_step(engine, execution_id, "b")
    engine.interrupt(execution_id)
    return execution_id


def ended(engine: BlockingEngine, execution_id: str) -> Snapshot:
    snapshot = engine.wait(execution_id, PATIENCE)
    assert snapshot.done, snapshot.state
    return snapshot


def resume(engine: BlockingEngine, execution_id: str, force: bool = False) -> None:
    _, sock = engine.resume(execution_id, force)
    sock.close()


def let_go() -> None:
    """Let no step hang from here on."""
    Path(os.environ["TENUTO_TEST_GO"]).touch()


def side() -> list[str]:
    """Return which steps ran, each time they did, and in which session."""
    try:
        return Path(os.environ["TENUTO_TEST_SIDE"]).read_text().splitlines()
    except FileNotFoundError:
        return []


def ran() -> list[str]:
    return [line.split()[0] for line in side()]
