"""The private folder of a confined execution goes, whenever its keeper is killed; nothing else does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import NOBODY, Box, need

from tenuto.core.ids import new_id
from tenuto.engine import scratch
from tenuto.keeper.held import remove_tree

USERS = {"own": None, "nobody": NOBODY} if os.geteuid() == 0 else {"own": None}


@pytest.fixture(params=list(USERS))
def held(request: pytest.FixtureRequest) -> Iterator[tuple[Box, Path]]:
    """A box on the rung that has a scratch folder, and the temporary folder where it is made."""
    user = USERS[request.param]
    need("landlock", user)
    box = Box("landlock", user)
    place = box.root / "tmp"
    place.mkdir(mode=0o755)
    box.own(place)
    box.env["TMPDIR"] = str(place)
    yield box, place
    box.close()


def only(box: Box) -> str:
    (one,) = json.loads(box.call("--json", "ps", "-a").stdout)
    return str(one["id"])


def kinds(box: Box, execution_id: str) -> list[str]:
    shown = box.call("show", "--json", "--events", execution_id).stdout
    return [one["type"] for one in json.loads(shown)]


@pytest.mark.promise("X11", "X16")
def test_a_keeper_that_dies_before_it_tells_of_it_leaves_none(held: tuple[Box, Path]) -> None:
    box, place = held
    box.call("run", "-d", "--sandbox", "require", "--", "true", TENUTO_FAULT="keeper-begun")
    execution_id = only(box)
    assert box.json("show", execution_id)["state"] == "lost"
    assert "confined" not in kinds(box, execution_id), "the tape says nothing of it"
    assert not list(place.iterdir())


@pytest.mark.promise("X11", "X16")
def test_one_that_dies_after_the_end_leaves_it_until_cleaned(held: tuple[Box, Path]) -> None:
    box, place = held
    words = ("run", "--sandbox", "require", "--", "true")
    box.call(*words, TENUTO_FAULT="writer-before-sync")
    execution_id = only(box)
    assert box.json("show", execution_id)["state"] == "succeeded"
    (left,) = place.iterdir()
    assert left.name == f"tenuto-{execution_id}"
    other = place / f"tenuto-{new_id()}"
    other.mkdir()
    assert box.call("clean", "--keep", "0").returncode == 0
    assert list(place.iterdir()) == [other]


@pytest.mark.promise("X2", "X16")
def test_what_a_life_before_left_there_is_in_nobodys_way(held: tuple[Box, Path]) -> None:
    box, place = held
    code = "import os, time\nprint(os.listdir(os.environ['TMPDIR']), flush=True)\ntime.sleep(1000)"
    words = ("run", "-d", "--sandbox", "require", "--lang", "python", "--", code)
    execution_id = box.call(*words).stdout.strip()
    box.call("wait", execution_id, "--until", "[]")
    assert box.call("interrupt", execution_id).returncode == 0
    left = place / f"tenuto-{execution_id}"
    limit = time.monotonic() + 60
    while left.exists():  # its keeper clears up after the end is told
        assert time.monotonic() < limit
    left.mkdir()
    (left / "of the life before").touch()
    box.own(left)
    again = box.call("resume", "--force", "--wait", "1s", execution_id)
    assert (again.returncode, again.stdout) == (75, "[]\n"), again.stderr
    assert box.call("kill", execution_id).returncode == 0


# What is not ours


def noted(folder: Path, execution_id: str, path: Path | str, uid: int | None = None) -> None:
    own = os.geteuid() if uid is None else uid
    (folder / scratch.NOTE).write_text(f"{own} {path}")
    scratch.remove(str(folder), execution_id)


@pytest.mark.promise("X16")
def test_only_what_is_ours_by_name_and_owner_and_no_link_is_removed(tmp_path: Path) -> None:
    execution_id = new_id()
    folder, other = tmp_path / execution_id, tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    mine = tmp_path / f"tenuto-{execution_id}"
    mine.symlink_to(other)
    noted(folder, execution_id, mine)
    assert mine.is_symlink() and other.is_dir()
    mine.unlink()
    mine.write_text("a file")
    noted(folder, execution_id, mine)
    assert mine.is_file()
    mine.unlink()
    noted(folder, execution_id, other)
    noted(folder, new_id(), mine)
    noted(folder, execution_id, os.path.relpath(mine))
    assert other.is_dir()
    mine.mkdir()
    if os.geteuid() == 0:
        os.chown(mine, 12345, 12345)
        noted(folder, execution_id, mine)
        assert mine.is_dir(), "it is somebody else's"
        noted(folder, execution_id, mine, 12345)
    else:
        noted(folder, execution_id, mine)
    assert not mine.exists()
    mine.mkdir()
    (folder / scratch.NOTE).unlink()
    scratch.remove(str(folder), execution_id)
    assert mine.is_dir(), "nothing says that it is ours"
    scratch.remove(str(folder), execution_id, str(mine))
    assert not mine.exists(), "as the tape had it before there were notes"


@pytest.mark.promise("X16")
def test_a_tree_goes_whatever_is_in_it_and_no_link_is_followed(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    for one in (
        outside,
        tree,
        tree / "a",
        tree / "a" / "b",
        tree / "closed",
        tree / "closed" / "x",
    ):
        one.mkdir()
    (outside / "file").touch()
    (tree / "a" / "out").symlink_to(outside)
    (tree / "a" / "b" / "file").touch()
    (tree / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tree / "pipe")
    (tree / "closed").chmod(0)
    here = os.open(tree, os.O_RDONLY)
    for _ in range(1500):  # deeper than any path or stack can be
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    before = len(os.listdir("/proc/self/fd"))
    remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "file").exists()
    assert len(os.listdir("/proc/self/fd")) == before
    remove_tree(str(tree))
    link = tmp_path / "link"
    link.symlink_to(outside)
    remove_tree(str(link))
    assert (outside / "file").exists()
