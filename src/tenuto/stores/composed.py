"""Composed tools on disk: one JSON file each, replaced as a whole, older versions kept beside it.

<folder>/<name>.json                   the tool
<folder>/.versions/<name>/<n>.json     versions that were replaced or deleted, and files found broken
<folder>/.usage/<name>                 a line for each execution that used it: time in ns, how often
<folder>/.lock                         held while something is saved or deleted

All is done relative to the open folder and without following links. Readers take no lock: a file is
either the version before or the one after. Counting appends: it can neither tear nor lose a tool.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

import msgspec

from tenuto.core.errors import InvalidInput
from tenuto.core.layouts import lay_out
from tenuto.core.names import check_tool_name
from tenuto.core.quantities import iso
from tenuto.core.tools import Problem, Scope, Tool

FOLDER = "composed-tools"
_VERSIONS, _USAGE, _LOCK = ".versions", ".usage", ".lock"
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST = 8 * 1024 * 1024
_VERSION_MOST = 10**9
_KEPT = ("name", "description", "input_schema", "code", "language", "version", "created", "updated")


class BrokenToolError(Exception):
    """A file that should hold a tool and does not, with the reason."""


class _File(msgspec.Struct):
    """A tool's file; what a newer release adds is passed over."""

    schema: int
    name: str
    code: str
    input_schema: dict[str, object]
    version: int
    description: str = ""
    language: str = "js"
    created: str = ""
    updated: str = ""


def global_folder(environ: Mapping[str, str]) -> str:
    """Return where a user's tools for all projects are."""
    home = environ.get("HOME") or os.path.expanduser("~")
    data = environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
    return os.path.join(data, "tenuto", FOLDER)


