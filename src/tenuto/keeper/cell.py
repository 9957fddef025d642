"""A cell: an execution whose code runs in the process of its session, which another keeper owns.

Its own main process is our stem (`run`). It queues with the session's keeper, passes the cell's
descriptors on when its turn comes, hands signals through, and ends as the cell ends. `Cell` is what
the cell's keeper knows beyond that: who runs it, and who still holds its output afterwards.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import time

from tenuto.keeper import control, procfs, protocol
from tenuto.keeper.faults import point

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from tenuto.keeper.keeper import Keeper

CHANNEL_FD = 3
_LEFT_FIRST_S = 0.05
_LEFT_MOST_S = 2.0
_PASSED_ON = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGTERM, signal.SIGCONT, signal.SIGTSTP, signal.SIGWINCH,
)  # fmt: skip


class Cell:
    """What the keeper of a cell knows of the session that runs it."""

    def __init__(self, keeper: Keeper) -> None:
        """Begin in the queue."""
        self.gone: dict[str, Any] | None = None
        self.usage: dict[str, float] | None = None
        self._keeper = keeper
        self._name = str(keeper.job["cell"].get("name", ""))
        self._shares_descriptors = keeper.job["cell"].get("language") == "python"
        self._session_keeper = self._worker = 0
        self._pause = _LEFT_FIRST_S

    def said(self, kind: str, message: dict[str, Any]) -> None:
        """Take what the stem told: until its turn has come nobody else can write on this line."""
        keeper = self._keeper
        if kind == "cell_queued" and not self._worker:
            keeper.writer.event("enqueued", **keeper.marks())
        elif kind == "cell_started" and not self._worker:
            self._session_keeper = int(message["keeper"])
            self._worker = int(message["worker"])
            keeper.announce()
            if message.get("confined"):
                keeper.channel.note_confined(message["confined"], by_session=True)
        elif kind == "cell_used":  # the stem's word comes last
            self.usage = {k: float(message[k]) for k in ("user_s", "system_s")}
            self.usage["max_rss"] = int(message["max_rss"])
        elif kind == "cell_gone":
            self.gone = message

    def why_gone(self) -> tuple[str, str]:
        """Return reason and detail for a cell whose session ended before it did."""
        gone = self.gone or {}
        how = str(gone.get("detail") or gone.get("reason") or "")[:1000]
        how = f" ({how})" if how else ""
        if not self._worker:
            return (
                "session",
                f"session {self._name} ended before this cell's turn: it never ran{how}",
            )
        if self._keeper.channel.limit is not None:
            resource, bound = self._keeper.channel.limit
            return "limit", f"{resource} limit {bound}; session {self._name} ended with it"
        reason = "limit" if gone.get("reason") == "limit" else "session"
        return reason, f"session {self._name} ended while this cell ran, its state is lost{how}"

    def readers(self) -> list[int]:
        """Return the processes that may read the cell's input."""
        if not self._worker or not self._shares_descriptors:
            return []
        return [self._worker, *procfs.descendants(self._worker)]

    def left(self) -> list[int]:
        """Return the processes of the session that hold the ended cell's output open."""
        outputs = self._keeper.child.outputs
        if not self._worker or not self._shares_descriptors or not outputs:
            return []
        pipes = {identity(os.fstat(fd)) for fd in outputs}
        found = procfs.descendants(self._session_keeper)
        return [pid for pid in found if pid != self._worker and holds(pid, pipes)]

    def watch_left(self) -> None:
        """Look now and then whether they are gone: they are not our children."""
        if self._keeper.left:
            self._keeper.loop.after(self._pause, self._look)
            self._pause = min(self._pause * 2, _LEFT_MOST_S)

    def _look(self) -> None:
        self._keeper.settle_left()
        self.watch_left()


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return what tells an open pipe from all others."""
    return status.st_dev, status.st_ino


def holds(pid: int, pipes: set[tuple[int, int]]) -> bool:
    """Tell whether a process has one of these pipes as a standard stream."""
    for number in (0, 1, 2):
        try:
            if identity(os.stat(f"/proc/{pid}/fd/{number}")) in pipes:
                return True
        except OSError:
            continue
    return False


# The stem


def run(words: dict[str, Any]) -> NoReturn:
    """Have the session run the cell, and end as it ends."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in _PASSED_ON:
        signal.signal(number, _noted)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    sock = _connect(words["cell"]["folder"])
    if sock is None:
        _gone({"reason": "it has no keeper any more"})
    _send(sock, {"op": "cell", "id": words["id"], "cwd": words["cell"].get("cwd")})
    _Stem(sock, read_fd).serve()


