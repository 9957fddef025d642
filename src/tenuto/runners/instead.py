"""Two ways to the same runtime: the better one, and another where that does not work here."""

from __future__ import annotations

from collections.abc import Mapping

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import AgentSession, Nursery, Runner
from tenuto.core.runs import Capabilities, Probe, RunRequest

_OTHER_WAY = ("missing", "outdated", "protocol")
"""Kinds of failure of the way itself, after which the other one may still work."""


class Instead:
    """A runner that goes its second way where the first does not work."""

    def __init__(self, first: Runner, second: Runner) -> None:
        """Take both ways; name and family are those of the first."""
        self._first = first
        self._second = second
        self._taken = first

    @property
    def name(self) -> str:
        """What users call it."""
        return self._first.name

    @property
    def family(self) -> str:
        """Who may stand in for it."""
        return self._first.family

    @property
    def capabilities(self) -> Capabilities:
        """What the way can do that was found to work."""
        return self._taken.capabilities

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        """Look for the first way, and for the second if that is not there."""
        self._taken = self._first
        found = await self._first.probe(environ)
        if found.available or found.kind not in _OTHER_WAY:
            return found
        second = await self._second.probe(environ)
        if second.available or second.kind not in _OTHER_WAY:
            self._taken = self._second
            return second
        return found

    async def open(self, request: RunRequest, nursery: Nursery) -> AgentSession:
        """Open a session the way that works; if it turns out not to, the other way."""
        try:
            return await self._taken.open(request, nursery)
        except RunnerFailed as error:
            if self._taken is self._second or error.kind not in _OTHER_WAY:
                raise
            self._taken = self._second
            return await self._second.open(request, nursery)
