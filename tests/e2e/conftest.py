"""Real runtimes, installed once; a scripted model and a world for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_help import assert_nothing_left
from npm_help import missing, packages
from runtimes import FULL, MAIN, PROGRAMS, RUNTIMES
from world import Runtime, World

from tenuto.engine.gateways import TITLE as GATEWAY
from tenuto.testing.models import Model

Find = Callable[..., dict[str, str]]
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def quick_packages() -> Path:
    return packages(TESTS / "agents" / "node")


@pytest.fixture(scope="session")
def slow_packages() -> Path:
    return packages(TESTS / "clients" / "node")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with each runtime; only those that it names, or the main ones, on every push."""
    if "runtime" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("runtimes")
    names = marker.args if marker is not None else (*MAIN, *FULL)
    cases = [pytest.param(name, marks=[pytest.mark.full] if name in FULL else []) for name in names]
    metafunc.parametrize("runtime", cases, indirect=True)


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return RUNTIMES[request.param]


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> Callable[..., dict[str, str]]:
    """Where the programs of runtimes are; installed by the first test that wants one."""

    def find(*names: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in [one for one in names if one in PROGRAMS]:
            where, pattern = PROGRAMS[name]
            paths = sorted(request.getfixturevalue(f"{where}_packages").glob(pattern))
            if not paths:
                missing(f"{pattern}, a program for this machine")
            found[name] = str(paths[0])
        return found

    return find


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One project for many tests, so that its gateway starts once, as it does for users."""
    with Model() as model:
        made = World(tmp_path_factory.mktemp("world"), model)
        yield made
        made.close()
        assert_nothing_left(made.project)


def _wanted(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Return the runtimes whose programs a test needs."""
    if "runtime" in request.fixturenames:
        return (request.getfixturevalue("runtime").runtime,)
    marker = request.node.get_closest_marker("runtimes")
    return marker.args if marker is not None else ("claude-code", "codex")


@pytest.fixture
def world(request: pytest.FixtureRequest, shared: World, programs: Find) -> Iterator[World]:
    """The shared project, with the programs that a test uses; no task is left in it."""
    shared.programs |= programs(*_wanted(request))
    shared.settings()
    shared.begin()
    yield shared
    left = [one["id"] for one in shared.json("ps") if one["title"] != GATEWAY]
    for one in left:
        shared("kill", one)
    assert not left, left
    assert not shared.model.errors, shared.model.errors


@pytest.fixture
def alone(request: pytest.FixtureRequest, tmp_path: Path, programs: Find) -> Iterator[World]:
    """A project of its own, for tests that set limits for all of it or script by role."""
    with Model() as model:
        made = World(tmp_path, model)
        made.programs |= programs(*_wanted(request))
        made.settings()
        yield made
        made.close()
        assert_nothing_left(made.project)
        assert not model.errors, model.errors


@pytest.fixture
def model(world: World) -> Model:
    return world.model
