"""The keeper's loop: reads what the child writes, serves its clients, and writes the exit record."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

from tenuto.keeper import cgroup, control, frames, linux, procfs, sweep, verdict
from tenuto.keeper.channel import Channel
from tenuto.keeper.child import Child
from tenuto.keeper.requests import Requests
from tenuto.keeper.writer import HIGH_WATER, LOW_WATER, TapeWriter

_READ = 256 * 1024
_WIDEN_AT = 64 * 1024
_DRAIN_S = 0.2
_KILL_PAUSE_S = 0.002
_INPUT_FIRST_S = 0.06
_INPUT_MOST_S = 5.0


class Keeper:
    """One execution's owner, from its start to the end of everything that it started."""

    def __init__(
        self, job: dict[str, Any], tape_fd: int, dir_fd: int, starter: socket.socket, base: str
    ) -> None:
        """Take a job, its locked tape and folder, and the connection of whoever started it."""
        linux.set_name(procfs.KEEPER_NAME)
        linux.adopt_orphans()
        self.job = job
        self.id: str = job["id"]
        self.limits: dict[str, Any] = job.get("limits") or {}
        self.outcome: verdict.Outcome | None = None
        self.ended = False
        self.waiting = ""
        self.size = self.lines = 0
        self.signal_asked = 0
        self.interactive = False
        self.left: list[int] = []
        self.killers: list[control.Connection] = []
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._due: dict[Callable[[], None], float] = {}
        self._paused = False
        self._killed_left = False
        self._status: int | None = None
        self._usage: resource.struct_rusage | None = None
        self._exec_error = ""
        self._quiet_since = time.monotonic()
        self._input_pause = _INPUT_FIRST_S
        self._input_seen = 0
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._tape_fd, self._dir_fd = tape_fd, dir_fd
        self._signals()
        self.server = control.listen(dir_fd)
        self.group = cgroup.create(base, self.id) if base else ""
        self.requests = Requests(self)
        self._spawn_child()
        magic = bytes.fromhex(job["magic"])
        self.writer = TapeWriter(tape_fd, dir_fd, magic, int(job["next_seq"]), self._wake)
        self.on(self._wake_fd, select.EPOLLIN, lambda _: self._woken())
        self.on(self.server.fileno(), select.EPOLLIN, lambda _: self.requests.accept())
        self.requests.adopt(starter)
        self._announce()

    # The loop

    def run(self) -> None:
        """Serve until the program and everything it left behind are gone."""
        while not self.writer.finished:
            timeout = None
            if self._due:
                timeout = max(0.0, min(self._due.values()) - time.monotonic())
            for fd, mask in self._epoll.poll(timeout):
                handler = self._handlers.get(fd)
                if handler is not None:
                    self._guard(handler, mask)
            if self._due:
                now = time.monotonic()
                for call in [call for call, at in self._due.items() if at <= now]:
                    del self._due[call]
                    self._guard(lambda _, call=call: call(), 0)
        self.requests.answer_killers([])  # nothing is finished before the last process is dead
        self.requests.close()
        os.unlink(control.NAME, dir_fd=self._dir_fd)
        if self.group:
            cgroup.remove(self.group)

    def _guard(self, handler: Callable[[int], None], mask: int) -> None:
        """Run a handler; a defect in one must not take the child or the tape down."""
        try:
            handler(mask)
        except Exception:
            self.writer.event("note", text=traceback.format_exc(limit=8)[-4000:])

    def on(self, fd: int, mask: int, handler: Callable[[int], None]) -> None:
        """Call a handler whenever a descriptor is ready."""
        if fd in self._handlers:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)
        self._handlers[fd] = handler

    def off(self, fd: int) -> None:
        """Forget a descriptor (before it is closed)."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call once, later; asking again moves the time."""
        self._due[call] = time.monotonic() + seconds

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _woken(self) -> None:
        os.eventfd_read(self._wake_fd)
        if self._paused and self.writer.backlog < LOW_WATER and not self._over_quota():
            self._paused = False
            if self.waiting == "disk":
                self._continued()
            for fd in self.child.outputs:
                self._epoll.modify(fd, select.EPOLLIN)
            if self._status is not None and not self.ended:
                self._drain()
        if self.writer.disk_full:
            self.waiting = "disk"
        elif self.waiting == "disk" and not self._paused:
            self.waiting = ""

    # Start

    def _signals(self) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.interrupt("keeper was told to stop", 2.0))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

        def reap(_: int) -> None:
            os.read(reader, 4096)
            self._reap()

        self.on(reader, select.EPOLLIN, reap)

    def _spawn_child(self) -> None:
        self.job["env"][procfs.MARK] = self.id
        keep_out = (self._tape_fd, self._dir_fd)
        self.child = Child(self.job, self.group, keep_out)
        for fd in self.child.outputs:
            self.on(fd, select.EPOLLIN, lambda _, fd=fd: self._read_output(fd))
        self.on(self.child.error_fd, select.EPOLLIN, lambda _: self._exec_done())
        self.channel = None
        if self.child.channel is not None:
            self.channel = Channel(self.child.channel, self.job["code"], self)

    def _announce(self) -> None:
        self.writer.event(
            "started",
            pid=self.child.pid,
            pid_start=self.child.start,
            keeper_pid=os.getpid(),
            keeper_start=procfs.start_time(os.getpid()),
            boot=procfs.boot_id(),
            cgroup=self.group,
        )
        if self.job.get("deadline"):
            self.after(float(self.job["deadline"]), self._deadline)
        if self.job.get("idle"):
            self.after(float(self.job["idle"]), self._idle)
        self.after(_INPUT_FIRST_S, self._look_for_input)

    def _exec_done(self) -> None:
        self._exec_error = os.read(self.child.error_fd, 4096).decode("utf-8", "replace")
        self.off(self.child.error_fd)
        os.close(self.child.error_fd)

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
        if len(data) >= _WIDEN_AT:
            self.child.widen(fd)
        self.writer.output(self.child.outputs[fd], data)
        self.size += len(data)
        self.lines += data.count(b"\n")
        self._active()
        if self.writer.backlog >= HIGH_WATER or self._over_quota():
            self._pause()
        return len(data)

    def _close_output(self, fd: int) -> None:
        self.off(fd)
        del self.child.outputs[fd]
        os.close(fd)
        if self._status is not None and not self.ended:
            self._drain()

    def _pause(self) -> None:
        """Stop reading: the program blocks on its next write, nothing is dropped."""
        self._paused = True
        for fd in self.child.outputs:
            self._epoll.modify(fd, 0)
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
        return bool(quota) and self.writer.kept + self.writer.backlog >= int(quota)

    def _active(self) -> None:
        """Something moved: whoever watches for silence begins anew."""
        self._quiet_since = time.monotonic()
        self._input_pause = _INPUT_FIRST_S
        if self._look_for_input in self._due or not self.ended:
            self.after(_INPUT_FIRST_S, self._look_for_input)
        if self.waiting == "input":
            self._input_seen = 0

    # Waiting for input

    def _look_for_input(self) -> None:
        """See whether the program is blocked on its stdin: twice in a row counts."""
        if self.ended or self._status is not None:
            return
        if self.channel is not None and self.channel.reading:
            blocked = not self.child.stdin.pending
        else:
            pids = [self.child.pid, *procfs.descendants(self.child.pid)]
            blocked = self.child.stdin.awaited_by(pids)
        self._input_seen = self._input_seen + 1 if blocked else 0
        if self._input_seen >= 2 and not self.waiting:  # noqa: PLR2004
            self.waiting = "input"
            self.writer.event("waited", on="input")
        elif not blocked and self.waiting == "input":
            self._continued()
        if not blocked:
            self._input_pause = min(self._input_pause * 2, _INPUT_MOST_S)
        self.after(self._input_pause if not self.waiting else 0.25, self._look_for_input)

    def _continued(self) -> None:
        self.waiting = ""
        self.writer.event("continued")

    def input_moved(self) -> None:
        """Input was sent or asked for: the program may go on."""
        if self.waiting == "input":
            self._continued()
        self._input_seen = 0
        self._active()

    # Deadlines, kill, interrupt

    def _deadline(self) -> None:
        self.end_by(verdict.deadline(float(self.job["deadline"])))

    def _idle(self) -> None:
        quiet = time.monotonic() - self._quiet_since
        bound = float(self.job["idle"])
        if self.waiting or quiet < bound:  # waiting for someone is not silence of its own
            self.after(max(0.01, bound - quiet) if not self.waiting else bound, self._idle)
        else:
            self.end_by(verdict.idle(bound))

    def end_by(self, outcome: verdict.Outcome) -> None:
        """End the whole tree for a reason; the first reason counts."""
        self.outcome = self.outcome or outcome
        self._kill_tree()

    def members(self) -> list[int]:
        """Return every live process of this execution."""
        return sweep.members(self.id, self.group, os.getpid())

    def _kill_tree(self) -> None:
        """Send SIGKILL to all until none is left; the loop goes on between the rounds."""
        self._reap()
        alive = self.members()
        if alive:
            if self.group:
                cgroup.kill(self.group)
            sweep.send(alive, signal.SIGKILL)
            self.after(_KILL_PAUSE_S, self._kill_tree)
        elif self.ended and self.left:
            self._killed_left = True
            self._settle_left()
        self.requests.answer_killers(alive)

    def interrupt(self, reason: str, grace: float) -> None:
        """Ask the program to stop; insist after a while, twice."""
        if self.ended or self.outcome is not None:
            return
        self.outcome = verdict.interrupted(reason)
        self.writer.event("signalled", signal="SIGINT", processes=1)
        self._signal_group(signal.SIGINT)

        def insist() -> None:
            if not self.ended:
                self._signal_group(signal.SIGTERM)
                self.after(grace, self._kill_tree)

        self.after(grace, insist)

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.child.pid, number)
        except ProcessLookupError:
            return

    # End

    def _reap(self) -> None:
        """Collect the dead, ours and those we adopted."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self.child.pid and self._status is None:
                self._status, self._usage = status, usage
        if self._status is not None and not self.ended:
            self._drain()
        elif self.ended and self.left:
            self._settle_left()

    def _drain(self) -> None:
        """Take what the program wrote before it ended; others may hold its pipes much longer."""
        if self._paused and not self.outcome:
            return
        limit = time.monotonic() + _DRAIN_S
        for fd in list(self.child.outputs):
            while fd in self.child.outputs and self._read_output(fd):
                if time.monotonic() > limit or (self._paused and not self.outcome):
                    break
        if self._paused and not self.outcome:
            return
        if self.channel is not None:
            self.channel.drain()
        if not self.ended:
            self._end()

    def _end(self) -> None:
        self.ended = True
        if self._handlers.get(self.child.error_fd):
            self._exec_done()
        status = self._status if self._status is not None else 0
        self.left = self.members()
        if self.left and self.outcome is not None:  # told to end: nothing may stay
            self._due[self._kill_tree] = 0.0
        left = [{"pid": p, "start": procfs.start_time(p), "command": procfs.command(p)} for p in self.left]
        record = verdict.record(self, status, self._usage, self._exec_error)
        self.writer.event("ended", **record, size=self.size, lines=self.lines, left=left)
        self.child.stdin.close()
        for call in (self._deadline, self._idle, self._look_for_input):
            self._due.pop(call, None)
        if not self.left:
            self._finish()

    def _settle_left(self) -> None:
        """Let go once the last process that stayed behind is gone."""
        self.left = self.members() if self.left else []
        if not self.left and not self._killed_left:
            self.writer.event("left_behind_ended")
        elif not self.left:
            self.writer.event("left_behind_ended", killed=True)
        if not self.left:
            self._finish()

    def _finish(self) -> None:
        for fd in list(self.child.outputs):
            while fd in self.child.outputs and self._read_output(fd):
                pass
        self.writer.finish()
