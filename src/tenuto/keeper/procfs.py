"""What /proc tells about processes: who descends from whom, who is who."""

from __future__ import annotations

import os
from collections.abc import Callable

KEEPER_NAME = "tenuto-keeper"
ZYGOTE_NAME = "tenuto-zygote"
IDLE_NAME = "tenuto-idle"
STEM_NAME = "tenuto-stem"
_OURS = (KEEPER_NAME, ZYGOTE_NAME, IDLE_NAME)
_ENTRY = b"from tenuto.keeper.zygote import main"  # as BOOT has it
MARK = "TENUTO_EXECUTION"
_TICKS = os.sysconf("SC_CLK_TCK")
_PF_EXITING = 4


def read(path: str) -> bytes:
    """Return what a file of /proc holds; nothing if it is gone or not ours to see."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    data = b""
    try:
        while part := os.read(fd, 65536):
            data += part
    except OSError:
        pass
    finally:
        os.close(fd)
    return data


def boot_id() -> str:
    """Return what changes with every boot: pids and start times mean nothing across it."""
    return read("/proc/sys/kernel/random/boot_id").decode().strip()


def start_time(pid: int) -> int:
    """Return when a process started, in ticks since boot, or 0 if there is none."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else 0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on (the name may hold anything)."""
    text = read(f"/proc/{pid}/stat").decode("utf-8", "replace")
    return text[text.rfind(")") + 1 :].split()


def is_exiting(pid: int) -> bool:
    """Tell whether a process of one thread has begun to exit: it will run none of its code again."""
    fields = _stat(pid)
    return len(fields) <= 17 or (fields[17] == "1" and bool(int(fields[6]) & _PF_EXITING))


def is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped, by a signal or by whoever traces it: it answers nobody."""
    return _stat(pid)[:1] in (["T"], ["t"])


def processor_time(pid: int) -> float:
    """Return the seconds that a process and those of its children that it has reaped have used."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if len(fields) > 15 else 0.0


def spent(pids: list[int]) -> tuple[float, float]:
    """Return the seconds that processes and the children they buried spent: user and system."""
    user = system = 0
    for pid in pids:
        fields = _stat(pid)
        if len(fields) > 14:
            user += int(fields[11]) + int(fields[13])
            system += int(fields[12]) + int(fields[14])
    return user / _TICKS, system / _TICKS


def peak_memory(pid: int) -> int:
    """Return the most bytes that a process ever held in memory."""
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def parent(pid: int) -> int:
    """Return the parent of a process, or 0."""
    fields = _stat(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def name(pid: int) -> str:
    """Return a process's short name."""
    return read(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()


def command(pid: int) -> str:
    """Return a process's command line, cut to one short line."""
    text = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return text[:200] or f"[{name(pid)}]"


def carries_mark(pid: int, execution_id: str) -> bool:
    """Tell whether a process was started under an execution (and kept its environment)."""
    mark = f"{MARK}={execution_id}".encode()
    return mark in read(f"/proc/{pid}/environ").split(b"\0")


def is_keeper(pid: int) -> bool:
    """Tell whether a process keeps an execution of its own, or will: never another one's."""
    if name(pid) not in _OURS:
        return False
    return _ENTRY in read(f"/proc/{pid}/cmdline")  # any program can take a name


def all_pids() -> list[int]:
    """Return every process that can be seen."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process, zombies too."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        found += map(int, read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def descendants(pid: int, prune: Callable[[int], bool] = is_keeper) -> list[int]:
    """Return all live descendants, nearest first, without the subtrees that `prune` names."""
    if not os.path.exists("/proc/self/task") or not HAS_CHILDREN:
        return _descendants_by_parent(pid, prune)
    found: list[int] = []
    ahead = children(pid)
    while ahead:
        one = ahead.pop(0)
        if prune(one):
            continue
        if _stat(one)[:1] not in (["Z"], ["X"], []):
            found.append(one)
        ahead += children(one)
    return found


def _descendants_by_parent(pid: int, prune: Callable[[int], bool]) -> list[int]:
    """Do the same by everyone's parent, where the kernel lists no children."""
    by_parent: dict[int, list[int]] = {}
    for one in all_pids():
        fields = _stat(one)
        if len(fields) > 1 and fields[0] not in ("Z", "X"):
            by_parent.setdefault(int(fields[1]), []).append(one)
    found: list[int] = []
    ahead = list(by_parent.get(pid, ()))
    while ahead:
        one = ahead.pop(0)
        if not prune(one):
            found.append(one)
            ahead += by_parent.get(one, ())
    return found


HAS_CHILDREN = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
