"""The client's side of a keeper's control socket."""

from __future__ import annotations

import binascii
import os
import socket
import time
from typing import Any

import msgspec

from tenuto.core.errors import InvalidInput, KeeperUnreachable, NotRunning
from tenuto.keeper.protocol import LENGTH, PROTOCOL, socket_path
from tenuto.stores.tape import is_kept

_PATIENCE_S = 5.0
_PAUSE_S = 0.002
_SEND_CHUNK = 1024 * 1024
_BUSY_S = 0.02


class _BusyError(Exception):
    """The keeper holds as much unread input as it will."""


class NoKeeper(Exception):
    """The execution has no keeper: it has ended, or nobody lives who will bring it to its end."""


def connect(folder: str) -> socket.socket:
    """Return a connection to the keeper of the execution in this folder, or raise NoKeeper.

    The tape's lock tells whether a keeper lives. One that lives but has no socket is about to make
    it, or is on its way out: in a moment we know.
    """
    limit = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _connect(folder)
        except NoKeeper:
            if not is_kept(folder):
                raise
        if time.monotonic() > limit:
            raise KeeperUnreachable(
                f"the keeper in {folder} has no control socket", "it may be stopped: tenuto doctor"
            )
        time.sleep(_PAUSE_S)


def _connect(folder: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        dir_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock.settimeout(_PATIENCE_S)
            sock.connect(socket_path(dir_fd))
        finally:
            os.close(dir_fd)
    except (FileNotFoundError, NotADirectoryError, ConnectionError) as error:
        sock.close()
        raise NoKeeper(folder) from error
    except OSError as error:
        sock.close()
        raise KeeperUnreachable(
            f"the keeper in {folder} does not accept connections: {error}",
            "see: tenuto doctor",
        ) from error
    return sock


def watch(folder: str) -> socket.socket:
    """Return a connection that gets a byte for every append, and the end of file at the end."""
    sock = connect(folder)
    try:
        ask(sock, "watch")
    except BaseException:
        sock.close()
        raise
    return sock


def request(folder: str, op: str, patience_s: float = _PATIENCE_S, **fields: Any) -> dict[str, Any]:
    """Ask one thing and return the answer."""
    try:
        with connect(folder) as sock:
            return ask(sock, op, patience_s, **fields)
    except NoKeeper:
        _see_it_off(folder)
        raise


def _see_it_off(folder: str) -> None:
    """Wait until a keeper that let us go is gone: from then on its tape may be taken up."""
    limit = time.monotonic() + _PATIENCE_S
    while is_kept(folder) and time.monotonic() < limit:
        time.sleep(_PAUSE_S)


def encode(message: dict[str, Any]) -> bytes:
    """Return a message for a keeper as JSON; variables need not be UTF-8, and their bytes are kept."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        import json  # escapes what stands for such a byte; nobody needs it otherwise

        return json.dumps(msgspec.to_builtins(message)).encode()


def ask(
    sock: socket.socket, op: str, patience_s: float = _PATIENCE_S, **fields: Any
) -> dict[str, Any]:
    """Ask over an open connection; errors come back as our own."""
    sock.settimeout(patience_s)
    try:
        body = encode({"v": PROTOCOL, "op": op, **fields})
        sock.sendall(LENGTH.pack(len(body)) + body)
        (size,) = LENGTH.unpack(_exactly(sock, LENGTH.size))
        reply: dict[str, Any] = msgspec.json.decode(_exactly(sock, size))
    except TimeoutError as error:
        raise KeeperUnreachable(
            f"the keeper did not answer {op!r} within {patience_s:g} s",
            "it may be stopped; tenuto kill ends it all the same",
        ) from error
    except (ConnectionError, EOFError) as error:
        raise NoKeeper(op) from error
    if reply.get("ok"):
        return reply
    raise _error(str(reply.get("error", "")), str(reply.get("message", "no reason given")))


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = sock.recv(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _error(code: str, message: str) -> Exception:
    if code == "busy":
        return _BusyError(message)
    if code == "not_running":
        return NotRunning(message, "see how it ended with: tenuto show ID")
    if code == "unkillable":
        return KeeperUnreachable(
            message, "it waits inside the kernel; it dies when that call returns"
        )
    return InvalidInput(f"the keeper refused: {message}", "check the values that were sent")


def send(folder: str, data: bytes, eof: bool) -> str:
    """Write to the execution's stdin, in order and whole; return delivered, queued or closed."""
    fate = ""
    with connect(folder) as sock:
        pieces = [data[at : at + _SEND_CHUNK] for at in range(0, len(data), _SEND_CHUNK)] or [b""]
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            fate = _send_piece(sock, piece, eof and last)
    return fate


def _send_piece(sock: socket.socket, piece: bytes, eof: bool) -> str:
    """Send one piece, as soon as the program has read enough of what was sent before."""
    while True:
        try:
            reply = ask(
                sock, "send", data=binascii.b2a_base64(piece, newline=False).decode(), eof=eof
            )
            return str(reply["fate"])
        except _BusyError:
            time.sleep(_BUSY_S)
