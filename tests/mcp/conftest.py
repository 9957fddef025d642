"""A project of its own for every test; what was started is gone afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp_help import Place


@pytest.fixture
def place(tmp_path: Path):
    here = Place(tmp_path)
    yield here
    here.close()
