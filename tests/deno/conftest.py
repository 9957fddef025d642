"""Nothing is left behind in these tests: a deno process has no children."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_help import project_of, tape_events


@pytest.fixture
def folder(folder: Path) -> Iterator[Path]:
    yield folder
    project = project_of(folder)
    for one in project.all_ids():
        left = [event for event in tape_events(project, one) if event["type"] == "left_behind"]
        assert not left, f"{one} left something behind: {left}"
