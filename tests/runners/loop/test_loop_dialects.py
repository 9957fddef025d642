"""Every protocol: text piece by piece, tools, usage as it was reported, the gateway's paths."""

from __future__ import annotations

from typing import Any

import pytest
from fake_api import DIALECTS, Anthropic, Api, Chat, Reply, Request
from loop_help import Stand, ask, end_of, only

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import (
    Finished,
    PermissionAsked,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.promise("R1", "R2")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_turn_streams_uses_tools_and_counts_exactly(
    dialect: Any, stand: Stand, api: Api
) -> None:
    api.play(
        dialect.call(("read_file", {"path": "a.txt", "start": 2, "lines": 1})),
        dialect.call(("edit_file", {"path": "a.txt", "old": "two", "new": "zwei"})),
        dialect.text("All ", "is ", "done."),
    )
    session = await stand.open(model=dialect.model, system="Be brief.")
    events = await ask(session)
    assert end_of(events) == Finished(ok=True, text="All is done.")
    assert [one.text for one in only(events, Said)] == ["All ", "is ", "done."]
    assert isinstance(events[0], SessionOpened)
    assert events[0].model == dialect.model
    began, ended = only(events, ToolBegan), only(events, ToolEnded)
    assert [one.name for one in began] == ["read_file", "edit_file"]
    assert began[0].input == {"path": "a.txt", "start": 2, "lines": 1}
    assert [one.id for one in ended] == [one.id for one in began]
    assert all(one.ok for one in ended)
    assert "2\ttwo" in ended[0].output
    assert (stand.workspace / "a.txt").read_text() == "one\nzwei\nthree\n"
    assert [one.tool for one in only(events, PermissionAsked)] == ["edit_file"]
    used = only(events, Used)
    assert len(used) == len(api.requests) == 3
    for one in used:
        assert (one.input, one.output) == (700, 50)
        assert (one.cache_read, one.cache_write) == (200, dialect.cache_write)
        assert one.model in dialect.model
    for request in api.requests:
        assert request.path.split("?")[0] == dialect.path
        assert dialect.key(request) == "the-token"
        assert "Be brief." in str(request.body)
        bounds = [one for name, one in request.headers.items() if "timeout" in name]
        assert not any(one[0].isdigit() for one in bounds), "a gateway may hold it for long"
    assert "zwei" not in str(api.requests[1].body)
    assert "2\\ttwo" in str(api.requests[1].body)


@pytest.mark.promise("R2")
async def test_thoughts_are_marked_and_every_request_is_on_the_tape(stand: Stand, api: Api) -> None:
    api.play(
        Anthropic.call(("read_file", {"path": "a.txt"})),
        Anthropic.text("Done.", thought="let me see"),
    )
    events = await ask(await stand.open())
    assert only(events, Said) == [Said("let me see", thought=True), Said("Done.")]
    items = stand.nursery.children[0].told("items")
    assert [[one["kind"] for one in line["items"]] for line in items] == [
        ["request", "response"],
        ["request", "response"],
    ]
    assert items[0]["items"][0]["parts"][0]["content"] == "go"
    assert items[1]["items"][0]["parts"][0]["part_kind"] == "tool-return"
    assert items[0]["usage"]["input_tokens"] == 1000
    assert items[0]["model"] == "claude-sonnet-5-5"


async def test_one_answer_may_use_several_tools(stand: Stand, api: Api) -> None:
    read = ("read_file", {"path": "a.txt"})
    api.play(Anthropic.call(read, ("list_files", {}), ("search", {"pattern": "^t"})), Chat.text())
    api.replies[1] = Anthropic.text("Done.")
    events = await ask(await stand.open())
    outputs = [one.output for one in only(events, ToolEnded)]
    assert outputs[1:] == ["a.txt", "a.txt:2: two\na.txt:3: three"]
    results = api.requests[1].body["messages"][-1]["content"]
    assert [one["type"] for one in results] == ["tool_result"] * 3


@pytest.mark.promise("R2")
async def test_refused_tools_are_not_used_and_the_turn_goes_on(stand: Stand, api: Api) -> None:
    write = ("write_file", {"path": "new.txt", "content": "x"})
    api.play(Anthropic.call(write), Anthropic.text("Then not."))
    events = await ask(await stand.open(), allow=lambda asked: asked.tool != "write_file")
    asked = only(events, PermissionAsked)[0]
    assert (asked.input, asked.detail) == (write[1], "new.txt")
    assert not only(events, ToolEnded)[0].ok
    assert end_of(events).ok
    assert not (stand.workspace / "new.txt").exists()
    told = str(api.requests[1].body["messages"][-1])
    assert "did not allow this: not today" in told


async def test_bypass_asks_nothing(stand: Stand, api: Api) -> None:
    write = ("write_file", {"path": "deep/new.txt", "content": "x"})
    api.play(Anthropic.call(write), Anthropic.text("Done."))
    events = await ask(await stand.open(bypass=True))
    assert not only(events, PermissionAsked)
    assert (stand.workspace / "deep/new.txt").read_text() == "x"


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("no_such_tool", {}, "there is no tool no_such_tool"),
        ("read_file", {}, "path"),
        ("read_file", {"path": 3}, "do not fit"),
        ("read_file", {"path": "a.txt", "what": 1}, "do not fit"),
        ("read_file", {"path": "b.txt"}, "there is no such file"),
        ("search", {"pattern": "("}, "not a regular expression"),
    ],
)
async def test_a_wrong_call_is_told_to_the_model(
    name: str, given: dict[str, Any], why: str, stand: Stand, api: Api
) -> None:
    api.play(Anthropic.call((name, given)), Anthropic.text("I see."))
    events = await ask(await stand.open())
    assert why in only(events, ToolEnded)[0].output
    assert end_of(events).ok
    result = api.requests[1].body["messages"][-1]["content"][0]
    assert result["is_error"] is True


async def test_servers_of_ones_own_need_no_key(stand: Stand, api: Api) -> None:
    api.play(Chat.text("Hello."))
    env = {"OLLAMA_BASE_URL": f"{api.url}/v1"}
    events = await ask(await stand.open(model="ollama:qwen3:8b", endpoint=None, env=env))
    assert end_of(events).text == "Hello."
    assert api.requests[0].path == "/v1/chat/completions"
    assert api.requests[0].body["model"] == "qwen3:8b"


async def test_the_usual_variables_name_keys_and_addresses(stand: Stand, api: Api) -> None:
    api.play(Anthropic.text("Hello."))
    env = {"ANTHROPIC_API_KEY": "mine", "ANTHROPIC_BASE_URL": api.url}
    await ask(await stand.open(model="sonnet", endpoint=None, env=env))
    assert api.requests[0].path == "/v1/messages"
    assert Anthropic.key(api.requests[0]) == "mine"


async def test_a_loop_behind_the_gateway_does_not_get_the_real_key(stand: Stand, api: Api) -> None:
    def reply(request: Request) -> Reply:
        assert "real" not in str(request)
        return Anthropic.text("Hello.")

    stand.nursery.environ |= {"ANTHROPIC_API_KEY": "real", "ANTHROPIC_AUTH_TOKEN": "real"}
    api.play(reply)
    assert end_of(await ask(await stand.open())).ok


async def test_a_session_that_cannot_be_opened_says_why(stand: Stand) -> None:
    with pytest.raises(
        RunnerFailed, match="no provider is known for the model 'llama-3'"
    ) as raised:
        await stand.open(model="llama-3")
    assert raised.value.kind == "bad_request"
    assert stand.nursery.left() == []
