"""Ends every process of an execution, daemons too, and does not answer before they are dead."""

from __future__ import annotations

import os
import signal
import time

from tenuto.keeper import cgroup, procfs

_PAUSE_S = 0.001


def members(execution_id: str, group: str, root: int = 0) -> list[int]:
    """Return the live processes of an execution: by group, by descent, and (no root) by mark."""
    found = set(cgroup.members(group)) if group else set[int]()
    spared: set[int] = set()
    if root:
        found.update(procfs.descendants(root))
    else:
        found.update(pid for pid in procfs.all_pids() if procfs.carries_mark(pid, execution_id))
        spared = _own_line()
    return [pid for pid in sorted(found) if pid not in spared and _alive(pid)]


def _own_line() -> set[int]:
    """Return ourselves and our ancestors: whoever sweeps never ends itself."""
    line: set[int] = set()
    pid = os.getpid()
    while pid > 1 and pid not in line:
        line.add(pid)
        pid = procfs.parent(pid)
    return line


def _alive(pid: int) -> bool:
    return procfs.start_time(pid) != 0 and not procfs.is_keeper(pid)


def describe(pids: list[int]) -> list[dict[str, object]]:
    """Return what an exit record says of processes that were left behind."""
    return [
        {"pid": pid, "start": procfs.start_time(pid), "command": procfs.command(pid)}
        for pid in pids
    ]


def send(pids: list[int], number: int) -> int:
    """Send a signal to each and return how many took it."""
    sent = 0
    for pid in pids:
        try:
            os.kill(pid, number)
            sent += 1
        except (ProcessLookupError, PermissionError):
            continue
    return sent


def sweep(execution_id: str, group: str, known: list[tuple[int, int]], patience_s: float) -> int:
    """End what a dead keeper left; return how many there were. Known are (pid, start time)."""
    met: set[tuple[int, int]] = set()
    limit = time.monotonic() + patience_s
    while True:
        found = {(pid, procfs.start_time(pid)) for pid in members(execution_id, group)}
        # one that is dying has lost its mark already, but it is not dead
        alive = {(pid, start) for pid, start in found | met | {*known} if _lives(pid, start)}
        if not alive or time.monotonic() > limit:
            break
        met |= alive
        if group:
            cgroup.kill(group)
        send(sorted(pid for pid, _ in alive), signal.SIGKILL)
        time.sleep(_PAUSE_S)
    if group:
        cgroup.remove(group)
    return len(met)


def _lives(pid: int, start: int) -> bool:
    return start != 0 and procfs.start_time(pid) == start
