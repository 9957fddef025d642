"""A home, a scripted model and a client for every test; nothing is left running afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from client_help import CLIENTS, Client, Home
from npm_help import packages

from tenuto.testing.models import Model

NODE = Path(__file__).parent / "node"


@pytest.fixture(scope="session")
def installed() -> Path:
    return packages(NODE)


@pytest.fixture
def model():
    served = Model()
    yield served
    served.close()


@pytest.fixture
def home(tmp_path: Path):
    place = Home(tmp_path)
    yield place
    place.close()
    place.gone()


@pytest.fixture(params=sorted(CLIENTS))
def client(request, installed: Path, home: Home, model: Model) -> Client:
    made = CLIENTS[request.param](installed, home, model)
    made.add()
    return made
