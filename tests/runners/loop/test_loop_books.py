"""Against the shared scripted model: what the loop tells of usage is what a provider would bill."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from fake_api import DIALECTS
from loop_help import Stand, ask, end_of, only

from tenuto.core.budget import Tokens
from tenuto.core.runs import RunEvent, Said, ToolEnded, Used
from tenuto.testing.models import Call, Cut, Fail, Gate, Model, Overflow, Say, Silence, Slow

pytestmark = [pytest.mark.asyncio, pytest.mark.promise("R2")]


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.close()


def _env(model: Model) -> dict[str, str]:
    keys = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"), "k")
    url = model.url
    return keys | {
        "ANTHROPIC_BASE_URL": url,
        "OPENAI_BASE_URL": f"{url}/v1",
        "GOOGLE_GEMINI_BASE_URL": url,
    }


def _sum(events: list[RunEvent]) -> Tokens:
    counted = (
        Tokens(one.input, one.output, one.cache_read, one.cache_write) for one in only(events, Used)
    )
    return sum(counted, Tokens())


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_what_is_told_is_what_was_billed(dialect: type, stand: Stand, model: Model) -> None:
    model.play(
        Say("I look.", Call("read_file", path="a.txt"), Call("list_files"), thinking="Hm."),
        Fail(500),
        Say("Found it.", cache_read=20, cache_write=10),
    )
    session = await stand.open(
        model=dialect.model, endpoint=None, env=_env(model) | {"TENUTO_LOOP_RETRIES": "1"}
    )
    events = await ask(session)
    assert end_of(events).text == "Found it.", end_of(events)
    assert [one.ok for one in only(events, ToolEnded)] == [True, True]
    assert len([one for one in only(events, Said) if not one.thought]) > 2
    assert _sum(events) == model.billed()
    model.play(Overflow(), by="request")
    assert end_of(await ask(session)).kind == "context"


async def test_a_turn_that_is_cut_or_interrupted_has_told_what_it_knew(
    stand: Stand, model: Model
) -> None:
    gate = Gate()
    session = await stand.open(endpoint=None, env=_env(model))
    model.play(Cut(), Slow(gate), "Done.", by="request")
    events = await ask(session)
    assert end_of(events).kind == "network"
    assert _sum(events).input == model.billed().input
    before = model.billed().input
    turn = asyncio.ensure_future(ask(session))
    await model.shown_soon(lambda seen: len(seen.texts) == 2)
    gate.let(2)
    await session.interrupt()
    events = await turn
    assert end_of(events).interrupted
    assert _sum(events).input in (0, model.billed().input - before)
    gate.open()
    assert end_of(await ask(session)).text == "Done."


async def test_a_silent_model_can_be_left(stand: Stand, model: Model) -> None:
    session = await stand.open(endpoint=None, env=_env(model))
    model.play(Silence(), "Here.", by="request")
    turn = asyncio.ensure_future(ask(session))
    await model.shown_soon()
    await session.interrupt()
    assert end_of(await turn).interrupted
    model.release()
    assert end_of(await ask(session)).text == "Here."
