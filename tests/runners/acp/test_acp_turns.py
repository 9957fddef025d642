"""What a turn with an ACP agent tells: against an agent that does as the prompt says."""

from __future__ import annotations

import json
import sys
from decimal import Decimal

import pytest
from acp_help import Agents, end, text_of, told

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import (
    Finished,
    McpServer,
    PermissionAsked,
    RunEvent,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.runners.acp_session import AcpSession

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.promise("R1")
async def test_text_and_thoughts_come_in_order_and_the_end_once(agents: Agents) -> None:
    session = await agents.open()
    events = await told(session, "say hello")
    opened = events[0]
    assert opened == SessionOpened(session.session, "", "1.2.3")
    assert events[1:] == [
        Said("let me think", thought=True),
        Said("Hello"),
        Said(", "),
        Said("wörld"),
        Finished(True, "Hello, wörld"),
    ]
    again = await told(session, "and hello")
    assert not isinstance(again[0], SessionOpened)
    # it is offered neither our files nor our terminals
    client = json.loads((agents.home / "client.json").read_text())
    assert client["terminal"] is False
    assert client["fs"]["read_text_file"] is False
    assert client["fs"]["write_text_file"] is False
    await session.close()
    await session.close()


async def test_tools_are_told_once_they_are_under_way_and_the_answer_is_what_follows(
    shared: AcpSession,
) -> None:
    session = shared
    events = await told(session, "use a tool")
    assert events[1:] == [
        Said("I look."),
        ToolBegan("t1", "grep", {"pattern": "x"}),
        ToolEnded("t1", True, "found x"),
        ToolBegan("t2", "execute", {"title": "run it now"}),
        ToolEnded("t2", False, "no such file"),
        Said("That was it."),
        Finished(True, "That was it."),
    ]


@pytest.mark.parametrize(
    ("options", "allowed", "refused"),
    [
        ("allow_once,allow_always,reject_once", "the-allow_once", "the-reject_once"),
        ("allow_always", "the-allow_always", "cancelled"),
    ],
)
async def test_a_permission_is_answered_with_the_least_that_fits(
    agents: Agents, options: str, allowed: str, refused: str
) -> None:
    session = await agents.open(options=options)
    for allow, chosen in ((True, allowed), (False, refused)):

        async def answer(event: RunEvent, allow: bool = allow) -> None:
            if isinstance(event, PermissionAsked):
                assert (event.tool, event.input) == ("delete", {"path": "x"})
                assert event.detail.startswith("rm -r x")
                assert ("rest of the session" in event.detail) == ("allow_once" not in options)
                await session.answer("another", True)  # of no question: nothing comes of it
                await session.answer(event.id, allow, "because")
                await session.answer(event.id, not allow)  # too late

        events = await told(session, "please ask", answer)
        assert any(isinstance(one, PermissionAsked) for one in events)
        assert end(events) == Finished(True, f"got {chosen}")
    await session.close()


async def test_an_agent_that_is_refused_and_says_no_more_did_not_succeed(
    shared: AcpSession,
) -> None:
    session = shared

    async def refuse(event: RunEvent) -> None:
        if isinstance(event, PermissionAsked):
            await session.answer(event.id, False)

    last = end(await told(session, "try and sulk", refuse))
    assert (last.ok, last.kind, last.text) == (False, "permission", "I try.")


@pytest.mark.promise("R1")
async def test_an_interrupted_turn_ends_and_the_session_goes_on(shared: AcpSession) -> None:
    session = shared
    await session.interrupt()  # no turn: nothing comes of it

    async def interrupt(event: RunEvent) -> None:
        if isinstance(event, Said):
            await session.interrupt()

    last = end(await told(session, "now wait", interrupt))
    assert (last.ok, last.interrupted, last.kind, last.text) == (False, True, None, "waiting")
    assert end(await told(session, "say hello")).ok


async def test_an_interrupt_answers_what_is_still_asked(shared: AcpSession) -> None:
    session = shared

    async def interrupt(event: RunEvent) -> None:
        if isinstance(event, PermissionAsked):
            await session.interrupt()
            await session.answer(event.id, True)  # too late

    last = end(await told(session, "please ask", interrupt))
    assert last.interrupted
    assert last.text == "got cancelled"


async def test_who_stops_listening_stops_the_agent(shared: AcpSession) -> None:
    session = shared
    listening = session.prompt("now wait")
    async for event in listening:
        if isinstance(event, Said):
            break
    await listening.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    assert text_of(await told(session, "say hello")) == "Hello, wörld"


@pytest.mark.promise("R1")
@pytest.mark.parametrize("able", ["load", "late", "resume"])
async def test_a_session_is_taken_up_in_a_new_process_and_its_history_is_not_told_again(
    agents: Agents, able: str
) -> None:
    first = await agents.open(able)
    for number in range(5):
        await told(first, f"{number} echo")
    # the total tells that what came from the cache is in the input
    tokens = (200, 50, 800)
    used = [one for one in await told(first, "the usage") if isinstance(one, Used)]
    assert used == [Used("", *tokens, cost=Decimal("0.75"))]
    await first.close()
    second = await agents.open(able, session=first.session)
    assert second.session == first.session
    events = await told(second, "of history")
    assert [type(one) for one in events] == [SessionOpened, Said, Finished]
    asked = [*(f"{number} echo" for number in range(5)), "the usage", "of history"]
    assert json.loads(end(events).text) == asked
    # what the session had cost before, 0.50 by then, is not counted again
    used = [one for one in await told(second, "the usage") if isinstance(one, Used)]
    assert used == [Used("", *tokens, cost=None if able == "resume" else Decimal("0.25"))]
    await second.close()


async def test_a_session_that_is_not_there_cannot_be_taken_up(agents: Agents) -> None:
    with pytest.raises(RunnerFailed, match=r"scripted refused session/load.*nowhere") as failed:
        await agents.open(session="nowhere")
    assert failed.value.kind == "session"
    with pytest.raises(RunnerFailed, match="cannot take up a session"):
        await agents.open("nothing", session="nowhere")


async def test_servers_and_the_system_prompt_are_handed_on_and_with_bypass_nobody_is_asked(
    agents: Agents,
) -> None:
    server = McpServer("tenuto", (sys.executable, "-m", "tenuto", "mcp"), {"A": "1"})
    session = await agents.open(mcp=(server,), system="You are a reviewer.", bypass=True)
    # this agent takes no system prompt, so it opens the first one
    assert end(await told(session, "one echo")).text == "You are a reviewer.\n\none echo"
    assert end(await told(session, "two echo")).text == "two echo"
    (given,) = json.loads(end(await told(session, "your servers")).text)
    assert (given["name"], given["command"]) == ("tenuto", sys.executable)
    assert given["args"] == ["-m", "tenuto", "mcp"]
    handed = {one["name"]: one["value"] for one in given["env"]}
    handed.pop("TENUTO_EXECUTION", "")  # whose child its executions are, for agents that filter it
    assert handed == {"A": "1"}
    events = await told(session, "please ask")
    assert not any(isinstance(one, PermissionAsked) for one in events)
    assert end(events).text == "got the-allow_once"
    await session.close()


async def test_a_line_of_20_mb_is_one_event(shared: AcpSession) -> None:
    session = shared
    assert len(end(await told(session, "be large")).text) == 20_000_000
