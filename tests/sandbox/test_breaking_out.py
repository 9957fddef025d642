"""Everything a program in a sandbox should not be able to do, tried by one that wants to."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from box import NOBODY, Box, need

ATTACKS = Path(__file__).with_name("attacks.py")
LIBC = ctypes.CDLL(None, use_errno=True)
KEY = 0x7E407E40

WORKS = [
    "write_here", "start_a_program", "use_tmp", "pair", "threads", "copy_a_file", "null", "know_names",
    "own_proc",
]  # fmt: skip
# Not an attempt that can fail: the signal is looked for at its target.
TOLD = ["descriptors", "status", "signal_by_file"]


def _names() -> list[str]:
    lines = ATTACKS.read_text().splitlines()
    return [
        line.split()[1].partition("(")[0]
        for before, line in itertools.pairwise(lines)
        if before == "@attempt"
    ]


NAMES = _names()
ATTEMPTS = [name for name in NAMES if name not in (*WORKS, *TOLD)]


VICTIM = """
import ctypes, signal, sys
kept = ctypes.create_string_buffer(b"secret!!")
signal.signal(signal.SIGUSR2, lambda *_: print("hit", flush=True))
print(ctypes.addressof(kept), flush=True)
while True: signal.pause()
"""


class Scene:
    """What an attack would reach if it got out, and what it told."""

    def __init__(self, box: Box, stack: ExitStack, sandbox: bool = True) -> None:
        self.box = box
        self.secret = box.home / "secret"
        for path in (self.secret, box.outside / "victim", box.outside / "victim2"):
            path.write_text("secret")
            path.chmod(0o600)
            box.own(path)
        setuid = box.work / "setuid-id"
        shutil.copy("/usr/bin/id", setuid)
        setuid.chmod(0o4755)
        assert box.call("run", "--", "true").returncode == 0  # so that there is a state folder
        self.before = self.secret.stat()
        told = {**self._listen(stack), **self._victim(stack)}
        mode = ["--sandbox", "require"] if sandbox else ["--sandbox", "none"]
        env = ["--env", f"ATTACK={json.dumps(told)}"]
        code = ATTACKS.read_text()
        self.end = box.json("run", "--lang", "python", *mode, *env, "--", code)
        lines = [line for line in self.end["output"].splitlines() if line.startswith("{")]
        assert lines, self.end["output"]
        self.found: dict[str, Any] = json.loads(lines[-1])

    def _victim(self, stack: ExitStack) -> dict[str, Any]:
        """Start a process of the same user, which nobody in a sandbox may touch."""
        self.victim = self.box.popen("-c", VICTIM, "victim")
        stack.callback(self.victim.stdout.close)
        stack.callback(self.victim.wait)
        stack.callback(self.victim.kill)
        return {"pid": self.victim.pid, "address": int(self.victim.stdout.readline())}

    def _listen(self, stack: ExitStack) -> dict[str, Any]:
        box = self.box
        tcp4 = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.udp4 = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.udp4.bind(("127.0.0.1", 0))
        self.udp4.setblocking(False)
        port6 = 0
        if socket.has_dualstack_ipv6() or socket.has_ipv6:
            tcp6 = stack.enter_context(socket.socket(socket.AF_INET6))
            tcp6.bind(("::1", 0))
            tcp6.listen()
            port6 = tcp6.getsockname()[1]
        for path in (box.outside / "listener", box.work / "listener"):
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(str(path))
            server.listen()
            path.chmod(0o777)
        datagrams = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagrams.bind(str(box.outside / "listener-d"))
        (box.outside / "listener-d").chmod(0o777)
        abstract = f"tenuto-{os.urandom(6).hex()}"
        for name, kind in (("", socket.SOCK_STREAM), ("-d", socket.SOCK_DGRAM)):
            server = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            server.bind(f"\0{abstract}{name}")
            if kind is socket.SOCK_STREAM:
                server.listen()
        tmp, shm = Path(f"/tmp/{abstract}"), Path(f"/dev/shm/{abstract}")
        for path in (tmp, shm):
            path.write_text("x")
            stack.callback(path.unlink)
        memory = LIBC.shmget(KEY, 8, 0o1666)
        stack.callback(lambda: LIBC.shmctl(memory, 0, None))
        return {
            "secret": str(self.secret), "outside": str(box.outside), "state": str(box.state),
            "tcp4": tcp4.getsockname()[1], "tcp6": port6,
            "udp4": self.udp4.getsockname()[1], "unix": str(box.outside / "listener"),
            "abstract": abstract, "tmp": str(tmp), "shm": str(shm), "key": KEY,
        }  # fmt: skip


@pytest.fixture(scope="module")
def scene(any_box: Box) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(any_box, stack)


@pytest.fixture(scope="module", params=["own", "nobody"])
def free(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """The same without a sandbox: an attempt that fails here proves nothing there."""
    user = NOBODY if request.param == "nobody" else None
    need("limits", user)
    box = Box("limits", user)
    try:
        with ExitStack() as stack:
            yield Scene(box, stack, sandbox=False)
    finally:
        box.close()


@pytest.mark.promise("S1", "X16")
@pytest.mark.parametrize("name", ATTEMPTS)
def test_refused(scene: Scene, name: str) -> None:
    assert scene.found[name] not in ("done", "sent")
    assert not scene.found[name].startswith("became")
    assert "AssertionError" not in scene.found[name] or name == "host_secret_variable"


@pytest.mark.promise("S1")
@pytest.mark.parametrize("name", WORKS)
def test_works(scene: Scene, name: str) -> None:
    assert scene.found[name] == "done"


@pytest.mark.promise("S1")
def test_attributes_outside_are_as_before(scene: Scene) -> None:
    now = scene.secret.stat()
    for field in ("st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_size"):
        assert getattr(now, field) == getattr(scene.before, field), field
    assert not os.listxattr(scene.secret)


def test_nothing_came_through(scene: Scene) -> None:
    os.set_blocking(scene.victim.stdout.fileno(), False)
    with pytest.raises(BlockingIOError):
        os.read(scene.victim.stdout.fileno(), 1)
    with pytest.raises(BlockingIOError):
        scene.udp4.recv(1)
    for name in ("new", "folder"):
        assert not (scene.box.outside / name).exists()
    assert (scene.box.outside / "victim").exists()


@pytest.mark.promise("S1")
def test_it_has_no_privileges_left(scene: Scene) -> None:
    status = scene.found["status"]
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    if scene.box.user is None and os.geteuid() == 0:
        assert status["CapBnd"] == "0" * 16
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_it_has_no_descriptor_but_its_own(scene: Scene) -> None:
    assert scene.found["descriptors"] == [0, 1, 2, 3, 4]  # the channel, and the folder being read


@pytest.mark.promise("S2")
def test_the_level_is_told(scene: Scene) -> None:
    level = scene.end["confinement"]
    assert (
        level["level"] == {"bwrap": "bwrap+seccomp", "landlock": "landlock+seccomp"}[scene.box.rung]
    )
    assert level["net"] == "off"


# What an ordinary user may do to what is his own, and the attempts that need no more
REAL = [
    "read_a_secret", "list_the_folder_of_a_secret", "write_outside", "append_to_a_secret",
    "truncate_a_secret", "remove_outside", "move_outside_in", "link_outside_in",
    "make_folder_outside", "follow_a_link_out", "through_own_root", "through_own_folder",
    "through_another_process", "environment_of_another", "command_of_another", "host_tmp",
    "host_shared_memory", "host_secret_variable", "watch_the_state", "list_the_state",
    "list_the_state_by_its_link", "read_own_tape", "write_own_tape", "reach_own_keeper",
    "save_a_tool", "save_a_tool_by_the_link", "tcp_4", "udp_4", "unix_path", "unix_path_inside",
    "unix_abstract", "unix_datagram", "unix_datagram_from_a_pair", "unix_datagram_from_a_raw_pair",
    "netlink", "listen", "signal_another",
    "signal_by_descriptor", "limit_another", "slow_another", "bind_another",
    "shared_memory_of_another",
]  # fmt: skip
# and those that take root
REAL_FOR_ROOT = [
    "read_shadow", "write_the_system", "write_a_program", "write_at_the_root", "core_pattern",
    "make_a_device", "mount", "remount", "unmount", "new_root", "pivot", "packet", "raw",
    "user_namespace", "network_namespace", "mount_namespace", "clone_into_a_user_namespace",
    "trace_another", "read_memory_of_another", "memory_of_another", "join_namespace",
]  # fmt: skip


@pytest.mark.parametrize("name", [*REAL, *REAL_FOR_ROOT])
def test_the_attempt_is_a_real_one(free: Scene, name: str) -> None:
    if name in REAL_FOR_ROOT and (free.box.user is not None or os.geteuid() != 0):
        pytest.skip("it takes root")
    assert free.found[name] == "done"


def test_a_signal_by_file_arrives_only_without_a_sandbox(free: Scene) -> None:
    assert free.victim.stdout.readline() == "hit\n"
