"""The file tools stay in the workspace, whatever they are asked and whatever lies there."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tenuto.runners.loop.files import ToolError, Workspace
from tenuto.runners.loop.seeking import ignored, rules_of
from tenuto.runners.loop.tools import own_tools

pytestmark = pytest.mark.promise("R2")


@pytest.fixture
def files(workspace: Path) -> Workspace:
    return Workspace(str(workspace))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text("the secret\n")
    return path


def use(workspace: Path, name: str, **given: Any) -> str:
    tool = next(one for one in own_tools(Workspace(str(workspace))) if one.name == name)

    async def run() -> str:
        return await tool.run(given)

    return asyncio.run(run())


ESCAPES = [
    "../secret.txt",
    "sub/../../secret.txt",
    "{outside}/secret.txt",
    "link.txt",
    "folder/secret.txt",
    "chain.txt",
    "./././../secret.txt",
    "missing/../../secret.txt",
    "/etc/passwd",
    "/proc/self/environ",
    "a.txt\0",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_no_way_leads_out(path: str, files: Workspace, workspace: Path, secret: Path) -> None:
    (workspace / "sub").mkdir()
    (workspace / "link.txt").symlink_to(secret)
    (workspace / "chain.txt").symlink_to("link.txt")
    (workspace / "folder").symlink_to(secret.parent)
    path = path.format(outside=secret.parent)
    for attempt in (
        lambda: files.read(path),
        lambda: files.write(path, "mine now"),
        lambda: files.edit(path, "the secret", "mine now"),
        lambda: use(workspace, "list_files", path=path),
        lambda: use(workspace, "search", path=path, pattern="."),
    ):
        with pytest.raises(ToolError, match=r"outside|NUL"):
            attempt()
    assert secret.read_text() == "the secret\n"
    assert sorted(os.listdir(secret.parent)) == ["secret.txt", "workspace"]


def test_searching_and_listing_follow_no_links(
    workspace: Path, secret: Path, tmp_path: Path
) -> None:
    (workspace / "link.txt").symlink_to(secret)
    (workspace / "folder").symlink_to(tmp_path)
    (workspace / "loop").symlink_to(".")
    assert use(workspace, "search", pattern="secret") == "nothing matches"
    assert "secret.txt" not in use(workspace, "list_files")


def test_links_inside_are_what_they_lead_to(files: Workspace, workspace: Path) -> None:
    (workspace / "link.txt").symlink_to("a.txt")
    assert "2\ttwo" in files.read("link.txt")
    files.edit("link.txt", "two", "zwei")
    assert (workspace / "link.txt").is_symlink()
    assert (workspace / "a.txt").read_text() == "one\nzwei\nthree\n"
    assert "zwei" in files.read(str(workspace / "a.txt")), "an absolute path inside is fine"


def test_a_link_put_in_the_way_meanwhile_is_not_followed(
    files: Workspace, workspace: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking where a path leads and opening it, it is swapped."""
    (workspace / "sub").mkdir()
    (workspace / "sub" / "secret.txt").write_text("mine\n")
    known = Workspace.place

    def place(self: Workspace, path: str) -> tuple[str, ...]:
        parts = known(self, path)
        if (workspace / "sub").is_dir() and not (workspace / "sub").is_symlink():
            (workspace / "sub").rename(workspace / "away")
            (workspace / "sub").symlink_to(secret.parent)
        return parts

    monkeypatch.setattr(Workspace, "place", place)
    for attempt in (
        lambda: files.read("sub/secret.txt"),
        lambda: files.write("sub/secret.txt", "x"),
        lambda: files.write("sub/new/secret.txt", "x"),
    ):
        (workspace / "sub").unlink(missing_ok=True) if (workspace / "sub").is_symlink() else None
        if (workspace / "away").exists():
            (workspace / "away").rename(workspace / "sub")
        with pytest.raises(ToolError):
            attempt()
    assert secret.read_text() == "the secret\n"
    assert not (secret.parent / "new").exists()


