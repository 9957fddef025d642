"""Sessions with a program that does what the real one does not do on demand."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from agent_help import Place, heard, last, only, said

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import Finished, RunEvent, RunRequest, SessionOpened
from tenuto.runners.claude import ClaudeRunner, ClaudeSession
from tenuto.runners.oneshot import OneShotSession

pytestmark = pytest.mark.asyncio


class Fake:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.path = place.base / "claude"
        fake = Path(__file__).parent / "fake_claude.py"
        self.path.write_text(f'#!/bin/sh\nexec {sys.executable} {fake} "$@"\n')
        self.path.chmod(stat.S_IRWXU)

    @asynccontextmanager
    async def open(self, behaviour: str = "", within: float = 30.0) -> AsyncIterator:
        runner = ClaudeRunner(str(self.path), start_within=within)
        request = RunRequest(cwd=str(self.place.project), env={"FAKE_CLAUDE": behaviour})
        session = await runner.open(request, self.place.nursery)
        try:
            yield session
        finally:
            await session.close()


@pytest.fixture
def fake(place: Place) -> Fake:
    return Fake(place)


async def test_lines_that_are_no_messages_are_skipped(fake: Fake):
    async with fake.open() as session:
        events = await heard(session, "garbage")
    assert [type(one) for one in events] == [SessionOpened, Finished]
    assert last(events) == Finished(ok=True, text="GARBAGE")


async def test_a_crash_says_the_last_words(fake: Fake):
    async with fake.open() as session:
        end = last(await heard(session, "crash"))
    assert (end.ok, end.kind) == (False, "crash")
    assert "exit code 3" in end.message and "out of cheese" in end.message


async def test_the_result_of_another_turn_is_not_taken_for_ours(fake: Fake):
    async with fake.open() as session:
        assert last(await heard(session, "foreign")).text == "FOREIGN"


async def test_a_prompt_that_waits_is_taken_back(fake: Fake):
    async with fake.open() as session:

        async def react(event: RunEvent) -> None:
            if isinstance(event, SessionOpened):
                await session.interrupt()

        assert last(await heard(session, "silent", react)).interrupted
        assert last(await heard(session, "more")).text == "MORE"


async def test_what_we_cannot_answer_is_refused_and_does_not_hang(fake: Fake):
    async with fake.open() as session:
        told = json.loads(last(await heard(session, "hook")).text)
    assert (told["subtype"], told["request_id"]) == ("error", "h")


async def test_a_second_prompt_at_once_is_an_error(fake: Fake):
    async with fake.open() as session:
        first = session.prompt("silent")
        await anext(first)
        with pytest.raises(RunnerFailed, match="has a prompt already"):
            await heard(session, "more")
        await first.aclose()


async def test_without_the_protocol_each_prompt_has_a_process(fake: Fake):
    async with fake.open("old") as session:
        assert isinstance(session, OneShotSession)
        assert last(await heard(session, "one")).text == "ONE"
        assert session.session == "s"
        assert last(await heard(session, "two")).text == "TWO"
        end = last(await heard(session, "crash"))
        assert end.kind == "crash" and "out of cheese" in end.message
    assert len(fake.place.nursery.children) == 4


async def test_a_program_that_never_answers_is_given_up_and_ended(fake: Fake):
    with pytest.raises(RunnerFailed, match="did not answer within 1 s") as caught:
        async with fake.open("mute", within=1.0):
            pass
    assert caught.value.kind == "protocol"


async def test_a_program_that_ends_at_once_says_why(fake: Fake):
    with pytest.raises(RunnerFailed, match="no good today"):
        async with fake.open("dies"):
            pass


async def test_a_program_that_does_not_go_is_killed(fake: Fake):
    async with fake.open("stays") as session:
        assert isinstance(session, ClaudeSession)
        assert last(await heard(session, "hi")).ok
        await session.close()
        assert fake.place.nursery.children[0].process.returncode == -9
        await session.close()
        await session.interrupt()
        assert last(await heard(session, "hi")).kind is None  # closed, not crashed


async def test_a_listener_that_is_cancelled_stops_its_turn(fake: Fake):
    async with fake.open() as session:
        listening = asyncio.ensure_future(heard(session, "silent"))
        while not session.session:
            await asyncio.sleep(0)
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening
        after = await heard(session, "more")
    assert last(after).text == "MORE" and said(after) == "" and len(only(after, Finished)) == 1


async def test_a_program_that_is_not_there_is_missing(place: Place):
    request = RunRequest(cwd=str(place.project))
    with pytest.raises(RunnerFailed, match="there is no program") as caught:
        await ClaudeRunner(str(place.base / "none")).open(request, place.nursery)
    assert caught.value.kind == "missing" and not os.path.exists(place.base / "none")
