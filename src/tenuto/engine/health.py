"""Is everything that executions need in order? Checked by trying it, reported with a next step."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import TenutoError
from tenuto.core.ids import short
from tenuto.core.quantities import brief_size
from tenuto.dispatch import control
from tenuto.dispatch.launch import ZygoteLauncher
from tenuto.interpreters.probing import probe
from tenuto.keeper import blocked, cgroup
from tenuto.sandboxes import Ladder
from tenuto.stores.archive import Archive
from tenuto.stores.tape import is_kept

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

_LOW_DISK = 512 * 1024 * 1024


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    hint: str = ""


def examine(engine: BlockingEngine) -> list[Check]:
    """Return the state of health, worst news not hidden."""
    checks = [_platform(), _disk(engine), _index(engine), _containment(), _input_seen()]
    if isinstance(engine.launcher, ZygoteLauncher):
        checks.append(_zygote(engine.launcher))
    checks += _history(engine)
    checks += _keepers(engine)
    checks += _interpreters(engine)
    checks += _sandbox(engine)
    checks += _ledger(engine)
    return checks


def _ledger(engine: BlockingEngine) -> list[Check]:
    """Look at what was spent, if anything ever was."""
    if not os.path.isdir(os.path.join(engine.project.home, "ledger")):
        return []
    from tenuto.metering.ledger import Ledger

    ledger = Ledger(engine.project.home)
    try:
        found = ledger.health()
    except TenutoError as error:
        return [Check("ledger", False, error.message, error.hint)]
    finally:
        ledger.close()
    wrong = found.lost or found.aside
    told = f"{found.lost} records lost, {len(found.aside)} files put aside" if wrong else "whole"
    hint = "what these counted is not in the budget any more: set a lower limit" if wrong else ""
    return [Check("ledger", not wrong, told, hint)]


def _platform() -> Check:
    fine = sys.platform == "linux"
    detail = f"{sys.platform}, Python {sys.version.split()[0]}"
    return Check("platform", fine, detail, "" if fine else "keepers need Linux 5.13 or newer")


def _disk(engine: BlockingEngine) -> Check:
    status = os.statvfs(engine.project.home)
    free = status.f_bavail * status.f_frsize
    hint = "" if free >= _LOW_DISK else "make room: tenuto clean --older 7d"
    return Check(
        "disk", free >= _LOW_DISK, f"{brief_size(free)} free for {engine.project.home}", hint
    )


def _index(engine: BlockingEngine) -> Check:
    try:
        wrong = engine.index.check()
        total = sum(engine.index.counts().values())
    except TenutoError as error:
        return Check("index", False, error.message, error.hint)
    hint = "tenuto doctor --rebuild" if wrong else ""
    return Check("index", not wrong, wrong or f"{total} executions", hint)


def _history(engine: BlockingEngine) -> Iterator[Check]:
    """Look at what is kept of tasks that were cleaned away, if anything is."""
    try:
        found = Archive(engine.project).health()
    except (TenutoError, OSError) as error:
        yield Check("history", False, str(error), getattr(error, "hint", ""))
        return
    if found.damaged:
        text = f"{brief_size(found.damaged)} of the records of cleaned tasks cannot be read"
        yield Check("history", False, text, "put them aside with: tenuto doctor --rebuild")
    elif found.records:
        yield Check("history", True, f"{found.records} records of cleaned tasks")


def _containment() -> Check:
    """Say what happens to daemons when a keeper is killed: the machine decides."""
    if cgroup.find_base():
        return Check(
            "containment", True, "cgroup: no process can leave its execution unseen; a killed "
            "keeper's main process dies at once, the rest with the next tenuto call",
        )  # fmt: skip
    return Check(
        "containment", True, "no writable cgroup: a killed keeper's main process dies at once; its "
        "daemons are found by descent and environment mark with the next tenuto call",
    )  # fmt: skip


def _input_seen() -> Check:
    seen = blocked.sees_blocked_reads()
    detail = "a program that waits for input is noticed" if seen else "blocked reads cannot be seen"
    hint = "" if seen else "the kernel hides /proc/PID/syscall; send input without being asked"
    return Check("input", True, detail, hint)


def _zygote(launcher: ZygoteLauncher) -> Check:
    detail = (
        f"warm, {launcher.restarts} restarts"
        if launcher.alive
        else "gone; the next start renews it"
    )
    return Check("zygote", launcher.alive, detail)


def _keepers(engine: BlockingEngine) -> Iterator[Check]:
    """Yield a summary, and each keeper that does not answer."""
    answering = 0
    for row in engine.index.live():
        folder = engine.project.folder(row.id)
        try:
            control.request(folder, "hello")
            answering += 1
        except control.NoKeeper:
            if is_kept(folder):
                yield Check("keeper", False, f"{short(row.id)} has no control socket", "tenuto ps")
        except TenutoError as error:
            yield Check("keeper", False, f"{short(row.id)}: {error.message}", error.hint)
    yield Check("keepers", True, f"{answering} answer")


def _interpreters(engine: BlockingEngine) -> Iterator[Check]:
    for status in probe(engine.environ, engine.settings.programs):
        found = (
            f"{status.program} {status.version or ''}".strip() if status.program else "not found"
        )
        chosen = status.language in engine.settings.programs  # asked for, so it must be there
        fine = not (chosen and status.problem)
        yield Check(f"language {status.language}", fine, status.problem or found)


def _sandbox(engine: BlockingEngine) -> Iterator[Check]:
    """Say which rung holds executions here, why no higher one does, and which limits hold together."""
    ladder = Ladder()
    found = ladder.examine()
    works = next((one.name for one in found if not one.problem), "")
    wanted = engine.settings.sandbox != "none"
    for one in found:
        if not one.problem:
            break
        hint = "install bubblewrap" if "not installed" in one.problem else ""
        yield Check(f"sandbox {one.name}", bool(works) or not wanted, one.problem, hint)
    detail = f"{works} holds executions that ask for it" if works else "nothing can hold executions"
    yield Check("sandbox", bool(works) or not wanted, detail)
    groups = ladder.groups()
    if len(groups) == 2:
        text = "memory and pids of an execution are limited together, by control groups"
    else:
        lacking = " and ".join(name for name in ("memory", "pids") if name not in groups)
        text = f"no writable control group for {lacking}: limited as plain resource limits can"
    yield Check("sandbox limits", True, text)
