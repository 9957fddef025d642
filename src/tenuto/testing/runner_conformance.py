"""What every runner must do, as functions that raise AssertionError. See tests/runners/loop.

A test describes with a `Stage` how its runner is brought to answer, fail, hang and ask. What a runner
does not declare in its capabilities is not asked of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from tenuto.core.ports import AgentSession, Nursery, Runner
from tenuto.core.runs import (
    Finished,
    PermissionAsked,
    RunEvent,
    RunRequest,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)


async def _nothing() -> None:
    return


def _prepared(which: str) -> None:
    del which


@dataclass(frozen=True)
class Stage:
    """What a test arranges so that its runner can be put through the suite."""

    make: Callable[[], Runner]
    nursery: Nursery
    request: RunRequest
    environ: dict[str, str]
    """What the runner is probed with."""
    plain: str = "plain"
    """A prompt that is answered with a text."""
    failing: str = ""
    """A prompt whose turn fails."""
    endless: str = ""
    """A prompt whose turn does not end by itself."""
    asking: str = ""
    """A prompt in whose turn one tool asks for permission, then ends well whatever the answer."""
    prepare: Callable[[str], None] = _prepared
    """Called before each prompt with the name of the field above: lay out the model's script."""
    begun: Callable[[], Awaitable[None]] = _nothing
    """Returns once the endless turn is at what it will not come back from."""
    left: Callable[[], list[str]] = list
    """Names what is left of it: processes, most of all."""
    patience: float = 30.0
    """After so many seconds a test gives up on what should have come."""


async def _ask(stage: Stage, session: AgentSession, which: str) -> list[RunEvent]:
    """Return all events of one prompt; the suite's first rule is checked on every turn."""
    stage.prepare(which)
    text: str = getattr(stage, which)
    async with asyncio.timeout(stage.patience):
        return checked([event async for event in session.prompt(text)])


def checked(events: list[RunEvent]) -> list[RunEvent]:
    """Return the events of a turn that is well formed."""
    assert events, "a turn has events"
    ends = [event for event in events if isinstance(event, Finished)]
    assert len(ends) == 1, f"Finished comes once, not {len(ends)} times"
    assert events[-1] is ends[0], "Finished comes last"
    begun = [event.id for event in events if isinstance(event, ToolBegan)]
    ended = [event.id for event in events if isinstance(event, ToolEnded)]
    assert len(set(begun)) == len(begun), "each use of a tool has its own id"
    assert set(ended) <= set(begun), "only what began can end"
    assert not any(isinstance(one, Used) and min(one.input, one.output) < 0 for one in events)
    end = ends[0]
    assert not (end.ok and (end.kind or end.interrupted)), f"ok or not: {end}"
    assert end.ok or end.interrupted or (end.kind and end.message), f"no reason: {end}"
    return events


async def _over(stage: Stage, session: AgentSession) -> None:
    await session.close()
    await session.close()
    assert stage.left() == [], "something is left after close"


async def it_says_what_it_is(stage: Stage) -> None:
    """A runner has a name, a family, and is available where its test says that it is."""
    runner = stage.make()
    assert runner.name
    assert runner.family
    found = await runner.probe(stage.environ)
    assert found.available, found
    assert found.kind is None
    assert found.version


async def turns_end_with_their_one_finished(stage: Stage) -> None:
    """Two prompts one after the other are answered; the first turn tells the session's id."""
    session = await stage.make().open(stage.request, stage.nursery)
    first = await _ask(stage, session, "plain")
    opened = [event for event in first if isinstance(event, SessionOpened)]
    assert len(opened) == 1
    assert opened[0].session == session.session
    end = first[-1]
    assert isinstance(end, Finished)
    assert end.ok, end
    assert end.text
    said = "".join(one.text for one in first if isinstance(one, Said) and not one.thought)
    assert end.text in said, "what it answers was said"
    second = await _ask(stage, session, "plain")
    assert isinstance(second[-1], Finished)
    assert second[-1].ok
    assert not any(isinstance(event, SessionOpened) for event in second)
    await _over(stage, session)


