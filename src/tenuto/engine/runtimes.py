"""Which runtimes of agents can be used here: all that are known, each looked at, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import TenutoError
from tenuto.core.runs import Probe

if TYPE_CHECKING:
    from tenuto.core.ports import Runner
    from tenuto.engine.agent_settings import AgentSettings
    from tenuto.engine.settings import Settings

PATIENCE_S = 30.0
"""How long one runtime is looked at; one that takes longer is not known to work."""
NOT_YET = "not looked at yet"


class RuntimeInfo(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A runtime, and what was found when it was looked for."""

    name: str
    available: bool | None = None
    """None where that is not known (yet)."""
    family: str = ""
    version: str = ""
    kind: str = ""
    """Why it is not available, as core.runs has the kinds."""
    why: str = NOT_YET
    hint: str = ""
    unmetered: str = ""
    """Why its spend cannot be counted per request, if it cannot."""
    preferred: bool = False


Found = Callable[[RuntimeInfo], None]


async def runtimes(
    settings: Settings,
    agent_settings: AgentSettings,
    environ: Mapping[str, str],
    root: str,
    found: Found | None = None,
    only: Collection[str] | None = None,
) -> list[RuntimeInfo]:
    """Look at every runtime that is known, or `only` some, and return what was found, in their order.

    `found` is told of each: first that it is not looked at yet, then what came of it.
    """
    from tenuto.runners.registry import names, runner

    def make(name: str) -> Runner:
        return runner(
            name,
            commands=agent_settings.agents,
            programs=settings.programs,
            custom=agent_settings.runners,
            home=root,  # nothing is kept there by looking
        )

    async def look(name: str) -> RuntimeInfo:
        info = await _looked(name, make, environ)
        info = msgspec.structs.replace(info, preferred=name == settings.runtime_preferred)
        if found is not None:
            found(info)
        return info

    known = names(agent_settings.agents, agent_settings.runners)
    if only is not None:
        known = tuple(name for name in known if name in only)
    if found is not None:
        for name in known:
            found(RuntimeInfo(name=name, preferred=name == settings.runtime_preferred))
    return list(await asyncio.gather(*(look(name) for name in known)))


async def _looked(
    name: str, make: Callable[[str], Runner], environ: Mapping[str, str]
) -> RuntimeInfo:
    """Look at one; whatever is wrong with it is what was found."""
    family = ""
    try:
        made = await asyncio.to_thread(make, name)  # it imports what it needs
        family = made.family
        async with asyncio.timeout(PATIENCE_S):
            probe = await made.probe(environ)
    except TimeoutError:
        return RuntimeInfo(
            name=name,
            family=family,
            why=f"it did not answer within {PATIENCE_S:.0f} s",
            hint="look what its program does when it is started by hand",
        )
    except TenutoError as error:
        kind = str(getattr(error, "kind", error.code))
        probe = Probe(available=False, why=error.message, hint=error.hint)
        return _told(name, family, probe, kind)
    except Exception as error:  # a runner of the user's own
        why = f"looking at it failed: {type(error).__name__}: {error}"
        return _told(name, family, Probe(available=False, why=why), "crash")
    return _told(name, family, probe, probe.kind or "")


def _told(name: str, family: str, probe: Probe, kind: str) -> RuntimeInfo:
    return RuntimeInfo(
        name=name,
        available=probe.available,
        family=family,
        version=probe.version,
        kind=kind,
        why=probe.why,
        hint=probe.hint,
        unmetered=probe.unmetered,
    )