def test_our_own_state_is_left_alone(files: Workspace, workspace: Path) -> None:
    (workspace / ".tenuto").mkdir()
    (workspace / ".tenuto" / "state.json").write_text("{}")
    (workspace / "way").symlink_to(".tenuto")
    for path in (".tenuto/state.json", "way/state.json", "a/../.tenuto/state.json", ".tenuto"):
        with pytest.raises(ToolError, match="own state"):
            files.read(path)
        with pytest.raises(ToolError, match="own state"):
            files.write(path, "x")
    assert use(workspace, "list_files") == "a.txt\nway"
    assert use(workspace, "search", pattern="{}") == "nothing matches"


def test_what_is_no_regular_file_is_named_and_not_opened(files: Workspace, workspace: Path) -> None:
    os.mkfifo(workspace / "fifo")
    (workspace / "folder").mkdir()
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(workspace)  # the path of a socket is short
    server.bind("socket")
    os.chdir(here)
    (workspace / "null").symlink_to("/dev/null")
    for name, kind in (("fifo", "a FIFO"), ("folder", "a folder"), ("socket", "a socket")):
        for attempt in (files.read, lambda one: files.write(one, "x")):
            with pytest.raises(ToolError, match=kind):
                attempt(name)
    with pytest.raises(ToolError, match="outside"):
        files.read("null")
    assert use(workspace, "search", pattern="o") == "a.txt:1: one\na.txt:2: two"
    server.close()


