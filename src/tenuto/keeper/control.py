"""The control socket: a length (u32, little endian) and a JSON object each way; protocol 1.

A request is {"v": 1, "op": ...}; a reply is {"v": 1, "ok": true, ...} or {"ok": false, "error": ...}.
After the reply to `watch` the keeper sends one byte for every append, and closes when it ends.
Only our own user (and root) is served. Nothing that arrives here can stop the keeper.
"""

from __future__ import annotations

import json
import os
import socket
import struct

from tenuto.keeper.protocol import LENGTH, MAX_MESSAGE, NAME, PROTOCOL, READ, socket_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FDS_MOST = 8
_CREDENTIALS = struct.Struct("3i")


class BadMessage(Exception):
    """What arrived is not of the protocol."""


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as it travels."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


def listen(dir_fd: int) -> socket.socket:
    """Bind the control socket in an execution's folder, replacing a dead keeper's."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(socket_path(dir_fd))
    except OSError:
        os.unlink(NAME, dir_fd=dir_fd)
        server.bind(socket_path(dir_fd))
    server.listen(64)
    server.setblocking(False)
    return server


def peer(connection: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the other side."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid


def is_ours(connection: socket.socket) -> bool:
    """Tell whether the peer runs as our user or as root."""
    return peer(connection)[1] in (os.geteuid(), 0)


class Connection:
    """One client: collects its bytes into messages, queues what it is sent."""

    def __init__(self, sock: socket.socket) -> None:
        """Take an accepted connection."""
        sock.setblocking(False)
        self.sock = sock
        self.watching = False
        self.most = MAX_MESSAGE
        self.armed = 0  # what the loop watches it for
        self.fds: list[int] | None = None
        """The descriptors that came with messages; None where none are wanted."""
        self._in = bytearray()
        self._out = bytearray()

    @property
    def unsent(self) -> int:
        """Bytes of replies that wait for the client to read."""
        return len(self._out)

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the whole messages that arrived, or None once the client is gone."""
        try:
            if self.fds is None:
                data = self.sock.recv(READ)
            else:
                data, came, _, _ = socket.recv_fds(
                    self.sock, READ, _FDS_MOST, socket.MSG_CMSG_CLOEXEC
                )
                self.fds += came
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self._in += data
        messages: list[dict[str, Any]] = []
        while len(self._in) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._in)
            if size > self.most:
                raise BadMessage(f"a message of {size} bytes: at most {self.most}")
            if len(self._in) < LENGTH.size + size:
                break
            body = bytes(self._in[LENGTH.size : LENGTH.size + size])
            del self._in[: LENGTH.size + size]
            messages.append(_parse(body))
        return messages

    def take_fds(self) -> list[int]:
        """Return the descriptors that came, from now on the caller's to close."""
        taken, self.fds = self.fds or [], self.fds if self.fds is None else []
        return taken

    def nudge(self) -> None:
        """Make a client that watches look again."""
        try:
            self.sock.send(b"\n", socket.MSG_NOSIGNAL)
        except OSError:
            return  # full: it has bytes to wake up to; gone: the loop will notice

    def reply(self, **fields: Any) -> None:
        """Answer; what does not fit now goes out when the client reads."""
        self._out += encode({"v": PROTOCOL, **fields})
        self.flush()

    def push(self, body: bytes) -> None:
        """Send a message of JSON that nobody asked for just now."""
        self._out += LENGTH.pack(len(body)) + body
        self.flush()

    def flush(self) -> bool:
        """Send what is queued; False once the client is gone."""
        try:
            while self._out:
                del self._out[: self.sock.send(self._out, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            return True
        except OSError:
            self._out.clear()
            return False
        return True


class Watchers:
    """Those who are sent a byte after every append, by the writer's thread."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._all: tuple[socket.socket, ...] = ()

    def add(self, connection: socket.socket) -> None:
        """Send to this connection from now on."""
        self._all = (*self._all, connection)

    def remove(self, connection: socket.socket) -> None:
        """Stop doing so."""
        self._all = tuple(one for one in self._all if one is not connection)

    def notify(self) -> None:
        """Send the byte."""
        for connection in self._all:
            try:
                connection.send(b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                continue  # full: it has bytes to wake up to; gone: the loop will notice


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise BadMessage("not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):  # pyright: ignore
        raise BadMessage("not an object with an 'op'")
    return message  # pyright: ignore
