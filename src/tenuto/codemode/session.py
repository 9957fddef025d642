"""A VM that is a session: one context for the cells that its keeper brings, one after the other.

Each cell comes with descriptors of its own. The VM reads its stdin and speaks on its channel while it
runs, so that what a cell can say and ask is the affair of that cell's keeper. Hardened as every VM; it
can besides receive descriptors, close them, and be interrupted.
"""

from __future__ import annotations

import _socket
import json
import os
import signal

from tenuto.codemode import vm as machines
from tenuto.codemode.line import receive

TYPE_CHECKING = False  # typing would cost the image 10 ms and its pages
if TYPE_CHECKING:
    from typing import Any, NoReturn

_CALLS = ("recvmsg", "close", "rt_sigaction")
_FILES = 8  # stdin, stdout, stderr, the line to the keeper, and the same of the cell that runs
_MORE_STEPS = 10_000
_LINES_MOST = 1_000_000
_FAILED, _INTERRUPTED = 1, 130


def run(words: dict[str, Any]) -> NoReturn:
    """Be the session that a job asks for, until nobody brings cells any more."""
    machines.warm()
    vm = machines.image()
    receive(machines.CHANNEL_FD)  # a session has no code of its own
    session = Session(vm, _socket.socket(fileno=machines.CHANNEL_FD))
    vm.machine.interruptible(session.should_stop)
    machines.harden(tuple(words["vm"].get("off") or ()), _CALLS, _FILES)
    machines.begin(words)
    signal.signal(signal.SIGINT, session.interrupt)
    session.serve()


class Session:
    """The cells of one context."""

    def __init__(self, vm: machines.Vm, line: Any) -> None:
        """Take a context, and the line that brings cells."""
        self._vm = vm
        self._line = line
        self._running = self._asked = False
        self._first_lines: list[tuple[int, int]] = []  # of each cell, newest last, and its number
        vm.cell_of = self._cell_of

    def serve(self) -> NoReturn:
        """Run cells; leave when the line ends, or when nothing good can come any more."""
        vm = self._vm
        vm.tell({"type": "cell_ready"})
        while True:
            message, fds = self._next()
            vm.input, vm.channel = fds[0], fds[3]
            os.close(fds[1])  # console.* goes over the channel
            os.close(fds[2])
            code = self._cell(int(message["n"]))
            os.close(vm.input)
            os.close(vm.channel)
            vm.input, vm.channel = 0, machines.CHANNEL_FD
            vm.tell({"type": "cell_done", "n": message["n"], "code": code})

    def _next(self) -> tuple[dict[str, Any], list[int]]:
        data = b""
        fds: list[int] = []
        while not data.endswith(b"\n"):
            part, ancillary, _, _ = self._line.recvmsg(65536, 64, _socket.MSG_CMSG_CLOEXEC)
            if not part:
                os._exit(0)  # our keeper is gone
            data += part
            for _, _, packed in ancillary:
                whole = len(packed) - len(packed) % 4
                fds += memoryview(packed)[:whole].cast("i").tolist()
        return json.loads(data), fds

    def _cell(self, number: int) -> int:
        vm = self._vm
        given: dict[str, Any] = json.loads(receive(vm.channel))
        self._number_on(number, given["code"])
        vm.stopped = self._asked = False
        try:
            vm.machine.renew()
            vm.equip(given["inputs"] or {}, given["functions"], vm.memory, again=True)
            vm.offer(given["tools"])
        except Exception as error:  # code of the session made that impossible
            text = f"the session cannot take a cell any more, clear it: {str(error)[:1000]}"
            vm.tell({"type": "raised", "name": "InternalError", "message": text})
            vm.tell({"type": "log", "level": "error", "text": f"Uncaught InternalError: {text}"})
            return _FAILED
        self._running = True
        self._tell_keeper({"type": "cell_begun", "n": number})
        code = vm.run_cell(given["code"], given["language"], session=True)
        self._running = False
        if vm.out_of_memory:
            bound = f"{vm.memory / (1 << 20):g} MB"
            self._tell_keeper({"type": "limit", "resource": "memory", "bound": bound})
            os._exit(_FAILED)  # whatever had no room left things half done
        interrupted = vm.stopped
        vm.stopped = self._asked = False
        if code != 0:
            self._finish_up()
        return _INTERRUPTED if interrupted else code

    def _finish_up(self) -> None:
        """Let what a failed cell has already promised be done with, while it is still the cell's."""
        step = self._vm.machine.context.execute_pending_job
        for _ in range(_MORE_STEPS):
            try:
                if not step():
                    return
            except Exception:
                continue
        text = "an ended cell goes on without end"
        self._tell_keeper({"type": "limit", "resource": "pending jobs", "bound": text})
        os._exit(_FAILED)

    def _tell_keeper(self, message: dict[str, object]) -> None:
        vm = self._vm
        channel, vm.channel = vm.channel, machines.CHANNEL_FD
        vm.tell(message)
        vm.channel = channel

    # Lines: each cell's follow on those of the cells before, so that each tells where it is from

    def _number_on(self, number: int, code: str) -> None:
        vm = self._vm
        if vm.offset > _LINES_MOST:
            self._first_lines.clear()
            vm.offset = 0
        elif self._first_lines:
            vm.offset += self._lines
        self._lines = code.count("\n") + 2
        self._first_lines.append((vm.offset, number))

    def _cell_of(self, line: int) -> tuple[int, int]:
        current = True
        for first, number in reversed(self._first_lines):
            if line > first:
                return (0 if current else number), line - first
            current = False
        return 0, line

    # Interruption

    def interrupt(self, _number: int, _frame: object) -> None:
        """Take SIGINT: break off a wait at once, and running code when it next asks."""
        if self._running:
            self._asked = self._vm.stopped = True
            if self._vm.waiting:
                self._vm.waiting = False
                raise machines.Stopped

    def should_stop(self) -> bool:
        """Tell code that asks whether to stop: once, so that its end can be told."""
        asked, self._asked = self._asked, False
        return asked
