"""What the fault tests share: a state folder, real processes, and what must hold afterwards."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tenuto.core.errors import NotRunning
from tenuto.core.states import State
from tenuto.dispatch.launch import FreshLauncher
from tenuto.engine import recover
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.settings import Settings
from tenuto.engine.work import Options
from tenuto.keeper import cgroup, procfs
from tenuto.stores.layout import Project
from tenuto.stores.tape import TapeReader

HERE = Path(__file__).parent
PYTHON = [sys.executable, "-I", "-S", "-c"]
LOG = "TENUTO_KEEPER_LOG"  # passed on to zygotes and keepers, and so tells whose they are
HAS_GROUPS = bool(cgroup.find_base())

CHATTY = (
    "import os, sys, time\n"
    "open(sys.argv[1], 'a').write('ran\\n')\n"
    "for n in range(1, int(sys.argv[2]) + 1):\n"
    "    os.write(1, b'line %d\\n' % n)\n"
    "    time.sleep(0.001)\n"
)


def lines(last):
    """What CHATTY prints."""
    return b"".join(b"line %d\n" % n for n in range(1, last + 1))


def needs(condition, reason):
    """Skip without a condition, or fail where nothing may be skipped."""
    import pytest

    if not condition:
        if os.environ.get("TENUTO_TEST_REQUIRE_ALL"):
            pytest.fail(reason)
        pytest.skip(reason)


# Processes


def _environ(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def alive(pid):
    return procfs.start_time(pid) != 0


def gone(pids, patience_s=10.0):
    """Wait until these processes have ended; return those that have not."""
    limit = time.monotonic() + patience_s
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            poller.poll(max(0.0, limit - time.monotonic()) * 1000)
        finally:
            os.close(fd)
    return [pid for pid in pids if alive(pid)]


def found(prefix):
    """Return the live processes in whose environment TENUTO_KEEPER_LOG begins like this."""
    word = f"{LOG}={prefix}".encode()
    return [
        pid
        for pid in procfs.all_pids()
        if pid != os.getpid() and any(one.startswith(word) for one in _environ(pid)) and alive(pid)
    ]


def processes_of(folder, patience_s=0.0):
    """Return what carries this folder's name and does not end within the time given."""
    limit = time.monotonic() + patience_s
    while True:
        pids = gone(found(folder), max(0.0, limit - time.monotonic()))
        if not pids or time.monotonic() >= limit:
            return pids


def marked(execution_id):
    return [
        pid for pid in procfs.all_pids() if procfs.carries_mark(pid, execution_id) and alive(pid)
    ]


def descends_from(pid):
    return procfs.descendants(pid, prune=lambda _: False)


def eventually(check, patience_s=10.0, what="it"):
    """Wait for something that nobody announces."""
    limit = time.monotonic() + patience_s
    while True:
        result = check()
        if result:
            return result
        assert time.monotonic() < limit, f"{what} did not come about within {patience_s} s"
        time.sleep(0.002)


# Worlds


