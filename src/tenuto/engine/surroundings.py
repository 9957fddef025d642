"""What surrounds a task: its folder, what git has checked out there, the machine, the versions."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import subprocess
import sys

from tenuto import __version__
from tenuto.core.task_events import EnvironmentSeen

_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_DEPTH = 8
_GIT_S = 10.0


def seen_here(cwd: str) -> EnvironmentSeen:
    """Return what is found now."""
    return EnvironmentSeen(
        cwd=cwd,
        commit=commit_of(cwd),
        host=os.uname().nodename,
        machine=_machine(),
        tenuto=__version__,
        python=sys.version.split()[0],
    )


def _machine() -> str:
    """Return what tells this machine from others; the id itself is nobody's business."""
    try:
        with open("/etc/machine-id", "rb") as file:
            own = file.read(256).strip()
    except OSError:
        return ""
    return hashlib.sha256(b"tenuto:" + own).hexdigest()[:16] if own else ""


def commit_of(cwd: str) -> str:
    """Return the commit that is checked out around a folder, by git's files; empty for none."""
    folder = cwd
    while not os.path.lexists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above
    git = os.path.join(folder, ".git")
    try:
        if os.path.isfile(git):
            git = os.path.join(folder, _line(git).removeprefix("gitdir:").strip())
        common = git
        if os.path.isfile(os.path.join(git, "commondir")):
            common = os.path.join(git, _line(os.path.join(git, "commondir")))
        found = _resolved(git, common)
    except (OSError, ValueError):  # a NUL in a path
        return ""
    return found if _COMMIT.fullmatch(found) else ""


def _resolved(git: str, common: str) -> str:
    text = _line(os.path.join(git, "HEAD"))
    for _ in range(_DEPTH):
        if not text.startswith("ref:"):
            return text
        name = text.removeprefix("ref:").strip()
        for base in (git, common):
            path = os.path.join(base, name)
            if os.path.isfile(path):
                text = _line(path)
                break
        else:
            return _packed(common, name)
    return ""


def _packed(common: str, name: str) -> str:
    path = os.path.join(common, "packed-refs")
    with open(_opened(path), encoding="utf-8", errors="replace") as file:
        for line in file:
            commit, _, ref = line.strip().partition(" ")
            if ref == name:
                return commit
    return ""


def _line(path: str) -> str:
    with open(_opened(path), "rb") as file:
        return os.fsdecode(file.read(4096).strip())


def _opened(path: str) -> int:
    """Open a file of git's; what else stands there, a pipe that nobody writes to, holds nobody up."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "no file", path)
    return fd


def moved_on(cwd: str, before: str, now: str) -> bool:
    """Tell whether the commit now is the one before with others on top: its branch only grew."""
    if before == now:
        return True
    try:
        found = subprocess.run(
            ["git", "-C", cwd, "merge-base", "--is-ancestor", before, now],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=_GIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0


def other_machine(before: EnvironmentSeen, now: EnvironmentSeen) -> bool:
    """Tell whether two were seen on different machines, as far as that can be told."""
    if before.machine and now.machine:
        return before.machine != now.machine
    return bool(before.host) and before.host != now.host
