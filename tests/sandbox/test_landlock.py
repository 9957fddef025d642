"""Landlock as the keeper uses it: real children give up rights, then try."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from forked import forked, outcome

from tenuto.keeper import landlock

pytestmark = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")


def test_nothing_is_left_without_paths(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")

    def child() -> list[str]:
        landlock.restrict()
        return [
            outcome(lambda: os.open(tmp_path / "f", os.O_RDONLY)),
            outcome(lambda: os.open(tmp_path / "g", os.O_WRONLY | os.O_CREAT)),
            outcome(lambda: os.listdir("/")),
            outcome(lambda: os.execv("/bin/true", ["true"])),
        ]

    assert forked(child) == ["EACCES"] * 4


def test_read_execute_and_write_are_told_apart(tmp_path: Path) -> None:
    folders = {}
    for name in ("read", "run", "write"):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        (folders[name] / "f").write_text("x")

    def child() -> dict[str, list[str]]:
        landlock.restrict(
            read=[str(folders["read"])],
            execute=[str(folders["run"]), "/usr", "/lib", "/lib64", "/bin"],
            write=[str(folders["write"])],
        )
        assert subprocess.run(["/bin/true"], check=False).returncode == 0
        return {
            name: [
                outcome(lambda folder=folder: os.open(folder / "f", os.O_RDONLY)),
                outcome(lambda folder=folder: os.open(folder / "f", os.O_WRONLY)),
                outcome(lambda folder=folder: os.truncate(folder / "f", 0)),
                outcome(lambda folder=folder: os.mkdir(folder / "d")),
                outcome(lambda folder=folder: os.symlink("/", folder / "s")),
            ]
            for name, folder in folders.items()
        }

    found = forked(child)
    refused = ["ok", "EACCES", "EACCES", "EACCES", "EACCES"]
    assert found == {"read": refused, "run": refused, "write": ["ok"] * 5}


def test_a_single_file_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    (tmp_path / "g").write_text("x")

    def child() -> list[str]:
        landlock.restrict(read=[str(tmp_path / "f"), "/nonexistent"])
        return [outcome(lambda n=n: os.open(tmp_path / n, os.O_RDONLY)) for n in ("f", "g")]

    assert forked(child) == ["ok", "EACCES"]


@pytest.mark.skipif(landlock.abi() < 4, reason="Landlock ABI 4 came with Linux 6.7")
@pytest.mark.parametrize("allowed", [False, True])
def test_tcp(allowed: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def child() -> list[str]:
            landlock.restrict(tcp=allowed)
            one, two = socket.socket(), socket.socket()
            return [
                outcome(lambda: one.connect(server.getsockname())),
                outcome(lambda: two.bind(("127.0.0.1", 0))),
            ]

        assert forked(child) == (["ok", "ok"] if allowed else ["EACCES", "EACCES"])


@pytest.mark.skipif(landlock.abi() < 6, reason="Landlock ABI 6 came with Linux 6.12")
@pytest.mark.parametrize("scope", [True, False])
def test_processes_and_abstract_sockets_outside(scope: bool) -> None:
    name = f"\0tenuto-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        parent = os.getpid()

        def child() -> list[str]:
            landlock.restrict(scope=scope)
            client = socket.socket(socket.AF_UNIX)
            return [
                outcome(lambda: os.kill(parent, 0)),
                outcome(lambda: client.connect(name)),
                outcome(lambda: os.kill(os.getpid(), signal.SIGCONT)),
            ]

        assert forked(child) == (["EPERM", "EPERM", "ok"] if scope else ["ok"] * 3)


def test_an_old_kernel_tells_what_it_leaves_open() -> None:
    assert landlock.left_out(1) == [
        "renaming across folders",
        "truncating files",
        "TCP",
        "device ioctls",
        "signals and abstract sockets outside",
    ]
    assert landlock.left_out(3, tcp=True, scope=False) == ["device ioctls"]
    assert landlock.left_out(7) == []


def test_without_landlock_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(OSError, match="landlock"):
        landlock.restrict()
