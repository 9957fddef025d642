"""The private folder of a confined execution, in the temporary folder: noted before it is made.

Its keeper makes it and removes it. One that is killed leaves it, perhaps before anything on the tape
tells of it, or after the end is there; so a note beside the tape says where it is and whose.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

NOTE = "scratch"
_MOST = 8192


def prepare(folder: str, execution_id: str, confine: Mapping[str, Any]) -> None:
    """Note the folder that a keeper is about to make, after what a life before left of it is gone."""
    path = str(confine.get("scratch") or "")
    if not path:
        return
    remove(folder, execution_id)
    uid = int(confine.get("uid") or os.geteuid())
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(os.path.join(folder, NOTE), flags, 0o600)
    try:
        os.write(fd, b"%d %s" % (uid, os.fsencode(path)))
    finally:
        os.close(fd)


def remove(folder: str, execution_id: str, told: str = "") -> None:
    """Remove what a keeper that was killed left there, if it is what was noted; else leave it alone.

    `told` is what the tape says, for executions of a Tenuto that did not note it.
    """
    uid, path = _noted(folder) or (os.geteuid(), told)
    if os.path.basename(path) != f"tenuto-{execution_id}" or not os.path.isabs(path):
        return
    try:
        found = os.lstat(path)
    except OSError:
        return
    # for a moment the folder of another user is still ours, who made it
    if stat.S_ISDIR(found.st_mode) and found.st_uid in (uid, os.geteuid()):
        from tenuto.keeper.held import remove_tree  # with ctypes and json, for the few that need it

        remove_tree(path)


def _noted(folder: str) -> tuple[int, str] | None:
    with suppress(OSError):
        fd = os.open(os.path.join(folder, NOTE), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            uid, _, path = os.read(fd, _MOST).partition(b" ")
        finally:
            os.close(fd)
        if uid.isdigit():
            return int(uid), os.fsdecode(path)
    return None