class ComposedTools:
    """The tools in one folder."""

    def __init__(self, folder: str, scope: Scope) -> None:
        """Take the folder; it is made when the first tool is saved."""
        self.folder = folder
        self.scope: Scope = scope

    # Reading

    def all(self) -> tuple[list[Tool], list[Problem]]:
        """Return the tools by name, and the files that are none."""
        tools: list[Tool] = []
        problems: list[Problem] = []
        with self._open() as fd:
            for entry in sorted(os.listdir(fd)) if fd >= 0 else ():
                if not entry.endswith(".json") or entry.startswith("."):
                    continue
                try:
                    found = self._read(fd, entry, entry.removesuffix(".json"))
                    tools.append(self._counted(fd, found))
                except FileNotFoundError:
                    continue  # deleted meanwhile
                except BrokenToolError as error:
                    problems.append(Problem(os.path.join(self.folder, entry), str(error)))
        return tools, problems

    def get(self, name: str, version: int | None = None) -> Tool | None:
        """Return a tool, or one of its versions, or None; raises BrokenToolError for a broken file."""
        check_tool_name(name)
        with self._open() as fd:
            if fd < 0:
                return None
            try:
                found = self._read(fd, f"{name}.json", name)
                if version in (None, found.version):
                    return self._counted(fd, found)
            except FileNotFoundError:
                if version is None:
                    return None
            except BrokenToolError:
                if version is None:
                    raise
            return self._version(fd, name, version)

    def _version(self, fd: int, name: str, version: int | None) -> Tool | None:
        with _below(fd, _VERSIONS, name) as old:
            if old < 0:
                return None
            try:
                found = self._read(old, f"{version}.json", name)
            except FileNotFoundError:
                return None
            return msgspec.structs.replace(self._counted(fd, found), latest=False)

    def versions(self, name: str) -> list[int]:
        """Return the versions that were replaced or deleted, oldest first."""
        check_tool_name(name)
        with self._open() as fd:
            return _numbers(fd, name) if fd >= 0 else []

    def _read(self, fd: int, entry: str, name: str) -> Tool:
        data = _contents(fd, entry)
        try:
            check_tool_name(name)
            file = msgspec.json.decode(data, type=_File)
            if file.name != name:
                raise BrokenToolError(f"it is named {file.name!r}")
            in_range = 1 <= file.version <= _VERSION_MOST
            if file.language not in ("js", "ts") or not in_range or not file.code:
                raise BrokenToolError("language, version or code is wrong")
        except (InvalidInput, msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise BrokenToolError(str(error)) from None
        return Tool(
            name=name,
            description=file.description,
            input_schema=file.input_schema,
            code=file.code,
            language="ts" if file.language == "ts" else "js",
            version=file.version,
            created=file.created,
            updated=file.updated,
            scope=self.scope,
        )

    # Writing

    def save(self, tool: Tool) -> Tool:
        """Write a tool as the next version of its name, and return it; an equal one stays as it is."""
        name = check_tool_name(tool.name)
        entry = f"{name}.json"
        with self._locked() as fd:
            before: Tool | None = None
            with suppress(FileNotFoundError):
                try:
                    before = self._read(fd, entry, name)
                except BrokenToolError as error:
                    self._put_aside(fd, name, error)
            if before is not None and before.same_as(tool):
                return self._counted(fd, before)
            now = iso(time.time_ns())
            last = max([*_numbers(fd, name), before.version if before else 0])
            saved = msgspec.structs.replace(
                tool,
                version=last + 1,
                created=before.created if before else now,
                updated=now,
                scope=self.scope,
                latest=True,
            )
            if before is not None:
                _keep_version(fd, name, before.version)
            _replace(fd, entry, _encode(saved))
            return self._counted(fd, saved)

    def delete(self, name: str, purge: bool = False) -> bool:
        """Take a tool away, and tell whether there was one; its versions stay unless purged too."""
        check_tool_name(name)
        entry = f"{name}.json"
        with self._open() as fd:
            if fd < 0:
                return False
        with self._locked() as fd:
            found = True
            try:
                version = self._read(fd, entry, name).version
                _keep_version(fd, name, version)
                os.unlink(entry, dir_fd=fd)
            except FileNotFoundError:
                found = False
            except BrokenToolError as error:
                self._put_aside(fd, name, error)
            if purge:
                found = _purge(fd, name) or found
            os.fsync(fd)
        return found

    def _put_aside(self, fd: int, name: str, error: BrokenToolError) -> None:
        """Move a broken file to the versions, where nothing is lost; refuse what is no file."""
        status = os.stat(f"{name}.json", dir_fd=fd, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            path = os.path.join(self.folder, f"{name}.json")
            raise InvalidInput(f"{path} cannot be replaced: {error}", "move it away yourself")
        with _below(fd, _VERSIONS, name, make=True) as old:
            os.rename(
                f"{name}.json", f"broken-{time.time_ns()}.json", src_dir_fd=fd, dst_dir_fd=old
            )

    # Use

    def used(self, name: str) -> None:
        """Count one use."""
        check_tool_name(name)
        with self._open() as fd, _below(fd, _USAGE, make=True) as usage:
            count_use(usage, name, 1)

    def usage_folder(self) -> str:
        """Return the folder whose files count uses, made if it is not there."""
        with self._open() as fd, _below(fd, _USAGE, make=True):
            return os.path.join(self.folder, _USAGE)

    def _counted(self, fd: int, tool: Tool) -> Tool:
        uses, last = 0, 0
        with _below(fd, _USAGE) as usage:
            if usage >= 0:
                with suppress(FileNotFoundError, BrokenToolError):
                    uses, last = _sum(_contents(usage, tool.name, 1 << 30))
        return msgspec.structs.replace(tool, uses=uses, last_used=iso(last) if last else None)

    # Folders

    @contextmanager
    def _open(self, make: bool = False) -> Generator[int]:
        """Yield the open folder, -1 if there is none."""
        if make:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
        try:
            fd = os.open(self.folder, _FOLDER_FLAGS)
        except (FileNotFoundError, NotADirectoryError) as error:
            if os.path.lexists(self.folder):
                raise _no_folder(self.folder) from error
            yield -1
            return
        except OSError as error:
            raise _no_folder(self.folder) from error
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _locked(self) -> Generator[int]:
        with self._open(make=True) as fd:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, 0o600, dir_fd=fd)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield fd
            finally:
                os.close(lock)


def _no_folder(folder: str) -> InvalidInput:
    return InvalidInput(f"{folder} is no folder of ours", "move away what stands in its place")


@contextmanager
def _below(fd: int, *names: str, make: bool = False) -> Generator[int]:
    """Yield an open folder inside another one, -1 if it is not there."""
    here = os.dup(fd) if fd >= 0 else -1
    try:
        for name in names if here >= 0 else ():
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=here)
            try:
                inner = os.open(name, _FOLDER_FLAGS, dir_fd=here)
            except FileNotFoundError:
                inner = -1
            except OSError as error:
                raise _no_folder(name) from error
            os.close(here)
            here = inner
            if here < 0:
                break
        yield here
    finally:
        if here >= 0:
            os.close(here)


