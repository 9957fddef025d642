"""The ladder: which mechanism holds an execution, what is missing then, and when to refuse."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache

import msgspec

from tenuto.core.confinement import Confinement, Found, Subject
from tenuto.core.errors import SandboxUnavailable
from tenuto.core.ports import Rung
from tenuto.core.specs import SandboxLevel
from tenuto.keeper import limits
from tenuto.sandboxes import bounds, probing
from tenuto.sandboxes.bwrap import Bwrap
from tenuto.sandboxes.landlocked import Landlocked
from tenuto.sandboxes.unheld import Unheld

_found: dict[tuple[str, frozenset[str]], str] = {}
_lock = threading.Lock()


@cache
def _groups() -> dict[str, str]:
    return limits.find()


class Ladder:
    """Rungs from the strictest down. What works here is found out once per process."""

    def __init__(self, rungs: Sequence[Rung] | None = None) -> None:
        """Take the rungs to try; all that there are by default."""
        self._rungs: Sequence[Rung] = (Bwrap(), Landlocked()) if rungs is None else rungs
        self._ground: Rung = Unheld()

    def groups(self) -> dict[str, str]:
        """Return where control groups can be made that limit memory and pids."""
        return {} if "cgroup" in probing.without() else _groups()

    def examine(self) -> list[Found]:
        """Return every rung with why it does not work here, if it does not."""
        return [Found(rung.name, self._problem(rung)) for rung in self._rungs]

    def _problem(self, rung: Rung) -> str:
        key = (rung.name, probing.without())
        if rung.name in key[1]:
            return "TENUTO_SANDBOX_WITHOUT says to do without it"
        with _lock:
            if key not in _found:
                _found[key] = rung.probe()
            return _found[key]

    def choose(self, subject: Subject, level: SandboxLevel) -> Confinement:
        """Return how to start it on the highest rung there is; `require` takes nothing less.

        Raises SandboxUnavailable, naming what is missing on each rung.
        """
        subject = msgspec.structs.replace(subject, groups=self._needed_groups(subject))
        passed: list[str] = []
        for rung in self._rungs:
            problem = self._problem(rung) or rung.refuses(subject)
            lacking = [] if problem else rung.lacks(subject)
            if not problem and not (lacking and level == "require"):
                return rung.confine(subject, [*passed, *lacking, *bounds.notes(subject)])
            passed += [f"{rung.name}: {what}" for what in ([problem] if problem else lacking)]
        if level == "require":
            raise SandboxUnavailable(
                f"the sandbox that was required cannot be had here: {'; '.join(passed)}",
                "install bubblewrap (the package is called so), see `tenuto doctor`, "
                "or take what there is with --sandbox auto",
            )
        missing = [*passed, *self._ground.lacks(subject), *bounds.notes(subject)]
        return self._ground.confine(subject, missing)

    def _needed_groups(self, subject: Subject) -> dict[str, str]:
        asked = [name for name in ("memory", "pids") if getattr(subject.limits, name)]
        found = self.groups() if asked else {}
        return {name: found[name] for name in asked if name in found}
