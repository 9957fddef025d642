"""A session's queue of cells: its keeper lets its one worker process run them, one after the other.

A cell's stem asks for a place (`cell`), is told when its turn has come, says `cell_go` with the cell's
stdin, stdout, stderr and channel, and is told how it ended. Its connection stands for it: one that
closes while the cell waits gives up its place, one that closes while the cell runs ends the session,
since nothing else can stop code in the middle of a process. What the worker says is believed only
about the cell that it was given.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections import deque

from tenuto.keeper import control, procfs, sweep, verdict
from tenuto.keeper.cell import holds, identity
from tenuto.keeper.faults import point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tenuto.keeper.keeper import Keeper

_PASSED = 4
_ID_MOST = 100
_BORN_S, _BORN_MOST_S = 0.1, 2.0


class _Place:
    """One cell in the queue or at work."""

    def __init__(self, connection: control.Connection, cell_id: str, cwd: str | None) -> None:
        self.connection = connection
        self.id = cell_id
        self.cwd = cwd
        self.number = 0
        self.running = False
        self.begun = False
        self.signals: list[int] = []
        self.interrupted: set[int] = set()
        self.interrupting_until = 0.0
        self.pipes: set[tuple[int, int]] = set()
        self.before = (0.0, 0.0)


class Cells:
    """The cells of one session."""

    def __init__(self, keeper: Keeper) -> None:
        """Begin with none, and with a worker that has yet to come up."""
        self._keeper = keeper
        self._queue: deque[_Place] = deque()
        self._current: _Place | None = None
        self._ready = False
        self._number = 0
        self._gone: dict[str, Any] | None = None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:  # a connection for each cell that waits; the worker was forked before
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    # What clients ask

    def status(self, env: dict[str, str]) -> dict[str, Any]:
        """Return how the session stands, and which of these variables it does not have so."""
        own: dict[str, str] = self._keeper.job["env"]
        return {
            "name": self._keeper.job["session"]["name"],
            "language": self._keeper.job["session"]["language"],
            "pid": self._keeper.child.pid,
            "ready": self._ready,
            "ending": self._keeper.outcome is not None or self._keeper.child.dead(),
            "cells": self._number,
            "current": self._current.id if self._current is not None else None,
            "queued": [place.id for place in self._queue],
            "differs": sorted(name for name, value in env.items() if own.get(name) != value),
        }

    def enqueue(self, connection: control.Connection, message: dict[str, Any]) -> None:
        """Give a cell its place."""
        cwd = message.get("cwd")
        place = _Place(connection, str(message["id"])[:_ID_MOST], str(cwd) if cwd else None)
        if self._gone is not None:
            connection.reply(ok=True, gone=self._gone)
            return
        self._queue.append(place)
        connection.reply(ok=True, queued=len(self._queue))
        self._advance()

    def go(self, connection: control.Connection) -> None:
        """Hand the cell whose turn it is to the worker, with its descriptors."""
        fds = connection.take_fds()
        place = self._current
        try:
            if place is None or place.connection is not connection or place.running:
                raise ValueError("it is not this cell's turn")
            if len(fds) != _PASSED:
                raise ValueError(f"{len(fds)} descriptors came with it, not {_PASSED}")
            place.pipes = {identity(os.fstat(fd)) for fd in fds[:3]}
            line = {"type": "cell", "n": place.number, "id": place.id, "cwd": place.cwd}
            point("session-hands")
            place.running = True
            place.before = procfs.spent(self._processes())
            self._ready = False
            self._hand(json.dumps(line).encode() + b"\n", fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _hand(self, line: bytes, fds: list[int]) -> None:
        try:
            self._keeper.channel.pass_on(line, fds)
        except ConnectionError:
            return  # it has just ended: that is told in a moment
        except OSError as error:  # it says that it is done, and does not read what to do next
            text = f"its process does not take the cell: {error}"
            self._keeper.end_by(verdict.Outcome("failed", "protocol", text))

    def signal(self, connection: control.Connection, number: int) -> None:
        """Pass a signal on to what runs the cell, as soon as its code runs."""
        place = self._current
        if place is None or place.connection is not connection or not place.running:
            return
        place.signals.append(signal.Signals(number))
        self._signal(place)

    def _signal(self, place: _Place) -> None:
        """Reach the worker and the processes of this cell: not what earlier cells left running."""
        if not place.begun:
            return  # the worker would not know whom it is for
        own = self._own(place) or [self._keeper.child.pid]
        while place.signals:
            number = place.signals.pop(0)
            sweep.send(own, number)
            if number == signal.SIGINT:
                place.interrupted.update(own)
                place.interrupting_until = time.monotonic() + _BORN_MOST_S
                self._keeper.loop.after(_BORN_S, self._interrupt_born)

    def _own(self, place: _Place) -> list[int]:
        return [pid for pid in self._processes() if holds(pid, place.pipes)]

    def _interrupt_born(self) -> None:
        """Reach a program that was started in that very moment: who waits for it may not listen."""
        place = self._current
        if place is None or time.monotonic() > place.interrupting_until:
            return
        born = [pid for pid in self._own(place) if pid not in place.interrupted]
        sweep.send(born, signal.SIGINT)
        place.interrupted.update(born)
        self._keeper.loop.after(_BORN_S, self._interrupt_born)

    def dropped(self, connection: control.Connection) -> None:
        """See a cell go: out of the queue, or with the session if it runs."""
        place = self._current
        if place is None or place.connection is not connection:
            self._queue = deque(one for one in self._queue if one.connection is not connection)
        elif place.running:
            outcome = verdict.Outcome("killed", "killed", f"cell {place.id} was ended while it ran")
            self._keeper.end_by(outcome)
        else:
            self._current = None
            self._advance()

    # What the worker says, and its end

    def said(self, kind: str, message: dict[str, Any]) -> None:
        """Take the worker's word for the cell that it has, and for no other."""
        place = self._current
        if kind == "cell_ready" and place is None:
            self._ready = True
        elif kind == "cell_begun" and place is not None and message.get("n") == place.number:
            place.begun = True
            self._signal(place)
        elif kind == "cell_done" and place is not None and place.running:
            if message.get("n") != place.number:
                return
            code = int(message.get("code", 1))
            self._current = None
            self._ready = True
            point("session-done")
            place.connection.reply(ok=True, done=code, usage=self._usage(place))
        self._advance()

    def _processes(self) -> list[int]:
        child = self._keeper.child.pid
        return [child, *procfs.descendants(child)]

    def _usage(self, place: _Place) -> dict[str, float]:
        """Return what the session spent while it ran this cell; memory is the session's."""
        pids = self._processes()
        user, system = procfs.spent(pids)
        return {
            "user_s": round(max(0.0, user - place.before[0]), 6),
            "system_s": round(max(0.0, system - place.before[1]), 6),
            "max_rss": max(map(procfs.peak_memory, pids)),
        }

    def ended(self, record: dict[str, Any]) -> None:
        """Tell every cell, once the end stands on the tape: who asks then begins a new session."""
        fields = ("reason", "detail", "exit_code", "signal")
        self._keeper.writer.then(lambda: self._tell_end({k: record.get(k) for k in fields}))

    def _tell_end(self, gone: dict[str, Any]) -> None:
        self._gone = gone
        if self._current is not None:
            self._current.connection.reply(ok=True, gone=gone)
            self._current = None
        for place in self._queue:
            place.connection.reply(ok=True, gone={**gone, "exit_code": None, "signal": None})
        self._queue.clear()

    def _advance(self) -> None:
        if not self._ready or self._current is not None or not self._queue or self._keeper.ended:
            return
        place = self._current = self._queue.popleft()
        self._number += 1
        place.number = self._number
        turn = {
            "keeper": os.getpid(),
            "worker": self._keeper.child.pid,
            "n": place.number,
            "confined": self._keeper.channel.confined,
        }
        place.connection.reply(ok=True, turn=turn)
