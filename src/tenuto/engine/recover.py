"""What became of an execution: read from its tape, and settled if its keeper died.

The lock tells who is alive; nothing here guesses by pids or waits for a timeout. A dead keeper's
processes are ended first, and only then is the execution called lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tenuto.core import events as ev
from tenuto.core.errors import DiskFull, NewerTape, NotFinished
from tenuto.core.event import Event
from tenuto.core.execution import Execution
from tenuto.core.ids import born_ms
from tenuto.core.listing import Row
from tenuto.core.states import LIVE, State
from tenuto.engine import scratch
from tenuto.keeper import cgroup, procfs
from tenuto.keeper.frames import EVENT, Frame
from tenuto.keeper.sweep import sweep
from tenuto.stores.layout import Project
from tenuto.stores.pen import Pen
from tenuto.stores.tape import NAME as TAPE
from tenuto.stores.tape import TapeReader, is_kept

if TYPE_CHECKING:
    from tenuto.core.history import ExecutionRecord
    from tenuto.core.ports import News, Store

_SWEEP_S = 5.0
_JUST_MADE_S = 2.0
UNREADABLE = "its tape cannot be read"
NEWER = "its tape is of a newer Tenuto, which alone can read it"
NEVER_STARTED = "its starter died before the work began"
_AT_START = "its starter or its keeper died before the start was recorded"
_KEEPER_DIED = "its keeper died"


def fold(reader: TapeReader, execution_id: str) -> Execution:
    """Return the execution as its events tell it."""
    execution = Execution(execution_id)
    for frame in reader.events():
        execution.apply(frame.time_ns, ev.decode_event(frame.body))
    return execution


def load(project: Project, execution_id: str) -> Execution | None:
    """Return the execution as its tape stands, without settling anything; None without a tape.

    Of a tape that only a newer Tenuto can read, nothing is known.
    """
    try:
        with TapeReader(project.folder(execution_id)) as reader:
            return fold(reader, execution_id)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except NewerTape:
        return Execution(execution_id)


class Finding(NamedTuple):
    """What is true of an execution, and its events, if its tape was read to the end for that."""

    execution: Execution
    events: Sequence[Frame] = ()


def settle(project: Project, execution_id: str) -> Execution | None:
    """Return what is true of an execution; if its keeper died, sweep and record that first."""
    found = find_out(project, execution_id)
    return found.execution if found is not None else None


def find_out(project: Project, execution_id: str) -> Finding | None:
    """Settle an execution, and return what was read for it, too."""
    folder = project.folder(execution_id)
    execution = load(project, execution_id)
    if execution is None:
        return None
    if not _needs_keeper(execution) or is_kept(folder):
        return Finding(execution)
    whole = _Whole(execution_id)
    try:
        pen = Pen.take_up(folder, whole.take)
    except NotFinished:  # somebody else settles it, or it was resumed
        now = load(project, execution_id)
        return Finding(now) if now is not None else None
    except OSError:  # no room, or no right, to write it down: true all the same
        return Finding(_lost_unwritten(folder, execution))
    if pen is None:
        if _is_empty(folder) or is_kept(folder):
            return Finding(execution)  # just being made
        execution = load(project, execution_id) or execution
        return Finding(_lost_unread(folder, execution) if execution.spec is None else execution)
    execution = whole.execution
    try:
        if _needs_keeper(execution):
            happened = _what_happened(
                execution, sweep_after(execution, folder), whole.size, whole.lines
            )
            pen.append(happened, whole.take)
    except OSError:
        return Finding(_lost_unwritten(folder, execution))
    finally:
        pen.put_down()
    return Finding(execution, whole.events)


class _Whole:
    """A tape as it is read from its first frame to its last: what happened, and how much was said."""

    def __init__(self, execution_id: str) -> None:
        self.execution = Execution(execution_id)
        self.events: list[Frame] = []
        self.size = self.lines = 0

    def take(self, frame: Frame) -> None:
        """Take the next frame."""
        if frame.stream == EVENT:
            self.execution.apply(frame.time_ns, ev.decode_event(frame.body))
            self.events.append(frame)
        else:
            self.size += len(frame.body)
            self.lines += frame.body.count(b"\n")


def _is_empty(folder: str) -> bool:
    """Tell whether a tape was made a moment ago and not yet written: its starter is about to."""
    status = os.stat(os.path.join(folder, TAPE))
    return status.st_size == 0 and abs(time.time() - status.st_mtime) < _JUST_MADE_S


def _needs_keeper(execution: Execution) -> bool:
    """Tell whether a keeper should be there: for its end, or for what it left behind."""
    return execution.live or bool(execution.left_behind)


def _what_happened(execution: Execution, swept: int, size: int, lines: int) -> Event:
    if not execution.live:
        return ev.LeftBehindEnded(killed=swept > 0)
    reason = _KEEPER_DIED if execution.started else _AT_START
    return ev.Lost(reason=reason, swept=swept, size=size, lines=lines)


def output_of(folder: str) -> tuple[int, int]:
    """Return bytes and lines of the output on a tape, for those that nobody counts any more."""
    whole = _Whole("")
    with TapeReader(folder) as reader:
        for frame in reader.frames():
            whole.take(frame)
    return whole.size, whole.lines


def sweep_after(execution: Execution, folder: str) -> int:
    """End every process that a dead keeper left, and remove its scratch; return how many there were."""
    started = execution.started
    known: list[tuple[int, int]] = []
    group = ""
    if started is not None and started.boot and started.boot != procfs.boot_id():
        _remove_scratch(execution, folder)
        return 0  # no process outlives its boot, so that looking at all of them is not needed
    if started is not None and started.boot:
        known = [(started.pid, started.pid_start), (started.keeper_pid, started.keeper_start)]
        known += [(one.pid, one.start) for one in execution.left_behind]
        group = started.cgroup
    elif started is None:  # it may have died before its start was recorded
        group = cgroup.claimed(execution.id)
    swept = sweep(execution.id, group, known, _SWEEP_S)
    _remove_scratch(execution, folder)
    return swept


def _remove_scratch(execution: Execution, folder: str) -> None:
    held = execution.confined
    scratch.remove(folder, execution.id, held.scratch if held is not None else "")


def _lost_unread(folder: str, execution: Execution) -> Execution:
    sweep_after(execution, folder)
    execution.apply(time.time_ns(), ev.Lost(reason=_why_unread(folder)))
    return execution


def _why_unread(folder: str) -> str:
    try:
        with TapeReader(folder):
            return UNREADABLE
    except NewerTape:
        return NEWER
    except OSError:
        return UNREADABLE


def _lost_unwritten(folder: str, execution: Execution) -> Execution:
    swept = sweep_after(execution, folder)
    execution.apply(time.time_ns(), _what_happened(execution, swept, *output_of(folder)))
    return execution


def row_of(execution: Execution, starter: str = "") -> Row:
    """Return what the index should say of an execution."""
    spec = execution.spec
    ended = execution.ended
    return Row(
        id=execution.id,
        kind=spec.kind if spec else "command",
        state=execution.state,
        reason=execution.lost.reason if execution.lost else ended.reason if ended else "",
        title=spec.label() if spec else "",
        parent=spec.parent if spec else None,
        exit_code=ended.exit_code if ended else None,
        is_async=execution.is_async,
        created_ns=execution.created_ns,
        started_ns=execution.started_ns,
        ended_ns=execution.ended_ns,
        starter=starter,
        has_left=bool(execution.left_behind),
        size=execution.lost.size if execution.lost else ended.size if ended else 0,
        lines=execution.lost.lines if execution.lost else ended.lines if ended else 0,
    )


def settle_row(project: Project, row: Row) -> Row:
    """Return the row as it should be; a starter that died before making the tape leaves it lost."""
    return _found_row(row, find_out(project, row.id))


def _found_row(row: Row, found: Finding | None) -> Row:
    execution = found.execution if found is not None else None
    if execution is not None and (execution.spec is not None or not execution.live):
        settled = row_of(execution, row.starter)
        return settled if execution.spec is not None else _keep_head(row, settled)
    if _starter_lives(row.starter):
        return row
    lost = Execution(row.id)
    lost.apply(time.time_ns(), ev.Lost(reason=NEVER_STARTED))
    return _keep_head(row, row_of(lost, row.starter))


def _keep_head(row: Row, settled: Row) -> Row:
    return Row(
        id=row.id, kind=row.kind, state=settled.state, reason=settled.reason, title=row.title,
        parent=row.parent, is_async=row.is_async, created_ns=row.created_ns,
        ended_ns=settled.ended_ns, starter=row.starter,
    )  # fmt: skip


def starter_mark(pid: int) -> str:
    """Return what identifies a process for as long as this boot lasts."""
    return f"{pid}:{procfs.start_time(pid)}:{procfs.boot_id()}"


def _starter_lives(mark: str) -> bool:
    pid, _, _ = mark.partition(":")
    if not pid.isdecimal() or not procfs.start_time(int(pid)):
        return False
    return starter_mark(int(pid)) == mark


def rows_from_folders(project: Project) -> list[Row]:
    """Return a row for every execution that has a folder; what cannot be read is lost, not skipped."""
    rows: list[Row] = []
    for execution_id in project.all_ids():
        execution = load(project, execution_id)
        if execution is None or execution.spec is None:
            reason = _why_unread(project.folder(execution_id))
            row = Row(execution_id, "command", State.LOST, reason, "(unreadable)")
            if execution is not None and is_kept(project.folder(execution_id)):
                row = Row(execution_id, "command", State.QUEUED)
            born_ns = born_ms(execution_id) * 1_000_000
            rows.append(msgspec.structs.replace(row, created_ns=born_ns))
        else:
            text = execution.spec.code or " ".join(execution.spec.argv)
            rows.append(msgspec.structs.replace(row_of(execution), text=text))
    return rows


# What tasks' steps came to. Few executions are tasks: nothing is loaded for the others.


def tell(project: Project, index: Store, found: Iterable[tuple[Row, Finding | None]]) -> list[Row]:
    """Tell the index what is true of its rows, and return those that found no room in it.

    On a full disk it lags behind the tapes, as it may.
    """
    changed = [news for row, one in found if (news := _news(project, row, one))[0] != row]
    try:
        if changed:
            index.settle_all(changed)
    except DiskFull:
        return [row for row, _ in changed]
    return []


def tell_end(project: Project, index: Store, execution: Execution) -> None:
    """Tell the index how an execution stands that was read just now."""
    row: Row | None = row_of(execution)
    if row.kind != "task":  # most are none, and need no look at what the index knows
        with suppress(DiskFull):
            index.settle(row)
    elif (row := index.get(execution.id)) is not None:
        tell(project, index, [(row, Finding(execution))])


def _news(project: Project, row: Row, found: Finding | None) -> News:
    """Return a row of the index as it should be, with the records that belong to it.

    None if the index has them already: row and records are written together, so that an end which
    the index knows has its records there.
    """
    now = _found_row(row, found)
    known = (now.state, now.ended_ns) == (row.state, row.ended_ns)
    if now.kind != "task" or now.state in LIVE or known:
        return now, None
    from tenuto.engine.history import records_of
    from tenuto.engine.saved import close_state

    if (
        now.state is not State.LOST
    ):  # with a machine, a thousand may be: theirs is written on resume
        close_state(project, row.id)  # a driver that was ended by force could not
    return now, records_of(project, row.id, found.events if found is not None else ())


def records_from_folders(project: Project, tasks: Sequence[str]) -> Iterable[ExecutionRecord]:
    """Return the records of all steps: from these tasks' tapes, and of those that are gone."""
    if not tasks and not os.path.isdir(project.history):
        return ()
    from tenuto.engine.history import all_records

    return all_records(project, tasks)
