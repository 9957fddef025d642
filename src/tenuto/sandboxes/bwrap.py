"""Bubblewrap: namespaces of its own for files, processes, network and users, and a filter inside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from tenuto.core.confinement import Confinement, Subject
from tenuto.keeper import seccomp
from tenuto.sandboxes import filters, probing
from tenuto.sandboxes.bounds import plain_limits
from tenuto.sandboxes.view import inside

_TMP = "/tmp"
_RESOLVER = "/etc/resolv.conf"  # often a link into /run, which is not there


class Bwrap:
    """The first rung: what is not given to a program does not exist for it."""

    name = "bwrap"

    def __init__(self, program: str = "bwrap") -> None:
        """Take the program's name or path."""
        self._program = program

    def probe(self) -> str:
        """Run it as it will be run, around a program that does nothing."""
        program = shutil.which(self._program)
        if program is None:
            return "bubblewrap is not installed"
        if not seccomp.available():
            return "no seccomp filter can be made for this machine"
        return probing.tried(self.confine(probing.subject(), ()))

    def refuses(self, subject: Subject) -> str:
        """Return nothing: whatever is hidden lies under a mount of its own."""
        del subject
        return ""

    def lacks(self, subject: Subject) -> list[str]:
        """Return what cannot be held: a count of processes, as root without a control group."""
        if not subject.limits.pids or "pids" in subject.groups:
            return []
        if _root(subject):
            return ["pids: no control group can be written, and other limits do not bind root"]
        if shutil.which("prlimit") is None:
            return ["pids: no control group can be written, and there is no prlimit program"]
        return []

    def confine(self, subject: Subject, missing: Sequence[str]) -> Confinement:
        """Return how to start it inside."""
        program = shutil.which(self._program) or self._program
        argv = subject.argv
        if subject.pty and _can_reset_signals():
            # What is typed goes to everyone on the terminal: bubblewrap ignores it, the program not.
            argv = (str(shutil.which("env")), "--default-signal=INT,QUIT,HUP,TERM", *argv)
        if subject.limits.pids and "pids" not in subject.groups:
            # Counted anew in its own user namespace, where bubblewrap's own process is one of them.
            bound = subject.limits.pids + 1
            argv = (str(shutil.which("prlimit")), f"--nproc={bound}:{bound}", *argv)
        level = "bwrap+seccomp" + probing.limits_level(subject)
        words: dict[str, object] = {
            "kind": "bwrap",
            "filter": filters.in_namespaces(subject.net),
            "arguments": self._arguments(subject),
            "files": _copied(subject),
            "groups": subject.groups,
            "guard": subject.guard,
            "ignore_signals": subject.pty,
            "report": {"level": level, "missing": list(missing), "net": subject.net},
        }
        bounds, base = plain_limits(subject)
        words["base"] = base
        if subject.owner is not None:
            words["uid"], words["gid"] = subject.owner
        return Confinement(
            argv=(program, "--args", "@", "--", *argv),
            cwd="/",
            environ=subject.environ,
            confine=words,
            rlimits=bounds,
        )

    def _arguments(self, subject: Subject) -> list[str | int]:
        """Return what bubblewrap is told; a number is the how-manieth of the descriptors it gets."""
        words: list[str | int] = [
            "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts",
            "--unshare-cgroup-try", "--die-with-parent", "--cap-drop", "ALL",
            "--json-status-fd", 0, "--seccomp", 1,
        ]  # fmt: skip
        if subject.net != "on":
            words.append("--unshare-net")
        if not subject.pty:
            words.append("--new-session")  # a signal to the program is none to bubblewrap
        return [*words, *_files(subject), "--chdir", subject.cwd]


def _files(subject: Subject) -> list[str | int]:
    """Return the mounts, each after those that it lies on."""
    view = subject.view
    system = [path for path in view.execute if not inside(path, _TMP)]
    copied = _copied(subject)
    words: list[str | int] = []
    for path in system:
        words += _read_only(path) if path not in copied else ()
    for place, path in enumerate(copied):
        words += ["--file", 3 + place, path]
    size: list[str | int] = []
    if subject.limits.memory and "memory" not in subject.groups:
        size = ["--size", str(subject.limits.memory)]
    # root without privileges is still the owner of the files in /proc/sys
    words += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    words += [*size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev", *size, "--tmpfs", _TMP]
    for path in view.execute:
        words += _read_only(path) if path not in system else ()
    for path in view.write:
        words += ["--bind", path, path]
    fixed = [path for path in view.execute if _within(path, view.write)]
    hidden = [path for path in view.hide if _within(path, view.write)]
    for path in _above([*fixed, *hidden], view.write):
        words += ["--bind", path, path]
    for path in fixed:  # what is only to be read stays so inside what is not
        words += ["--ro-bind", path, path]
    hidden += [p for p in view.hide if _within(p, view.execute) and os.path.isdir(p)]
    for path in dict.fromkeys(hidden):
        words += ["--tmpfs", path, "--remount-ro", path]
    return [*words, "--remount-ro", "/"]


def _within(path: str, folders: Sequence[str]) -> bool:
    return any(inside(path, folder) for folder in folders)


def _above(paths: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Return the folders between these and the writable ones that they lie in, outermost first.

    A mount of its own cannot be moved away; a folder that a mount lies in could be, and another one
    made in its place, which those outside would take for the one that was protected.
    """
    found: set[str] = set()
    for path in paths:
        above = os.path.dirname(path)
        while any(inside(above, folder) and above != folder for folder in folders):
            found.add(above)
            above = os.path.dirname(above)
    return sorted(found - set(folders))


def _copied(subject: Subject) -> list[str]:
    """Return the small files of the system: a mount for each would take longer than all the rest."""
    found = [path for path in subject.view.execute if path.startswith("/etc/") and _is_file(path)]
    most = subject.limits.file_size  # bubblewrap, which writes the copies, is bound by it too
    return [path for path in found if not most or os.path.getsize(path) <= most]


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and (path == _RESOLVER or not os.path.islink(path))


def _read_only(path: str) -> list[str]:
    if os.path.islink(path) and os.path.dirname(path) in ("/", "/etc"):  # /bin is usr/bin
        return ["--symlink", os.readlink(path), path]
    return ["--ro-bind", path, path]


def _root(subject: Subject) -> bool:
    return os.geteuid() == 0 and subject.owner is None


def _can_reset_signals() -> bool:
    """Tell whether `env` can give signals their default meaning back (coreutils 8.31)."""
    return probing.runs("env", "--default-signal=INT", "true")
