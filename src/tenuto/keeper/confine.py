"""Into its confinement: what a stem does to itself between fork and exec, as its job says.

The engine decides (tenuto.sandboxes), this only does. Whatever fails here ends the stem with an error:
a program never runs with less around it than was promised.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import signal

from tenuto.keeper import cgroup, landlock, linux, privileges, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATUS_FD, FILTER_FD, ARGUMENTS_FD = 4, 5, 6
"""Where bubblewrap finds the line on which it tells that it has begun, its filter, its arguments."""


def enter(confine: dict[str, Any], channel: int) -> None:
    """Give up what this process is to be without. What it is left with goes on to the program."""
    if confine.get("failed"):
        raise OSError(str(confine["failed"]))
    parent = os.getppid()
    for path in confine.get("join") or ():
        if not cgroup.join(path):
            raise OSError(f"the control group {path} cannot be joined")
    if confine.get("processes"):
        bound = int(confine["processes"])
        resource.setrlimit(resource.RLIMIT_NPROC, (bound, bound))
    if confine.get("uid"):
        privileges.become(int(confine["uid"]), int(confine["gid"]))
        linux.die_with_parent(signal.SIGKILL)  # a change of user makes the kernel forget it
        if os.getppid() != parent:
            os._exit(127)
    if confine.get("ignore_signals"):
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    if confine["kind"] == "bwrap":
        os.dup2(channel, STATUS_FD, inheritable=True)
        _hand_on(FILTER_FD, base64.b64decode(confine["filter"]))
        _hand_on(ARGUMENTS_FD, "".join(f"{word}\0" for word in confine["arguments"]).encode())
    elif confine["kind"] == "landlock":
        _restrict(confine, channel)
    else:
        _tell(confine["report"], channel)


def _hand_on(target: int, data: bytes) -> None:
    """Put a file in memory where bubblewrap looks for it; it closes it before the program."""
    memory = os.memfd_create("tenuto")
    os.write(memory, data)
    os.lseek(memory, 0, os.SEEK_SET)
    if memory != target:
        os.dup2(memory, target)
        os.close(memory)
    os.set_inheritable(target, True)


def _restrict(confine: dict[str, Any], channel: int) -> None:
    if confine.get("drop"):
        privileges.drop_capabilities()
    rules = confine["landlock"]
    # Only our own folder in /proc: those of others tell what they run. Exec keeps it.
    landlock.restrict(
        read=[*rules["read"], f"/proc/{os.getpid()}"],
        execute=rules["execute"],
        write=rules["write"],
        tcp=rules["tcp"],
    )
    _tell(confine["report"], channel)
    seccomp.install(base64.b64decode(confine["filter"]))


def _tell(report: dict[str, Any], channel: int) -> None:
    os.write(channel, json.dumps({"type": "confined", **report}).encode() + b"\n")