def _noted(_number: int, _frame: object) -> None:
    """Do nothing: the wake-up descriptor has told the loop."""


def _connect(folder: str) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        dir_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        sock.connect(protocol.socket_path(dir_fd))
        os.close(dir_fd)
    except OSError:
        return None
    return sock


class _Stem:
    """Waits for its turn, then for the cell's end."""

    def __init__(self, sock: socket.socket, signals: int) -> None:
        self._sock = sock
        self._signals = signals
        self._running = False
        self._in = bytearray()

    def serve(self) -> NoReturn:
        """Answer both sides until it is over."""
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        poller.register(self._signals, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == self._signals:
                    for number in os.read(self._signals, 4096):
                        self._signalled(number)
                else:
                    self._receive()

    def _signalled(self, number: int) -> None:
        if number not in _PASSED_ON:
            return
        if self._running:
            _send(self._sock, {"op": "cell_signal", "signal": number})
        else:
            _die_of(number)

    def _receive(self) -> None:
        try:
            data = self._sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            _gone({"reason": "its keeper died"})
        self._in += data
        while len(self._in) >= 4:
            (size,) = struct.unpack_from("<I", self._in)
            if len(self._in) < 4 + size:
                return
            message: dict[str, Any] = json.loads(self._in[4 : 4 + size])
            del self._in[: 4 + size]
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        if "queued" in message:
            point("cell-queued")
            _tell({"type": "cell_queued"})
        elif "turn" in message:
            point("cell-turn")
            _tell({"type": "cell_started", **message["turn"]})
            self._running = True
            body = control.encode({"v": protocol.PROTOCOL, "op": "cell_go"})
            try:
                socket.send_fds(self._sock, [body], [0, 1, 2, CHANNEL_FD])
            except OSError:
                _gone({"reason": "its keeper died"})
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            for target in (0, 1, 2):  # who reads or writes them from here on is the session
                os.dup2(null, target)
            point("cell-passed")
        elif "done" in message:
            _tell({"type": "cell_used", **message["usage"]})
            os._exit(int(message["done"]) & 0xFF)
        elif "gone" in message:
            _gone(message["gone"])
        elif not message.get("ok"):
            _gone({"reason": str(message.get("message", "it refused the cell"))})


def _send(sock: socket.socket, message: dict[str, Any]) -> None:
    try:
        sock.sendall(control.encode({"v": protocol.PROTOCOL, **message}))
    except OSError:
        return  # its end is read next


def _tell(message: dict[str, Any]) -> None:
    """Tell our own keeper; whoever else wrote on this line may have stopped within a message."""
    data = memoryview(b"\n" + json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(CHANNEL_FD, data) :]


def _gone(how: dict[str, Any]) -> NoReturn:
    """End because the session ended: by the signal that ended its process, or with its code."""
    _tell({"type": "cell_gone", **how})
    name = str(how.get("signal") or "")
    number = getattr(signal, name, 0) if name.startswith("SIG") else 0
    if number:
        _die_of(int(number))
    os._exit(int(how.get("exit_code") or 1) & 0xFF or 1)


def _die_of(number: int) -> NoReturn:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    time.sleep(1)  # stopped, or a signal that ends nobody
    os._exit(128 + number)
