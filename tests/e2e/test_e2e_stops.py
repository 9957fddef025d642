"""Interrupt, crash, resume: nothing is left running, nothing is lost, and the books are right."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from engine_help import PATIENCE, await_death
from world import Runtime, Task, World

from tenuto.keeper import procfs
from tenuto.testing.models import Gate, Model, Say, Slow

GONE_S = 1.0
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
    nap = f"sleep {time.time():.6f}"  # to be known among all processes
    model.play(runtime.shell(nap), by="request", bare=False)
    assert world("resume", "-d", task.id).returncode == 0
    tool = born(nap)
    assert interrupt(task)["state"] == "interrupted"
    assert await_death(tool, 0), "the tool lives"
    assert "heliotrope" in str(model.shown.raw)
    assert "Something was said already" in str(model.shown.raw) or not runtime.keeps_cut
    world.balanced(task)

    model.play("It was heliotrope.", by="request", bare=False)
    assert world("resume", "-d", task.id).returncode == 0
    shown = task.wait()
    assert shown["state"] == "succeeded", (shown, task.output)
    (step,) = shown["task"]["steps"]
    assert step["output"] == "It was heliotrope." and step["attempts"] == 3
    assert step["session"] == before["session"]
    assert nap in str(model.shown.raw), "the session does not know of its own tool"
    world.balanced(task)


@pytest.mark.promise("X4", "R1", "B1")
@pytest.mark.full  # a runtime may be silent for long before its first word
@pytest.mark.runtimes("claude-code")
def test_a_task_at_its_deadline_leaves_nothing_and_its_spend_counts(
    world: World, runtime: Runtime
) -> None:
    task = begin(world, runtime, "--permissions", "allow", "--idle", "20s")
    shown = task.wait()
    assert (shown["state"], shown["reason"]) == ("failed", "idle"), (shown, task.output)
    task.gone_within(GONE_S)
    (step,) = task.task["steps"]
    assert step["status"] == "interrupted" and "the idle deadline asked for" in step["error"]
    assert world.is_closed(task)
    world.balanced(task)


def born(command: str) -> int:
    """Wait until a tool runs; return its pid, whatever it believes that to be."""
    wanted = command.replace(" ", "\0").encode() + b"\0"
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        for pid in procfs.all_pids():
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes() == wanted:
                    return pid
        time.sleep(0.02)
    raise AssertionError("the tool never ran")


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
