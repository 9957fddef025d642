"""Tools of MCP servers: offered under their server's name, asked for, and failing like any other."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from fake_api import Anthropic, Api, Reply, Request
from loop_help import Stand, ask, end_of, only

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import McpServer, PermissionAsked, ToolEnded

pytestmark = [pytest.mark.asyncio, pytest.mark.promise("R2")]

HERE = Path(__file__).parent


def _server(**env: str) -> McpServer:
    return McpServer("test", (sys.executable, "-S", str(HERE / "mcp_server.py")), env)


async def test_tools_of_servers_are_offered_asked_for_and_used(stand: Stand, api: Api) -> None:
    api.play(
        Anthropic.call(("test_say", {"text": "hello"}), ("test_where", {}), ("test_fail", {})),
        Anthropic.call(("test_flood", {})),
        Anthropic.text("Done."),
    )
    session = await stand.open(mcp=(_server(SET_FOR_IT="yes"),))
    events = await ask(session)
    assert end_of(events).ok
    offered = [one["name"] for one in api.requests[0].body["tools"]]
    assert offered[-6:] == [
        f"test_{one}" for one in ("say", "fail", "hang", "die", "flood", "where")
    ]
    assert len(only(events, PermissionAsked)) == 4
    said, where, failed, flood = only(events, ToolEnded)
    assert (said.ok, said.output) == (True, "hello")
    assert where.output == f"{os.path.realpath(stand.workspace)} yes"
    assert (failed.ok, failed.output) == (False, "it went wrong")
    results = api.requests[1].body["messages"][-1]["content"]
    assert [bool(one.get("is_error")) for one in results] == [False, False, True]
    assert flood.ok
    told = json.dumps(api.requests[2].body["messages"][-1])
    assert "characters left out" in told
    assert len(told) < 250_000


async def test_no_two_tools_have_one_name(stand: Stand, api: Api) -> None:
    api.play(Anthropic.call(("test_say_2", {"text": "the second"})), Anthropic.text("Done."))
    long = McpServer("x" * 80, _server().command)
    events = await ask(await stand.open(mcp=(_server(), _server(), long)))
    assert only(events, ToolEnded)[0].output == "the second"
    names = [one["name"] for one in api.requests[0].body["tools"]]
    assert len(set(names)) == len(names) == 5 + 3 * 6
    assert max(map(len, names)) == 64


async def test_a_refused_tool_is_not_called(stand: Stand, api: Api, tmp_path: Path) -> None:
    api.play(Anthropic.call(("test_die", {})), Anthropic.text("Then not."))
    session = await stand.open(mcp=(_server(),))
    assert end_of(await ask(session, allow=lambda _: False)).ok
    api.play(Anthropic.call(("test_say", {"text": "alive"})), Anthropic.text("Good."))
    assert only(await ask(session), ToolEnded)[0].output == "alive"


async def test_a_server_that_dies_is_told_to_the_model(stand: Stand, api: Api) -> None:
    api.play(
        Anthropic.call(("test_die", {})),
        Anthropic.call(("test_say", {"text": "x"})),
        Anthropic.text("It is gone."),
    )
    events = await ask(await stand.open(mcp=(_server(),), bypass=True))
    assert end_of(events).ok
    first, second = only(events, ToolEnded)
    assert not first.ok
    assert not second.ok
    assert "the MCP server test did not answer" in first.output


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("/does/not/exist",), "No such file"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "could not be used"),
    ],
)
async def test_a_server_that_does_not_start_is_named(
    command: tuple[str, ...], why: str, stand: Stand
) -> None:
    with pytest.raises(RunnerFailed, match=f"the MCP server broken could not be used.*{why}|{why}"):
        await stand.open(mcp=(_server(), McpServer("broken", command)))
    assert stand.nursery.left() == []


async def test_tenuto_itself_runs_the_commands(stand: Stand, api: Api, folder: Path) -> None:
    """A command of the agent becomes an execution of its own."""
    names = {one: os.environ[one] for one in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "PATH")}
    names |= {"TENUTO_KEEPER_LOG": os.environ["TENUTO_KEEPER_LOG"]}
    tenuto = os.path.join(os.path.dirname(sys.executable), "tenuto")
    server = McpServer("tenuto", (tenuto, "mcp"), names)

    def call(request: Request) -> Reply:
        tools = {one["name"]: one["input_schema"] for one in request.body["tools"]}
        assert "tenuto_execute" in tools, sorted(tools)
        code = "print(6 * 7)"
        return Anthropic.call(("tenuto_execute", {"code": code, "language": "python"}))

    api.play(call, Anthropic.text("Done."))
    events = await ask(await stand.open(cwd=str(folder), mcp=(server,)))
    assert end_of(events).ok
    ended = only(events, ToolEnded)[0]
    assert ended.ok, ended.output
    assert "42" in ended.output
