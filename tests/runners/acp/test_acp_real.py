"""Real agents over ACP: Codex on every push, OpenCode and Gemini in the slow lane."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest
from acp_help import end, text_of, told
from front_help import TOKEN, Front
from real_help import Real, real_codex, real_gemini, real_open_code

from tenuto.core.budget import Tokens
from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import (
    McpServer,
    PermissionAsked,
    RunEvent,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.testing.models import Say
from tenuto.testing.nursery import PlainNursery

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

AGENTS = [
    "codex",
    pytest.param("gemini", marks=pytest.mark.full),
    pytest.param("open-code", marks=pytest.mark.full),
]
ACKNOWLEDGED = {"codex": 0.1, "gemini": 0.1, "open-code": 1.5}
"""How soon an interrupt is answered, on a machine that has nothing else to do."""


@pytest.fixture(params=AGENTS)
def agent(request, tmp_path: Path, nursery: PlainNursery):
    front = Front()
    name = request.param
    if name == "codex":
        made = real_codex(request.getfixturevalue("agents_installed"), tmp_path / "home")
    elif name == "gemini":
        made = real_gemini(request.getfixturevalue("clients_installed"), tmp_path / "home")
    else:
        model = name.partition(" ")[2] or "some-model"
        made = real_open_code(request.getfixturevalue("clients_installed"), model)
    made.at(tmp_path, front, nursery)
    yield made
    front.close()
    made.gone()


def answering(session, allow: bool):
    async def answer(event: RunEvent) -> None:
        if isinstance(event, PermissionAsked):
            await session.answer(event.id, allow)

    return answer


@pytest.mark.promise("R1")
@pytest.mark.parametrize(
    "agent",
    [
        *AGENTS,
        pytest.param("open-code anthropic/claude-some", marks=pytest.mark.full),
        pytest.param("open-code google/gemini-some", marks=pytest.mark.full),
    ],
    indirect=True,
)
async def test_text_tools_interrupt_and_a_new_process(agent: Real) -> None:
    front = agent.front
    hello = Say("Hello there.", usage=Tokens(input=1000, output=50))
    front.play(hello, agent.shell("echo ran > made.txt; echo shown"), "Done with it.")
    session = await agent.open()
    events = await told(session, "say hello")
    assert isinstance(events[0], SessionOpened)
    assert events[0].version
    assert (text_of(events), end(events).ok) == ("Hello there.", True)
    (used,) = [one for one in events if isinstance(one, Used)]
    assert (used.input, used.output) == (1000, 50)

    events = await told(session, "use the tool", answering(session, True))
    kinds = [type(one) for one in events]
    assert kinds.index(ToolBegan) < kinds.index(ToolEnded)
    assert (PermissionAsked in kinds) == agent.asks
    (began,) = [one for one in events if isinstance(one, ToolBegan)]
    assert "echo ran" in json.dumps(began.input)
    assert [one.ok for one in events if isinstance(one, ToolEnded)] == [True]
    assert end(events).text == "Done with it."
    assert (agent.work / "made.txt").read_text() == "ran\n"
    assert front.tokens == {TOKEN}

    front.asked.clear()
    front.hold()
    asked: list[float] = []

    async def interrupt() -> None:
        await asyncio.to_thread(front.until_asked)
        asked.append(time.monotonic())
        await session.interrupt()

    interrupting = asyncio.create_task(interrupt())
    last = end(await told(session, "think long"))
    took = time.monotonic() - asked[0]
    await interrupting
    front.let_go()
    assert (last.ok, last.interrupted, last.kind) == (False, True, None)
    assert took < 20 * ACKNOWLEDGED[agent.name]  # the machine is shared; the figure is recorded
    await session.close()

    again = await agent.open(session=session.session)
    front.play(*["Not these."] * 3, "Here I am.", "Here I am.", "Here I am.")
    events = await told(again, "are you there")
    assert (text_of(events), end(events).ok) == ("Here I am.", True)
    shown = json.dumps(front.asked[-1][1])
    assert "say hello" in shown
    assert "Done with it." in shown
    await again.close()


@pytest.mark.promise("R1")
async def test_errors_of_the_model_are_no_answers(agent: Real) -> None:
    session = await agent.open()
    agent.front.refuse(400, "Tenuto budget: 2.00 of 2.00 USD are spent")
    last = end(await told(session, "spend more"))
    assert (last.ok, last.kind) == (False, "budget")
    assert "2.00 of 2.00 USD" in last.message
    agent.front.refuse(401, "invalid api key", "authentication_error")
    last = end(await told(session, "try again"))
    assert (last.ok, last.kind) == (False, "auth")
    assert "gateway" in last.message
    agent.front.refusal = None
    agent.front.play(*["All is well."] * 4)
    last = end(await told(session, "and now"))
    assert (last.ok, last.text) == (True, "All is well.")
    await session.close()


@pytest.mark.promise("R1")
async def test_a_refused_command_does_not_run(agent: Real) -> None:
    command = agent.shell("echo ran > made.txt")
    if agent.name == "codex":  # in the workspace it asks nobody: it is held by a sandbox
        command.arguments |= {
            "sandbox_permissions": "require_escalated",
            "justification": "to see whether you let me",
        }
    agent.front.play(command, "Then not.")
    session = await agent.open()
    events = await told(session, "do it", answering(session, False))
    assert sum(isinstance(one, PermissionAsked) for one in events) == 1
    assert not (agent.work / "made.txt").exists()
    assert not end(events).ok or end(events).text == "Then not."
    await session.close()


async def test_with_bypass_a_command_just_runs(agent: Real) -> None:
    outside = agent.base / "outside.txt"
    agent.front.play(agent.shell(f"echo ran > {outside}"), "Done.")
    session = await agent.open(bypass=True)
    events = await told(session, "do it")
    assert not any(isinstance(one, PermissionAsked) for one in events)
    assert outside.read_text() == "ran\n"
    assert end(events).text == "Done."
    await session.close()


async def test_a_tool_that_runs_goes_with_the_session(agent: Real) -> None:
    agent.front.play(agent.shell("touch began; exec sleep 600"), "Never.")
    session = await agent.open(bypass=True)

    async def interrupt() -> None:
        while not (agent.work / "began").exists():
            await asyncio.sleep(0.02)
        await session.interrupt()

    interrupting = asyncio.create_task(interrupt())
    last = end(await told(session, "do it"))
    await interrupting
    assert (last.ok, last.interrupted) == (False, True)
    await session.close()
    agent.gone()


async def test_it_is_handed_mcp_servers(agent: Real) -> None:
    script = str(Path(__file__).with_name("mcp_server.py"))
    server = McpServer("small", (sys.executable, script), {"MARKS": str(agent.base)})
    agent.front.play("Hello.")
    session = await agent.open(mcp=(server,))
    assert end(await told(session, "say hello")).ok
    assert (agent.base / "listed").exists()
    await session.close()


async def test_a_session_that_is_not_there(agent: Real) -> None:
    with pytest.raises(RunnerFailed) as failed:
        await agent.open(session="01a1e332-01ee-7fb0-a804-824e50e1c5e3")
    assert failed.value.kind == "session"


@pytest.mark.parametrize("agent", ["codex"], indirect=True)
async def test_codex_takes_a_system_prompt_and_keeps_it(agent: Real) -> None:
    agent.front.play(*["Aye."] * 3)
    session = await agent.open(system="You speak like a pirate.")
    await told(session, "say hello")
    await session.close()
    again = await agent.open(session=session.session)
    await told(again, "once more")
    await again.close()
    for _, given in agent.front.asked:
        assert "like a pirate" in json.dumps(given)
