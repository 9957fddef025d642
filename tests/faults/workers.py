"""A process that has everything loaded and forks workers: engines that start what they are told.

Each request comes with one end of a socket pair; the fork serves it until it is killed.
"""

import json
import os
import signal
import socket
import sys

from tenuto.dispatch.launch import FreshLauncher, ZygoteLauncher
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.work import Options


def main():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        data, fds, _, _ = socket.recv_fds(requests, 4096, 1)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            serve(json.loads(data), socket.socket(fileno=fds[0]))
            os._exit(0)
        os.close(fds[0])
        requests.send(str(pid).encode())


def serve(request, line):
    os.environ.update(request["environ"])
    launcher = FreshLauncher() if request["way"] == "fresh" else ZygoteLauncher(2)
    engine = BlockingEngine.open_here(launcher)
    while data := line.recv(1 << 16):
        wanted = json.loads(data)
        options = Options(detached=True, pty=wanted.get("pty", False))
        if "code" in wanted:
            work = engine.code(wanted["code"], "python", options)
        else:
            work = engine.command(wanted["argv"], options)
        try:
            execution_id, sock = engine.start(work)
        except Exception as error:
            line.send(json.dumps({"error": repr(error)}).encode())
            continue
        line.send(json.dumps({"id": execution_id}).encode())
        sock.close()


main()
