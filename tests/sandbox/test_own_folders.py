"""Our own folders, and what decides what is seen next, inside a folder that a program may change."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from box import NOBODY, Box, need

TRIES = """
import os
def tried(*steps):
    try:
        for step in steps:
            step()
        return "done"
    except OSError as error:
        return os.strerror(error.errno)
def write(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").write("evil")
"""


@pytest.mark.promise("X16")
@pytest.mark.parametrize("user", [None, NOBODY])
def test_folders_of_ours_that_are_not_there_yet_cannot_be_made(user: int | None) -> None:
    """Whoever works in its home could otherwise save a tool for all projects, or settings."""
    need("bwrap", user)
    box = Box("bwrap", user)
    try:
        code = f"""{TRIES}
[tried(lambda: write(os.path.join({str(box.home)!r}, path))) for path in (
    ".local/share/tenuto/composed-tools/evil.json", ".config/tenuto/config.toml",
    ".local/state/tenuto/evil", "mine")]
"""
        words = ["--writable", str(box.home)]
        *refused, mine = box.python(code, *words, level="require")["value"]
        assert "done" not in refused and mine == "done"
        assert not [one for one in box.home.rglob("*") if one.name.startswith(("evil", "config"))]
        assert box.call("tools", "list", "-q").stdout == ""
    finally:
        box.close()


@pytest.mark.promise("X16")
def test_what_is_protected_cannot_be_moved_away_with_the_folder_it_is_in() -> None:
    need("bwrap")
    box = Box("bwrap")
    try:
        box.run("--", "true")
        kept = box.work / "a" / "b" / "kept"
        kept.mkdir(parents=True)
        (kept / "f").write_text("right")
        code = f"""{TRIES}
home = {str(box.home)!r}
[tried(lambda: os.rename(home + "/.local", home + "/gone")),
 tried(lambda: os.rename(home + "/.local/state", home + "/gone")),
 tried(lambda: os.rename("a", "gone")),
 tried(lambda: write("a/b/kept/f"))]
"""
        words = ["--writable", str(box.home), "--readable", str(kept)]
        assert "done" not in box.python(code, *words, level="require")["value"]
        assert (kept / "f").read_text() == "right"
        assert box.state.is_dir() and not (box.home / "gone").exists()
    finally:
        box.close()


@pytest.mark.promise("S1", "X16")
def test_a_virtual_environment_in_the_folder_does_not_say_what_the_next_one_sees(box: Box) -> None:
    subprocess.run(
        [os.path.realpath(sys.executable), "-m", "venv", "--without-pip", str(box.work / "v")],
        check=True,
    )
    (box.outside / "secret").write_text("secret")
    path = f"{box.work / 'v' / 'bin'}:{os.environ['PATH']}"
    code = f"""{TRIES}
settings = open("v/pyvenv.cfg").read()
tried(lambda: open("v/pyvenv.cfg", "w").write("home = {box.outside}/bin\\n" + settings))
"""
    assert box.python(code, level="require", PATH=path)["value"] == "done"
    code = f"{TRIES}\nimport sys\n"
    code += f"[sys.prefix, tried(lambda: open({str(box.outside / 'secret')!r}).close())]"
    prefix, came = box.python(code, level="require", PATH=path)["value"]
    assert prefix == str(box.work / "v") and came != "done"


@pytest.mark.promise("S2")
def test_what_is_only_to_be_read_inside_a_writable_folder_is_so_or_told(box: Box) -> None:
    kept = box.work / "kept"
    kept.mkdir()
    words = ("run", "--sandbox", "require", "--lang", "python", "--readable", str(kept), "--")
    end = box.json(*words, "open('kept/f', 'w').close()")
    if box.rung == "bwrap":
        assert end["state"] == "failed" and "Read-only" in end["output"]
    else:
        assert end["error"]["code"] == "sandbox_unavailable"
        assert str(kept) in end["error"]["message"]
    assert not (kept / "f").exists()


@pytest.mark.promise("X16")
def test_a_link_to_our_folders_cannot_be_given_away(box: Box) -> None:
    (box.outside / "local").mkdir()
    (box.home / ".local").symlink_to(box.outside / "local")
    words = ("run", "--sandbox", "require", "--lang", "python", "--writable", str(box.home), "--")
    end = box.json(*words, "import os; os.unlink(os.path.join('..', 'home', '.local'))")
    assert end["error"]["code"] == "bad_input"
    assert "could be replaced" in end["error"]["message"]
    assert (box.home / ".local").is_symlink()
