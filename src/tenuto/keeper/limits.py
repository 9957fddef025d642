"""Limits on all processes of an execution together, by control groups where they can be had.

Version 2 has one tree for everything, version 1 a tree for each resource; machines have either, or
both. Only those controllers are used that are there already or can be switched on where we may write.
"""

from __future__ import annotations

import os

from tenuto.keeper import cgroup

_GROUP = "tenuto-limits"
_CONTROLLERS = ("memory", "pids")


def find() -> dict[str, str]:
    """Return, for `memory` and `pids`, the folder under which limited groups can be made.

    A folder is told with its version, as `2:PATH` or `1:PATH`. What is missing cannot be had here.
    """
    own = _own_groups()
    found: dict[str, str] = {}
    base = _unified(own)
    for controller in _CONTROLLERS:
        if base and controller in _words(os.path.join(base, "cgroup.subtree_control")):
            found[controller] = f"2:{base}"
        elif old := _version_1(controller, own):
            found[controller] = f"1:{old}"
    return found


def _own_groups() -> dict[str, str]:
    """Return our own group by controller; that of version 2 under an empty name."""
    found: dict[str, str] = {}
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for name in controllers.split(","):
            found[name] = path
    return found


def _mounts() -> list[tuple[str, str, str, list[str]]]:
    """Return kind, root, place and options of every mounted cgroup tree."""
    found: list[tuple[str, str, str, list[str]]] = []
    for line in _read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith(("cgroup ", "cgroup2 ")):
            kind, _, options = after.split(" ", 2)
            words = before.split()
            found.append((kind, words[3], words[4], options.split(" ")[-1].split(",")))
    return found


def _unified(own: dict[str, str]) -> str:
    """Return our folder in the version 2 tree, the nearest above us that has the controllers."""
    mount = next((place for kind, _, place, _ in _mounts() if kind == "cgroup2"), "")
    if not mount or "" not in own:
        return ""
    path = os.path.normpath(mount + "/" + own[""])
    while path.startswith(mount):
        if "memory" in _words(os.path.join(path, "cgroup.controllers")) and os.access(
            path, os.W_OK
        ):
            base = os.path.join(path, _GROUP)
            if _enable(path) and _make(base) and _enable(base):
                return base
        path = os.path.dirname(path)
    return ""


def _enable(path: str) -> bool:
    """Have the controllers in the groups below this one; one that holds processes may refuse."""
    control = os.path.join(path, "cgroup.subtree_control")
    for name in _CONTROLLERS:
        if name not in _words(control):
            _write(control, f"+{name}")
    return "memory" in _words(control)


def _version_1(controller: str, own: dict[str, str]) -> str:
    for kind, root, place, options in _mounts():
        if kind == "cgroup" and controller in options and controller in own:
            inside = own[controller].removeprefix(root if root != "/" else "")
            base = os.path.normpath(f"{place}/{inside}/{_GROUP}")
            if _make(base) and os.access(os.path.join(base, "cgroup.procs"), os.W_OK):
                return base
    return ""


def _make(path: str) -> bool:
    try:
        os.makedirs(path, mode=0o755, exist_ok=True)
    except OSError:
        return False
    return os.access(path, os.W_OK)


class Groups:
    """The limited groups of one execution: made before it starts, read while it runs, then removed."""

    def __init__(self, places: dict[str, str], memory: int | None, pids: int | None) -> None:
        """Make the groups where `find` said; raises OSError if one cannot be had after all."""
        self._memory = self._pids = ""
        self._made: list[str] = []
        made: dict[str, str] = {}
        try:
            for name, bound in (("memory", memory), ("pids", pids)):
                if bound and name in places:
                    place = places[name]
                    made[place] = made.get(place) or self._create(place[2:])
                    setattr(self, f"_{name}", made[place])
                    _BOUNDS[name](made[place], bound)
        except OSError:
            self.close()
            raise
        self.unified = next((path for place, path in made.items() if place[0] == "2"), "")
        """The group in the version 2 tree, if one was made: the program is started in it."""
        self.joined = [path for place, path in made.items() if place[0] == "1"]
        """Those the program must join itself."""

    def _create(self, base: str) -> str:
        cgroup.tidy(base)
        path = cgroup.create(base)
        if not path:
            raise OSError(f"no control group can be made in {base}")
        self._made.append(path)
        return path

    def breach(self) -> str:
        """Return which limit was hit (`memory`, `pids`), or nothing."""
        if self._memory:
            events = _events(self._memory, "memory.events") or _events(
                self._memory, "memory.oom_control"
            )
            if events.get("oom_kill") or events.get("oom_group_kill"):
                return "memory"
        if self._pids and _events(self._pids, "pids.events").get("max"):
            return "pids"
        return ""

    def close(self) -> None:
        """Remove the groups; what is not empty stays until somebody tidies."""
        for path in self._made:
            cgroup.remove(path)


def _bound_memory(path: str, size: int) -> None:
    if os.path.exists(os.path.join(path, "memory.max")):
        _write(os.path.join(path, "memory.max"), str(size), strict=True)
        _write(os.path.join(path, "memory.swap.max"), "0")
        _write(os.path.join(path, "memory.oom.group"), "1")
        return
    _write(os.path.join(path, "memory.limit_in_bytes"), str(size), strict=True)
    _write(os.path.join(path, "memory.memsw.limit_in_bytes"), str(size))
    _write(os.path.join(path, "memory.swappiness"), "0")


def _bound_pids(path: str, count: int) -> None:
    _write(os.path.join(path, "pids.max"), str(count), strict=True)


_BOUNDS = {"memory": _bound_memory, "pids": _bound_pids}


def cpu_used(group: str) -> float:
    """Return the seconds of processor time that all processes of a version 2 group have used."""
    return _events(group, "cpu.stat").get("usage_usec", 0) / 1e6


def _events(path: str, name: str) -> dict[str, int]:
    """Return the numbers in a file of `name number` lines; none if there is no such file."""
    pairs = (line.split() for line in _read(os.path.join(path, name)).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _words(path: str) -> list[str]:
    return _read(path).split()


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str, strict: bool = False) -> None:
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(text.encode())
    except OSError:
        if strict:
            raise
