"""The child's line to the keeper: it takes what to run, and brings what only the child can tell.

First the stem is told its program, and tells if that could not be started. For code, the language's
runner inherits the line, takes the code, and tells value, exception and whether it reads its input.
"""

from __future__ import annotations

import _thread
import array
import fcntl
import json
import re
import select
import socket
import struct
import termios
from collections import deque

from tenuto.keeper import frames, verdict
from tenuto.keeper.protocol import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tenuto.keeper.driven import Driven
    from tenuto.keeper.keeper import Keeper

_MOST = 20 * 1024 * 1024
_BULK = 1024 * 1024
_WEIGHT_MOST = 48 * 1024 * 1024
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_VALUE = re.compile(rb'\{"type": ?"value"')
_TELL = re.compile(rb'\{"type": ?"tell"')
_WARN = frames.LEVELS.index("warn")
_OF_CELLS = (
    "cell_queued", "cell_started", "cell_used", "cell_gone",  # from a cell's stem
    "cell_ready", "cell_begun", "cell_done",  # from a session's worker
)  # fmt: skip


class Channel:
    """Sends the words, then takes messages; a program that writes nonsense here harms only itself."""

    def __init__(self, keeper: Keeper, words: bytes, code: str | None) -> None:
        """Take what the stem is to become, if there is one, and the code for its runner."""
        self.reading = self._valued = False
        self.limit: tuple[str, str] | None = None
        self.confined: dict[str, Any] | None = None
        self.raised = self.raised_text = ""
        self.exec_error = keeper.child.exec_error
        self._keeper = keeper
        self._in = bytearray()
        self._out: deque[memoryview] = deque()
        self._sending = _thread.allocate_lock()  # the writer's thread sends, too
        self.unsent = 0
        self._mask = 0
        self._holding = False
        self.lent = False  # to the writer, which reads it then
        self._open = keeper.child.channel is not None
        if keeper.child.channel is None:
            return
        self._sock = keeper.child.channel
        self._sock.setblocking(False)
        out = struct.pack("<I", len(words)) + words if words else b""
        if code is not None:
            body = code.encode("utf-8", "surrogatepass")
            out += struct.pack("<I", len(body)) + body
        self._out.append(memoryview(out))
        self.unsent = len(out)
        self._send()
        self._watch()

    def _ready(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._send()
        if mask & ~select.EPOLLOUT and not (self._holding or self.lent):
            self._receive()

    def _send(self) -> None:
        with self._sending:
            try:
                self._send_all()
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()
                self.unsent = 0
        self._watch()
        self._keeper.host.child_took()

    def _send_all(self) -> None:
        while self._out:
            sent = self._sock.send(self._out[0], socket.MSG_NOSIGNAL)
            self.unsent -= sent
            self._out[0] = self._out[0][sent:]
            if not self._out[0]:
                self._out.popleft()

    def send_now(self, data: bytes) -> bool:
        """Send a short line from any thread; False if the loop is to send it, in its turn."""
        with self._sending:
            if not self._open or self._out:
                return False
            try:
                sent = self._sock.send(data, socket.MSG_NOSIGNAL)
            except OSError:
                return False
            if sent < len(data):  # the rest goes out as soon as the loop looks
                self._out.append(memoryview(data)[sent:])
                self.unsent += len(data) - sent
                self._keeper.writer.pass_on(self._watch)
            return True

    def _watch(self) -> None:
        """Watch for messages unless held back, and for room where something waits to be sent."""
        mask = 0 if self._holding or self.lent else select.EPOLLIN
        if self._out:
            mask |= select.EPOLLOUT
        if not self._open or mask == self._mask:
            return
        self._mask = mask
        if mask:
            self._keeper.loop.on(self._sock.fileno(), mask, self._ready)
        else:
            self._keeper.loop.off(self._sock.fileno())

    def send(self, data: bytes) -> None:
        """Tell the child something; what does not fit goes out when it reads."""
        if not self._open:
            return
        self._out.append(memoryview(data))
        self.unsent += len(data)
        self._send()
        self._watch()

    def hold(self, holding: bool) -> None:
        """Take no more messages while the tape is behind: the child blocks on its next one."""
        self._holding = holding
        if holding:
            self.recall()
        self._watch()

    def _lend(self) -> None:
        """Let the writer read a driver's events itself, one thread less between them and the disk.

        Only when nothing is left to take here: what the loop gives the writer comes before.
        """
        telling = self._keeper.driven is not None and self._keeper.driven.telling
        if not telling or self._holding or not self._open or self._keeper.exited:
            return
        self.lent = True
        self._keeper.writer.attend(self._sock.fileno(), self._hear, self._returned)
        self._watch()

    def recall(self) -> None:
        """Take the reading back, as soon as the writer can."""
        if self.lent:
            self._keeper.writer.recall()

    def _returned(self) -> None:
        self.lent = False
        if self._keeper.driven is not None:
            self._keeper.driven.telling = False  # there was something else, or the end of it
        self._take_lines()
        self._watch()
        self._keeper.went_on()
        self._lend()

    def _hear(self) -> bool:
        """Take a driver's events, in the writer's thread; False where the loop is to read on."""
        if len(self._in) > _MOST - READ:
            return False
        try:
            data = self._sock.recv(READ)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._in += data
        return bool(data) and self._take_lines(self._keeper.driven)

    def _receive(self) -> int:
        """Take what is there, and return how much; 0 also when the line is closed."""
        try:
            data = self._sock.recv(READ)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data or len(self._in) + len(data) > _MOST:
            self.close()
            if data and self._keeper.job.get("functions"):  # it would wait for an answer for ever
                self._keeper.end_by(verdict.limit("message", f"{_MOST} bytes"))
            return 0
        self._in += data
        self._take_lines()
        self._keeper.hold_back()
        self._lend()
        return len(data)

    def _take_lines(self, driven: Driven | None = None) -> bool:
        """Take the whole lines; in the writer's thread a driver's events only, up to something else."""
        while (end := self._in.find(b"\n")) >= 0:
            if driven is not None and not _TELL.match(self._in):
                return False
            line = bytes(self._in[:end])
            del self._in[: end + 1]
            try:
                if driven is not None:
                    driven.told(json.loads(line), here=True)
                else:
                    self._take(line)
            except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError):
                continue  # not of the runner's making
            except RecursionError:
                continue
        return True

    def pass_on(self, line: bytes, fds: list[int]) -> None:
        """Send a short line with descriptors to a child that waits for it, so that there is room."""
        if socket.send_fds(self._sock, [line], fds, socket.MSG_NOSIGNAL) != len(line):
            raise OSError("it went out in part only")

    def drain(self) -> None:
        """Take what was sent before the program ended; others may hold its line, and go on."""
        left = self._unread() if self._open else 0
        while self._open and left > 0 and not self._keeper.held_back:
            size = self._receive()
            left = left - size if size else 0

    def _unread(self) -> int:
        count = array.array("i", [0])
        fcntl.ioctl(self._sock.fileno(), termios.FIONREAD, count)
        return count[0]

    def close(self) -> None:
        """Let go of our end."""
        if self._open:
            self.reading = False
            self._keeper.loop.off(self._sock.fileno())
            with self._sending:
                self._open = False
                self._sock.close()

    def _take(self, line: bytes) -> None:
        bulky = len(line) > _BULK and self._keeper.driven is None  # a driver is ours, and trusted
        if bulky and _weight(line) > _WEIGHT_MOST:
            self._refuse(line)
            return
        try:
            message: Any = json.loads(line)
            if self._keeper.held is not None and (report := self._keeper.held.begun(message)):
                self.note_confined(report)
            kind = message["type"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return
        if kind == "value":
            self._note_value(message)
        elif kind == "raised":
            self._note_raised(message)
        elif kind == "log":
            self._log(message)
        elif kind == "call":
            self._keeper.host.called(message)
        elif kind == "used":
            self._keeper.host.used(message)
        elif kind in ("reading", "read"):
            self.reading = kind == "reading"
            self._keeper.input_moved()
        elif kind in _OF_CELLS:
            one = self._keeper.cells or self._keeper.cell
            if one is not None:
                one.said(kind, message)
        else:
            self._take_other(kind, message)

    def _refuse(self, line: bytes) -> None:
        """Leave unread what would take far more memory than its text."""
        job = self._keeper.job
        if _VALUE.match(line):
            note = f"value too large (it holds too much in {len(line)} bytes): return less of it"
            self._note_value({"repr": note})
        elif job.get("vm") or job.get("functions"):
            self._keeper.end_by(verdict.limit("message", f"{_WEIGHT_MOST} bytes once it is read"))

    def _take_other(self, kind: object, message: dict[str, Any]) -> None:
        """Take what is said once, at the beginning or at the end, or by a task's driver."""
        if kind == "confined":
            self.note_confined(message)
        elif kind == "limit":
            self.limit = (str(message["resource"])[:100], str(message["bound"])[:100])
        elif kind == "exec_failed":
            self.exec_error = (int(message.get("errno", 0)), str(message.get("text", ""))[:1000])
        elif self._keeper.driven is not None:
            self._keeper.driven.said(kind, message)

    def _note_value(self, message: dict[str, Any]) -> None:
        if not self._valued:
            self._valued = True
            fields: dict[str, Any] = {k: message[k] for k in ("json", "repr") if k in message}
            self._keeper.writer.event("value_returned", **fields)

    def _log(self, message: dict[str, Any]) -> None:
        """Take what was logged as output: one frame with its level, in the order it was logged."""
        level = frames.LEVELS.index(message["level"])
        text = str(message["text"]) + ("" if message.get("more") else "\n")
        stream = frames.ERR if level >= _WARN else frames.OUT
        self._keeper.take_output(stream, text.encode("utf-8", "replace"), level)

    def _note_raised(self, message: dict[str, Any]) -> None:
        if self.raised:
            return
        self.raised = str(message.get("name", ""))[:200] or "Error"
        self.raised_text = str(message.get("message", ""))[:4096]
        fields: dict[str, Any] = {"name": self.raised, "message": self.raised_text}
        for name in ("line", "column"):
            if type(message.get(name)) is int:
                fields[name] = message[name]
        if message.get("stack"):
            fields["stack"] = str(message["stack"])[:8192]
        self._keeper.writer.event("raised", **fields)

    def note_confined(self, message: dict[str, Any], by_session: bool = False) -> None:
        """Record what holds the program; only the first word counts, said before it runs."""
        job = self._keeper.job
        if self.confined or not (job.get("confine") or job.get("vm") or by_session):
            return  # nobody put it anywhere: that is the program's own idea
        fields: dict[str, Any] = {"level": str(message["level"])[:200]}
        fields["missing"] = [str(one)[:400] for one in message.get("missing") or ()][:50]
        for name in ("net", "scratch"):
            if message.get(name):
                fields[name] = str(message[name])[:4096]
        self.confined = fields
        self._keeper.writer.event("confined", **fields)


def _weight(line: bytes) -> int:
    """Return what a message takes once it is read, up to 25 times its text; or that it is too much."""
    most = _outside(line) + 52 * (line.count(b'"') // 2 - line.count(b'":'))
    if most <= _WEIGHT_MOST:
        return most
    total = end = 0
    for text in _TEXT.finditer(line):  # what stands in its texts does not count
        between = line[end : text.start()]
        total += 84 if between == b"," else 52 + _outside(between)
        end = text.end()
        if line[end : end + 1] == b":":  # the names of fields are shared
            total -= 52
        if total > _WEIGHT_MOST:
            return total
    return total + _outside(line[end:])


def _outside(line: bytes) -> int:
    return 184 * line.count(b"{") + 64 * line.count(b"[") + 32 * line.count(b",")
