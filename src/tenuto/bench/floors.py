"""The client's side of the floors that ours is measured against."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import tenuto

_IMAGE = "tenuto.keeper.zygote"
_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "floor_zygote.py")
_SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(tenuto.__file__)))


class FloorZygote:
    """The bare prototype of the design: see floor_zygote.py."""

    def __init__(self, base: str) -> None:
        """Start the image, with its folders somewhere under `base`."""
        folder = tempfile.mkdtemp(dir=base, prefix="floor-")
        self._jobs, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            number = far.fileno()
            argv = [sys.executable, "-I", "-S", _SCRIPT, str(number), folder, _SOURCE, _IMAGE]
            self._process = subprocess.Popen(argv, pass_fds=[number])

    def __enter__(self) -> FloorZygote:
        self.run(["/bin/true"])  # warm from here on
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.close()
        self._process.wait(10)

    def _ask(self, argv: Sequence[str]) -> socket.socket:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with far:
            socket.send_fds(self._jobs, ["\0".join(argv).encode()], [far.fileno()])
        return near

    def run(self, argv: Sequence[str]) -> bytes:
        """Run one program to its end and return its output."""
        with self._ask(argv) as answer:
            return _output(answer)

    def run_all(self, commands: Sequence[Sequence[str]], at_once: int) -> list[bytes]:
        """Run many, so many at once, and return their output in order."""
        outputs = [b""] * len(commands)
        poller = select.poll()
        under_way: dict[int, tuple[int, socket.socket]] = {}
        ahead = list(enumerate(commands))[::-1]
        while ahead or under_way:
            while ahead and len(under_way) < at_once:
                number, argv = ahead.pop()
                answer = self._ask(argv)
                under_way[answer.fileno()] = (number, answer)
                poller.register(answer, select.POLLIN)
            for fd, _ in poller.poll():
                poller.unregister(fd)
                number, answer = under_way.pop(fd)
                with answer:
                    outputs[number] = _output(answer)
        return outputs


def _output(answer: socket.socket) -> bytes:
    parts: list[bytes] = []
    while part := answer.recv(65536):
        parts.append(part)
    data = b"".join(parts)
    if not data or data[0] != 0:
        raise RuntimeError(f"the floor's program failed: {data!r}")
    return data[1:]
