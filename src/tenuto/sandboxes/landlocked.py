"""Landlock and seccomp: the program gives up, for itself and its descendants, what it is not to have."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

from tenuto.core.confinement import Confinement, Subject
from tenuto.keeper import landlock, seccomp
from tenuto.sandboxes import filters, probing
from tenuto.sandboxes.bounds import plain_limits
from tenuto.sandboxes.view import inside

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")
_READ = (
    "/dev/random", "/dev/urandom", "/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg",
    "/proc/meminfo", "/proc/stat", "/proc/sys", "/proc/uptime", "/proc/version",
    "/sys/devices/system/cpu",
)  # fmt: skip


class Landlocked:
    """The second rung: files outside cannot be opened, though it can be seen that they are there."""

    name = "landlock"

    def probe(self) -> str:
        """Run a program under it that does nothing, and one that must fail."""
        if not landlock.abi():
            return "this kernel has no Landlock, or it is turned off"
        if not seccomp.available():
            return "no seccomp filter can be made for this machine"
        return probing.tried(self.confine(probing.subject(), ()))

    def refuses(self, subject: Subject) -> str:
        """Refuse to give a folder that holds our state: a part of it cannot be taken away again."""
        for path in subject.view.hide:
            for given in (*subject.view.write, *subject.view.execute):
                if inside(path, given):
                    return f"Tenuto's own state in {path} lies inside {given}, and cannot be hidden"
        return ""

    def lacks(self, subject: Subject) -> list[str]:
        """Return what this kernel's version, or Landlock itself, has no word for."""
        version = landlock.abi()
        found: list[str] = []
        if version < 3:
            found.append("files outside can be emptied (Linux 6.2 is needed)")
        if version < 6:
            found.append("processes outside can be sent signals (Linux 6.12 is needed)")
        for path in subject.view.execute:
            if any(inside(path, folder) and path != folder for folder in subject.view.write):
                found.append(f"{path} can be changed: it lies inside a folder that can be")
        if subject.net == "loopback":
            found.append("net loopback: only bubblewrap can give it, so the network is off")
        if subject.limits.pids and "pids" not in subject.groups:
            found.append("pids: no control group can be written, so they are not limited alone")
        return found

    def confine(self, subject: Subject, missing: Sequence[str]) -> Confinement:
        """Return how to start it."""
        net = "off" if subject.net == "loopback" else subject.net
        scratch = os.path.join(tempfile.gettempdir(), f"tenuto-{subject.id}")
        level = "landlock+seccomp" + probing.limits_level(subject)
        bounds, base = plain_limits(subject)
        words: dict[str, object] = {
            "kind": "landlock",
            "filter": filters.beside_others(net),
            "landlock": {
                "read": _READ,
                "execute": subject.view.execute,
                "write": (*subject.view.write, *_DEVICES, scratch),
                "tcp": net == "on",
            },
            "drop": True,
            "scratch": scratch,
            "groups": subject.groups,
            "guard": subject.guard,
            "base": base,
            "report": {"level": level, "missing": list(missing), "net": net, "scratch": scratch},
        }
        if subject.limits.pids and "pids" not in subject.groups:
            words["processes"] = subject.limits.pids
        if subject.owner is not None:
            words["uid"], words["gid"] = subject.owner
        own = {name: scratch for name in ("HOME", "TMPDIR") if subject.environ.get(name) == "/tmp"}
        return Confinement(
            argv=subject.argv,
            cwd=subject.cwd,
            environ=subject.environ | own,
            confine=words,
            rlimits=bounds,
        )
