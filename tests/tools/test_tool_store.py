"""Composed tools on disk: whole at every moment, kept when broken, counted without a loss."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from tenuto import InvalidInput
from tenuto.core.tools import Tool
from tenuto.stores import composed
from tenuto.stores.composed import BrokenToolError, ComposedTools, global_folder


@pytest.fixture
def store(tmp_path: Path) -> ComposedTools:
    return ComposedTools(str(tmp_path / "composed-tools"), "project")


def tool(name: str = "greet", code: str = "1", **more: Any) -> Tool:
    return Tool(name=name, code=code, input_schema={"type": "object"}, **more)


def path(store: ComposedTools, name: str = "greet") -> Path:
    return Path(store.folder) / f"{name}.json"


@pytest.mark.promise("C8")
def test_a_tool_comes_back_as_it_was_saved(store: ComposedTools) -> None:
    saved = store.save(
        tool(code="`Hello, ${inputs.name} é\u2028`", description="Grüße", language="ts")
    )
    assert (saved.version, saved.scope, saved.uses, saved.last_used) == (1, "project", 0, None)
    assert store.get("greet") == saved
    assert store.all() == ([saved], [])
    written = json.loads(path(store).read_bytes())
    assert written["schema"] == 1
    assert (written["name"], written["version"]) == ("greet", 1)
    assert "uses" not in written


def test_nothing_is_made_by_looking(store: ComposedTools) -> None:
    assert store.all() == ([], [])
    assert store.get("greet") is None
    assert store.versions("greet") == []
    assert not store.delete("greet")
    assert not os.path.exists(store.folder)


@pytest.mark.promise("C8")
def test_every_save_is_a_version_and_the_ones_before_can_be_read(store: ComposedTools) -> None:
    first = store.save(tool(code="1"))
    second = store.save(tool(code="2"))
    third = store.save(tool(code="3"))
    assert [one.version for one in (first, second, third)] == [1, 2, 3]
    assert first.created == third.created <= third.updated
    assert store.versions("greet") == [1, 2]
    for version, code in ((1, "1"), (2, "2"), (3, "3")):
        found = store.get("greet", version)
        assert found is not None
        assert (found.code, found.version, found.latest) == (code, version, version == 3)
    assert store.get("greet", 4) is None


def test_saving_the_same_again_changes_nothing(store: ComposedTools) -> None:
    first = store.save(tool())
    before = path(store).stat()
    assert store.save(tool()) == first
    assert path(store).stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.promise("C8")
def test_a_deleted_tool_is_gone_and_its_versions_are_not(store: ComposedTools) -> None:
    store.save(tool(code="1"))
    store.save(tool(code="2"))
    assert store.delete("greet")
    assert store.get("greet") is None
    assert store.all() == ([], [])
    assert not store.delete("greet")
    found = store.get("greet", 2)
    assert found is not None
    assert (found.code, found.latest) == ("2", False)
    assert store.save(tool(code="1")).version == 3


def test_purging_leaves_nothing(store: ComposedTools) -> None:
    store.save(tool(code="1"))
    store.save(tool(code="2"))
    store.used("greet")
    assert store.delete("greet", purge=True)
    left = [p for p in Path(store.folder).rglob("*") if p.is_file()]
    assert [p.name for p in left] == [".lock"]
    assert store.save(tool()).version == 1


def test_files_are_the_owners_alone(store: ComposedTools) -> None:
    before = os.umask(0)
    try:
        store.save(tool(code="1"))
        store.save(tool(code="2"))
        store.used("greet")
    finally:
        os.umask(before)
    for place in (Path(store.folder), *Path(store.folder).rglob("*")):
        mode = stat.S_IMODE(place.stat().st_mode)
        assert mode == (0o700 if place.is_dir() else 0o600), place


BROKEN = {
    "empty": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "another name": b'{"schema":1,"name":"other","code":"1","input_schema":{},"version":1}',
    "no code": b'{"schema":1,"name":"greet","code":"","input_schema":{},"version":1}',
    "no schema": b'{"schema":1,"name":"greet","code":"1","version":1}',
    "version 0": b'{"schema":1,"name":"greet","code":"1","input_schema":{},"version":0}',
    "a language": b'{"schema":1,"name":"greet","code":"1","input_schema":{},"version":1,"language":""}',
    "not UTF-8": b'{"schema":1,"name":"greet","code":"\xff","input_schema":{},"version":1}',
    "deep": b'{"schema":1,"name":"greet","code":"1","version":1,"input_schema":' + b"[" * 100_000,
    "cut": b'{"schema":1,"name":"greet","code":"12345',
}  # fmt: skip


@pytest.mark.promise("C8")
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_passed_over_told_of_and_kept(store: ComposedTools, how: str) -> None:
    other = store.save(tool("other"))
    path(store).write_bytes(BROKEN[how])
    tools, problems = store.all()
    assert tools == [other]
    assert [one.path for one in problems] == [str(path(store))]
    assert problems[0].why
    with pytest.raises(BrokenToolError):
        store.get("greet")
    assert path(store).read_bytes() == BROKEN[how]
    assert store.save(tool()).version == 1
    kept = list((Path(store.folder) / ".versions" / "greet").glob("broken-*.json"))
    assert [one.read_bytes() for one in kept] == [BROKEN[how]]


def test_a_giant_file_is_broken(store: ComposedTools) -> None:
    store.save(tool("other"))
    with path(store).open("wb") as file:
        file.truncate(9 << 20)
    assert "larger than 8 MiB" in store.all()[1][0].why


@pytest.mark.promise("C8", "X16")
@pytest.mark.parametrize("what", ["link", "dangling link", "folder", "pipe"])
def test_what_is_no_file_is_never_read_or_replaced(
    store: ComposedTools, tmp_path: Path, what: str
) -> None:
    store.save(tool("other"))
    elsewhere = tmp_path / "elsewhere.json"
    if what == "link":
        elsewhere.write_bytes(path(store, "other").read_bytes().replace(b"other", b"greet"))
        path(store).symlink_to(elsewhere)
    elif what == "dangling link":
        path(store).symlink_to(elsewhere)
    elif what == "folder":
        path(store).mkdir()
    else:
        os.mkfifo(path(store))
    tools, problems = store.all()
    assert [one.name for one in tools] == ["other"]
    assert len(problems) == 1
    for act in (lambda: store.save(tool()), lambda: store.delete("greet")):
        with pytest.raises(InvalidInput, match="move it away yourself"):
            act()
    assert os.path.lexists(path(store))
    assert elsewhere.exists() == (what == "link")


@pytest.mark.promise("X16")
@pytest.mark.parametrize("below", ["", ".versions", ".versions/greet", ".usage"])
def test_a_link_in_place_of_a_folder_is_refused(
    store: ComposedTools, tmp_path: Path, below: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = Path(store.folder, below) if below else Path(store.folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(elsewhere)
    with pytest.raises(InvalidInput):
        store.save(tool(code="1"))
        store.save(tool(code="2"))
        store.used("greet")
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a.b", "a-b", "1a", "_a", "a b", "é", "x" * 65, "then", "__proto__",
     "constructor", "a\n", "a\0", "delete", None, 5],
)  # fmt: skip
@pytest.mark.promise("C8")
def test_names_that_are_none_are_refused_everywhere(store: ComposedTools, name: Any) -> None:
    acts = (
        lambda: store.save(tool(name)),
        lambda: store.get(name),
        lambda: store.delete(name),
        lambda: store.used(name),
        lambda: store.versions(name),
    )
    for act in acts:
        with pytest.raises(InvalidInput):
            act()
    assert not os.path.exists(store.folder)


def _save_many(folder: str, mark: str) -> None:
    store = ComposedTools(folder, "project")
    for number in range(25):
        store.save(tool(code=f"'{mark} {number}'"))
        store.used("greet")


@pytest.mark.promise("C8")
def test_saving_and_counting_at_once_loses_nothing(store: ComposedTools) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_save_many, args=(store.folder, mark)) for mark in "abc"]
    for one in workers:
        one.start()
    seen: set[int] = set()
    while any(one.is_alive() for one in workers):
        found = store.get("greet") if os.path.exists(path(store)) else None
        if found is not None:
            seen.add(found.version)
    for one in workers:
        one.join()
        assert one.exitcode == 0
    last = store.get("greet")
    assert last is not None
    assert (last.version, last.uses) == (75, 75)
    assert store.versions("greet") == list(range(1, 75))
    codes = {found.code for n in range(1, 76) if (found := store.get("greet", n)) is not None}
    assert len(codes) == 75


@pytest.mark.promise("C8")
def test_a_save_that_dies_leaves_the_tool_before(
    store: ComposedTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.save(tool(code="1"))

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "rename"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fails)
            with pytest.raises(OSError, match="No space"):
                store.save(tool(code="2"))
        assert store.get("greet") == first
        assert not [one for one in os.listdir(store.folder) if one.startswith(".new")]
    assert store.save(tool(code="2")).version == 2


def test_uses_are_counted_and_a_torn_line_costs_one(store: ComposedTools) -> None:
    store.save(tool())
    for _ in range(3):
        store.used("greet")
    usage = Path(store.folder) / ".usage" / "greet"
    whole = usage.read_bytes()
    usage.write_bytes(whole + b"17 ")
    found = store.get("greet")
    assert found is not None
    assert found.uses == 3
    assert found.last_used is not None
    usage.write_bytes(b"nonsense\n-5 9\n" + b"9" * 500 + b" 1\n")
    assert [one.uses for one in store.all()[0]] == [0]


def test_threads_count_together(store: ComposedTools) -> None:
    store.save(tool())
    threads = [
        threading.Thread(target=lambda: [store.used("greet") for _ in range(50)]) for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = store.get("greet")
    assert found is not None
    assert found.uses == 200


def test_the_users_folder_follows_the_environment() -> None:
    assert global_folder({"XDG_DATA_HOME": "/d"}) == f"/d/tenuto/{composed.FOLDER}"
    assert global_folder({"HOME": "/h"}) == f"/h/.local/share/tenuto/{composed.FOLDER}"
