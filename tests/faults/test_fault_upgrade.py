"""Keepers of another installation: one that goes away under them, or one of an earlier release."""

import os
import shutil
from pathlib import Path

import pytest
from fault_verbs import every_verb

import tenuto
from tenuto.dispatch.launch import FreshLauncher, ZygoteLauncher

FROZEN = sorted((Path(__file__).parent.parent / "frozen").glob("keeper_*"))


@pytest.fixture(params=["fresh", "zygote"])
def launcher_of(request):
    """Return a launcher for a keeper package, by a way."""

    def make(source):
        if request.param == "fresh":
            return FreshLauncher(source=str(source))
        return ZygoteLauncher(2, source=str(source))

    return make


@pytest.mark.promise("X11", "X17")
def test_a_running_keeper_needs_nothing_of_its_installation(world, launcher_of):
    copy = world.folder / "site"
    shutil.copytree(
        Path(tenuto.__file__).parent, copy / "tenuto", ignore=shutil.ignore_patterns("__pycache__")
    )
    engine = world.engine(launcher_of(copy))
    every_verb(world, engine, remove=lambda: shutil.rmtree(copy))
    assert not os.path.exists(copy)


@pytest.mark.promise("X11")
@pytest.mark.parametrize("release", FROZEN, ids=lambda path: path.name)
def test_keepers_of_earlier_releases_are_served(world, launcher_of, release):
    every_verb(world, world.engine(launcher_of(release)))


def test_there_is_a_frozen_keeper():
    assert FROZEN
