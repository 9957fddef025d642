from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_help import CommandLine


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CommandLine]:
    line = CommandLine(tmp_path)
    yield line
    line.close()
