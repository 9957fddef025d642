"""A home, a scripted model and a client for every test; nothing is left running afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from client_help import CLIENTS, Client, Home

from tenuto.testing.models import Model


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
def client(request, home: Home, model: Model) -> Client:
    made = CLIENTS[request.param](home, model)
    made.add()
    return made
