"""What the session tests need besides a project of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from session_help import Line


@pytest.fixture
def cli(folder: Path) -> Line:
    return Line(folder)
