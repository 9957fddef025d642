"""The keeper's loop: reads what the child writes, serves its clients, and writes the exit record."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
import time

from tenuto.keeper import cgroup, linux, procfs, protocol, sweep, verdict
from tenuto.keeper.asking import Asking
from tenuto.keeper.cell import Cell
from tenuto.keeper.cells import Cells
from tenuto.keeper.channel import Channel
from tenuto.keeper.child import Child, machine_words
from tenuto.keeper.faults import describe, point
from tenuto.keeper.host import Host
from tenuto.keeper.loop import Loop
from tenuto.keeper.requests import Requests
from tenuto.keeper.stopping import Clock, interrupt
from tenuto.keeper.writer import HIGH_WATER, LOW_WATER, TapeWriter

TYPE_CHECKING = False  # as type checkers know it: importing typing would cost each keeper 10 ms
if TYPE_CHECKING:
    from typing import Any

    from tenuto.keeper.driven import Driven
    from tenuto.keeper.held import Held

_READ = 512 * 1024
_WIDEN_AT = 64 * 1024
_DRAIN_S = 0.2
_LATER_S = 0.003
_KILL_PAUSE_S = 0.002


class Keeper:
    """One execution's owner, from its start to the end of everything that it started."""

    def __init__(self, base: str, boot: str) -> None:
        """Make ready for a job: whatever does not depend on it is done here, ahead of time."""
        linux.adopt_orphans()
        self.child = Child(base)
        self.loop = Loop()
        self.loop.on_child = self._reap
        self.loop.on_terminate = lambda: interrupt(self, "its keeper was told to stop", 2.0)
        self.loop.on_wake = self._woken
        self.loop.on_fault = self._note_fault
        self.writer = TapeWriter(self.loop.wake)
        self.requests = Requests(self)
        self.host = Host(self)
        self.asking = Asking(self)
        self.cells: Cells | None = None  # of a session
        self.cell: Cell | None = None  # if this is one
        self.outcome: verdict.Outcome | None = None
        self.held: Held | None = None
        self.driven: Driven | None = None  # if its program is a task's driver
        self.ended = self.leaving = False
        self.waiting = ""
        self.size = self.lines = self.signal_asked = 0
        self.interactive = False
        self.left: list[int] = []
        self._boot = boot
        self._start = procfs.start_time(os.getpid())
        self.away: set[int] = set()  # outputs that the writer reads itself, for now
        self.paused = False
        self._childless = False
        self._killed_left = self._listed_left = False
        self._status: int | None = None
        self._usage: resource.struct_rusage | None = None
        self.clock = Clock(self)
        self._drain_until = 0.0

    def fork_machine(self) -> None:
        """Fork a VM already: the next job is expected to be code for one."""
        self.writer.await_rest()
        self.child.machine_ahead()

    def take(self, data: bytes, tape_fd: int, dir_fd: int, starter: socket.socket) -> None:
        """Take a job, its locked tape and folder, and the connection of whoever started it."""
        job: dict[str, Any] = json.loads(data)
        self.job = job
        self.id: str = job["id"]
        self.limits: dict[str, Any] = job.get("limits") or {}
        self.size, self.lines = int(job.get("size", 0)), int(job.get("lines", 0))
        self._dir_fd = dir_fd
        self.cells = Cells(self) if job.get("session") else None
        self.cell = Cell(self) if job.get("cell") else None
        point("keeper-taken")
        if job.get("confine"):
            from tenuto.keeper.held import Held

            self.held = Held(job, self)
            data = self.held.words()
        elif job.get("vm"):
            data = machine_words(job)
        if job.get("tells"):
            from tenuto.keeper.driven import Driven

            self.driven = Driven(self, job["tells"])
        if self.child.group:
            cgroup.claim(self.child.group, self.id)
        stem = self.child.begin(job, self.writer.await_rest)
        self.channel = Channel(self, data if stem else b"", job.get("code"))
        point("keeper-begun")
        self.writer.open(tape_fd, dir_fd, job)
        self.requests.open(dir_fd, starter)
        if self.child.pid:
            self._watch_outputs()
            if self.cell is None:
                self.announce()
            if self.held is not None and not stem:
                self.held.spawned()
        else:  # nothing ever started
            self._status = 127 << 8
            self._drain()
        point("keeper-announced")

    def run(self) -> None:
        """Serve until the program and everything it left behind are gone."""
        self.loop.run(lambda: self.writer.finished)
        self._answer()
        self.requests.close()
        os.unlink(protocol.NAME, dir_fd=self._dir_fd)
        if self.child.group:
            cgroup.remove(self.child.group)
        if self.held is not None:
            self.held.close()

    def close(self) -> None:
        """Let go of everything that is open, so that this process may keep another execution."""
        self.writer.close()
        self.channel.close()
        for fd in self.child.outputs:
            os.close(fd)
        os.close(self._dir_fd)
        self.loop.close()

    def _answer(self) -> None:
        """Give the answers that waited until what they tell of was on the tape."""
        while self.writer.calls:
            self.writer.calls.popleft()()

    def _note_fault(self) -> None:
        self.writer.event("faulted", text=describe(sys.exc_info()[1]))

    def _woken(self) -> None:
        """Look at the writer: there may be room again, or none, or answers that waited for it."""
        self._answer()
        if self.paused and self.writer.backlog < LOW_WATER and not self._over_quota():
            self.paused = False
            self._quiet_since = time.monotonic()
            if self.waiting == "disk" and not self.writer.disk_full:  # of that the writer tells
                self.continued()
            self._watch_outputs()
            self._drain()
        if self.writer.disk_full:
            self.waiting = "disk"
        elif self.waiting == "disk" and not self.paused:
            self.waiting = ""
            self.host.review()

    # Start

    def _watch_outputs(self) -> None:
        for fd in self.child.outputs:
            self.watch_output(fd)
        self.channel.hold(self.paused)

    def watch_output(self, fd: int) -> None:
        """Watch for output unless paused, and on a terminal for room for what is to be typed."""
        if fd in self.away:
            return
        mask = 0 if self.paused else select.EPOLLIN
        if fd == self.child.stdin.fd and self.child.stdin.blocked:
            mask |= select.EPOLLOUT
        if mask:
            self.loop.on(fd, mask, lambda mask: self._output_ready(fd, mask))
        else:
            self.loop.off(fd)  # even a mask of 0 would report that the writer is gone

    def _output_ready(self, fd: int, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self.child.stdin.flush()
            self.watch_output(fd)
        if mask & ~select.EPOLLOUT and not self.paused:
            self._read_output(fd)

    def marks(self) -> dict[str, Any]:
        """Return what the processes can be found by, even without us."""
        return {
            "pid": self.child.pid, "pid_start": self.child.start, "cgroup": self.child.group,
            "keeper_pid": os.getpid(), "keeper_start": self._start, "boot": self._boot,
        }  # fmt: skip

    def announce(self) -> None:
        """Record that the program runs, and measure from here on."""
        self.writer.event("started", **self.marks())
        self.clock.start()
        self.asking.soon()

    # Output

    def _read_output(self, fd: int) -> int:
        """Take what is there, and return how much; 0 also when nothing is there or the end is."""
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return 0
        except OSError:  # a terminal without a program on it
            data = b""
        if not data:
            self._close_output(fd)
            return 0
        bulk = len(data) >= _WIDEN_AT
        if bulk:
            self.child.widen(fd)
        self.take_output(self.child.outputs[fd], data)
        if self.held is not None:
            self.held.read(data)
        point("keeper-read")
        self.hold_back()
        if bulk and not self.paused and self._status is None and not self.limits.get("output"):
            self._pump(fd)
        return len(data)

    def take_output(self, stream: int, data: bytes, flags: int = 0) -> None:
        """Take output for the tape: what was read, or logged over the channel."""
        self.writer.output(stream, data, flags)
        self.size += len(data)
        self.lines += data.count(b"\n")
        self._active()

    def hold_back(self) -> None:
        """Stop reading if the tape is behind, or its quota is used up."""
        if self.writer.backlog >= HIGH_WATER or self._over_quota():
            self._pause()

    @property
    def held_back(self) -> bool:
        """Nothing more is to be read for now; unless all is to end anyway."""
        return self.paused and not self.outcome

    def _pump(self, fd: int) -> None:
        """Let the writer read what comes in bulk, a few megabytes at a time."""
        if self.child.terminal or fd in self.away:
            return
        self.away.add(fd)
        self.loop.off(fd)

        def back(size: int, lines: int) -> None:
            self.away.discard(fd)
            self.size += size
            self.lines += lines
            self._active()
            self.watch_output(fd)
            self.went_on()

        self.writer.pump(fd, self.child.outputs[fd], back)

    def went_on(self) -> None:
        """Look again after the writer has read something itself."""
        self.hold_back()
        self._drain()

    def _close_output(self, fd: int) -> None:
        self.loop.off(fd)
        del self.child.outputs[fd]
        os.close(fd)
        self._drain()

    def _pause(self) -> None:
        """Stop reading: the program blocks on its next write, nothing is dropped."""
        self.paused = True
        self._watch_outputs()
        if self._over_quota():
            quota = self.limits["output"]
            if self.limits.get("output_policy") == "fail":
                self.end_by(verdict.limit("output", quota))
            elif self.waiting != "disk":
                self.waiting = "disk"
                detail = f"the output quota of {quota} bytes is used up; clear the history to go on"
                self.writer.event("waited", on="disk", detail=detail)

    def _over_quota(self) -> bool:
        quota = self.limits.get("output")
        return bool(quota) and self.writer.kept >= int(quota)

    def _active(self) -> None:
        """Something moved: whoever watches for silence begins anew."""
        self.clock.moved()
        self.asking.soon()

    @property
    def exited(self) -> bool:
        """The program is gone, though its output may still be taken."""
        return self.ended or self._status is not None

    def continued(self) -> None:
        """What was waited for came; something else may be waited for still."""
        self.waiting = ""
        self.writer.event("continued")
        self.host.review()

    def note_call(self, body: bytes, later: bool = False) -> None:
        """Record a call of the code, or its answer, and hold the child back if the tape is behind."""
        self.writer.aside(body, later)
        if later:
            self.loop.after(_LATER_S, self.writer.go_on)
        self.clock.moved()
        self.hold_back()

    def input_moved(self) -> None:
        """Input was sent or asked for: the program may go on."""
        self.asking.moved()
        self._active()

    # Kill

    def end_by(self, outcome: verdict.Outcome) -> None:
        """End the whole tree for a reason; the first reason counts."""
        self.outcome = self.outcome or outcome
        self.kill_tree()

    def members(self) -> list[int]:
        """Return every live process of this execution."""
        if self.cell is not None and self._status is not None:
            return self.cell.left()
        if self._childless:
            return []
        found = sweep.members(self.id, self.child.group, os.getpid())
        while not found and self._collect():  # who died meanwhile may have left its children to us
            found = sweep.members(self.id, self.child.group, os.getpid())
        if self._status is None and self.child.pid not in found:
            found.append(self.child.pid)  # ours by birth, whatever its name
        return found

    def kill_tree(self) -> None:
        """Send SIGKILL to all until none is left; the loop goes on between the rounds."""
        self._reap()
        alive = self.members()
        if alive:
            if self.child.group:
                cgroup.kill(self.child.group)
            sweep.send(alive, signal.SIGKILL)
            self._killed_left = self.ended  # their end may be seen before the next round
            self.loop.after(_KILL_PAUSE_S, self.kill_tree)
        elif self.ended and self.left:
            self.settle_left()
        self.requests.answer_killers(alive)

    # End

    def _collect(self) -> int:
        """Take the dead, ours and those we adopted; return how many there were."""
        dead = 0
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True  # we adopt every orphan: nothing of the tree is left
                return dead
            self._childless = False
            if pid == 0:
                return dead
            dead += 1
            if pid == self.child.pid and self._status is None:
                self._status, self._usage = status, usage

    def _reap(self) -> None:
        """See who died, and whether that was the end."""
        self._collect()
        if not self.ended:
            self._drain()
        elif self.left:
            self.settle_left()

    def _drain(self) -> None:
        """Once it ended, take what it wrote before; others may hold its pipes much longer."""
        if self._status is None or self.ended:
            return
        if self.away or self.channel.lent or self.held_back:
            self.channel.recall()
            return
        self._drain_until = self._drain_until or time.monotonic() + _DRAIN_S
        for fd in list(self.child.outputs):
            # What the program wrote is in the pipe now, before anything that others may add. Only
            # a terminal passes it on in its own time.
            its_own = self.child.unread(fd) if fd in self.child.outputs else 0
            while fd in self.child.outputs and (
                its_own > 0 or (self.child.terminal and time.monotonic() < self._drain_until)
            ):
                size = self._read_output(fd)
                its_own -= size
                if not size or self.held_back:
                    break
        if self.held_back:
            return
        self.channel.drain()
        alone = self.held is None or self.held.alone(self._drain)
        if not self.ended and not self.held_back and alone:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self.left = self.members()
        if self.left and (self.outcome is not None or self.held is not None):
            self.loop.after(0, self.kill_tree)  # told to end, or held: nothing may stay
        left = [pid for pid in self.left if self.held is None or not procfs.is_exiting(pid)]
        self._listed_left = bool(left)
        record = verdict.record(self, self._status or 0, self._usage)
        point("keeper-ending")
        self.host.ended()
        own = self.outcome is None  # its own end comes after its output; ours need not wait
        self.writer.event("ended", own, **record, left=sweep.describe(left))
        if self.child.stdin.fd not in self.child.outputs:
            self.loop.off(self.child.stdin.fd)  # its number may come again
        self.child.stdin.close()
        self.loop.never(self.clock.deadline, self.clock.idle, self.asking.look)
        self.clock.untie()
        if self.cells is not None:
            self.cells.ended(record)
        if not self.left:
            self._finish()
        elif self.cell is not None:
            self.cell.watch_left()

    def settle_left(self) -> None:
        """Let go once the last process that stayed behind is gone."""
        self.left = self.members() if self.left else []
        if self.left:
            return
        if self._killed_left and self._listed_left:
            self.writer.event("left_behind_ended", in_turn=True, killed=True)
        elif self._listed_left:
            self.writer.event("left_behind_ended", in_turn=True)
        self._finish()

    def _finish(self) -> None:
        for fd in list(self.child.outputs):
            while fd in self.child.outputs and self._read_output(fd):
                pass
        self.leaving = True
        if self.held is not None:
            self.held.put_back()
        self.writer.finish()
