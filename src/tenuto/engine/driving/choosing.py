"""Which runtime a step runs on: the one that was named, the preferred, or the first that works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import Runner
from tenuto.core.runs import NO_FALLBACK, Probe, cannot_ask


class Chosen(msgspec.Struct, frozen=True):
    """A runtime that works here, and why it was taken."""

    name: str
    """As users and settings call it, whatever the runner calls itself."""
    runner: Runner
    probe: Probe
    reason: str


class Chooser:
    """Probes runtimes, each once, and chooses among them."""

    def __init__(
        self,
        make: Callable[[str], Runner],
        order: Sequence[str],
        preferred: str | None,
        environ: Mapping[str, str],
        asks: bool = False,
    ) -> None:
        """Take who makes runners by name (and refuses unknown ones), and the settings.

        With `asks` there are tools that somebody has to allow first: who cannot ask is not taken.
        """
        self._asks = asks
        self._make = make
        self._order = order
        self._preferred = preferred
        self._environ = environ
        self._runners: dict[str, Runner] = {}
        self._probes: dict[str, asyncio.Task[Probe]] = {}

    def runner(self, name: str) -> Runner:
        """Return a runner by its name."""
        if name not in self._runners:
            self._runners[name] = self._make(name)
        return self._runners[name]

    async def probe(self, name: str) -> Probe:
        """Look whether a runtime works here; looked at once."""
        if name not in self._probes:
            self._probes[name] = asyncio.create_task(self._look(name))
        return await self._probes[name]

    async def _look(self, name: str) -> Probe:
        runner = self.runner(name)
        found = await runner.probe(self._environ)
        if found.available and self._asks and runner.capabilities.unasking:
            why, hint = cannot_ask(name)
            return Probe(available=False, kind="permission", why=why, hint=hint)
        return found

    async def choose(self, named: str | None) -> Chosen:
        """Return the runtime for a step, or raise RunnerFailed with what every one lacks."""
        if named is not None:
            return await self._take(named, "it was named")
        names = [self._preferred] if self._preferred else []
        names += [name for name in self._order if name not in names]
        missing: list[str] = []
        remedies: list[str] = []
        for name in names:
            probe = await self.probe(name)
            if probe.available:
                why = (
                    "it is the preferred one" if name == self._preferred else "the first that works"
                )
                passed = f" ({'; '.join(missing)})" if missing else ""
                return Chosen(name, self.runner(name), probe, why + passed)
            missing.append(f"{name}: {probe.why}")
            remedies.append(f"{name}: {probe.why} ({probe.hint})" if probe.hint else missing[-1])
        raise RunnerFailed(
            f"no runtime works here: {'; '.join(remedies)}",
            "make one of these work: tenuto doctor shows them",
            "missing",
        )

    async def _take(self, name: str, why: str) -> Chosen:
        """Return the runtime that was named, or one of its family if it is not there at all."""
        probe = await self.probe(name)
        if probe.available:
            return Chosen(name, self.runner(name), probe, why)
        other = None
        if probe.kind not in NO_FALLBACK:
            other = await self.substitute(name, {name})
        if other is None:
            raise RunnerFailed(f"{name}: {probe.why}", probe.hint, probe.kind or "missing")
        reason = f"{name} was named but is not available ({probe.why})"
        return Chosen(other.name, other.runner, other.probe, reason)

    async def substitute(self, name: str, tried: set[str]) -> Chosen | None:
        """Return another runtime of the same family that works here, if there is one."""
        family = self.runner(name).family
        for other in self._order:
            if other in tried or self.runner(other).family != family:
                continue
            probe = await self.probe(other)
            if probe.available:
                return Chosen(other, self.runner(other), probe, f"it stands in for {name}")
        return None
