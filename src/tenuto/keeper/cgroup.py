"""A control group per execution where one can be had: no process can leave it unseen.

It serves two things only: knowing every process that belongs to an execution, whatever it did to its
parents and its environment, and ending them all in one write. Limits by cgroup are the sandbox's.
"""

from __future__ import annotations

import os

_GROUP = "tenuto"
_CLAIM = "user.tenuto.execution"


def find_base() -> str:
    """Return our folder in the cgroup2 tree, made if need be, or "" where none can be had."""
    mount = _mount_point()
    if not mount:
        return ""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            own = next(line[3:].strip() for line in file if line.startswith("0::"))
    except (OSError, StopIteration):
        return ""
    above, _, _ = f"{own}/".partition(f"/{_GROUP}/")  # an execution inside another stands beside it
    base = os.path.join(mount, above.strip("/"), _GROUP)
    try:
        os.makedirs(base, mode=0o755, exist_ok=True)
        with open(os.path.join(base, "cgroup.kill"), "wb"):
            return base
    except OSError:
        return ""


def _mount_point() -> str:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            for line in file:
                before, _, after = line.partition(" - ")
                if after.startswith("cgroup2 "):
                    return before.split()[4]
    except OSError:
        pass
    return ""


def join(path: str) -> bool:
    """Move the calling process into a group."""
    try:
        with open(os.path.join(path, "cgroup.procs"), "wb", buffering=0) as file:
            file.write(b"0")
    except OSError:
        return False
    return True


def create(base: str) -> str:
    """Return a new group for an execution of the calling keeper, or "" if it cannot be made."""
    path = os.path.join(base, f"{os.getpid()}-{os.urandom(6).hex()}")
    try:
        os.mkdir(path, 0o755)
    except OSError:
        return ""
    return path


def claim(path: str, execution_id: str) -> None:
    """Write on a group whose processes it will hold, before there are any.

    A keeper that dies before its start is recorded leaves nothing else to find those by that left its
    tree and cleared their environment.
    """
    try:
        os.setxattr(path, _CLAIM, execution_id.encode())
    except OSError:
        return  # Linux before 5.7 cannot


def claimed(execution_id: str) -> str:
    """Return the group that was claimed for an execution, or ""."""
    wanted = execution_id.encode()
    for folder, names, _ in os.walk(_mount_point() or "/nowhere"):
        if os.path.basename(folder).startswith(_GROUP):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if os.getxattr(path, _CLAIM) == wanted:
                        return path
                except OSError:
                    continue
    return ""


def tidy(base: str) -> None:
    """Remove the empty groups of keepers that died."""
    for name in os.listdir(base):
        pid, _, rest = name.partition("-")
        if rest and not os.path.exists(f"/proc/{pid}"):
            remove(os.path.join(base, name))


def members(path: str) -> list[int]:
    """Return the processes in a group."""
    try:
        with open(os.path.join(path, "cgroup.procs"), "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def kill(path: str) -> None:
    """Send SIGKILL to every process in a group at once."""
    try:
        with open(os.path.join(path, "cgroup.kill"), "wb", buffering=0) as file:
            file.write(b"1")
    except OSError:
        return


def remove(path: str) -> None:
    """Remove an empty group; one that is not empty stays."""
    try:
        os.rmdir(path)
    except OSError:
        return
