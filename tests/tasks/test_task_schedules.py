"""Durable tasks as a property: whatever happens, the result is the uninterrupted run's."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from schedules import World
from task_help import HERE

from tenuto.stores.layout import Project


def seed() -> int:
    return int(os.environ.get("TENUTO_TEST_SEED") or random.SystemRandom().randrange(1 << 32))


@pytest.fixture
def counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose agents count what they do."""
    monkeypatch.setenv("TENUTO_TEST_COUNTS", str(folder.parent / "counts"))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    return folder


def play(
    folder: Path, project: Project, kinds: int, rounds: range, budget_s: float = 86400.0
) -> int:
    began = time.monotonic()
    world = World(folder, project, seed(), kinds)
    try:
        return world.compare(rounds, budget_s)
    finally:
        took = time.monotonic() - began
        print(
            f"\nschedules: seed {world.seed}, {world.rounds} of {len(rounds)} rounds,"
            f" {world.lives} lives, {world.deaths} crashes, {dict(world.hows)}, {took:.0f} s"
        )


@pytest.mark.promise("D3", "D2", "X11")
def test_whatever_cuts_a_task_short_it_comes_to_what_the_uninterrupted_one_does(
    counted: Path, project: Project
) -> None:
    assert play(counted, project, kinds=5, rounds=range(40), budget_s=20) >= 6


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.promise("D3", "D2", "X11")
@pytest.mark.parametrize("part", range(4))
def test_in_a_thousand_schedules_it_comes_to_the_same(
    counted: Path, project: Project, part: int
) -> None:
    assert play(counted, project, kinds=15, rounds=range(250 * part, 250 * (part + 1))) == 250
