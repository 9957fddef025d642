"""Power cuts, simulated: what is done to files is recorded, and what a disk may hold later is built.

The model is the strict one that POSIX leaves us with. Writes to a file may reach the disk in any order,
or in part, until the file is synced. Names in a folder appear, move and go in their order, but only a
sync of that folder makes them stay; a file that is synced has no name by that.
"""

from __future__ import annotations

import os
import random
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

SECTOR = 512


class Write(NamedTuple):
    file: int
    at: int
    data: bytes


class Cut(NamedTuple):
    """A file was made so long."""

    file: int
    size: int


class Name(NamedTuple):
    """A name in a folder is of this file from here on, or of none."""

    folder: int
    name: str
    file: int | None


class Moved(NamedTuple):
    """A name took the place of another one, at once."""

    folder: int
    old: str
    new: str
    file: int


class Sync(NamedTuple):
    """A file or a folder is on disk as it is."""

    file: int


class Told(NamedTuple):
    """Somebody was told that this is safe."""

    what: Any


Step = Write | Cut | Name | Moved | Sync | Told


class Recorder:
    """Records what is done below a folder, in this process, from `watching` on."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self.steps: list[Step] = []
        self.root = os.stat(root).st_ino
        self.folders: set[int] = {self.root}
        self._lock = threading.RLock()
        self.written: Callable[[], None] = lambda: None
        """Called right after each write, as somebody who waits for it may come to know of it."""

    def told(self, what: Any) -> None:
        """Note an acknowledgement, where it is given."""
        with self._lock:
            self.steps.append(Told(what))

    @contextmanager
    def watching(self) -> Iterator[None]:
        names = ("open", "mkdir", "write", "pwrite", "pwritev", "ftruncate", "fsync", "fdatasync",
                 "replace", "rename", "link", "unlink")  # fmt: skip
        before: dict[str, Any] = {name: getattr(os, name) for name in names}
        for name in names:
            setattr(os, name, self._wrapped(before[name], getattr(self, f"_{name}")))
        try:
            yield
        finally:
            for name in names:
                setattr(os, name, before[name])

    def _wrapped(self, call: Callable[..., Any], note: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*words: Any, **options: Any) -> Any:
            with self._lock:
                return note(call, *words, **options)

        return wrapped

    # files

    def _ours(self, fd: int) -> int | None:
        """Return the number of the file behind a descriptor, if it is below our folder."""
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return None
        return os.fstat(fd).st_ino if (path + "/").startswith(self._root + "/") else None

    def _write(self, call: Any, fd: int, data: Any) -> int:
        file = self._ours(fd)
        at = os.lseek(fd, 0, os.SEEK_CUR) if file is not None else 0
        done = call(fd, data)
        if file is not None:
            self.steps.append(Write(file, at, bytes(data[:done])))
        return done

    def _pwrite(self, call: Any, fd: int, data: Any, at: int) -> int:
        done = call(fd, data, at)
        file = self._ours(fd)
        if file is not None:
            self.steps.append(Write(file, at, bytes(data[:done])))
        return done

    def _pwritev(self, call: Any, fd: int, parts: Any, at: int) -> int:
        done = call(fd, parts, at)
        file = self._ours(fd)
        if file is not None:
            self.steps.append(Write(file, at, b"".join(parts)[:done]))
            self.written()
        return done

    def _ftruncate(self, call: Any, fd: int, size: int) -> None:
        call(fd, size)
        file = self._ours(fd)
        if file is not None:
            self.steps.append(Cut(file, size))

    def _fsync(self, call: Any, fd: int) -> None:
        call(fd)
        file = self._ours(fd)
        if file is not None:
            self.steps.append(Sync(file))

    _fdatasync = _fsync

    # names

    def _at(self, path: Any, dir_fd: int | None = None) -> tuple[int, str] | None:
        """Return the folder and the name of a path, if it is below our folder."""
        path = os.fspath(path)
        if dir_fd is not None and not os.path.isabs(path):
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        folder, name = os.path.split(os.path.abspath(path))
        folder = os.path.realpath(folder)
        if not (folder + "/").startswith(self._root + "/"):
            return None
        return os.stat(folder).st_ino, name

    def _open(
        self, call: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        at = self._at(path, dir_fd) if flags & os.O_CREAT else None
        there = at is None
        if not there:
            try:
                os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
                there = True
            except FileNotFoundError:
                pass
        fd = call(path, flags, mode, dir_fd=dir_fd)
        if at is not None and not there:
            self.steps.append(Name(*at, os.fstat(fd).st_ino))
        elif flags & os.O_TRUNC:
            file = self._ours(fd)
            if file is not None:
                self.steps.append(Cut(file, 0))
        return fd

    def _mkdir(self, call: Any, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        call(path, mode, dir_fd=dir_fd)
        at = self._at(path, dir_fd)
        if at is not None:
            made = os.stat(path, dir_fd=dir_fd).st_ino
            self.folders.add(made)
            self.steps.append(Name(*at, made))

    def _replace(self, call: Any, old: Any, new: Any, **options: Any) -> None:
        source, target = self._at(old), self._at(new)
        file = os.lstat(old).st_ino if source is not None else 0
        same = os.path.lexists(new) and os.lstat(new).st_ino == file
        call(old, new, **options)
        if source is not None and target is not None and not same:
            assert source[0] == target[0], "no file moves from folder to folder here"
            self.steps.append(Moved(source[0], source[1], target[1], file))

    _rename = _replace

    def _link(self, call: Any, old: Any, new: Any, **options: Any) -> None:
        call(old, new, **options)
        at = self._at(new)
        if at is not None:
            self.steps.append(Name(*at, os.lstat(new).st_ino))

    def _unlink(self, call: Any, path: Any, *, dir_fd: int | None = None) -> None:
        at = self._at(path, dir_fd)
        call(path, dir_fd=dir_fd)
        if at is not None:
            self.steps.append(Name(*at, None))


# What is on disk afterwards


class Luck(NamedTuple):
    """How much of what was not synced a disk has all the same: nothing, everything, or anything."""

    files: str
    names: str
    rng: random.Random

    def __str__(self) -> str:
        return f"files: {self.files}, names: {self.names}"


def lucks(seed: str, more: int) -> list[Luck]:
    """Return the four extremes, the worst of them last, and some in between."""
    rng = random.Random(seed)
    plain = [Luck(a, b, rng) for a in ("all", "none") for b in ("all", "none")]
    return plain + [Luck("some", rng.choice(("none", "some", "all")), rng) for _ in range(more)]


class Disk:
    """What a disk holds after a cut that came after some steps."""

    def __init__(self, recorder: Recorder, steps: list[Step], luck: Luck) -> None:
        self._folders = recorder.folders
        self._root = recorder.root
        self._luck = luck
        self.told = [one.what for one in steps if isinstance(one, Told)]
        self._files: dict[int, bytearray] = {}
        self._names: dict[int, dict[str, int]] = {}
        pending: dict[int, list[Step]] = {}
        for step in steps:
            if isinstance(step, (Write, Cut)):
                pending.setdefault(step.file, []).append(step)
            elif isinstance(step, (Name, Moved)):
                pending.setdefault(step.folder, []).append(step)
            elif isinstance(step, Sync):
                for one in pending.pop(step.file, ()):
                    self._apply(one)
        for number, left in pending.items():
            for one in self._some(left, number in self._folders):
                self._apply(one)

    def _some(self, left: list[Step], names: bool) -> list[Step]:
        how = self._luck.names if names else self._luck.files
        if how != "some":
            return left if how == "all" else []
        rng = self._luck.rng
        if names:  # in their order, up to any of them
            return left[: rng.randint(0, len(left))]
        return [self._torn(one) for one in left if rng.random() < 0.6]

    def _torn(self, step: Step) -> Step:
        """Return a write, or only the sectors of it up to some point."""
        if isinstance(step, Write) and self._luck.rng.random() < 0.3:
            first = SECTOR - step.at % SECTOR
            sizes = [0, *range(first, len(step.data), SECTOR)]
            return step._replace(data=step.data[: self._luck.rng.choice(sizes)])
        return step

    def _apply(self, step: Step) -> None:
        if isinstance(step, Write):
            data = self._files.setdefault(step.file, bytearray())
            if not step.data:
                return
            data.extend(bytes(max(0, step.at + len(step.data) - len(data))))
            data[step.at : step.at + len(step.data)] = step.data
        elif isinstance(step, Cut):
            data = self._files.setdefault(step.file, bytearray())
            del data[step.size :]
            data.extend(bytes(step.size - len(data)))
        elif isinstance(step, Name):
            names = self._names.setdefault(step.folder, {})
            if step.file is None:
                names.pop(step.name, None)
            else:
                names[step.name] = step.file
        elif isinstance(step, Moved):
            names = self._names.setdefault(step.folder, {})
            names.pop(step.old, None)
            names[step.new] = step.file

    def make(self, place: Path) -> None:
        """Make it, so that it can be looked at."""
        made: dict[int, Path] = {}

        def below(number: int, here: Path) -> None:
            here.mkdir(mode=0o700)
            for name, file in self._names.get(number, {}).items():
                path = here / name
                if file in self._folders:
                    below(file, path)
                elif file in made:
                    os.link(made[file], path)
                else:
                    path.write_bytes(self._files.get(file, b""))
                    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
                    made[file] = path

        below(self._root, place)
