"""The ground under the ladder: limits only. Nothing is hidden and nothing forbidden."""

from __future__ import annotations

from collections.abc import Sequence

from tenuto.core.confinement import Confinement, Subject
from tenuto.sandboxes import probing
from tenuto.sandboxes.bounds import plain_limits


class Unheld:
    """Runs the program as it is, under whatever limits can be set, and says so."""

    name = "limits"

    def probe(self) -> str:
        """Return nothing: this works everywhere."""
        return ""

    def refuses(self, subject: Subject) -> str:
        """Return nothing: nothing is promised."""
        del subject
        return ""

    def lacks(self, subject: Subject) -> list[str]:
        """Return everything that was asked for besides limits."""
        found = ["files: everything its user may see and change"]
        if subject.net != "on":
            found.append(f"net {subject.net}: the whole network")
        if subject.limits.pids and "pids" not in subject.groups:
            found.append("pids: no control group can be written, so they are not limited alone")
        return found

    def confine(self, subject: Subject, missing: Sequence[str]) -> Confinement:
        """Return how to start it."""
        bounds, base = plain_limits(subject)
        level = probing.limits_level(subject).lstrip("+") or "nothing"
        words: dict[str, object] = {
            "kind": "limits",
            "groups": subject.groups,
            "base": base,
            "report": {"level": level, "missing": list(missing), "net": "on"},
        }
        if subject.limits.pids and "pids" not in subject.groups:
            words["processes"] = subject.limits.pids
        return Confinement(subject.argv, subject.cwd, subject.environ, words, bounds)
