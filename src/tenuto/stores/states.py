"""The state files of an execution: written whole or not at all, the one before kept, read with care."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from contextlib import suppress

import msgspec

from tenuto.core.errors import NewerState, StateDamaged
from tenuto.core.state import ExecutionState, decode_state, encode_state
from tenuto.keeper import procfs
from tenuto.keeper.faults import point
from tenuto.stores.layout import make_private
from tenuto.stores.tape import NAME as TAPE

NAME = "state.json"
PREVIOUS = "state.prev.json"
_KEPT = re.compile(r"state\.(\d+)\.json")
_UNFINISHED = re.compile(r"state\.(?:\d+\.)?json\.(\d+)-\d+\.(?:new|prev)")
_MOST = 512 * 1024 * 1024
_ABOVE = 5  # its own folder, the day's, that of all days, the project's, and where that is


class Read(msgspec.Struct, frozen=True):
    """What the state files of an execution say, and what was wrong with them."""

    state: ExecutionState | None
    name: str = ""
    """The file that it is from."""
    problems: tuple[str, ...] = ()
    newer: NewerState | None = None
    """Set where a file is of a newer Tenuto; it is left where it is."""


def write_state(folder: str, state: ExecutionState, safe: bool, as_name: str = NAME) -> str:
    """Replace a state file at once, and return its path; `safe` returns once it is on disk.

    The state before it stays beside it. Raises OSError where there is no room; then nothing changed.
    """
    path = os.path.join(folder, as_name)
    new = f"{path}.{_own()}.new"
    data = encode_state(state)
    if len(data) > _MOST:  # who reads it takes no more
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    try:
        _write(new, data, safe)
        point("state-written")
        if as_name == NAME:
            _keep_previous(folder, path)
            point("state-previous-kept")
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(new)
        raise
    if safe:
        _sync_folder(folder)
    point("state-replaced")
    return path


def _own() -> str:
    """Return what tells our files from those of other writers: of other threads, too."""
    return f"{os.getpid()}-{threading.get_native_id()}"


def _write(path: str, data: bytes, safe: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        os.fchmod(fd, 0o600)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if safe:
            os.fsync(fd)
    finally:
        os.close(fd)


def _keep_previous(folder: str, path: str) -> None:
    """Make the current file the previous one as well: there is no moment without one."""
    link = f"{path}.{_own()}.prev"
    with suppress(FileNotFoundError):
        os.unlink(link)
    try:
        os.link(path, link, follow_symlinks=False)
    except FileNotFoundError:
        return
    os.replace(link, os.path.join(folder, PREVIOUS))
    with suppress(FileNotFoundError):  # where both were the same file already, nothing was renamed
        os.unlink(link)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tape(folder: str) -> None:
    """Have all that can be read on an execution's tape stay on disk, whoever wrote it."""
    fd = os.open(os.path.join(folder, TAPE), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def sync_names(folder: str) -> None:
    """Have an execution's folder stay where it is: its files are on disk by their own syncs.

    Without this a power cut may take a name away, and with it a tape that is synced to the last byte.
    """
    for _ in range(_ABOVE):
        with suppress(PermissionError):  # whoever gave us a folder in theirs has made it stay
            _sync_folder(folder)
        folder = os.path.dirname(folder)


def clear_unfinished(folder: str) -> None:
    """Remove what writers that were killed in the middle have left; nothing of those that live."""
    for name in os.listdir(folder):
        found = _UNFINISHED.fullmatch(name)
        if found is not None and not procfs.start_time(int(found[1])):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


# Checkpoints on request


def keep_state(folder: str, state: ExecutionState, most: int) -> str:
    """Write a state under a name of its own, safe on disk, besides the current one.

    The newest `most` of them stay. Returns the path.
    """
    path = write_state(folder, state, True, f"state.{state.seq}.json")
    write_state(folder, state, True)
    for seq in kept_states(folder)[: -max(1, most)]:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, f"state.{seq}.json"))
    return path


def kept_states(folder: str) -> list[int]:
    """Return the checkpoints that have a file, by what each covers, oldest first."""
    found = (_KEPT.fullmatch(name) for name in os.listdir(folder))
    return sorted(int(one[1]) for one in found if one is not None)


# Reading


def read_state(folder: str, execution_id: str, quarantine: str = "") -> Read:
    """Return the newest state that is whole; bad files are put aside if there is a place for them."""
    problems: list[str] = []
    newer: NewerState | None = None
    for name in (NAME, PREVIOUS):
        try:
            state = _read(os.path.join(folder, name), execution_id)
        except FileNotFoundError:
            continue
        except NewerState as error:
            newer = newer or NewerState(f"{name} of {execution_id}: {error.message}", error.hint)
            problems.append(newer.message)
            continue
        except (StateDamaged, OSError) as error:
            problems.append(
                f"{name} cannot be used: {_said(error)}{_aside(folder, name, quarantine)}"
            )
            continue
        return Read(state, name, tuple(problems), newer)
    return Read(None, "", tuple(problems), newer)


def _read(path: str, execution_id: str) -> ExecutionState:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise StateDamaged("it is no file")
        if found.st_size > _MOST:
            raise StateDamaged(f"it is larger than {_MOST >> 20} MiB")
        with open(fd, "rb", closefd=False) as file:
            state = decode_state(file.read())
    finally:
        os.close(fd)
    if state.id != execution_id:
        raise StateDamaged(f"it is the state of {state.id}")
    return state


def _said(error: Exception) -> str:
    return error.message if isinstance(error, StateDamaged) else str(error)


def _aside(folder: str, name: str, quarantine: str) -> str:
    """Move a bad file away; tell where to."""
    if not quarantine:
        return ""
    place = os.path.join(quarantine, f"{os.path.basename(folder)}.{name}.{time.time_ns()}")
    try:
        with suppress(FileExistsError):
            make_private(quarantine)
        os.rename(os.path.join(folder, name), place)
    except OSError as error:
        return f"; it could not be put aside: {error.strerror}"
    return f"; it was put aside as {place}"
