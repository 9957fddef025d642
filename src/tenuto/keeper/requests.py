"""What clients may ask of a keeper, over its control socket."""

from __future__ import annotations

import base64
import os
import select
import signal
import socket
import time
from collections import deque

from tenuto.keeper import control, protocol, sweep, verdict
from tenuto.keeper.stopping import interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tenuto.keeper.cells import Cells
    from tenuto.keeper.keeper import Keeper

_KILL_PATIENCE_S = 5.0
_ACCEPT_S = 0.1
_FOREVER_S = 1e12
_UNREAD_MOST = 128 * 1024 * 1024  # all open calls of a server fit


class Requests:
    """Accepts connections and answers their requests. Bad ones get an error, never an exception."""

    def __init__(self, keeper: Keeper) -> None:
        """Serve for this keeper."""
        self._keeper = keeper
        self._connections: set[control.Connection] = set()
        self._killers: list[control.Connection] = []
        self._later: deque[tuple[control.Connection, dict[str, object]]] = deque()
        self._held: set[control.Connection] = set()
        self._kill_since = 0.0

    def open(self, dir_fd: int, starter: socket.socket) -> None:
        """Listen, and serve the starter on the connection it passed: it watches from the start."""
        self._server = control.listen(dir_fd)
        self._keeper.loop.on(self._server.fileno(), select.EPOLLIN, lambda _: self._accept())
        connection = control.Connection(starter)
        self._add(connection)
        self._watch(connection)
        job = self._keeper.job
        names = [str(one["name"]) for one in job.get("functions") or ()]
        promised = connection if job.get("served") else None
        self._keeper.host.open(names, promised, job.get("usage") or {})

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor left, perhaps: look again later instead of spinning
                self._keeper.loop.mask(self._server.fileno(), 0)
                self._keeper.loop.after(_ACCEPT_S, self._listen_again)
                return
            if control.is_ours(sock):
                self._add(control.Connection(sock))
            else:
                sock.close()

    def _listen_again(self) -> None:
        self._keeper.loop.mask(self._server.fileno(), select.EPOLLIN)

    def _add(self, connection: control.Connection) -> None:
        self._connections.add(connection)
        if self._keeper.cells is not None:
            connection.fds = []
        self._arm(connection)

    def _arm(self, connection: control.Connection, reading: bool = True) -> None:
        """Watch for messages, and for room where something waits to be sent."""
        want = select.EPOLLIN if reading else 0
        if connection.unsent:
            want |= select.EPOLLOUT
        if want != connection.armed or not self._keeper.loop.watches(connection.sock.fileno()):
            connection.armed = want
            self._keeper.loop.on(
                connection.sock.fileno(), want, lambda mask: self._ready(connection, mask)
            )

    def push(self, connection: control.Connection, body: bytes) -> None:
        """Send a client what it did not ask for just now."""
        connection.push(body)
        if connection.unsent and connection in self._connections:
            self._arm(connection)

    def hold(self, connection: control.Connection) -> None:
        """Take no more messages of a client for now."""
        self._held.add(connection)

    def release(self, connection: control.Connection) -> None:
        """Take them again."""
        self._held.discard(connection)
        if connection in self._connections:
            self._arm(connection)

    def _drop(self, connection: control.Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            if self._keeper.cells is not None:
                self._keeper.cells.dropped(connection)
                for fd in connection.take_fds():
                    os.close(fd)
            self._keeper.writer.watchers.remove(connection.sock)
            self._keeper.loop.off(connection.sock.fileno())
            connection.sock.close()
            self._held.discard(connection)
            self._keeper.host.gone(connection)

    def close(self) -> None:
        """Send what is left to send and let everyone go: they see the end of file."""
        self.answer_killers([])  # nothing is finished before the last process is dead
        for connection, fields in self._later:  # the others came too late to be served
            if "dead" in fields and connection in self._connections:
                connection.reply(ok=True, **fields)
        self._server.close()
        for connection in self._connections:
            connection.flush()
            connection.sock.close()
            for fd in connection.take_fds():
                os.close(fd)

    def _ready(self, connection: control.Connection, mask: int) -> None:
        if mask & select.EPOLLOUT and not connection.flush():
            self._drop(connection)
            return
        if mask & ~select.EPOLLOUT:
            try:
                messages = connection.receive()
            except control.BadMessage as error:
                connection.reply(ok=False, error="bad_input", message=str(error))
                self._drop(connection)
                return
            if messages is None:
                self._drop(connection)
                return
            for message in messages:
                self._answer(connection, message)
            serves = self._keeper.host.is_served_by(connection)
            if connection.unsent > (_UNREAD_MOST if serves else protocol.MAX_MESSAGE):
                self._drop(connection)  # it asks and never reads
        if connection in self._connections:
            self._arm(connection, connection not in self._held)

    def _answer(self, connection: control.Connection, message: dict[str, Any]) -> None:
        operation = getattr(self, f"_do_{message['op']}", None)
        if operation is None:
            text = f"this keeper (protocol {protocol.PROTOCOL}) knows no {message['op']!r}"
            connection.reply(ok=False, error="unknown_op", message=text)
            return
        try:
            operation(connection, message)
        except Exception as error:
            connection.reply(
                ok=False, error="bad_input", message=f"{type(error).__name__}: {error}"
            )

    def _reply_later(self, connection: control.Connection, **fields: object) -> None:
        """Answer once what was asked for stands on the tape."""
        self._later.append((connection, fields))
        self._keeper.writer.then(self._reply_next)

    def _reply_next(self) -> None:
        if self._later:
            connection, fields = self._later.popleft()
            if connection in self._connections:
                connection.reply(ok=True, **fields)

    # Operations

    def _do_hello(self, connection: control.Connection, _: dict[str, Any]) -> None:
        connection.reply(ok=True, id=self._keeper.id, pid=os.getpid())

    def _do_status(self, connection: control.Connection, _: dict[str, Any]) -> None:
        keeper = self._keeper
        connection.reply(
            ok=True,
            ended=keeper.ended,
            waiting=keeper.waiting,
            pid=keeper.child.pid,
            size=keeper.size,
            lines=keeper.lines,
            interactive=keeper.interactive,
            left=len(keeper.left),
        )

    def _do_watch(self, connection: control.Connection, _: dict[str, Any]) -> None:
        connection.reply(ok=True)
        self._watch(connection)

    def _watch(self, connection: control.Connection) -> None:
        connection.watching = True
        self._keeper.writer.watchers.add(connection.sock)
        connection.nudge()  # what was appended since the reply went unnoticed

    def _do_note(self, connection: control.Connection, message: dict[str, Any]) -> None:
        after_s = float(message.get("after_s", 0))
        if not 0 <= after_s < _FOREVER_S:  # nor NaN, which is no JSON
            raise ValueError(f"after_s is {after_s}")
        if not self._keeper.ended:
            self._keeper.writer.event("wait_gave_up", after_s=after_s)
        self._reply_later(connection)

    def _do_send(self, connection: control.Connection, message: dict[str, Any]) -> None:
        keeper = self._keeper
        stdin = keeper.child.stdin
        data = base64.b64decode(message.get("data", ""), validate=True)
        eof = bool(message.get("eof"))
        if keeper.ended:
            connection.reply(ok=False, error="not_running", message="the execution has ended")
            return
        if stdin.closed:
            connection.reply(ok=True, fate="closed")
            return
        if data and stdin.full:
            connection.reply(ok=False, error="busy", message="the program has not read so far yet")
            return
        awaited = keeper.waiting == "input" or keeper.asking.blocked()
        if not keeper.interactive:
            keeper.interactive = True
            keeper.writer.event("became_interactive")
        if stdin.fd not in keeper.child.outputs:
            keeper.loop.off(stdin.fd)  # it may be closed by what follows
        stdin.send(data, eof)
        keeper.writer.event("input_sent", size=len(data), eof=eof)
        keeper.input_moved()
        self._flush_stdin()
        closed = stdin.fd < 0 and not eof
        fate = "closed" if closed else "delivered" if awaited else "queued"
        self._reply_later(connection, fate=fate)

    def _flush_stdin(self) -> None:
        stdin = self._keeper.child.stdin
        fd = stdin.fd
        if fd in self._keeper.child.outputs:
            self._keeper.watch_output(fd)
            return
        if not stdin.blocked:
            return

        def ready(_: int) -> None:
            self._keeper.loop.off(fd)
            stdin.flush()
            self._flush_stdin()

        self._keeper.loop.on(fd, select.EPOLLOUT, ready)

    def _do_kill(self, connection: control.Connection, message: dict[str, Any]) -> None:
        keeper = self._keeper
        number = _signal_number(message.get("signal", "KILL"))
        if keeper.ended and not keeper.left:
            connection.reply(ok=False, error="not_running", message="the execution has ended")
        elif number == signal.SIGKILL:
            self._killers.append(connection)
            self._kill_since = self._kill_since or time.monotonic()
            keeper.end_by(verdict.killed(number))
        else:
            found = keeper.members()
            if keeper.held is not None:
                found = keeper.held.without_keepers(found)
            sent = sweep.send(found, number)
            keeper.signal_asked = number
            keeper.writer.event("signalled", signal=signal.Signals(number).name, processes=sent)
            connection.reply(ok=True, signalled=sent)

    def answer_killers(self, alive: list[int]) -> None:
        """Answer those who asked for a kill, once it is verified (or will not come)."""
        keeper = self._keeper
        if not self._killers:
            return
        if not alive and keeper.ended:
            for connection in self._killers:
                self._reply_later(connection, dead=True)
            self._forget_killers()
        elif time.monotonic() - self._kill_since > _KILL_PATIENCE_S:
            for connection in self._killers:
                text = f"still alive after SIGKILL: {alive}"
                connection.reply(ok=False, error="unkillable", message=text, pids=alive)
            self._forget_killers()
        elif not alive:
            keeper.loop.after(0.001, lambda: self.answer_killers([]))

    def _forget_killers(self) -> None:
        self._killers.clear()
        self._kill_since = 0.0

    def _do_interrupt(self, connection: control.Connection, message: dict[str, Any]) -> None:
        if self._keeper.ended:
            connection.reply(ok=False, error="not_running", message="the execution has ended")
            return
        grace = float(message.get("grace", 5.0))
        interrupt(self._keeper, "on request", max(0.0, min(grace, 3600.0)))
        connection.reply(ok=True)

    def _do_serve(self, connection: control.Connection, _: dict[str, Any]) -> None:
        if self._keeper.ended:
            connection.reply(ok=False, error="not_running", message="the execution has ended")
        else:
            self._keeper.host.serve(connection)

    def _do_answer(self, connection: control.Connection, message: dict[str, Any]) -> None:
        self._keeper.host.answer(connection, message)

    def _do_tell(self, connection: control.Connection, message: dict[str, Any]) -> None:
        """Pass a message on to a task's driver."""
        driven = self._keeper.driven
        if driven is None:
            raise ValueError("this execution is no task")
        if self._keeper.exited:
            connection.reply(ok=False, error="not_running", message="the task has ended")
            return
        driven.send(dict(message["message"]))
        connection.reply(ok=True)

    def _do_clear(self, connection: control.Connection, _: dict[str, Any]) -> None:
        if self._keeper.leaving:
            self._drop(connection)  # whoever asks does it without us
            return
        self._keeper.writer.clear()
        self._reply_later(connection)

    # Operations of a session

    def _cells(self) -> Cells:
        if self._keeper.cells is None:
            raise ValueError("this execution is no session")
        return self._keeper.cells

    def _do_session(self, connection: control.Connection, message: dict[str, Any]) -> None:
        connection.reply(ok=True, **self._cells().status(dict(message.get("env") or {})))

    def _do_cell(self, connection: control.Connection, message: dict[str, Any]) -> None:
        self._cells().enqueue(connection, message)

    def _do_cell_go(self, connection: control.Connection, _: dict[str, Any]) -> None:
        self._cells().go(connection)

    def _do_cell_signal(self, connection: control.Connection, message: dict[str, Any]) -> None:
        self._cells().signal(connection, int(message["signal"]))

    def _do_resize(self, connection: control.Connection, message: dict[str, Any]) -> None:
        self._keeper.child.resize(int(message["rows"]), int(message["cols"]))
        connection.reply(ok=True)


def _signal_number(name: object) -> int:
    if isinstance(name, int) and not isinstance(name, bool):
        return int(signal.Signals(name))
    text = str(name).upper()
    return int(signal.Signals[text if text.startswith("SIG") else f"SIG{text}"])
