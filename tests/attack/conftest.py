"""A model's server, and a gateway before it; what is sent there may be no request at all."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from metering_help import Served, environ_for

from tenuto.testing.models import Model


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


@pytest_asyncio.fixture
async def served(tmp_path: Path, model: Model) -> AsyncIterator[Served]:
    async with Served(tmp_path, environ_for(model)) as served:
        yield served
