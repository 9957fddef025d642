"""Interrupted and resumed over and over: one execution grows by its tape and by nothing else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import apsw
import msgspec
import pytest
from engine_help import await_death, folded, keepers_of, marked_processes, tape_events
from state_help import A, C, await_event, begin, blocking, resume

from tenuto.core.plan import Step
from tenuto.core.state import decode_state
from tenuto.core.states import State
from tenuto.engine.blocking import BlockingEngine
from tenuto.stores.layout import Project

LONG = (pytest.mark.full, pytest.mark.timeout(1200))
HANGS = Step("b", "[[hang]] two", depends_on=("a",), runtime="echo")


class Seen(msgspec.Struct, frozen=True):
    """What there is of a project between two lives of its task."""

    files: dict[str, int]
    tape: int
    state: int
    rows: dict[str, int]
    descriptors: int
    processes: int


def look(project: Project, execution_id: str) -> Seen:
    started = folded(project, execution_id).started
    assert started is not None
    assert await_death(started.pid) and await_death(started.keeper_pid)
    own = project.folder(execution_id)
    files = sizes(Path(os.path.realpath(project.home))) | sizes(Path(tempfile.gettempdir()))
    files.pop(f"{os.path.realpath(own)}/tape.idx", None)  # of a tape that is long enough
    return Seen(
        files=files,
        tape=os.stat(f"{own}/tape").st_size,
        state=os.stat(f"{own}/state.json").st_size,
        rows=rows(project),
        descriptors=len(os.listdir("/proc/self/fd")),
        processes=len(marked_processes([execution_id])) + len(keepers_of(project)),
    )


def sizes(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()}


def rows(project: Project) -> dict[str, int]:
    """Return how many rows each table of the index has."""
    connection = apsw.Connection(project.index, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        names = [
            name
            for (name,) in connection.execute("select name from sqlite_master where type='table'")
        ]
        return {
            name: next(connection.execute(f'select count(*) from "{name}"'))[0] for name in names
        }
    finally:
        connection.close()


def again(engine: BlockingEngine, execution_id: str, attempt: int) -> None:
    """Wait until b hangs, the n-th time, and interrupt."""

    def began(event: dict[str, object]) -> bool:
        nonlocal attempt
        attempt -= event["type"] == "step_session" and event["step"] == "b"
        return attempt <= 0

    await_event(engine, execution_id, began)
    assert engine.interrupt(execution_id).state is State.INTERRUPTED


@pytest.mark.promise("D3", "D2")
@pytest.mark.parametrize("cycles", [3, pytest.param(100, marks=LONG)])
def test_cycles_of_interrupt_and_resume_leave_their_records_and_nothing_else(
    agents: Path, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cycles: int
):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    seen: list[Seen] = []
    with blocking(project) as engine:
        execution_id = begin(engine, A, HANGS, C)
        again(engine, execution_id, 1)
        for cycle in range(cycles + 2):
            seen.append(look(project, execution_id))
            resume(engine, execution_id)
            again(engine, execution_id, cycle + 2)
        seen.append(look(project, execution_id))
    first, *later = seen[1:]  # the second life is the first that finds everything made
    for one in later:
        assert one.files.keys() == first.files.keys()
        assert one.descriptors == first.descriptors
        assert one.processes == first.processes == 0
        assert abs(one.state - first.state) < 64, "digits of numbers and times"
    growth = [after.tape - before.tape for before, after in zip(seen[1:], later, strict=False)]
    print(f"\nper cycle: {min(growth)} to {max(growth)} bytes of tape; state {later[-1].state}")
    assert max(growth) < 16 * 1024
    assert max(growth) - min(growth) < 64, growth
    # the history has a record of each attempt, the counters one of each state that there ever was
    added = {name: count - first.rows[name] for name, count in later[-1].rows.items()}
    assert added.pop("records") == len(later)
    assert added.pop("counts") <= 1
    assert not any(added.values()), added
    own = os.path.realpath(project.folder(execution_id))
    grown = {
        name: size - first.files[name]
        for name, size in later[-1].files.items()
        if size > first.files[name] and not name.startswith(own)
    }
    index = os.path.realpath(project.index)
    assert grown.pop(index, 0) < 1024 * len(later) + 8192, "the records of the history"
    assert grown.pop(f"{index}-wal", 0) < 8 * 1024 * 1024
    assert not grown, grown
    state = decode_state(Path(project.folder(execution_id), "state.json").read_bytes())
    assert state.cursor.finished == ("a",)
    kinds = {one["type"] for one in tape_events(project, execution_id)}
    assert "warned" not in kinds
