"""Folders of every released schema open, are checked, and go on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from state_help import ended, ran, resume

from tenuto import EnvironmentChanged
from tenuto.core.state import SCHEMA, decode_state
from tenuto.core.states import State
from tenuto.engine import saved
from tenuto.engine.blocking import BlockingEngine
from tenuto.stores.states import read_state

GOLDEN = Path(__file__).parent.parent / "golden"
FOLDERS = sorted(path for path in GOLDEN.glob("state_*/*") if path.is_dir())


def brought_in(engine: BlockingEngine, path: Path) -> str:
    """Put a folder from elsewhere among the executions, and let the index find it."""
    there = Path(engine.project.folder(path.name))
    there.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(path, there)
    for file in there.iterdir():
        os.chmod(file, 0o600)
    engine.index.rebuild()
    return path.name


@pytest.mark.promise("D1")
def test_there_is_a_folder_for_every_schema():
    assert {int(path.parent.name.removeprefix("state_")) for path in FOLDERS} == set(
        range(1, SCHEMA + 1)
    )


@pytest.mark.promise("D1")
@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.parent.name)
def test_a_released_state_is_read(path: Path):
    for name in ("state.json", "state.prev.json"):
        assert decode_state((path / name).read_bytes()).id == path.name
    state = read_state(str(path), path.name).state
    assert state is not None
    assert state.status == "interrupted"
    assert state.results[0].output == "from the past"
    fold, damaged = saved.folded(str(path), path.name)
    assert damaged == 0
    assert fold.state() == state


@pytest.mark.promise("D1", "D3", "D4")
@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.parent.name)
def test_a_released_task_from_another_machine_goes_on_when_forced(
    tasks: BlockingEngine, path: Path
):
    execution_id = brought_in(tasks, path)
    assert tasks.show(execution_id).state is State.INTERRUPTED
    with pytest.raises(EnvironmentChanged, match="another machine"):
        resume(tasks, execution_id)
    resume(tasks, execution_id, force=True)
    snapshot = ended(tasks, execution_id)
    assert snapshot, snapshot.detail
    outputs = [one["output"] for one in snapshot.value["steps"]]
    assert outputs == ["from the past", "second", "third"]
    assert ran() == ["b", "c"]