def _contents(fd: int, entry: str, most: int = _MOST) -> bytes:
    """Return a plain file's bytes; links, folders, pipes and giants are broken."""
    try:
        file = os.open(entry, _FILE_FLAGS, dir_fd=fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        what = "it is a link" if _is_link(fd, entry) else str(error.strerror)
        raise BrokenToolError(what) from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise BrokenToolError("it is no file")
        if status.st_size > most:
            raise BrokenToolError(f"it is larger than {most >> 20} MiB")
        with os.fdopen(file, "rb", closefd=False) as reader:
            return reader.read()
    finally:
        os.close(file)


def _is_link(fd: int, entry: str) -> bool:
    return stat.S_ISLNK(os.stat(entry, dir_fd=fd, follow_symlinks=False).st_mode)


def _encode(tool: Tool) -> bytes:
    fields = {"schema": 1, **{name: getattr(tool, name) for name in _KEPT}}
    return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"


def _replace(fd: int, entry: str, data: bytes) -> None:
    """Put a file in its place at once, on the disk before it is seen."""
    temporary = f".new-{os.getpid()}-{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o600, dir_fd=fd)
    try:
        with os.fdopen(file, "wb") as writer:
            writer.write(data)
            writer.flush()
            os.fsync(writer.fileno())
        os.rename(temporary, entry, src_dir_fd=fd, dst_dir_fd=fd)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=fd)
        raise
    os.fsync(fd)


def _keep_version(fd: int, name: str, version: int) -> None:
    """Have the current file under its version too; the bytes stay where they are."""
    with _below(fd, _VERSIONS, name, make=True) as old:
        with suppress(FileExistsError):
            os.link(f"{name}.json", f"{version}.json", src_dir_fd=fd, dst_dir_fd=old)
        os.fsync(old)


def _numbers(fd: int, name: str) -> list[int]:
    with _below(fd, _VERSIONS, name) as old:
        names = os.listdir(old) if old >= 0 else []
    found = [one.removesuffix(".json") for one in names]
    return sorted(int(one) for one in found if one.isascii() and one.isdecimal())


def _purge(fd: int, name: str) -> bool:
    found = False
    with _below(fd, _VERSIONS, name) as old:
        for entry in os.listdir(old) if old >= 0 else ():
            os.unlink(entry, dir_fd=old)
            found = True
    with _below(fd, _VERSIONS) as versions, suppress(FileNotFoundError):
        if versions >= 0:
            os.rmdir(name, dir_fd=versions)
    with _below(fd, _USAGE) as usage, suppress(FileNotFoundError):
        if usage >= 0:
            os.unlink(name, dir_fd=usage)
    return found


def count_use(usage: int, name: str, times: int) -> None:
    """Append to the file that counts a tool's uses; one short write is never torn."""
    if usage < 0:
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    flags |= os.O_NONBLOCK  # nobody reads a pipe that stands in its place
    file = os.open(name, flags, 0o600, dir_fd=usage)
    try:
        os.write(file, b"%d %d\n" % (time.time_ns(), times))
    finally:
        os.close(file)


def _sum(data: bytes) -> tuple[int, int]:
    """Return how often, and when last; lines that are none do not count."""
    uses = last = 0
    for line in data.split(b"\n"):
        moment, _, times = line.partition(b" ")
        if moment.isdigit() and times.isdigit() and len(line) < 40:
            uses += int(times)
            last = max(last, int(moment))
    return uses, last


lay_out(_File)
