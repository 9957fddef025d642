"""Noticing that a process waits for its input, by the call in which it is blocked.

A read says it by itself. An event loop waits for several things at once: it waits for its input if
nothing else from outside could wake it, no clock, no socket, no file, no child, and nobody else in the
process is at work.
"""

from __future__ import annotations

import os
import struct

from tenuto.keeper.procfs import descendants, read

_NUMBERS: dict[str, dict[str, str]] = {
    "x86_64": {
        "0": "read", "19": "read", "23": "select", "270": "select", "7": "poll", "271": "ppoll",
        "232": "epoll", "281": "epoll", "441": "epoll2", "202": "futex", "449": "futex",
    },
    "aarch64": {
        "63": "read", "65": "read", "72": "select", "73": "ppoll", "22": "epoll", "441": "epoll2",
        "98": "futex", "449": "futex",
    },
}  # fmt: skip
_CALLS = _NUMBERS.get(os.uname().machine, {})
_ENDLESS = 0x80000000  # a timeout of -1, or any other below zero
_MOST_WATCHED = 64
_OWN = ("anon_inode:[eventfd]", "anon_inode:[signalfd]")


def reads_from(pids: list[int], inode: int, device: int) -> bool:
    """Tell whether any of the processes is blocked reading this pipe or terminal."""
    return any(_reads_from(pid, inode, device) for pid in pids)


def sees_blocked_reads() -> bool:
    """Tell whether this machine lets us see in which call a process is blocked."""
    return bool(_CALLS) and bool(read("/proc/self/syscall"))


def _reads_from(pid: int, inode: int, device: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    at_work = False
    loops: list[tuple[str, list[int]]] = []
    for thread in threads:
        call, arguments = _call(pid, thread)
        if call == "read" or (call == "select" and arguments[0] == 1):
            if _is(pid, arguments[0] if call == "read" else 0, inode, device):
                return True
        elif call in ("poll", "ppoll", "epoll", "epoll2"):
            loops.append((call, arguments))
        at_work = at_work or call in ("", "read", "select")
    if at_work or not loops or descendants(pid):
        return False
    return any(_waits_for_it_only(pid, *one, inode, device) for one in loops)


def _call(pid: int, thread: str) -> tuple[str, list[int]]:
    """Return in which of these calls a thread is blocked, with its arguments; empty if in none."""
    words = read(f"/proc/{pid}/task/{thread}/syscall").decode("ascii", "replace").split()
    call = _CALLS.get(words[0], "") if len(words) > 6 else ""
    return call, [int(word, 16) for word in words[1:7]] if call else []


def _is(pid: int, descriptor: int, inode: int, device: int) -> bool:
    try:
        status = os.stat(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return False
    return (status.st_ino, status.st_dev) == (inode, device)


def _waits_for_it_only(pid: int, call: str, arguments: list[int], inode: int, device: int) -> bool:
    endless = {
        "poll": arguments[2] & _ENDLESS,
        "ppoll": not arguments[2],
        "epoll": arguments[3] & _ENDLESS,
        "epoll2": not arguments[3],
    }[call]
    if not endless:
        return False
    if call.startswith("epoll"):
        watched = _registered(pid, arguments[0])
    else:
        watched = _polled(pid, arguments[0], arguments[1])
    links = _links(pid)
    others = [one for one in watched if not _is(pid, one, inode, device)]
    return len(others) < len(watched) and all(_is_own(links, one) for one in others)


def _registered(pid: int, descriptor: int) -> list[int]:
    """Return what an epoll descriptor watches."""
    lines = read(f"/proc/{pid}/fdinfo/{descriptor}").decode("ascii", "replace").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]


def _polled(pid: int, address: int, count: int) -> list[int]:
    """Return what a call of poll watches, as its memory has it; nothing if we may not read that."""
    if not 0 < count <= _MOST_WATCHED:
        return []
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            data = os.pread(file.fileno(), 8 * count, address)
    except OSError:
        return []
    entries = struct.iter_unpack("ihh", data[: len(data) // 8 * 8])
    return [descriptor for descriptor, _, _ in entries if descriptor >= 0]


def _links(pid: int) -> dict[int, str]:
    found: dict[int, str] = {}
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
    except OSError:  # what is not seen counts as something that could wake it
        pass
    return found


def _is_own(links: dict[int, str], descriptor: int) -> bool:
    """Tell whether only the process itself can write there: it has the other end, too."""
    link = links.get(descriptor, "")
    if link.startswith("pipe:["):
        return sum(one == link for one in links.values()) > 1
    if link.startswith("socket:["):  # the two of a pair are made one after the other
        number = int(link[len("socket:[") : -1])
        return any(f"socket:[{one}]" in links.values() for one in (number - 1, number + 1))
    return link in _OWN
