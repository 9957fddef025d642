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
        try:
            reply = answer(engine, json.loads(data))
        except Exception as error:
            reply = {"error": repr(error)}
        line.send(json.dumps(reply).encode())


def answer(engine, wanted):
    if "list" in wanted:
        return {"states": {one.id: str(one.state) for one in engine.list(most=None)}}
    if "many" in wanted:
        ids = [start(engine, {"argv": ["sh", "-c", f"echo {n}"]}) for n in range(wanted["many"])]
        return {"ids": ids}
    return {"id": start(engine, wanted)}


def start(engine, wanted):
    options = Options(detached=True, pty=wanted.get("pty", False))
    if "code" in wanted:
        work = engine.code(wanted["code"], "python", options)
    else:
        work = engine.command(wanted["argv"], options)
    execution_id, sock = engine.start(work)
    sock.close()
    return execution_id


main()
