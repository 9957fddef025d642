"""Code as it runs in a VM: what its surface asks of us, its timers, its input, and how it ends."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import select
import time

from tenuto.codemode import source
from tenuto.codemode.grammar import BadSourceError
from tenuto.codemode.machine import Machine, heap_end, keep_heap

TYPE_CHECKING = False  # typing would cost the image 10 ms and its pages
if TYPE_CHECKING:
    from typing import Any

CHANNEL_FD = 3
_READ = 64 * 1024
_DAY_MS = 86_400_000
_ROOM = 8 * 1024 * 1024  # so that an error can be told when all memory is used
_FULL = 0.4  # of the limit; blocks of many megabytes are not in the heap
_BADLY, _OUT_OF_MEMORY = 1, 2
_NOTHING_LEFT = (
    "the code waits for a promise that nothing can settle any more: "
    "no timer, no read of stdin and no call of a function is open"
)


class Stopped(Exception):
    """The code is to end now; only a session's can be asked for that."""


class Vm:
    """Runs pieces of code in one context; its streams may be others for each of them."""

    def __init__(self) -> None:
        """Make a context that nobody has used."""
        self.input, self.channel = 0, CHANNEL_FD
        self.memory = 128 * 1024 * 1024
        self.offset = 0  # lines before the code's first; a session numbers on through its cells
        self.stopped = self.waiting = False
        self._prepared: source.Prepared | None = None
        self._tools: dict[str, dict[str, Any]] = {}
        self._uses: dict[str, int] = {}
        self._last_timer = self._rows = 0
        self._limit_line = b""
        self._heap = heap_end()
        self._begin()
        self.machine = Machine(
            {
                "write": self._write,
                "timer": self._timer,
                "cancel": self._cancel,
                "reading": self._reading,
                "calling": self._calling,
                "column": self._column,
                "cell": self._cell,
                "row": self._row,
                "done": self._done,
                "full": self._full,
                "room": self._room,
                "tool": self._tool,
                "used": self._used,
            }
        )
        self.offer([])

    def _begin(self) -> None:
        self._failed = 0
        self._settled = self._starved = self._told = self._ended = False
        self._readers = self._calls = 0
        self._timers: dict[int, float] = {}
        self._due: list[tuple[float, int, int]] = []
        self._lines: list[bytes] = []
        self._partial = b""
        self._answers = bytearray()

    def equip(self, inputs: object, functions: list[str], memory: int, again: bool = False) -> None:
        """Give the code its inputs and functions, and bound its memory."""
        self.memory = memory
        self._heap = keep_heap()
        bound = f"{memory / (1 << 20):g} MB"
        line = json.dumps({"type": "limit", "resource": "memory", "bound": bound})
        self._limit_line = line.encode() + b"\n"  # now, while there is room for it
        if inputs or functions or again:
            self.machine.equip(json.dumps(inputs), json.dumps(functions))
        self.machine.context.set_memory_limit(memory)

    def offer(self, tools: list[dict[str, Any]]) -> None:
        """Give the code the composed tools of its project, as functions."""
        self._tools = {str(one["name"]): one for one in tools}
        told = [{key: one[key] for key in ("name", "schema", "parameters")} for one in tools]
        self.machine.tools(json.dumps(told))

    # What the surface calls; none of it may raise into the engine

    def _write(self, line: object) -> None:
        if type(line) is str:
            self.say(line)

    def say(self, line: str) -> None:
        """Send a message that is JSON already."""
        try:
            rest = memoryview(line.encode("utf-8", "replace") + b"\n")
            while rest:
                rest = rest[os.write(self.channel, rest) :]
        except MemoryError:
            self._starve()
        except OSError:
            return  # nobody listens any more; whoever ends us will

    def _timer(self, number: object, wait_ms: object) -> None:
        if not isinstance(number, int) or not isinstance(wait_ms, (int, float)):
            return
        try:
            due = time.monotonic() + wait_ms / 1000
            self._timers[number] = due
            self._last_timer += 1  # those due at once keep their order
            heapq.heappush(self._due, (due, self._last_timer, number))
            if len(self._due) > 2 * len(self._timers) + 64:
                self._due = [one for one in self._due if self._timers.get(one[2]) == one[0]]
                heapq.heapify(self._due)
        except MemoryError:
            self._starve()

    def _cancel(self, number: object) -> None:
        self._timers.pop(number, None)  # type: ignore[call-overload]

    def _reading(self) -> None:
        self._readers += 1

    def _calling(self, line: object) -> None:
        self._calls += 1
        self._write(line)

    def _column(self, line: object, column: object) -> object:
        if self._prepared is None or not isinstance(line, int) or not isinstance(column, int):
            return column
        if line > self._rows:
            return 0  # what was put around the code
        try:
            return self._prepared.column(line, column)
        except Exception:
            return column  # a place that is not in the code

    def _cell(self, line: object) -> int:
        return self.cell_of(line)[0] if isinstance(line, int) else 0

    def _row(self, line: object) -> object:
        return self.cell_of(line)[1] if isinstance(line, int) else line

    def cell_of(self, line: int) -> tuple[int, int]:
        """Return which earlier cell a line is of (0: the code that runs), and its number there."""
        return 0, line - self.offset

    def _done(self, code: object) -> None:
        if code == 0:
            self._settled = True
        elif not self._failed:
            self._failed = _OUT_OF_MEMORY if code == _OUT_OF_MEMORY else _BADLY

    def _full(self) -> bool:
        """Tell whether the heap was ever near its limit: what filled it may be freed again."""
        return heap_end() - self._heap >= _FULL * self.memory

    def _tool(self, name: object) -> str | None:
        """Have the surface find a tool's function; return why it cannot be one."""
        try:
            tool = self._tools[str(name)]
            text = source.prepare_function(tool["code"], tool["language"], "inputs,tools")
            self.machine.make(text, f"tool {name}")
        except BadSourceError as error:
            return f"{error} (line {error.line})"
        except MemoryError:
            self._starve()
        except Exception as error:
            return str(error)
        return None

    def _used(self, name: object) -> None:
        """Tell of a tool's first use and then ever more rarely: the end tells the sum."""
        times = self._uses[str(name)] = self._uses.get(str(name), 0) + 1
        if times & (times - 1) == 0:
            self.tell({"type": "used", "name": str(name), "times": times})

    def _starve(self) -> None:
        """Have no memory left for what the code asks of us: it gets none either, and will end."""
        self._starved = True
        self._give_up()
        self.machine.context.set_memory_limit(1)

    def _room(self) -> None:
        """Make room to tell how the code failed."""
        self._give_up()
        self.machine.context.set_memory_limit(self.memory + _ROOM)

    def _give_up(self) -> None:
        """Forget what the code has asked for: it can be most of what the process may have."""
        self._timers.clear()
        self._due.clear()
        self._lines.clear()
        self._answers.clear()

    # Running

    def run_cell(self, code: str, language: str = "js", session: bool = False) -> int:
        """Run a piece of code until nothing of it is left to do; return its exit code."""
        self._begin()
        try:
            self._run(code, language, session)
            for name, times in self._uses.items():
                self.tell({"type": "used", "name": name, "times": times})
            if not self._failed and not self._settled:
                self._raise("Error", _NOTHING_LEFT)
        except MemoryError:
            self._starve()
        self._uses.clear()
        if self._starved or self.out_of_memory:
            self._failed = _OUT_OF_MEMORY
            with contextlib.suppress(OSError):  # as in `say`
                os.write(self.channel, self._limit_line)
        return _BADLY if self._failed else 0

    def _run(self, code: str, language: str, session: bool) -> None:
        try:
            self._rows = code.count("\n") + 1
            self._prepared = source.prepare(code, language, session)
            if self._prepared.names:
                self.machine.declare(json.dumps(self._prepared.names))
            self.machine.run("\n" * self.offset + self._prepared.text)
            while self._turn():
                pass
            if self._prepared.constants and not self._starved:
                self.machine.seal(json.dumps(self._prepared.constants), not self._failed)
        except BadSourceError as error:
            self._raise("SyntaxError", str(error), error.line, error.column)
        except Stopped:
            self._failed = _BADLY
        except MemoryError:
            raise
        except Exception as error:
            self._engine_failed(str(error))

    def _turn(self) -> bool:
        """Let the code go on as far as it can, then wait for one thing; False when none is left."""
        step = self.machine.context.execute_pending_job
        while not self._failed and not self.stopped and step():
            pass
        if self.stopped:
            raise Stopped
        if self.machine.rejected and not self._failed:
            self.machine.rejected = False
            self.machine.settle()
        if self._starved:
            raise MemoryError
        if self._failed:
            return False
        if self._readers and (self._lines or self._ended):
            self._deliver()
            return True
        while self._due and self._timers.get(self._due[0][2]) != self._due[0][0]:
            heapq.heappop(self._due)  # cleared, or set anew
        if not (self._due or self._readers or self._calls):
            return False
        self._wait()
        return True

    def _wait(self) -> None:
        if self._readers and not self._told:
            self._told = True
            self.tell({"type": "reading"})
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        if self._readers:
            poller.register(self.input, select.POLLIN)
        timeout = None
        if self._due:
            left = (self._due[0][0] - time.monotonic()) * 1000
            timeout = min(_DAY_MS, max(0.0, left))
        self.waiting = True
        ready = poller.poll(timeout)
        self.waiting = False
        for fd, _ in ready:
            if fd == self.channel:
                self._receive()
            else:
                self._read()
        if self._due and self._due[0][0] <= time.monotonic():
            _, _, number = heapq.heappop(self._due)
            del self._timers[number]
            self.machine.fire(number)

    # Input and answers

    def _read(self) -> None:
        data = os.read(self.input, _READ)
        if not data:
            self._ended = True
            if self._partial:
                self._lines.append(self._partial)
            self._partial = b""
            return
        *whole, self._partial = (self._partial + data).split(b"\n")
        self._lines += whole

    def _deliver(self) -> None:
        """Give the next line to whoever asked first; at the end of input there is none."""
        line = self._lines.pop(0).decode("utf-8", "replace") if self._lines else None
        self._readers -= 1
        if self._told and not self._readers:
            self._told = False
            self.tell({"type": "read"})
        self.machine.item(json.dumps(line))

    def _receive(self) -> None:
        data = os.read(self.channel, _READ)
        if not data:
            os._exit(_BADLY)  # our keeper is gone
        before = len(self._answers)
        self._answers += data
        if data.find(b"\n") < 0:
            return
        end = self._answers.rfind(b"\n", before)
        lines = bytes(self._answers[:end]).decode("utf-8", "replace").split("\n")
        del self._answers[: end + 1]
        for line in lines:
            if self.machine.answer(line):
                self._calls -= 1

    @property
    def out_of_memory(self) -> bool:
        """The last piece of code ended because it had used all memory."""
        return self._failed == _OUT_OF_MEMORY

    # What only we can tell

    def tell(self, message: dict[str, object]) -> None:
        """Send a message of our own."""
        self._write(json.dumps(message))

    def _raise(self, name: str, message: str, line: int = 0, column: int = 0) -> None:
        self._failed = self._failed or _BADLY
        fields: dict[str, object] = {"type": "raised", "name": name, "message": message}
        place = ""
        if line:
            fields |= {"line": line, "column": column}
            place = f"\n    at code:{line}:{column}"
        self.tell(fields)
        self.tell({"type": "log", "level": "error", "text": f"Uncaught {name}: {message}{place}"})

    def _engine_failed(self, text: str) -> None:
        """Tell of an error that came past the surface: it had no room, or no stack, to catch it."""
        head = text.partition("\n")[0]
        name, _, message = head.partition(": ")
        if "out of memory" in head or (head == "null" and self._full()):
            self._room()
            self._failed = _OUT_OF_MEMORY
        self._raise(name if message else "InternalError", message or head)
