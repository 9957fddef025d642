"""What the tests of tasks share: a project whose agents need no model, and what its tapes say."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_help import events_of, tape_events

from tenuto import Engine, Snapshot
from tenuto.core.plan import Plan, Step
from tenuto.core.progress import Progress
from tenuto.dispatch.fresh import FreshLauncher
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.settings import load_settings
from tenuto.engine.tasks import checked, progress_of, task_spec, task_work
from tenuto.engine.work import Options
from tenuto.stores.layout import Project

HERE = Path(__file__).parent
PATIENCE = 60.0
SETTINGS = """
[runtime]
preferred = "echo"
order = ["echo", "first", "second"]
[interrupt]
grace = 1
[runners]
echo = "tenuto.testing.agents:EchoRunner"
frugal = "task_runners:FrugalRunner"
side = "task_runners:SideRunner"
writer = "task_runners:WriterRunner"
loud = "task_runners:LOUD"
briefed = "task_runners:BRIEFED"
first = "task_runners:FIRST"
second = "task_runners:SECOND"
deaf = "task_runners:DeafRunner"
tired = "task_runners:TiredRunner"
bomb = "task_runners:BombRunner"
nest = "task_runners:NestRunner"
sleeper = "task_runners:SleeperRunner"
blocked = "task_runners:BlockedRunner"
[strategies]
pair = "task_runners:pair"
broken = "task_runners:broken"
[roles.poet]
text = "You write poems."
"""


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> None:
    """Give a project the agents of these tests."""
    (folder / "tenuto.toml").write_text(SETTINGS + more)
    monkeypatch.setenv("TENUTO_ECHO_HOME", str(folder.parent / "echo"))
    monkeypatch.setenv("TENUTO_TEST_SIDE", str(folder.parent / "side"))
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def plan(*steps: Step, concurrency: int | None = None) -> Plan:
    return Plan(steps, concurrency)


def document(*steps: dict[str, Any]) -> str:
    return json.dumps({"steps": steps})


def value(snapshot: Snapshot) -> dict[str, Any]:
    """Return the result document of a task that has ended."""
    assert snapshot.done, snapshot.state
    assert isinstance(snapshot.value, dict)
    return snapshot.value


def statuses(found: Snapshot | Progress) -> dict[str, str]:
    if isinstance(found, Snapshot):
        return {one["id"]: one["status"] for one in value(found)["steps"]}
    return {name: one.status for name, one in found.steps.items()}


def outputs(snapshot: Snapshot) -> dict[str, str]:
    return {one["id"]: one["output"] for one in value(snapshot)["steps"]}


def progress(project: Project, execution_id: str) -> Progress:
    return progress_of(project.folder(execution_id))


def started(project: Project, execution_id: str) -> list[str]:
    """Return which steps began, each time they did."""
    return [one["step"] for one in events_of(project, execution_id, "step_started")]


def finished(project: Project, execution_id: str) -> list[tuple[str, str]]:
    """Return the ends of steps, in their order."""
    events = events_of(project, execution_id, "step_finished")
    return [(one["step"], one["status"]) for one in events]


def never_twice(project: Project, execution_id: str) -> None:
    """Assert that no step began after it had ended for good."""
    done: set[str] = set()
    for event in tape_events(project, execution_id):
        if event["type"] == "step_finished" and event["status"] != "interrupted":
            assert event["step"] not in done, f"{event['step']} ended twice"
            done.add(event["step"])
        elif event["type"] == "step_started":
            assert event["step"] not in done, f"{event['step']} ran again after its end"


def side() -> list[str]:
    """Return what the steps did, a line each time: `begin STEP` and `end STEP`."""
    try:
        return Path(os.environ["TENUTO_TEST_SIDE"]).read_text().splitlines()
    except FileNotFoundError:
        return []


async def end_of(engine: Engine, execution_id: str) -> Snapshot:
    """Wait for the end, however often it waits for somebody before it."""
    snapshot = await engine.wait(execution_id, PATIENCE)
    while not snapshot.done:
        async for _ in engine.follow(execution_id):
            pass
        snapshot = await engine.wait(execution_id, PATIENCE)
    return snapshot


@contextmanager
def blocking(project: Project) -> Iterator[BlockingEngine]:
    settings, _ = load_settings(project.root, os.environ)
    engine = BlockingEngine(project, settings, FreshLauncher())
    try:
        yield engine
    finally:
        engine.close()


def begin(engine: BlockingEngine, text: str = "", **options: Any) -> str:
    """Start a task and return its id."""
    spec = checked(engine, task_spec(text, **options))
    execution_id, sock = engine.start(task_work(engine, spec, Options(detached=True)))
    sock.close()
    return execution_id
