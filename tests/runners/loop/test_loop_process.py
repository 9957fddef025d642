"""The loop as it really runs: a process of its own that keeps its stdout clean and dies whole."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fake_api import HANG, Api, Chat, Reply
from loop_help import ask, end_of, only

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import Endpoint, McpServer, RunRequest, Said, ToolBegan, ToolEnded
from tenuto.runners.cli import CliRunner
from tenuto.testing.nursery import PlainNursery

pytestmark = [pytest.mark.asyncio, pytest.mark.promise("R1")]

SERVER = Path(__file__).with_name("mcp_server.py")
NOISE = """
import builtins, os, sys
known = builtins.__import__
def noisy(name, *args, **kwargs):
    if name.startswith("pydantic_ai"):
        print("noise from a library", flush=True)
        os.write(1, b"noise from below")
    return known(name, *args, **kwargs)
builtins.__import__ = noisy
"""


@pytest_asyncio.fixture
async def nursery() -> AsyncIterator[PlainNursery]:
    nursery = PlainNursery()
    yield nursery
    left = [one.process.pid for one in nursery.children if one.process.returncode is None]
    await nursery.close()
    assert not left


@pytest.fixture
def request_(workspace: Path, api: Api, environ: dict[str, str]) -> RunRequest:
    return RunRequest(
        cwd=str(workspace),
        model=Chat.model,
        endpoint=Endpoint(api.url, "t"),
        env={name: one for name, one in environ.items() if name.startswith("TENUTO_")},
        bypass=True,
    )


async def gone(pid: int) -> None:
    """Return once a process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(fd, ended.set)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(fd)
    os.close(fd)


async def test_its_stdout_is_ours_and_the_workspace_shadows_nothing(
    request_: RunRequest, nursery: PlainNursery, api: Api, workspace: Path, tmp_path: Path
) -> None:
    for name in ("json", "pydantic_ai", "mcp", "tenuto"):
        (workspace / f"{name}.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "sitecustomize.py").write_text(NOISE)
    request_.env["PYTHONPATH"] = str(tmp_path / "noise")
    api.play(
        Chat.call(("list_files", {"glob": "*.txt"})),
        Chat.text("Hello."),
        Reply([*Chat.text("Half", "never").pieces[:1], HANG]),
        Chat.text("Going on."),
    )
    session = await CliRunner().open(request_, nursery)
    events = await ask(session)
    assert [one.output for one in only(events, ToolEnded)] == ["a.txt"]
    assert end_of(events).text == "Hello."
    assert "noise from a library" in await nursery.children[0].last_words()
    async for event in session.prompt("again"):
        if isinstance(event, Said):
            asked = time.monotonic()
            await session.interrupt()
    assert time.monotonic() - asked < 20
    assert end_of(await ask(session)).text == "Going on."
    pid = nursery.children[0].process.pid
    begun = time.monotonic()
    await session.close()
    await session.close()
    assert time.monotonic() - begun < 20
    await gone(pid)
    assert end_of([event async for event in session.prompt("too late")]).kind == "crash"


async def test_killed_in_the_middle_of_a_tool_it_is_taken_up_again(
    request_: RunRequest, nursery: PlainNursery, api: Api, tmp_path: Path
) -> None:
    import msgspec

    fifo = tmp_path / "begun"
    os.mkfifo(fifo)
    server = McpServer("test", (sys.executable, "-S", str(SERVER)))
    request = msgspec.structs.replace(request_, mcp=(server,))
    api.play(Chat.call(("read_file", {"path": "a.txt"}), ("test_hang", {"begun": str(fifo)})))
    session = await CliRunner().open(request, nursery)
    events = []
    server_pid = 0
    async for event in session.prompt("The question."):
        events.append(event)
        if isinstance(event, ToolBegan) and event.name == "test_hang":
            server_pid = int(await asyncio.to_thread(fifo.read_text))
            nursery.children[0].process.kill()
    assert end_of(events).kind == "crash"
    assert "signal 9" in end_of(events).message
    await session.close()
    await gone(server_pid)
    api.play(Chat.text("Going on."))
    request = msgspec.structs.replace(request_, session=session.session)
    again = await CliRunner().open(request, nursery)
    assert end_of(await ask(again, "Are you there?")).text == "Going on."
    sent = api.requests[0].body["messages"]
    assert [one["role"] for one in sent] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert "2\ttwo" in sent[3]["content"]
    assert "there is no result" in sent[4]["content"]
    await again.close()


async def test_what_cannot_be_opened_leaves_no_process(
    request_: RunRequest, nursery: PlainNursery
) -> None:
    import msgspec

    request = msgspec.structs.replace(request_, session="never-seen")
    with pytest.raises(RunnerFailed, match="there is no session never-seen"):
        await CliRunner().open(request, nursery)
    await gone(nursery.children[0].process.pid)


async def test_it_ends_with_its_driver(
    request_: RunRequest, nursery: PlainNursery, api: Api
) -> None:
    """The end of its stdin is its end, in the middle of a turn too."""
    api.play(Reply([HANG]))
    session = await CliRunner().open(request_, nursery)
    turn = asyncio.ensure_future(ask(session))
    await api.hung.wait()
    await nursery.children[0].close_input()
    assert not end_of(await turn).ok
    await gone(nursery.children[0].process.pid)
    await session.close()
