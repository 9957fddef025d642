"""Interrupt, crash, resume: nothing is left running, nothing is lost, and the books are right."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest
from engine_help import PATIENCE
from runtimes import MAIN
from world import Runtime, Task, World

from tenuto.testing.models import Gate, Model, Say, Slow

GONE_S = 10.0  # the figure itself is the benchmark's
"""How long after an end anything of it may live."""


def stream(gate: Gate) -> Slow:
    """An answer that has begun and does not go on."""
    return Slow(gate, Say("Something was said already, " * 8 + "and more would come. " * 8))


def begin(world: World, runtime: Runtime, *words: str) -> Task:
    """Start a task and wait until it has said something."""
    gate = Gate()
    gate.let(3)
    world.model.play(stream(gate), by="request", bare=False)
    task = world.start(runtime, "Remember the word heliotrope.", *words)
    done = world("wait", task.id, "--until", "Something was said", "--up-to", "60s")
    assert done.returncode == 0, (done.stderr, task.shown)
    return task


def interrupt(task: Task) -> dict[str, object]:
    done = task.world("interrupt", task.id)
    assert done.returncode == 0, done.stderr
    task.gone_within(GONE_S)
    return task.shown


@pytest.mark.promise("R1", "D3", "B1")
@pytest.mark.runtimes("claude-code", "codex")
def test_an_interrupted_task_goes_on_in_the_runtimes_own_session(
    world: World, model: Model, runtime: Runtime
) -> None:
    task = begin(world, runtime, "--permissions", "allow")
    shown = interrupt(task)
    assert shown["state"] == "interrupted", shown
    assert "tenuto resume" in world("show", task.id).stdout
    (before,) = task.task["steps"]
    assert before["status"] == "interrupted"
    world.balanced(task)

    # again, while a tool runs
    nap = Nap(world.folder / f"nap-{runtime.name}")
    model.play(runtime.shell(nap.command), by="request", bare=False)
    assert world("resume", "-d", task.id).returncode == 0
    with nap:
        assert nap.said(PATIENCE) == b"up\n", (task.shown, task.output)
        assert interrupt(task)["state"] == "interrupted"
        assert nap.said(0) == b"", "the tool lives"
    assert "heliotrope" in str(model.shown.raw)
    assert "Something was said already" in str(model.shown.raw) or not runtime.keeps_cut
    world.balanced(task)

    model.play("It was heliotrope.", by="request", bare=False)
    assert world("resume", "-d", task.id).returncode == 0
    shown = task.wait()
    assert shown["state"] == "succeeded", (shown, task.output)
    (step,) = shown["task"]["steps"]
    assert step["output"] == "It was heliotrope."
    assert step["attempts"] == 3 + (not runtime.keeps_turn)  # one finds its session gone
    if runtime.keeps_turn:
        assert step["session"] == before["session"]
        assert nap.command in str(model.shown.raw), "the session does not know of its own tool"
    else:
        assert step["session"] != before["session"] and "a new session begins" in task.output
    world.balanced(task)


@pytest.mark.promise("X4", "R1", "B1")
@pytest.mark.full  # a runtime may be silent for long before its first word
@pytest.mark.runtimes("claude-code")
def test_a_task_at_its_deadline_leaves_nothing_and_its_spend_counts(
    world: World, runtime: Runtime
) -> None:
    idle = "20s" if runtime.name in MAIN else "40s"  # the others say nothing while they start
    task = begin(world, runtime, "--permissions", "allow", "--idle", idle)
    shown = task.wait()
    assert (shown["state"], shown["reason"]) == ("failed", "idle"), (shown, task.output)
    task.gone_within(GONE_S)
    (step,) = task.task["steps"]
    assert step["status"] == "interrupted" and "the idle deadline asked for" in step["error"]
    assert world.is_closed(task)
    world.balanced(task)


class Nap:
    """A tool that says when it runs, and whose end is seen, over a pipe with a name."""

    def __init__(self, path: Path) -> None:
        script = path.with_suffix(".sh")
        script.write_text(f"exec > {path}\necho up\nexec sleep 600\n")
        os.mkfifo(path)
        self.command = f"sh {script}"
        self._path = path

    def __enter__(self) -> Nap:
        self._pipe = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._pipe)

    def said(self, patience: float) -> bytes | None:
        """Return what it says next, nothing once it has ended, None if nothing happens."""
        ready, _, _ = select.select([self._pipe], [], [], patience)
        return os.read(self._pipe, 100) if ready else None


@pytest.mark.promise("R1", "D3", "X11", "B1")
@pytest.mark.runtimes("codex")
def test_a_killed_driver_and_a_killed_keeper_leave_nothing_and_lose_nothing(
    world: World, model: Model, runtime: Runtime
) -> None:
    task = begin(world, runtime)
    os.kill(task.driver, signal.SIGKILL)
    task.gone_within(GONE_S)
    assert task.wait()["state"] == "lost", task.shown
    world.balanced(task)

    gate = Gate()
    gate.let(3)
    model.play(stream(gate), by="request", bare=False)
    assert world("resume", "-d", task.id).returncode == 0
    model.until(lambda seen: "heliotrope" in str(seen.raw))
    os.kill(task.keeper, signal.SIGKILL)
    task.gone_within(GONE_S)
    assert task.wait()["state"] == "lost", task.shown
    world.balanced(task)

    model.play("It was heliotrope.", by="request", bare=False)
    assert world("resume", "-d", task.id).returncode == 0
    shown = task.wait()
    assert shown["state"] == "succeeded", (shown, task.output)
    assert "heliotrope" in str(model.shown.raw)
    world.balanced(task)
