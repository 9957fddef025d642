"""The real programs, a scripted model, and a place that is empty again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_help import Place
from faulty import Faulty
from npm_help import QUICK, SLOW, program

from tenuto.testing.models import Model


@pytest.fixture(scope="session")
def claude() -> str:
    return program(QUICK, "@anthropic-ai/claude-code-linux-*/claude")


@pytest.fixture(scope="session")
def codex() -> str:
    return program(QUICK, "@openai/codex-linux-*/vendor/*/bin/codex")


@pytest.fixture(scope="session")
def opencode() -> str:
    return program(SLOW, "opencode-linux-*/bin/opencode")


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
