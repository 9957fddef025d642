"""The real programs, a scripted model, and a place that is empty again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_help import Place
from faulty import Faulty
from npm_help import missing, packages

from tenuto.testing.models import Model

NODE = Path(__file__).parents[2] / "clients" / "node"


@pytest.fixture(scope="session")
def installed() -> Path:
    return packages(NODE)


def program(installed: Path, pattern: str) -> str:
    found = sorted(installed.glob(pattern))
    if not found:
        missing(f"{pattern}, a program for this machine")
    return str(found[0])


@pytest.fixture(scope="session")
def claude(installed: Path) -> str:
    return program(installed, "@anthropic-ai/claude-code-linux-*/claude")


@pytest.fixture(scope="session")
def codex(installed: Path) -> str:
    return program(installed, "@openai/codex-linux-*/vendor/*/bin/codex")


@pytest.fixture(scope="session")
def opencode(installed: Path) -> str:
    return program(installed, "opencode-linux-*/bin/opencode")


@pytest.fixture
def model() -> Iterator[Model]:
    served = Model()
    yield served
    served.close()
    assert not served.errors


@pytest.fixture
def faulty(model: Model) -> Iterator[Faulty]:
    between = Faulty(model)
    yield between
    between.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(tmp_path, monkeypatch)
    yield made
    left = [one for one in made.nursery.children if one.process.returncode is None]
    assert not left, "a session was not closed"
    assert made.strays() == []
