"""An interrupt at each stage of a task: it stops there, says what is saved, and goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_help import events_of
from state_help import PATIENCE, A, C, await_event, begin, blocking, let_go, ran, resume, side

from tenuto import Snapshot
from tenuto.core.errors import NothingAsked, NotRunning
from tenuto.core.plan import Retry, Step
from tenuto.core.state import decode_state
from tenuto.core.states import State
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.tasks import decide
from tenuto.stores.layout import Project

NEVER = "/nonexistent/file"  # what a fault waits for


class Stage(msgspec.Struct, frozen=True):
    """How a task comes to a stage, how one sees that it is there, and what an interrupt says of it."""

    step: Step
    there: Callable[[BlockingEngine, str], object]
    hint: str
    forced: bool = False
    """It cannot stop by itself there."""
    fault: str = ""
    options: dict[str, Any] = {}


def b(task: str, **fields: Any) -> Step:
    return Step("b", task, ("a",), **fields)


def at_once(engine: BlockingEngine, execution_id: str) -> None:
    """It is queued: its driver has not said anything yet."""


def event(kind: str, **fields: object) -> Callable[[BlockingEngine, str], object]:
    def await_it(engine: BlockingEngine, execution_id: str) -> None:
        def fits(one: dict[str, Any]) -> bool:
            flat = {**one, **one.get("what", {}), "type": one["type"]}
            return one["type"] == kind and all(flat.get(n) == v for n, v in fields.items())

        await_event(engine, execution_id, fits)

    return await_it


def line(text: str) -> Callable[[BlockingEngine, str], object]:
    def await_it(engine: BlockingEngine, execution_id: str) -> None:
        until(engine, execution_id, lambda: text in side())

    return await_it


def until(engine: BlockingEngine, execution_id: str, check: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < limit
        engine.wait(execution_id, 0.01)


def unfinished(engine: BlockingEngine, execution_id: str) -> None:
    folder = engine.project.folder(execution_id)
    event("step_session", step="b")(engine, execution_id)
    until(engine, execution_id, lambda: any(n.endswith(".new") for n in os.listdir(folder)))


def asks(on: str) -> Callable[[BlockingEngine, str], object]:
    def await_it(engine: BlockingEngine, execution_id: str) -> None:
        assert engine.wait(execution_id, PATIENCE).waiting_for == on

    return await_it


BETWEEN = "stopped between steps; 1 of 3"
IN_B = "stopped in b; 1 of 3"
STAGES = {
    "queued": Stage(b("[[say:second]]"), at_once, "it had no plan yet"),
    "building the prompt": Stage(
        b("[[say:second]]", runtime="looked_for"), line("looking"), BETWEEN
    ),
    "starting the runtime": Stage(
        b("[[say:second]]", runtime="slow"), event("step_session", step="b"), IN_B
    ),
    "streaming": Stage(
        b("[[think:hm]] [[use:5,5]] [[hang]] [[say:second]]"), event("step_used", step="b"), IN_B
    ),
    "inside a tool": Stage(
        b("[[say:second]]", runtime="tool"), event("step_said", type="step_said", id="call"), IN_B
    ),
    "inside a program": Stage(
        b("x", runtime="program"), event("step_session", step="b"), IN_B
    ),
    "between two tries": Stage(
        b("[[say:second]]", runtime="flaky", retry=Retry(2, 1000.0)),
        event("step_said", text="try 2 in 1000 s: it was told to fail: overloaded"), IN_B,
    ),
    "between steps": Stage(
        b("[[say:second]]"), event("step_finished", step="a"), BETWEEN,
        forced=True, fault=f"driver-step-safe:1@{NEVER}",
    ),
    "while checkpointing": Stage(
        b("[[hang]] [[say:second]]"), unfinished, IN_B,
        forced=True, fault=f"state-written:2@{NEVER}",
    ),
    "waiting for approval": Stage(
        b("[[ask:Bash]] [[say:second]]", runtime="echo"), asks("approval"), IN_B,
        options={"permissions": "ask"},
    ),
    "waiting for budget": Stage(
        b("[[say:second]]"), asks("budget"), "1 of 3", options={"max_tokens": 10},
    ),
}  # fmt: skip


# other tests in the quick lane come by these, too
SEEN = ("streaming", "inside a program", "between two tries", "waiting for approval")


@pytest.fixture
def at(
    agents: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Stage], tuple[BlockingEngine, str]]]:
    """Bring a task to a stage."""
    open_ones: list[Any] = []

    def bring(stage: Stage) -> tuple[BlockingEngine, str]:
        if stage.fault:
            monkeypatch.setenv("TENUTO_FAULT", stage.fault)
        made = blocking(project)
        open_ones.append(made)
        engine = made.__enter__()
        first = msgspec.structs.replace(A, task="[[use:10,10]] [[say:first]]")
        execution_id = begin(engine, first, stage.step, C, **stage.options)
        monkeypatch.delenv("TENUTO_FAULT", raising=False)
        engine.environ.pop("TENUTO_FAULT", None)
        stage.there(engine, execution_id)
        return engine, execution_id

    yield bring
    for made in open_ones:
        made.__exit__(None, None, None)


def finished(engine: BlockingEngine, execution_id: str) -> Snapshot:
    """Wait for the end; whatever is asked on the way is approved."""
    while not (snapshot := engine.wait(execution_id, PATIENCE)).done:
        assert snapshot.waiting_for is not None, snapshot.state
        try:
            decide(engine, execution_id, True)
        except (NothingAsked, NotRunning):
            continue
    return snapshot


@pytest.mark.promise("D3", "X2")
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.full if one in SEEN else ()) for one in STAGES]
)
def test_an_interrupt_stops_a_task_at_any_stage_and_it_goes_on_from_there(
    at: Callable[[Stage], tuple[BlockingEngine, str]], project: Project, name: str
):
    stage = STAGES[name]
    engine, execution_id = at(stage)
    stopped = engine.interrupt(execution_id)
    assert stopped.state is State.INTERRUPTED
    assert stage.hint in stopped.hint, stopped.hint
    assert "tenuto resume" in stopped.hint
    if name != "queued":  # its program may not even be there
        assert (stopped.signal == "SIGKILL") == stage.forced, stopped.signal
    folder = Path(project.folder(execution_id))
    state = decode_state((folder / "state.json").read_bytes())
    assert state.status == "interrupted"
    assert state.cursor.finished == (() if name == "queued" else ("a",))
    assert not [one for one in os.listdir(folder) if one.endswith((".new", ".prev"))]
    assert engine.interrupt(execution_id).hint.startswith("it was interrupted before")
    let_go()
    if stage.step.runtime == "program":  # it has no end of its own
        resume(engine, execution_id)
        event("resumed")(engine, execution_id)
        until(engine, execution_id, lambda: begun(project, execution_id, "b") == 2)
        engine.kill(execution_id)
        assert ran() == ["a"]
        return
    resume(engine, execution_id)
    snapshot = finished(engine, execution_id)
    assert snapshot.state is State.SUCCEEDED, (snapshot.reason, snapshot.detail)
    outputs = {one["id"]: one["output"] for one in snapshot.value["steps"]}
    assert outputs == {"a": "first", "b": "second", "c": "third"}
    assert ran().count("a") == 1
    ends = [one["step"] for one in events_of(project, execution_id, "step_finished")
            if one["status"] == "completed"]  # fmt: skip
    assert ends == ["a", "b", "c"]


def begun(project: Project, execution_id: str, step: str) -> int:
    return sum(one["step"] == step for one in events_of(project, execution_id, "step_started"))


@pytest.mark.promise("D3")
def test_an_agent_that_is_there_only_after_the_interrupt_is_asked_nothing(
    at: Callable[[Stage], tuple[BlockingEngine, str]], project: Project
):
    engine, execution_id = at(Stage(b("[[say:second]]", runtime="late"), line("opening"), IN_B))
    stopped = engine.interrupt(execution_id)
    assert stopped.state is State.INTERRUPTED and stopped.signal is None
    assert ran() == ["a", "opening"]
    let_go()
    resume(engine, execution_id)
    assert finished(engine, execution_id).state is State.SUCCEEDED
    assert begun(project, execution_id, "b") == 2


@pytest.mark.promise("D3")
def test_an_interrupt_of_a_driver_that_is_only_loading_leaves_no_traceback(tmp_path: Path):
    early = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "msgspec.py").write_text(early)
    driver = [sys.executable, "-m", "tenuto.engine.driving"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(driver, env=environ, capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
