"""The floor of the design, bare: a warm image that forks, per request, what keeps one program.

Run as a script, `floor_zygote.py FD FOLDER SOURCE MODULE`: it imports MODULE from SOURCE, so that the
image is as large as the real zygote's, then takes argument lists (NUL between them) on the socket,
each with the connection to answer on. One fork, one folder, one file, a pipe, another fork and an
exec, the output read to its end, a wait, an answer. No record, no checks, nobody to ask.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
from typing import NoReturn


def main() -> None:
    """Fork for each request until the other side is gone."""
    descriptor, folder, source, module = sys.argv[1:]
    sys.path.insert(0, source)
    importlib.import_module(module)
    jobs = socket.socket(fileno=int(descriptor))
    os.set_inheritable(jobs.fileno(), False)
    os.chdir(folder)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    number = 0
    while True:
        data, fds, _, _ = socket.recv_fds(jobs, 65536, 1)
        if not data:
            return
        number += 1
        if os.fork() == 0:
            _keep(number, data.decode().split("\0"), socket.socket(fileno=fds[0]))
        os.close(fds[0])


def _keep(number: int, argv: list[str], answer: socket.socket) -> NoReturn:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.mkdir(str(number), 0o700)
        tape = os.open(f"{number}/tape", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(tape, b"x" * 300)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                os.dup2(write, 1)
                os.execv(argv[0], argv)
            finally:
                os._exit(127)
        os.close(write)
        output = b""
        while part := os.read(read, 65536):
            output += part
        _, status = os.waitpid(pid, 0)
        os.write(tape, b"x" * 300)
        answer.sendall(bytes([os.waitstatus_to_exitcode(status) & 255]) + output)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
