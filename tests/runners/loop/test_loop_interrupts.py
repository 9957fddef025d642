"""An interrupt ends the turn at once, wherever it is, and the session goes on."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_api import HANG, Anthropic, Api, Reply
from loop_help import Stand, ask, end_of, only

from tenuto.core.runs import (
    Finished,
    McpServer,
    PermissionAsked,
    RunEvent,
    Said,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.runners.cli import CliSession

pytestmark = [pytest.mark.asyncio, pytest.mark.promise("R1")]

PROMPTLY_S = 2.0  # the figure itself is the benchmark's
PATIENCE_S = 20.0  # where other work may be in the way, once is no measure
SERVER = Path(__file__).with_name("mcp_server.py")


async def _interrupted(
    session: CliSession, ready: Callable[[RunEvent], Awaitable[bool]]
) -> list[RunEvent]:
    """Interrupt once `ready` says so; return all events, and check how long it took."""
    events: list[RunEvent] = []
    asked = 0.0
    async for event in session.prompt("go"):
        events.append(event)
        if not asked and await ready(event):
            asked = time.monotonic()
            await session.interrupt()
    took = time.monotonic() - asked
    assert end_of(events) == Finished(ok=False, message="interrupted", interrupted=True)
    assert took < PATIENCE_S
    return events


async def _goes_on(session: CliSession, api: Api) -> str:
    api.play(Anthropic.text("Going on."))
    assert end_of(await ask(session, "go on")).text == "Going on."
    return json.dumps(api.requests[0].body)


async def test_before_the_answer_begins(stand: Stand, api: Api) -> None:
    api.play(Reply([HANG]))
    session = await stand.open()

    async def hung(event: RunEvent) -> bool:
        await api.hung.wait()
        return True

    await _interrupted(session, hung)
    await api.gone.wait()
    assert "go on" in await _goes_on(session, api)


async def test_in_the_middle_of_the_answer(stand: Stand, api: Api) -> None:
    pieces = Anthropic.text("Half of it", "never").pieces
    api.play(Reply([*pieces[:3], HANG]))
    session = await stand.open()

    async def said(event: RunEvent) -> bool:
        return isinstance(event, Said)

    events = await _interrupted(session, said)
    assert [one.input for one in only(events, Used)] == [700], "it was paid for"
    await api.gone.wait()
    assert "Half of it" in await _goes_on(session, api)


async def test_while_a_call_is_half_said(stand: Stand, api: Api) -> None:
    pieces = Anthropic.call(("write_file", {"path": "b", "content": "x"})).pieces
    api.play(Reply([*pieces[:3], HANG]))
    session = await stand.open(bypass=True)

    async def hung(event: RunEvent) -> bool:
        await api.hung.wait()
        return True

    events = await _interrupted(session, hung)
    assert not only(events, ToolBegan)
    assert "write_file" not in json.dumps(json.loads(await _goes_on(session, api))["messages"])


async def test_while_it_waits_for_permission(stand: Stand, api: Api) -> None:
    api.play(Anthropic.call(("write_file", {"path": "b", "content": "x"})))
    session = await stand.open()

    async def asked(event: RunEvent) -> bool:
        return isinstance(event, PermissionAsked)

    events = await _interrupted(session, asked)
    assert not only(events, ToolEnded)[0].ok
    await session.answer(only(events, PermissionAsked)[0].id, True)
    assert "there is no result" in await _goes_on(session, api)
    assert not (stand.workspace / "b").exists()


async def test_while_a_search_does_not_come_back(stand: Stand, api: Api) -> None:
    (stand.workspace / "evil.txt").write_text("a" * 64 + "!")
    api.play(Anthropic.call(("search", {"pattern": "(a+)+$"})))
    session = await stand.open()

    async def began(event: RunEvent) -> bool:
        if not isinstance(event, ToolBegan):
            return False
        while not _searches():
            await asyncio.sleep(0)
        return True

    await _interrupted(session, began)
    assert not _searches()
    assert "there is no result" in await _goes_on(session, api)


def _searches() -> list[int]:
    """Return the searches below this process that run."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = [int(one) for one in file.read().split()]
    found: list[int] = []
    for pid in children:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"seeking.py" in words:
            found.append(pid)
    return found


async def test_while_a_tool_of_a_server_runs(stand: Stand, api: Api, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    api.play(Anthropic.call(("test_hang", {"begun": str(begun)})))
    server = McpServer("test", (sys.executable, "-S", str(SERVER)))
    session = await stand.open(bypass=True, mcp=(server,))

    async def began(event: RunEvent) -> bool:
        if not isinstance(event, ToolBegan):
            return False
        await asyncio.to_thread(begun.read_bytes)
        return True

    events = await _interrupted(session, began)
    assert only(events, ToolEnded) == [
        ToolEnded(only(events, ToolBegan)[0].id, False, "interrupted")
    ]
    await _goes_on(session, api)
    api.play(Anthropic.call(("test_say", {"text": "still here"})), Anthropic.text("Good."))
    assert only(await ask(session), ToolEnded)[0].output == "still here"


async def test_with_the_prompt_in_one_breath(stand: Stand, api: Api) -> None:
    """A turn that has not taken its first step yet ends like any other."""
    api.play(Anthropic.text("Too late."))
    session = await stand.open()
    turn = session.prompt("go")
    first = asyncio.ensure_future(anext(turn))
    await asyncio.sleep(0)
    await session.interrupt()
    events = [await first, *[event async for event in turn]]
    assert end_of(events).interrupted
    await _goes_on(session, api)


async def test_two_of_them_are_as_good_as_one(stand: Stand, api: Api) -> None:
    api.play(Reply([HANG]))
    session = await stand.open()

    async def hung(event: RunEvent) -> bool:
        await api.hung.wait()
        await session.interrupt()
        return True

    await _interrupted(session, hung)
    await _goes_on(session, api)


async def test_whoever_stops_listening_interrupts(stand: Stand, api: Api) -> None:
    api.play(Reply([*Anthropic.text("Half").pieces[:3], HANG]))
    session = await stand.open()
    turn = session.prompt("go")
    async for event in turn:
        if isinstance(event, Said):
            break
    await turn.aclose()
    await api.gone.wait()
    await _goes_on(session, api)


async def test_it_takes_no_time(stand: Stand, api: Api) -> None:
    session = await stand.open()
    took: list[float] = []
    for _ in range(5):
        api.play(Reply([*Anthropic.text("Half").pieces[:3], HANG]))
        async for event in session.prompt("go"):
            if isinstance(event, Said):
                asked = time.monotonic()
                await session.interrupt()
            elif isinstance(event, Finished):
                took.append(time.monotonic() - asked)
    assert sorted(took)[2] < PROMPTLY_S, took
