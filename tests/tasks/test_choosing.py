"""Which runtime is taken: named, preferred, or the first that works; and who stands in for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import Capabilities, Probe
from tenuto.engine.driving.choosing import Chooser
from tenuto.testing.agents import EchoRunner


class Kind(EchoRunner):
    """There or not, as it is told; it calls itself something else than its users do."""

    def __init__(self, found: Probe, family: str) -> None:
        super().__init__("called-otherwise", family)
        self.found = found
        self.looked = 0

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        self.looked += 1
        return self.found


HERE = Probe(available=True, version="1")
GONE = Probe(available=False, kind="missing", why="not installed", hint="install it")
REFUSED = Probe(available=False, kind="auth", why="not logged in", hint="log in")


def chooser(preferred: str | None, kinds: dict[str, tuple[Probe, str]]) -> Chooser:
    made = {name: Kind(found, family) for name, (found, family) in kinds.items()}
    return Chooser(lambda name: made[name], list(kinds), preferred, {})


@pytest.mark.promise("R3")
def test_the_first_that_works_is_taken_unless_another_is_preferred_or_named() -> None:
    async def names() -> list[str]:
        kinds = {"a": (GONE, "x"), "b": (HERE, "y"), "c": (HERE, "z")}
        found = [await chooser(None, kinds).choose(None), await chooser("c", kinds).choose(None)]
        found += [await chooser("a", kinds).choose(None), await chooser(None, kinds).choose("c")]
        assert "a: not installed" in found[0].reason
        return [one.name for one in found]

    assert asyncio.run(names()) == ["b", "c", "b", "c"]


@pytest.mark.promise("R3", "R2")
def test_who_can_ask_nobody_is_taken_only_where_all_is_allowed() -> None:
    class Mute(Kind):
        capabilities = Capabilities(unasking=True)

    made = {"mute": Mute(HERE, "f"), "asks": Kind(HERE, "f")}

    async def walk() -> None:
        free = Chooser(lambda name: made[name], list(made), None, {})
        assert (await free.choose(None)).name == (await free.choose("mute")).name == "mute"
        held = Chooser(lambda name: made[name], list(made), None, {}, asks=True)
        found = await held.choose(None)
        assert found.name == "asks" and "mute can ask nobody" in found.reason
        with pytest.raises(RunnerFailed, match="mute can ask nobody") as refused:
            await held.choose("mute")  # it was named: nobody else is taken in its place
        assert refused.value.kind == "permission" and "--permissions allow" in refused.value.hint

    asyncio.run(walk())


@pytest.mark.promise("R3")
def test_a_family_stands_in_once_for_each_by_the_names_users_know() -> None:
    async def walk() -> None:
        one = chooser(None, {"a": (HERE, "f"), "b": (HERE, "f"), "c": (HERE, "g")})
        tried = {"a"}
        other = await one.substitute("a", tried)
        assert other is not None and other.name == "b"
        tried.add(other.name)
        assert await one.substitute("b", tried) is None

    asyncio.run(walk())


@pytest.mark.promise("R3")
def test_one_that_is_named_and_missing_has_a_substitute_and_one_that_refuses_has_none() -> None:
    async def walk() -> None:
        taken = await chooser(None, {"a": (GONE, "f"), "b": (HERE, "f")}).choose("a")
        assert taken.name == "b" and "a was named" in taken.reason
        with pytest.raises(RunnerFailed, match="not logged in") as refused:
            await chooser(None, {"a": (REFUSED, "f"), "b": (HERE, "f")}).choose("a")
        assert (refused.value.kind, refused.value.hint) == ("auth", "log in")
        with pytest.raises(RunnerFailed, match="no runtime works here") as none:
            await chooser(None, {"a": (GONE, "f"), "b": (REFUSED, "g")}).choose(None)
        each = "a: not installed (install it); b: not logged in (log in)"
        assert none.value.message.endswith(each), "each with its own way out"
        assert "tenuto doctor" in none.value.hint

    asyncio.run(walk())
