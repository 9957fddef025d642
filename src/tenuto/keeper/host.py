"""The code's calls to functions of its caller's: checked, recorded, passed on, and answered.

The functions live in a process that *serves* over the control socket; the latest to ask serves. What
the child sends is of hostile making, and bounded here: whatever breaks the rules ends the execution.
Calls without an answer outlive their server: the next one is given them again.
"""

from __future__ import annotations

import json
import os
import time

from tenuto.keeper import control, verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tenuto.keeper.keeper import Keeper

OPEN_MOST = 1000
ARGS_MOST = 16 * 1024 * 1024
_OPEN_BYTES = 64 * 1024 * 1024
_ANSWER_MOST = ARGS_MOST + 1024 * 1024  # a whole message
_UNTAKEN = 64 * 1024 * 1024
_USES_MOST = 10**12
_NAME_MOST, _TEXT_MOST = 200, 16 * 1024


class Host:
    """The calls of one execution, and whoever serves them."""

    def __init__(self, keeper: Keeper) -> None:
        """Know no function until a job names some."""
        self._keeper = keeper
        self._names: dict[str, bytes] = {}
        self._next = 1
        self._open: dict[int, bytes] = {}
        self._size = 0
        self._server: control.Connection | None = None
        self._promised: control.Connection | None = None
        self._held = False
        self._usage: dict[str, str] = {}
        self._uses: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Some call has no answer yet."""
        return bool(self._open)

    def open(
        self, names: list[str], promised: control.Connection | None, usage: dict[str, str]
    ) -> None:
        """Take the names that may be called, whose connection stands for a server to come, and the
        files that count the uses of tools.
        """
        self._names = {name: _dumps(name) for name in names}
        self._promised = promised
        self._usage = usage

    # From the child

    def called(self, message: dict[str, Any]) -> None:
        """Take a call, or end the execution whose child broke the rules."""
        keeper = self._keeper
        if keeper.outcome is not None:
            return
        n: Any = message.get("n")
        name: Any = message.get("name")
        args: Any = message.get("args")
        if type(n) is not int or n != self._next:
            self._broke(f"call {str(n)[:40]} where {self._next} was next")
            return
        if not isinstance(name, str) or name not in self._names or not isinstance(args, list):
            self._broke(f"a call of {str(name)[:80]!r}, which is not on the list")
            return
        try:
            text = _dumps(args)  # pyright: ignore[reportUnknownArgumentType]
        except (ValueError, RecursionError):
            self._broke(f"arguments of {name} that are no JSON")
            return
        self._next += 1
        if len(text) > ARGS_MOST:
            keeper.end_by(verdict.limit("arguments of a call", f"{ARGS_MOST} bytes"))
        elif len(self._open) >= OPEN_MOST:
            keeper.end_by(verdict.limit("open calls", OPEN_MOST))
        elif self._size + len(text) > _OPEN_BYTES:
            keeper.end_by(verdict.limit("arguments of open calls", f"{_OPEN_BYTES} bytes"))
        else:
            self._pass_on(n, b'"n":%d,"name":%s,"args":%s}' % (n, self._names[name], text))

    def _pass_on(self, n: int, body: bytes) -> None:
        self._open[n] = body
        self._size += len(body)
        self._push(b'{"push":"call",' + body)
        # Recorded before anything else is read; waking the writer first would hold the message up.
        self._keeper.note_call(b'{"type":"host_called",' + body)
        self.review()

    def _broke(self, how: str) -> None:
        self._keeper.end_by(verdict.protocol(how))

    def used(self, message: dict[str, Any]) -> None:
        """Take how often a tool was used by now."""
        name, times = message.get("name"), message.get("times")
        if isinstance(name, str) and name in self._usage and type(times) is int:
            self._uses[name] = max(self._uses.get(name, 0), min(times, _USES_MOST))

    # From whoever serves

    def serve(self, connection: control.Connection) -> None:
        """Make a connection the one that serves, and give it all calls without an answer."""
        before, self._server, self._promised = self._server, connection, None
        if before is not None and before is not connection:
            self._keeper.requests.push(before, b'{"push":"replaced"}')
        connection.most = _ANSWER_MOST
        connection.reply(ok=True, functions=list(self._names), calls=len(self._open))
        self._keeper.writer.event(
            "host_attached", pid=control.peer(connection.sock)[0], again=len(self._open)
        )
        for body in self._open.values():
            self._push(b'{"push":"call",' + body)
        self.review()

    def is_served_by(self, connection: control.Connection) -> bool:
        """Tell whether a connection is the one that serves."""
        return connection is self._server

    def answer(self, connection: control.Connection, message: dict[str, Any]) -> None:
        """Pass an answer on to the child; only a refusal is replied to."""
        n = message.get("n")
        if connection is not self._server or type(n) is not int or n not in self._open:
            serves = connection is self._server
            why = f"there is no open call {n}" if serves else "another one serves now"
            connection.reply(ok=False, error="bad_input", message=why, n=n)
            return
        if message.get("ok") is True:
            body = b'"n":%d,"ok":true,"value":%s}' % (n, _dumps(message.get("value")))
        else:
            body = b'"n":%d,"ok":false,"error":%s}' % (n, _dumps(_error(message.get("error"))))
        self._size -= len(self._open.pop(n))
        channel = self._keeper.channel
        channel.send(b'{"type":"answer",' + body + b"\n")
        # A moment later, with the next call: an answer that is lost with us is one that never came.
        self._keeper.note_call(b'{"type":"host_answered",' + body, later=True)
        if channel.unsent > _UNTAKEN:  # the child does not read: its answers wait at their sender
            self._held = True
            self._keeper.requests.hold(connection)

    def child_took(self) -> None:
        """Let answers come again once the child has taken those before."""
        if self._held:
            self._held = False
            if self._server is not None:
                self._keeper.requests.release(self._server)

    def gone(self, connection: control.Connection) -> None:
        """A connection ended; if it served, its calls wait for the next one that does."""
        if connection is self._server:
            self._server = None
        if connection is self._promised:
            self._promised = None
        self.review()

    def ended(self) -> None:
        """Nobody waits for answers any more: whoever serves may stop what it does."""
        self._open.clear()
        if self._uses:
            self._count()
            self._keeper.writer.event("tools_used", tools=self._uses)
        if self._server is not None:
            self._push(b'{"push":"ended"}')
            self._server = None

    def _count(self) -> None:
        """Add to the files that count the uses of tools; they are no part of the record."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        flags |= os.O_NONBLOCK  # nobody reads a pipe that stands in its place
        for name, times in self._uses.items():
            try:
                fd = os.open(self._usage[name], flags, 0o600)
            except OSError:
                continue
            try:
                os.write(fd, b"%d %d\n" % (time.time_ns(), times))
            except OSError:
                pass  # a full disk costs a count
            finally:
                os.close(fd)

    def review(self) -> None:
        """Say whether the execution waits for somebody to serve it, when that has changed."""
        keeper = self._keeper
        if keeper.ended:
            return
        alone = self._server is None and self._promised is None and bool(self._open)
        if alone and not keeper.waiting:
            keeper.waiting = "host"
            name = json.loads(b"{" + next(iter(self._open.values())))["name"]
            keeper.writer.event("waited", on="host", detail=f"nobody serves {name}()")
        elif not alone and keeper.waiting == "host":
            keeper.continued()

    def _push(self, body: bytes) -> None:
        if self._server is not None:
            self._keeper.requests.push(self._server, body)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _dumps(value: object) -> bytes:
    return _encode(value).encode("utf-8", "replace")  # half of a surrogate pair is no text


def _error(given: Any) -> dict[str, Any]:
    """Return what the child is told of an error, with bounds."""
    error: Any = given if isinstance(given, dict) else {}  # pyright: ignore
    fields: dict[str, Any] = {
        "name": str(error.get("name") or "Error")[:_NAME_MOST],
        "message": str(error.get("message") or "")[:_TEXT_MOST],
    }
    if error.get("detail") is not None:
        fields["detail"] = error["detail"]
    return fields