class World:
    """A state folder, engines on it, and processes that may be killed."""

    def __init__(self, family, folder):
        self.folder = folder
        self.home = folder / "home"
        self.log = tempfile.mkdtemp(dir=family) + "/log"
        self.project = Project(root=str(folder), home=str(self.home))
        self.side = folder / "side"
        self.environ = {**os.environ, "TENUTO_HOME": str(self.home), LOG: self.log}
        self._stack = contextlib.ExitStack()
        self._last = contextlib.ExitStack()
        self.before_end = self._stack.callback
        self.after_end = self._last.callback

    def __enter__(self):
        before = {name: os.environ.get(name) for name in ("TENUTO_HOME", LOG)}
        os.environ.update({"TENUTO_HOME": str(self.home), LOG: self.log})
        self._stack.callback(_restore, before)
        self._stack.callback(self._end)
        return self

    def __exit__(self, *error):
        with self._last:
            self._stack.close()

    def _end(self):
        with self.fresh() as engine:
            for snapshot in engine.list(most=None):
                if snapshot.running or engine.show(snapshot.id).left_behind:
                    with contextlib.suppress(NotRunning):
                        engine.kill(snapshot.id)
        left = processes_of(self.log, patience_s=20)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"left behind by this test: {left}"
        if os.path.exists(self.log):
            raise AssertionError(Path(self.log).read_text())

    def engine(self, launcher=None, **settings):
        """An engine in this process, closed at the end of the test."""
        engine = BlockingEngine(
            self.project, Settings(**settings), launcher or FreshLauncher(), self.environ
        )
        self._stack.callback(engine.close)
        return engine

    @contextlib.contextmanager
    def fresh(self):
        """An engine that knows nothing yet, as a new process would have it."""
        engine = BlockingEngine(self.project, Settings(), FreshLauncher(), self.environ)
        try:
            yield engine
        finally:
            engine.close()

    def spawn(self, script, *arguments, fault="", **options):
        """Start one of the scripts beside this file."""
        environ = {**self.environ, **({"TENUTO_FAULT": fault} if fault else {})}
        process = subprocess.Popen(
            [sys.executable, str(HERE / script), *map(str, arguments)],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip
        self._stack.callback(_reaped, process)
        return process

    def chatty(self, last):
        """A program that notes that it ran, then prints numbered lines."""
        return [*PYTHON, CHATTY, str(self.side), str(last)]

    def start(self, engine, argv, **options):
        """Start a command, detached, and return its id."""
        execution_id, sock = engine.start(engine.command(argv, Options(detached=True, **options)))
        sock.close()
        return execution_id

    def runs(self):
        """How many times the program has run."""
        return len(self.side.read_text().splitlines()) if self.side.exists() else 0

    def executions(self):
        with self.fresh() as engine:
            return engine.list(most=None)

    def started(self, execution_id):
        """Wait for the Started event and return it."""

        def look():
            execution = recover.load(self.project, execution_id)
            return execution.started if execution is not None else None

        return eventually(look, what="a Started event")


def _restore(before):
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _reaped(process):
    process.kill()
    process.communicate()


# What must hold


def read(engine, execution_id):
    """Return stdout as the tape has it, after checking that the tape is sound."""
    last_seq, last_ns = -1, 0
    try:
        reader = TapeReader(engine.project.folder(execution_id))
    except FileNotFoundError:
        return b""
    with reader:
        for frame in reader.frames():
            assert frame.seq > last_seq
            assert frame.time_ns >= last_ns
            last_seq, last_ns = frame.seq, frame.time_ns
        assert reader.damaged == 0
    return b"".join(c.data for c in engine.logs(execution_id) if c.stream == "out")


def settled(engine, execution_id, acked=b"", whole=None):
    """Assert what holds after any death, once a fresh engine has looked; return the snapshot."""
    listed = {one.id: one for one in engine.list(most=None)}
    snapshot = engine.show(execution_id)
    assert listed[execution_id].state == snapshot.state
    assert snapshot.done, f"{snapshot.state}: {snapshot.reason}"
    assert not marked(execution_id), "a process of the execution lives"
    output = read(engine, execution_id)
    assert output.startswith(acked), "what a follower had read is not on the tape any more"
    if whole is not None:
        assert whole.startswith(output), "the tape holds what the program never wrote"
        if snapshot.state is State.SUCCEEDED:
            assert output == whole
    return snapshot


# Engines in processes of their own


class Forge:
    """The process that forks workers."""

    def __init__(self, environ):
        self._near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "workers.py"), str(far.fileno())],
                env=environ, pass_fds=[far.fileno()],
            )  # fmt: skip

    def fork(self, way, environ):
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            request = json.dumps({"way": way, "environ": environ}).encode()
            socket.send_fds(self._near, [request], [far.fileno()])
        return int(self._near.recv(64)), near

    def close(self):
        self._near.close()
        self._process.wait(10)


class Worker:
    """An engine in a process of its own; its log's name tells its zygote and keepers from others'."""

    def __init__(self, forge, way, log):
        self.way, self.log = way, log
        self.pid, self.line = forge.fork(way, {LOG: log})

    def ask(self, request):
        self.line.send(json.dumps(request).encode())

    def call(self, request):
        """Ask and wait for the whole answer."""
        self.ask(request)
        reply = json.loads(self.line.recv(1 << 16))
        assert "error" not in reply, reply["error"]
        return reply

    def answer(self, patience_s):
        """The id once it is told, None while it is not, "" if the worker is dead."""
        poller = select.poll()
        poller.register(self.line, select.POLLIN)
        if not poller.poll(max(0.0, patience_s) * 1000):
            return None
        try:
            data = self.line.recv(1 << 16)
        except ConnectionResetError:  # it died with our request unread
            data = b""
        if not data:
            return ""
        reply = json.loads(data)
        assert "id" in reply, reply["error"]
        return reply["id"]

    def named(self, name):
        return [pid for pid in found(self.log) if procfs.name(pid) == name]

    def close(self):
        self.line.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
