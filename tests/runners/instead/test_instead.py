"""Two ways to one runtime: the second is taken only where the way itself does not work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import Capabilities, ErrorKind, Probe, RunRequest
from tenuto.runners.instead import Instead
from tenuto.runners.registry import runner
from tenuto.testing.nursery import PlainNursery


class Way:
    """A runner that is there or not, and opens or not, as it is told."""

    family = "f"

    def __init__(self, name: str, kind: ErrorKind | None = None, opens: str = "") -> None:
        self.name = name
        self.kind: ErrorKind | None = kind
        self.opens = opens
        self.capabilities = Capabilities(interrupt=name == "first")

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        return Probe(available=self.kind is None, version=self.name, kind=self.kind)

    async def open(self, request: RunRequest, nursery: Any) -> Any:
        if self.opens:
            raise RunnerFailed(f"{self.name} cannot", "", self.opens)
        return self.name


async def gone(first: Way, second: Way) -> tuple[Probe, Any, bool]:
    one = Instead(first, second)
    found = await one.probe({})
    try:
        opened = await one.open(RunRequest(cwd="/"), PlainNursery())
    except RunnerFailed as error:
        opened = error.message
    return found, opened, one.capabilities.interrupt


@pytest.mark.promise("R1")
@pytest.mark.parametrize(
    ("first", "second", "version", "opened", "able"),
    [
        (Way("first"), Way("second"), "first", "first", True),
        (Way("first", "missing"), Way("second"), "second", "second", False),
        (Way("first", "outdated"), Way("second", "auth"), "second", "second", False),
        (Way("first", "auth"), Way("second"), "first", "first", True),
        (Way("first", "missing"), Way("second", "missing"), "first", "first", True),
        (Way("first", opens="protocol"), Way("second"), "first", "second", False),
        (Way("first", opens="auth"), Way("second"), "first", "first cannot", True),
        (Way("first", opens="protocol"), Way("second", opens="crash"), "first", "second cannot", False),
    ],
)  # fmt: skip
def test_the_way_that_works_is_gone(
    first: Way, second: Way, version: str, opened: str, able: bool
) -> None:
    found, session, interrupts = asyncio.run(gone(first, second))
    assert (found.version, session, interrupts) == (version, opened, able)


@pytest.mark.promise("R1")
@pytest.mark.parametrize("name", ["open-code", "codex"])
def test_the_known_agents_have_a_second_way(name: str) -> None:
    made = runner(name, home="")
    assert isinstance(made, Instead)
    assert made.name == name
