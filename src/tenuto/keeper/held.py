"""What a keeper does for a confined execution: limits before, breaches during, and order afterwards."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import time
from collections.abc import Callable

from tenuto.keeper import cgroup, confine, limits, procfs, sweep, verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tenuto.keeper.child import Child
    from tenuto.keeper.keeper import Keeper

_EVERY_S = 0.1  # how often limits are looked at that the kernel does not hold by itself
_PAUSE_S = 0.002
_PATIENCE_S = 5.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# How programs say that they met a limit which no control group tells of.
_SIGNS = {
    "pids": (b"Resource temporarily unavailable", b"can't start new thread", b"EAGAIN"),
    "memory": (
        b"MemoryError", b"llocation failed", b"annot allocate memory", b"out of memory", b"ENOMEM",
        b"bad_alloc",
    ),
}  # fmt: skip


class Held:
    """One confined execution, beside its keeper."""

    def __init__(self, job: dict[str, Any], keeper: Keeper) -> None:
        """Make the groups and the private folder; what cannot be made fails the start."""
        self._job = job
        self._keeper = keeper
        self._confine: dict[str, Any] = job["confine"]
        self._limits: dict[str, Any] = job.get("limits") or {}
        self._scratch = str(self._confine.get("scratch") or "")
        self._groups: limits.Groups | None = None
        self._signs: set[str] = set()
        self._before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._patience = 0.0
        try:
            self._prepare(keeper.child)
        except OSError as error:
            self._confine["failed"] = f"the sandbox cannot be made: {error}"
        job["stem"] = confine.needs_stem(self._confine)
        if any(self._limits.get(name) for name in ("memory", "cpu", "pids")):
            keeper.loop.after(_EVERY_S, self._look)

    def _prepare(self, child: Child) -> None:
        if self._confine.get("groups"):
            self._groups = limits.Groups(
                self._confine["groups"], self._limits.get("memory"), self._limits.get("pids")
            )
            if self._groups.unified:
                child.move(self._groups.unified)
            self._confine["join"] = self._groups.joined
        if self._scratch:
            os.mkdir(self._scratch, 0o700)
            if self._confine.get("uid"):
                os.chown(self._scratch, int(self._confine["uid"]), int(self._confine["gid"]))

    def words(self) -> bytes:
        """Return the job with what was found out meanwhile, for the stem."""
        return json.dumps(self._job).encode()

    def alone(self, again: Callable[[], None]) -> bool:
        """Tell whether nothing outlives the program; else end it, and have `again` called soon."""
        left = [pid for pid in self._keeper.members() if not procfs.is_exiting(pid)]
        now = time.monotonic()
        self._patience = self._patience or now + _PATIENCE_S
        if not left or now > self._patience:
            return True
        if self._keeper.child.group:
            cgroup.kill(self._keeper.child.group)
        sweep.send(left, signal.SIGKILL)
        self._keeper.loop.after(_PAUSE_S, again)
        return False

    def spawned(self) -> None:
        """Report, for a program that was started without a stem, and is where it should be."""
        if self._confine["kind"] != "bwrap" and self._keeper.child.exec_error is None:
            self._keeper.channel.note_confined(self._confine["report"])

    def begun(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return what to report if this is bubblewrap telling that everything is in place."""
        inside = self._confine["kind"] == "bwrap" and "child-pid" in message
        return self._confine["report"] if inside else None

    def leader(self, pid: int) -> int:
        """Return whose process group the program is in: not that of bubblewrap, which must live on."""
        if self._confine["kind"] != "bwrap":
            return pid
        inside = procfs.children(pid)
        return inside[0] if inside else pid

    def without_keepers(self, members: list[int]) -> list[int]:
        """Return the program's processes: not those of bubblewrap, whose end would be theirs."""
        pid = self._keeper.child.pid
        keepers = (pid, self.leader(pid)) if self._confine["kind"] == "bwrap" else ()
        return [one for one in members if one not in keepers]

    # Breaches

    def _look(self) -> None:
        """See whether a limit was hit that ends the execution without the program's doing."""
        keeper = self._keeper
        if keeper.ended or keeper.outcome is not None:
            return
        found = self.breach(keeper.members())
        if found is not None:
            keeper.end_by(found)
        else:
            keeper.loop.after(_EVERY_S, self._look)

    def read(self, data: bytes) -> None:
        """Look for the words by which programs say that they met a limit."""
        for name, signs in _SIGNS.items():
            asked = self._limits.get(name) and name not in self._signs
            if asked and not self._has_group(name) and any(sign in data for sign in signs):
                self._signs.add(name)

    def breach(self, members: list[int] | None = None) -> verdict.Outcome | None:
        """Return the end for a limit that was hit, as far as the kernel or a look at /proc tells."""
        bounds = self._limits
        hit = self._groups.breach() if self._groups is not None else ""
        if hit:
            return verdict.limit(hit, _told(hit, bounds[hit]))
        if bounds.get("cpu") and self._spent(members or []) >= float(bounds["cpu"]):
            return verdict.limit("cpu", f"{float(bounds['cpu']):g} s")
        if bounds.get("memory") and members and not self._has_group("memory"):
            most = int(bounds["memory"]) + int(self._confine.get("base") or 0)
            if _together(members, most):
                return verdict.limit("memory", _told("memory", bounds["memory"]))
        return None

    def _spent(self, members: list[int]) -> float:
        """Return the processor time of all together: as the group counts it, or by adding up."""
        group = self._keeper.child.group
        if group:
            return limits.cpu_used(group)
        gone, before = resource.getrusage(resource.RUSAGE_CHILDREN), self._before
        dead = gone.ru_utime + gone.ru_stime - before.ru_utime - before.ru_stime
        return dead + sum(map(procfs.processor_time, members))

    def usage(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return what all its processes used: bubblewrap, whose own use is known, buries none."""
        gone, before = resource.getrusage(resource.RUSAGE_CHILDREN), self._before
        dying = self._keeper.left
        user, system = procfs.spent(dying)
        grown = gone.ru_maxrss if gone.ru_maxrss > before.ru_maxrss else 0
        # Who has not been buried yet tells its time, not the memory of those it buried itself.
        unknown = self._confine["kind"] == "bwrap" and dying
        return {
            "user_s": round(gone.ru_utime - before.ru_utime + user, 6),
            "system_s": round(gone.ru_stime - before.ru_stime + system, 6),
            "max_rss": 0 if unknown else max(own["max_rss"], grown * 1024),
        }

    def complained(self) -> verdict.Outcome | None:
        """Return the end for a limit that the program itself, having failed, said it met."""
        self.read(self._keeper.channel.raised_text.encode("utf-8", "replace"))
        for name in sorted(self._signs):
            return verdict.limit(name, _told(name, self._limits[name]))
        return None

    def _has_group(self, name: str) -> bool:
        return name in (self._confine.get("groups") or {})

    # Afterwards

    def put_back(self) -> None:
        """Undo what it did to the links that lead to state folders, and record that."""
        told: list[str] = []
        for path, target in self._confine.get("guard") or ():
            try:
                now = os.readlink(path)
            except OSError as error:
                now = None if error.errno == errno.ENOENT else ""
            if now == target:
                continue
            try:
                if now is not None:
                    os.rename(path, f"{path}.from-{os.urandom(4).hex()}")
                if target is not None:
                    os.symlink(target, path)
            except OSError as error:
                told.append(f"{path} is not what it was: {error}")
            else:
                told.append(f"{path} was changed by the program; it is as before")
        if told:
            self._keeper.writer.event("faulted", text="; ".join(told)[:4000])

    def close(self) -> None:
        """Remove what was made."""
        if self._groups is not None:
            self._groups.close()
            if self._groups.unified:
                cgroup.remove(self._groups.unified)
        if self._scratch:
            remove_tree(self._scratch)


def _told(name: str, bound: Any) -> str:
    return f"{bound} bytes" if name == "memory" else str(bound)


def _together(pids: list[int], most: int) -> bool:
    """Tell whether processes hold more private memory together than this; shared pages count once."""
    page = os.sysconf("SC_PAGE_SIZE")
    rough = 0
    for pid in pids:
        words = procfs.read(f"/proc/{pid}/statm").split()
        if len(words) > 2:
            rough += (int(words[1]) - int(words[2])) * page
    return rough > most and sum(map(_share, pids)) > most


def _share(pid: int) -> int:
    """Return a process's part of the memory that is not any file's."""
    size = 0
    for line in procfs.read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
            size += int(line.split()[1]) * 1024
    return size


def remove_tree(path: str) -> None:
    """Remove a folder and everything in it, made by a program that may have wanted to prevent it.

    No link is followed, however deep it is: each folder is entered from the one above it.
    """
    above, name = os.path.split(path)
    try:
        here = os.open(above, _FOLDER & ~os.O_NOFOLLOW)
    except OSError:
        return
    levels = [("", [name], _identity(here))]
    try:
        while True:
            inner = levels[-1][1]
            if inner:
                one = inner.pop()
                down = _entered(here, one)
                if down >= 0:
                    levels.append((one, _emptied(down), _identity(down)))
                    os.close(here)
                    here = down
                continue
            name = levels.pop()[0]
            if not levels:
                return
            up = os.open("..", _FOLDER, dir_fd=here)
            os.close(here)
            here = up
            if _identity(here) != levels[-1][2]:
                return  # somebody moved it meanwhile: what is around is not ours
            _quietly(os.rmdir, name, here)
    except OSError:
        return
    finally:
        os.close(here)


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _entered(at: int, name: str) -> int:
    """Open a folder in another one, whatever its mode says; -1 if it is none, or a link to one."""
    try:
        found = os.open(name, os.O_PATH | _FOLDER, dir_fd=at)
    except OSError:
        return -1
    try:
        os.chmod(f"/proc/self/fd/{found}", 0o700)
        return os.open(".", _FOLDER, dir_fd=found)
    except OSError:
        return -1
    finally:
        os.close(found)


def _emptied(fd: int) -> list[str]:
    """Remove the files of a folder, and return the folders in it."""
    try:
        entries = list(os.scandir(fd))
    except OSError:
        return []
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            _quietly(os.unlink, entry.name, fd)
    return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _quietly(remove: Callable[..., None], name: str, at: int) -> None:
    try:
        remove(name, dir_fd=at)
    except OSError:
        return
