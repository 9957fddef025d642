"""A model's server, and a gateway before it."""

import pytest
import pytest_asyncio
from metering_help import Served, environ_for

from tenuto.testing.models import Model


@pytest.fixture
def model():
    with Model() as model:
        yield model
        assert not model.errors


@pytest_asyncio.fixture
async def served(tmp_path, model):
    async with Served(tmp_path, environ_for(model)) as served:
        yield served
