"""A real CLI, cut short at random: its task comes to the uninterrupted result, and the books agree."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal

import pytest
from engine_help import folded
from runtimes import RUNTIMES
from world import Runtime, Task, World

from tenuto.engine.blocking import sleep
from tenuto.engine.watch import Watch
from tenuto.keeper import procfs
from tenuto.testing.models import Seen

GONE_S = 5.0
STEPS = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
OUTPUTS = {
    "a": "Outcome-a of .",
    "b": "Outcome-b of a.",
    "c": "Outcome-c of a.",
    "d": "Outcome-d of b,c.",
}


def answer(seen: Seen) -> str:
    """Say which outcomes the model was really shown."""
    name = re.findall(r"This is part (\w)\.", seen.text)[-1]
    told = sorted(one for one in STEPS[name] if OUTPUTS[one] in seen.text)
    return f"Outcome-{name} of {','.join(told)}."


def start(world: World, runtime: Runtime, names: str) -> Task:
    steps = [
        {"id": name, "task": f"This is part {name}.", "depends_on": list(STEPS[name]),
         "model": runtime.model}
        for name in names
    ]  # fmt: skip
    (world.folder / "plan.json").write_text(json.dumps({"steps": steps}))
    words = ("task", "-d", "--runtime", runtime.runtime, "--strategy", "parallel")
    done = world(*words, "--plan", "plan.json")
    assert done.returncode == 0, done.stderr
    return Task(world, done.stdout.strip())


def strike(task: Task, rng: random.Random) -> str:
    """Wait for some more events, then interrupt or kill somebody; return what was done."""
    how = rng.choice(("interrupt", "driver", "keeper", "both"))
    more = rng.randrange(3, 16)
    await_events(task, len(task.events()) + more)
    if how == "interrupt":
        task.world("interrupt", task.id)
    for name in ("driver", "keeper") if how == "both" else (how,):
        started = folded(task.world.project, task.id).started
        assert started is not None
        known = {
            "driver": (started.pid, started.pid_start),
            "keeper": (started.keeper_pid, started.keeper_start),
        }
        pid, born = known.get(name, (0, -1))
        if procfs.start_time(pid) == born:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return f"{how} after {more} events"


def await_events(task: Task, count: int) -> None:
    """Wait until so many events are on the tape, or it has ended."""
    with Watch(task.world.project, task.id) as watch:
        watch.only_events = True
        seen = len(watch.look())
        while seen < count and not watch.over:
            sleep(watch, 1.0)
            seen += len(watch.look())


def play(world: World, runtime: Runtime, names: str, rounds: int, most: int) -> None:
    seed = int(os.environ.get("TENUTO_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    world.model.when(lambda seen: "This is part" in seen.text, *[answer] * 1000, by="request")
    world.begin()
    tasks: list[Task] = []
    for number in range(rounds):
        rng = random.Random(f"{seed}/{number}")
        task = start(world, runtime, names)
        tasks.append(task)
        told = [f"seed {seed}, round {number}"]
        for _ in range(rng.randint(1, most)):
            told.append(strike(task, rng))
            state = task.wait()["state"]
            task.gone_within(GONE_S)
            if state in ("succeeded", "failed"):
                break
            done = world("resume", "-d", task.id)
            assert done.returncode == 0, (told, done.stderr)
        print(told)
        shown = task.wait()
        assert shown["state"] == "succeeded", (told, shown["task"], task.output)
        outputs = {one["id"]: one["output"] for one in shown["task"]["steps"]}
        assert outputs == {name: OUTPUTS[name] for name in names}, told
        ends = [one["step"] for one in task.events("step_finished") if one["status"] == "completed"]
        assert sorted(ends) == list(names), (told, "each came to its end once")
        assert not task.processes(), told
        world.balanced(*tasks)


@pytest.mark.promise("D3", "R1", "B1")
@pytest.mark.runtimes("claude-code")
def test_a_task_of_a_real_cli_that_is_cut_short_comes_to_the_same(
    alone: World, runtime: Runtime
) -> None:
    play(alone, runtime, "ab", rounds=1, most=1)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.promise("D3", "R1", "B1")
@pytest.mark.runtimes("claude-code")
def test_tasks_of_a_real_cli_that_are_cut_short_come_to_the_same(alone: World) -> None:
    play(alone, RUNTIMES["claude-code"], "abcd", rounds=5, most=3)
