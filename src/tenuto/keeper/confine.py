"""Into its confinement: what a program's process does to itself between fork and exec.

The engine decides (tenuto.sandboxes), this only does; whatever fails ends the start with an error, so
that a program never runs with less around it than was promised. There are two ways, as there are to
start a program: as steps that a spawned child takes (`add`), or in Python, by a stem (`enter`).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import resource
import signal

from tenuto.keeper import cgroup, landlock, linux, privileges, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tenuto.keeper.spawn import Steps

_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)
_NAMED_HERE = "@"
_HIGH = 200


def needs_stem(confine: dict[str, Any]) -> bool:
    """Tell whether steps will not do: for a change of signals or counts, and for what has failed."""
    return bool(confine.get("ignore_signals") or confine.get("processes") or confine.get("failed"))


def descriptors(confine: dict[str, Any], channel: int, first: int) -> list[int]:
    """Return what the program's process needs open besides its own, from number `first` on.

    Bubblewrap gets a line on which it tells that it has begun, its filter, its arguments, and the
    files that it is to copy; it closes them all before the program. Landlock's rules are one.
    """
    opened: list[int] = []
    try:
        if confine["kind"] == "landlock":
            opened.append(_aside(_rules(confine)))
        elif confine["kind"] == "bwrap":
            words = [str(first + w) if isinstance(w, int) else w for w in confine["arguments"]]
            opened.append(_aside(os.dup(channel)))
            opened.append(_memory(base64.b64decode(confine["filter"])))
            opened.append(_memory("".join(f"{word}\0" for word in words).encode()))
            for path in confine["files"]:
                opened.append(_aside(os.open(path, os.O_RDONLY | os.O_CLOEXEC)))
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    return opened


def _memory(data: bytes) -> int:
    fd = os.memfd_create("tenuto", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return _aside(fd)


def _aside(fd: int) -> int:
    """Return the same with a number that is nobody's place in the child."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    finally:
        os.close(fd)


def argv(job: dict[str, Any], first: int) -> list[str]:
    """Return the words to exec, with where bubblewrap finds its arguments."""
    words: list[str] = job["argv"]
    if job["confine"]["kind"] == "bwrap" and words[2] == _NAMED_HERE:
        return [*words[:2], str(first + 2), *words[3:]]
    return words


def _rules(confine: dict[str, Any]) -> int:
    rules = confine["landlock"]
    return landlock.rules(rules["read"], rules["write"], rules["execute"], tcp=rules["tcp"])


class Entry:
    """The way into a confinement of a child that is spawned: by steps, with descriptors in place."""

    def __init__(self, job: dict[str, Any], channel: int, first: int) -> None:
        """Open what it needs; the first of them will be number `first` in the child."""
        self._confine: dict[str, Any] = job["confine"]
        self._first = first
        self.argv = argv(job, first)
        self.descriptors = descriptors(self._confine, channel, first)

    def close(self) -> None:
        """Close our own ends."""
        for fd in self.descriptors:
            os.close(fd)

    def add(self, steps: Steps) -> None:
        """Add the steps; they come last before the exec."""
        confine = self._confine
        free = self._first + len(self.descriptors)
        for path in confine.get("join") or ():
            steps.join(path, free)
        if confine.get("uid"):
            steps.become(int(confine["uid"]), int(confine["gid"]))
        if confine["kind"] == "landlock":
            if confine.get("drop"):
                # another user has none to take away
                calls = privileges.to_drop(False if confine.get("uid") else None)
                steps.drop_capabilities(calls)
            steps.restrict(self._first, free)
            steps.filter(base64.b64decode(confine["filter"]))


def enter(confine: dict[str, Any], channel: int) -> None:
    """Give up, in a stem, what it is to be without. What it is left with goes on to the program."""
    if confine.get("failed"):
        raise OSError(str(confine["failed"]))
    if not all(map(cgroup.join, confine.get("join") or ())):
        raise OSError("a control group cannot be joined")
    if confine.get("processes"):
        bound = int(confine["processes"])
        resource.setrlimit(resource.RLIMIT_NPROC, (bound, bound))
    first = channel + 1
    for place, fd in enumerate(descriptors(confine, channel, first)):
        _place(fd, first + place)
    if confine.get("uid"):
        _become(int(confine["uid"]), int(confine["gid"]))
    for number in _IGNORED if confine.get("ignore_signals") else ():
        signal.signal(number, signal.SIG_IGN)
    if confine["kind"] == "landlock":
        if confine.get("drop"):
            privileges.drop_capabilities()
        landlock.enforce(first)
    if confine["kind"] != "bwrap":
        report = {"type": "confined", **confine["report"]}
        os.write(channel, json.dumps(report).encode() + b"\n")
    if confine["kind"] == "landlock":
        seccomp.install(base64.b64decode(confine["filter"]))


def _become(uid: int, gid: int) -> None:
    parent = os.getppid()
    privileges.become(uid, gid)
    linux.die_with_parent(signal.SIGKILL)  # a change of user makes the kernel forget it
    if os.getppid() != parent:
        os._exit(127)


def _place(fd: int, target: int) -> None:
    if fd != target:
        os.dup2(fd, target)
        os.close(fd)
    os.set_inheritable(target, True)