async def failures_say_why(stage: Stage) -> None:
    """A turn that fails is no success, and has a kind and a message; the next one may work."""
    if not stage.failing:
        return
    session = await stage.make().open(stage.request, stage.nursery)
    end = (await _ask(stage, session, "failing"))[-1]
    assert isinstance(end, Finished)
    assert not end.ok
    assert end.kind
    assert end.message
    again = (await _ask(stage, session, "plain"))[-1]
    assert isinstance(again, Finished)
    assert again.ok, again
    await _over(stage, session)


async def an_interrupt_ends_the_turn_alone(stage: Stage) -> None:
    """An interrupted turn has its Finished; the session goes on. Without a turn it is nothing."""
    if not (stage.make().capabilities.interrupt and stage.endless):
        return
    session = await stage.make().open(stage.request, stage.nursery)
    await session.interrupt()
    turn = asyncio.create_task(_ask(stage, session, "endless"))
    async with asyncio.timeout(stage.patience):
        await stage.begun()
    await asyncio.sleep(0)
    await session.interrupt()
    end = (await turn)[-1]
    assert isinstance(end, Finished)
    assert end.interrupted, end
    assert not end.ok
    await session.interrupt()
    again = (await _ask(stage, session, "plain"))[-1]
    assert isinstance(again, Finished)
    assert again.ok, again
    await _over(stage, session)


async def a_session_is_taken_up(stage: Stage) -> None:
    """Its id opens the same session again, after it was closed."""
    if not stage.make().capabilities.resume:
        return
    session = await stage.make().open(stage.request, stage.nursery)
    await _ask(stage, session, "plain")
    known = session.session
    assert known
    await _over(stage, session)
    request = msgspec.structs.replace(stage.request, session=known, new_session="")
    again = await stage.make().open(request, stage.nursery)
    end = (await _ask(stage, again, "plain"))[-1]
    assert isinstance(end, Finished)
    assert end.ok, end
    assert again.session == known
    await _over(stage, again)


async def permissions_are_asked_and_waited_for(stage: Stage) -> None:
    """A tool that asks is used only if it is allowed; the turn goes on either way."""
    if not (stage.make().capabilities.permissions and stage.asking):
        return
    session = await stage.make().open(stage.request, stage.nursery)
    for allow in (True, False):
        stage.prepare("asking")
        events: list[RunEvent] = []
        async with asyncio.timeout(stage.patience):
            async for event in session.prompt(stage.asking):
                events.append(event)
                if isinstance(event, PermissionAsked):
                    await session.answer("nobody asked this", not allow)
                    await session.answer(event.id, allow, "because the test says so")
        checked(events)
        asked = [event for event in events if isinstance(event, PermissionAsked)]
        assert len(asked) == 1
        assert asked[0].tool
        after = events[events.index(asked[0]) :]
        outcomes = [event.ok for event in after if isinstance(event, ToolEnded)]
        assert all(one == allow for one in outcomes), outcomes
        assert outcomes or not allow, "an allowed tool comes back"
        end = events[-1]
        assert isinstance(end, Finished)
        assert end.ok, end
    await _over(stage, session)


async def closing_ends_a_running_turn(stage: Stage) -> None:
    """Closing in the middle leaves nothing, and whoever listens gets a last word."""
    if not stage.endless:
        return
    session = await stage.make().open(stage.request, stage.nursery)
    turn = asyncio.create_task(_ask(stage, session, "endless"))
    async with asyncio.timeout(stage.patience):
        await stage.begun()
    await asyncio.sleep(0)
    await _over(stage, session)
    end = (await turn)[-1]
    assert isinstance(end, Finished)
    assert not end.ok


RUNNER_SUITE = (
    it_says_what_it_is,
    turns_end_with_their_one_finished,
    failures_say_why,
    an_interrupt_ends_the_turn_alone,
    a_session_is_taken_up,
    permissions_are_asked_and_waited_for,
    closing_ends_a_running_turn,
)
"""Each takes a Stage of its own."""
