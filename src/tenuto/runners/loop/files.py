"""The files of the workspace: read and changed, never outside of it.

A path is resolved first, links and all, and must then lie inside. It is opened again component by
component without following any link: whoever puts a link in its way between the two gets an error.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedReader

STATE = ".tenuto"
LINES_MOST = 2000
_SHOWN_MOST = 256 * 1024
_LINE_MOST = 2000
_SCANNED_MOST = 64 * 1024 * 1024
_EDITED_MOST = 16 * 1024 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ToolError(Exception):
    """A tool that cannot do what it was asked; the text is for the model."""


class Workspace:
    """A folder, and what an agent may do in it."""

    def __init__(self, root: str) -> None:
        """Take the folder; links on the way to it are its own affair."""
        self.root = os.path.realpath(root)

    def place(self, path: str) -> tuple[str, ...]:
        """Return the components of a path below the root, once it is known to lie there."""
        if "\0" in path:
            raise ToolError("a path has no NUL")
        full = os.path.realpath(os.path.join(self.root, path))
        inside = os.path.relpath(full, self.root)
        parts = () if inside == "." else tuple(inside.split(os.sep))
        if ".." in parts:
            raise ToolError(f"{path!r} is outside of the workspace; only what is in it can be used")
        if STATE in parts:
            raise ToolError(f"{path!r} is Tenuto's own state; leave it alone")
        return parts

    def read(self, path: str, start: int = 1, lines: int = LINES_MOST) -> str:
        """Return lines of a text file, numbered, with a head that says what was left out."""
        with self._opened(path) as (fd, size), os.fdopen(os.dup(fd), "rb") as file:
            if b"\0" in file.read(8192):
                return f"{path}: a binary file of {size} bytes; it is not shown"
            file.seek(0)
            return _numbered(path, file, size, max(start, 1), min(max(lines, 1), LINES_MOST))

    def edit(self, path: str, old: str, new: str) -> str:
        """Put new text in the place of the only occurrence of old text."""
        if not old:
            raise ToolError("old must not be empty; use write_file for a new file")
        if old == new:
            raise ToolError("old and new are the same; nothing would change")
        with self._opened(path) as (fd, size):
            if size > _EDITED_MOST:
                raise ToolError(f"{path}: {size} bytes is too large to edit")
            content = _all_of(fd)
        before, after = old.encode(), new.encode()
        found = content.count(before)
        if not found and b"\r\n" in content:
            before, after = (one.replace(b"\n", b"\r\n") for one in (before, after))
            found = content.count(before)
        if found != 1:
            why = (
                "it is not in the file; read the file again and copy the text exactly"
                if not found
                else f"it is there {found} times; give more of the text around it"
            )
            raise ToolError(f"{path}: nothing was changed, because old must occur once: {why}")
        self._put(path, content.replace(before, after))
        line = content[: content.index(before)].count(b"\n") + 1
        return f"{path}: changed at line {line}"

    def write(self, path: str, content: str) -> str:
        """Write a whole file; folders on the way are made."""
        data = content.encode()
        there = self._put(path, data, make=True)
        return f"{path}: {'replaced' if there else 'created'}, {len(data)} bytes"

    @contextmanager
    def parent(self, path: str, make: bool = False) -> Generator[tuple[int, str]]:
        """Yield a descriptor of the folder that holds a path, and the last component."""
        parts = self.place(path)
        if not parts:
            raise ToolError(f"{path!r} is the workspace itself, not a file")
        fd = os.open(self.root, _FOLDER)
        try:
            for part in parts[:-1]:
                fd = _step(fd, part, make)
            yield fd, parts[-1]
        except OSError as error:
            raise ToolError(f"{path}: {_why(error)}") from None
        finally:
            os.close(fd)

    @contextmanager
    def _opened(self, path: str) -> Generator[tuple[int, int]]:
        """Yield a descriptor of a regular file for reading, and its size."""
        with self.parent(path) as (folder, name):
            # Looked at before it is opened: opening a device may already do something.
            _must_be_regular(path, os.stat(name, dir_fd=folder, follow_symlinks=False))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=folder)
            try:
                status = os.fstat(fd)
                _must_be_regular(path, status)
                yield fd, status.st_size
            finally:
                os.close(fd)

    def _put(self, path: str, data: bytes, make: bool = False) -> bool:
        """Replace a file's content at once, and return whether it was there before."""
        with self.parent(path, make) as (folder, name):
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                _must_be_regular(path, status)
                mode = stat.S_IMODE(status.st_mode)
            except FileNotFoundError:
                status, mode = None, 0o666
            beside = f".{name[:200]}.{secrets.token_hex(4)}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(beside, flags, mode, dir_fd=folder)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    if status is not None:
                        os.fchmod(file.fileno(), mode)
                os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(beside, dir_fd=folder)
                raise
            return status is not None


def _step(fd: int, part: str, make: bool) -> int:
    """Go one folder down and close where we were; keep it if that cannot be."""
    try:
        below = os.open(part, _FOLDER, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
        os.mkdir(part, dir_fd=fd)
        below = os.open(part, _FOLDER, dir_fd=fd)
    os.close(fd)
    return below


def _must_be_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = (
        (stat.S_ISDIR, "a folder; use list_files"),
        (stat.S_ISLNK, "a link that changed meanwhile"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
    )
    kind = next((name for test, name in kinds if test(status.st_mode)), "a device")
    raise ToolError(f"{path}: {kind}, not a regular file")


def _why(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, NotADirectoryError):
        return "something on the way to it is not a folder"
    return error.strerror or type(error).__name__


def _all_of(fd: int) -> bytes:
    pieces: list[bytes] = []
    while data := os.read(fd, 1 << 20):
        pieces.append(data)
    return b"".join(pieces)


def _numbered(path: str, file: BufferedReader, size: int, start: int, most: int) -> str:
    """Return up to `most` lines from `start`, each cut where it is too long."""
    shown: list[str] = []
    number, scanned, taken, note = 0, 0, 0, ""
    while data := file.readline(_LINE_MOST * 4):
        number += 1
        scanned += len(data)
        cut = False
        while not data.endswith(b"\n") and (more := file.readline(1 << 20)):
            scanned += len(more)
            cut = True
            if more.endswith(b"\n") or scanned > _SCANNED_MOST:
                break
        if number >= start:
            text = data.decode("utf-8", "replace").rstrip("\r\n")
            if cut or len(text) > _LINE_MOST:
                text = text[:_LINE_MOST] + " … (the line goes on)"
            shown.append(f"{number}\t{text}")
            taken += len(text)
            if len(shown) >= most or taken > _SHOWN_MOST:
                if file.peek(1):
                    note = f"; more follows, read on with start={number + 1}"
                break
        if scanned > _SCANNED_MOST:
            note = f"; what lies beyond the first {_SCANNED_MOST} bytes is not read"
            break
    if not shown:
        return f"{path}: {size} bytes, {number} lines; none from line {start} on{note}"
    return f"{path}: lines {start} to {number}, {size} bytes{note}\n" + "\n".join(shown)
