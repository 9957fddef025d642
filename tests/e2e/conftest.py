"""Real runtimes, installed once; a scripted model and a world for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_help import assert_nothing_left
from npm_help import program
from runtimes import ALL, MAIN, PROGRAMS, RUNTIMES
from world import LONGEST_S, Runtime, World

from tenuto.engine.gateways import TITLE as GATEWAY
from tenuto.testing.models import Model


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with each runtime: with those that it names on every push, else in the slow lane."""
    if "runtime" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("runtimes")
    quick = marker.args if marker is not None else MAIN
    slow = (*ALL, *(marker.kwargs.get("slow", ()) if marker is not None else ()))
    cases = [pytest.param(name) for name in quick]
    cases += [
        pytest.param(name, marks=(pytest.mark.full, pytest.mark.timeout(LONGEST_S + 20)))
        for name in RUNTIMES
        if name in slow and name not in quick
    ]
    metafunc.parametrize("runtime", cases, indirect=True)


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return RUNTIMES[request.param]


def _programs(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return where the programs are that a test needs; installed by the first that wants one."""
    marker = request.node.get_closest_marker("runtimes")
    wanted = marker.args if marker is not None else ("claude-code", "codex")
    if "runtime" in request.fixturenames:
        wanted = (request.getfixturevalue("runtime").runtime,)
    return {name: program(*PROGRAMS[name]) for name in wanted if name in PROGRAMS}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One project for many tests, so that its gateway starts once, as it does for users."""
    with Model() as model:
        made = World(tmp_path_factory.mktemp("world"), model)
        yield made
        made.close()
        assert_nothing_left(made.project)


@pytest.fixture
def world(request: pytest.FixtureRequest, shared: World) -> Iterator[World]:
    """The shared project, with the programs that a test uses; no task is left in it."""
    shared.programs |= _programs(request)
    shared.settings()
    shared.begin()
    yield shared
    left = [one["id"] for one in shared.json("ps") if one["title"] != GATEWAY]
    for one in left:
        shared("kill", one)
    assert not left, left
    assert not shared.model.errors, shared.model.errors


@pytest.fixture
def alone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A project of its own, for tests that set limits for all of it or script by role."""
    with Model() as model:
        made = World(tmp_path, model)
        made.programs |= _programs(request)
        made.settings()
        yield made
        made.close()
        assert_nothing_left(made.project)
        assert not model.errors, model.errors


@pytest.fixture
def model(world: World) -> Model:
    return world.model