def test_devices_are_named(files: Workspace, workspace: Path) -> None:
    try:
        os.mknod(workspace / "zero", 0o020666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")
    with pytest.raises(ToolError, match="a device"):
        files.read("zero")
    assert "zero" not in use(workspace, "search", pattern=".")


def test_huge_files_are_read_in_part(files: Workspace, workspace: Path) -> None:
    with open(workspace / "huge", "wb") as file:
        file.write(b"first\n" * 3000)
        file.truncate(1 << 40)  # a terabyte of nothing
    text = files.read("huge")
    assert text.startswith("huge: lines 1 to 2000")
    assert "start=2001" in text
    assert len(text) < 300_000
    (workspace / "wide").write_bytes(b"x" * 5_000_000 + b"\nlast\n")
    wide = files.read("wide")
    assert "the line goes on" in wide
    assert wide.endswith("2\tlast")
    assert len(wide) < 3000
    assert "none from line 9 on" in files.read("wide", start=9)
    beyond = files.read("huge", start=4000)
    assert len(beyond) < 10_000, "looking for a line ends somewhere"
    with pytest.raises(ToolError, match="too large"):
        files.edit("huge", "first", "x")
    assert use(workspace, "search", pattern="first") == "nothing matches"


def test_binary_files_are_not_shown(files: Workspace, workspace: Path) -> None:
    (workspace / "data").write_bytes(b"\x7fELF\x00\x01secret")
    assert files.read("data") == "data: a binary file of 12 bytes; it is not shown"
    assert use(workspace, "search", pattern="secret") == "nothing matches"


def test_ranges_of_lines(files: Workspace, workspace: Path) -> None:
    assert files.read("a.txt") == "a.txt: lines 1 to 3, 14 bytes\n1\tone\n2\ttwo\n3\tthree"
    assert files.read("a.txt", 2, 1).endswith("read on with start=3\n2\ttwo")
    assert files.read("a.txt", 3).endswith("14 bytes\n3\tthree")
    (workspace / "empty").write_text("")
    assert files.read("empty") == "empty: 0 bytes, 0 lines; none from line 1 on"
    (workspace / "latin").write_bytes(b"caf\xe9\r\n")
    assert files.read("latin").endswith("1\tcaf\ufffd")


def test_an_edit_needs_one_place(files: Workspace, workspace: Path) -> None:
    path = workspace / "a.txt"
    for old, why in (("four", "not in the file"), ("o", "there 2 times"), ("", "empty")):
        with pytest.raises(ToolError, match=why):
            files.edit("a.txt", old, "x")
    with pytest.raises(ToolError, match="the same"):
        files.edit("a.txt", "two", "two")
    assert path.read_text() == "one\ntwo\nthree\n"
    path.chmod(0o754)
    assert files.edit("a.txt", "two\nthree", "2\n3") == "a.txt: changed at line 2"
    assert path.read_text() == "one\n2\n3\n"
    assert path.stat().st_mode & 0o777 == 0o754
    path.write_bytes(b"one\r\ntwo\xff\r\n")
    files.edit("a.txt", "one\ntwo", "1\n2")
    assert path.read_bytes() == b"1\r\n2\xff\r\n", "line ends and odd bytes stay"
    assert os.listdir(workspace) == ["a.txt"], "nothing is left beside it"


def test_files_and_folders_are_made(files: Workspace, workspace: Path) -> None:
    assert files.write("x/y/z.txt", "ä\n") == "x/y/z.txt: created, 3 bytes"
    assert files.write("x/y/z.txt", "") == "x/y/z.txt: replaced, 0 bytes"
    with pytest.raises(ToolError, match="not a folder"):
        files.write("a.txt/b.txt", "x")
    with pytest.raises(ToolError, match="the workspace itself"):
        files.write(".", "x")
    with pytest.raises(ToolError, match="too long"):
        files.write("n" * 300, "x")


def test_a_write_that_fails_leaves_the_old_file(
    files: Workspace, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ToolError, match="No space left"):
        files.write("a.txt", "x")
    assert (workspace / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert os.listdir(workspace) == ["a.txt"]


def test_what_git_ignores_is_not_listed(workspace: Path) -> None:
    tree = ["src/a.py", "src/a.pyc", "build/x", "src/build/y", "keep.log", "b.log", "src/gen/z.py"]
    tree += [".git/config", "sub/local.txt", "docs/deep/down/n.md"]
    for path in tree:
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text("needle\n")
    (workspace / ".gitignore").write_text("# no\n*.pyc\n/build/\n*.log\n!keep.log\nsrc/gen\n[bad\n")
    (workspace / "sub" / ".gitignore").write_text("local.txt\n")
    listed = use(workspace, "list_files").split("\n")
    wanted = [".gitignore", "a.txt", "docs/deep/down/n.md", "keep.log", "src/a.py", "src/build/y"]
    assert listed == [*wanted, "sub/.gitignore"]
    assert use(workspace, "list_files", glob="*.py") == "src/a.py"
    assert use(workspace, "list_files", glob="docs/**/*.md") == "docs/deep/down/n.md"
    assert use(workspace, "list_files", path="src") == "src/a.py\nsrc/build/y"
    assert use(workspace, "search", pattern="^needle$", path="src/a.py") == "src/a.py:1: needle"
    assert "gen" not in use(workspace, "search", pattern="needle", path="src")


def test_the_last_rule_wins() -> None:
    rules = rules_of("*.txt\n!a.txt\ntmp/\n**/x/*.c\n", "")
    assert ignored("b.txt", False, rules)
    assert not ignored("sub/a.txt", False, rules)
    assert ignored("tmp", True, rules)
    assert not ignored("tmp", False, rules)
    assert ignored("p/q/x/y.c", False, rules)
    assert not ignored("p/q/x/z/y.c", False, rules)


def test_answers_are_bounded(workspace: Path) -> None:
    (workspace / "many.txt").write_text("hit\n" * 5000)
    found = use(workspace, "search", pattern="hit").split("\n")
    assert len(found) == 201
    assert found[-1] == "… (more than 200; narrow it)"
    (workspace / "many.txt").write_text("hit" * 5000)
    assert len(use(workspace, "search", pattern="hit")) < 500


def test_a_name_of_any_bytes_is_listed(workspace: Path) -> None:
    with open(os.fsencode(workspace) + b"/caf\xe9", "wb") as file:
        file.write(b"x\n")
    assert use(workspace, "list_files") == "a.txt\ncaf?"
