"""A scripted model for every test, and a library to ask it with; no thread is left afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from sdk_help import SDKS

from tenuto.testing.models import Model


@pytest.fixture
def model() -> Iterator[Model]:
    before = set(threading.enumerate())
    with Model() as served:
        yield served
    ours = ("serve_forever", "process_request")  # and not those of asyncio's pools
    new = [one for one in threading.enumerate() if one not in before]
    left = [one for one in new if any(word in one.name for word in ours)]
    assert not left, left


@pytest.fixture(params=sorted(SDKS))
def sdk(request):
    return SDKS[request.param]
