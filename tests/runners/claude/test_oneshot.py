"""Agents that are started for every prompt: Claude Code, Codex and OpenCode."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_help import Place, bills, heard, last, only, said, used
from faulty import Faulty, Half, Status
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import AgentSession, Runner
from tenuto.core.runs import (
    Endpoint,
    Finished,
    McpServer,
    Retried,
    RunEvent,
    RunRequest,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.runners.oneshot import ClaudeOneShot, CodexOneShot, OpenCodeOneShot, Reader
from tenuto.runners.oneshot_codex import CodexWords
from tenuto.runners.oneshot_lines import decoded
from tenuto.runners.oneshot_opencode import OpenCodeWords
from tenuto.testing.models import Call, Model, Seen

RECORDED = Path(__file__).parent / "recorded"
LITTLE = str(Path(__file__).parent / "little_server.py")
NAMES = [path.stem for path in sorted(RECORDED.glob("*.jsonl")) if "claude" not in path.stem]


def reader(name: str) -> Reader:
    return CodexWords("", {}) if name.startswith("codex") else OpenCodeWords("")


def lines(name: str) -> list[bytes]:
    return (RECORDED / f"{name}.jsonl").read_bytes().splitlines()


def told(name: str, given: list[bytes]) -> list[RunEvent]:
    """Return the events of a process, and its verdict if there is one."""
    reading = reader(name)
    events: list[RunEvent] = []
    for line in given:
        fields = decoded(line)
        events += reading.feed(fields) if fields is not None else []
    verdict = reading.verdict()
    return [*events, verdict] if verdict is not None else events


# what their lines mean


def test_codex_tools_text_and_use():
    events = told("codex_tool", lines("codex_tool"))
    kinds = [type(one).__name__ for one in events]
    assert kinds == ["SessionOpened", "ToolBegan", "ToolEnded", "Said", "Used", "Finished"]
    (began,), (ended,) = only(events, ToolBegan), only(events, ToolEnded)
    assert began.name == "shell" and "echo hi; exit 3" in began.input["command"]
    assert not ended.ok and ended.output == "hi\n" and ended.id == began.id
    assert used(events) == [(2000, 100)] and last(events) == Finished(ok=True, text="Done")


def test_codex_failures():
    end = last(told("codex_budget", lines("codex_budget")))
    assert (end.kind, end.status, end.message) == ("budget", 400, "Tenuto budget: no more")
    events = told("codex_overloaded", lines("codex_overloaded"))
    assert [one.status for one in only(events, Retried)] == [529]
    assert (last(events).kind, last(events).status) == ("overloaded", 529)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("unexpected status 401 Unauthorized: bad key", "auth"),
        ("exceeded retry limit, last status: 429 Too Many Requests", "rate_limit"),
        ("stream disconnected before completion: stream closed", "network"),
        ('{"error": {"message": "unknown field"}}', "bad_request"),
        ("your input exceeds the context window", "context"),
        ("something else", "failed"),
    ],
)
def test_codex_kinds_of_failure(message: str, kind: str):
    (end,) = CodexWords("", {}).feed({"type": "turn.failed", "error": {"message": message}})
    assert isinstance(end, Finished) and end.kind == kind and not end.ok


def test_codex_tells_a_sum_and_we_the_difference():
    usage = {"input_tokens": 1000, "cached_input_tokens": 400, "output_tokens": 50}
    end = {"type": "turn.completed", "usage": usage}
    first = CodexWords("", {})
    assert first.feed(end)[0] == Used(input=600, output=50, cache_read=400)
    more = {"input_tokens": 2500, "cached_input_tokens": 400, "output_tokens": 80}
    second = CodexWords("t", first.total)
    told = second.feed({"type": "turn.completed", "usage": more})
    assert told == [Used(input=1500, output=30), Finished(ok=True)]
    taken_up = CodexWords("t", None)
    assert used(taken_up.feed(end)) == []  # what came before is in it


def test_opencode_tools_text_and_use():
    events = told("opencode_tool", lines("opencode_tool"))
    (began,), (ended,) = only(events, ToolBegan), only(events, ToolEnded)
    assert began.name == "bash" and began.input["command"] == "echo hi; exit 3"
    assert ended.ok and ended.output == "hi\n" and only(events, SessionOpened)
    assert used(events) == [(1000, 50)] * 2 and said(events) == "Done"
    assert last(events) == Finished(ok=True, text="Done")


def test_opencode_failures_that_its_exit_code_hides():
    end = last(told("opencode_refused", lines("opencode_refused")))
    assert (end.ok, end.kind) == (False, "permission")
    end = last(told("opencode_budget", lines("opencode_budget")))
    assert (end.kind, end.status) == ("budget", 400)


def test_opencode_may_overcome_an_error():
    overcome = [*lines("opencode_budget"), *lines("opencode_tool")]
    assert last(told("opencode", overcome)) == Finished(ok=True, text="Done")
    assert not last(told("opencode", [*overcome, *lines("opencode_budget")])).ok


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NAMES), st.randoms(use_true_random=False))
def test_keys_may_be_in_any_order_and_unknown_lines_between(name: str, chance: random.Random):
    def mixed(value: Any) -> Any:
        if isinstance(value, dict):
            names = list(value)
            chance.shuffle(names)
            return {one: mixed(value[one]) for one in names}
        return value

    other = [b"", b"garbage", b'{"type":"new","part":[]}', b"[]", b'{"type":{}}']
    given: list[bytes] = []
    for line in lines(name):
        given += [chance.choice(other), json.dumps(mixed(json.loads(line))).encode()]
    assert told(name, given) == told(name, lines(name))


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 2**14), st.integers(1, 300))
def test_output_cut_anywhere_is_no_exception_and_no_second_end(name: str, at: int, drop: int):
    whole = b"\n".join(lines(name))
    at %= len(whole)
    ends = only(told(name, (whole[:at] + whole[at + drop :]).split(b"\n")), Finished)
    assert len(ends) <= 1 and (name.endswith("_tool") or not any(one.ok for one in ends))
    before = only(told(name, whole[:at].split(b"\n")), Finished)
    assert not any(one.ok for one in before) or whole[at:].count(b"\n") == 0


# the real ones


@asynccontextmanager
async def opened(runner: Runner, place: Place, **given: Any) -> AsyncIterator[AgentSession]:
    request = RunRequest(cwd=str(place.project), **{"unasked": True, **given})
    session = await runner.open(request, place.nursery)
    try:
        yield session
    finally:
        await session.close()


def shell(command: str):
    """Let the model run a command by whatever its shell is called."""

    def step(seen: Seen) -> Call:
        name = next(one for one in seen.tools if one in ("exec_command", "shell_command", "shell"))
        return Call(name, cmd=command)

    return step


@pytest.mark.asyncio
@pytest.mark.promise("R1", "R2")
async def test_codex_answers_and_its_session_is_taken_up(
    codex: str, place: Place, model: Model, faulty: Faulty
):
    endpoint, name = Endpoint(faulty.url, "token-of-this-task"), "gpt-5.5"
    model.play("One.", "Two.", "Three.")
    async with opened(CodexOneShot(codex), place, endpoint=endpoint, model=name) as session:
        first = await heard(session, "The word is teapot.")
        second = await heard(session, "Again")
    assert (said(first), said(second)) == ("One.", "Two.")
    assert last(first) == Finished(ok=True, text="One.")
    assert used(first) + used(second) == bills(model) and len(used(second)) == 1
    assert set(faulty.keys) == {"Bearer token-of-this-task"}
    kept = session.session
    given: dict[str, Any] = {"endpoint": endpoint, "model": name, "session": kept}
    async with opened(CodexOneShot(codex), place, **given) as session:
        third = await heard(session, "Which word?")
        assert session.session == kept
    assert last(third).text == "Three." and used(third) == []
    assert any("teapot" in text for text in model.shown.texts)


@pytest.mark.asyncio
@pytest.mark.promise("R2", "R3")
async def test_codex_refuses_to_open_where_somebody_would_have_to_be_asked(place: Place):
    with pytest.raises(RunnerFailed, match="can ask nobody") as refused:
        async with opened(CodexOneShot("codex"), place, unasked=False):
            pass
    assert refused.value.kind == "permission" and "--permissions allow" in refused.value.hint


@pytest.mark.asyncio
@pytest.mark.promise("R2")
async def test_codex_uses_tools_and_a_server(
    codex: str, place: Place, model: Model, faulty: Faulty
):
    server = McpServer("little", (sys.executable, LITTLE, "$x y"), {"LITTLE": "a secret"})
    found = Call("tool_search", query="peek", limit=5)
    model.play(shell("echo hi"), found, Call("peek"), "Done.")
    endpoint = Endpoint(faulty.url, "t")
    given: dict[str, Any] = {"endpoint": endpoint, "model": "gpt-5.5", "mcp": (server,)}
    async with opened(CodexOneShot(codex), place, bypass=True, **given) as session:
        events = await heard(session, "Go")
    began, ended = only(events, ToolBegan), only(events, ToolEnded)
    assert [one.name for one in began] == ["shell", "little.peek"], last(events)
    assert [one.ok for one in ended] == [True, True]
    assert "hi" in ended[0].output and "['$x y'] a secret" in ended[1].output
    assert last(events).text == "Done."


@pytest.mark.asyncio
@pytest.mark.promise("R1")
async def test_codex_is_interrupted_by_a_signal(
    codex: str, place: Place, model: Model, faulty: Faulty
):
    faulty.meet(Half())
    given: dict[str, Any] = {"endpoint": Endpoint(faulty.url, "t"), "model": "gpt-5.5"}
    async with opened(CodexOneShot(codex), place, **given) as session:
        half = faulty.faults[0]
        assert isinstance(half, Half)
        listening = asyncio.ensure_future(heard(session, "Go"))
        await asyncio.to_thread(half.begun.wait, 30)
        await session.interrupt()
        events = await listening
    assert last(events).interrupted and not last(events).ok and session.session


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "budget"), (401, "auth"), pytest.param(529, "overloaded", marks=pytest.mark.full)],
)
async def test_codex_errors(codex: str, place: Place, faulty: Faulty, status: int, kind: str):
    message = "Tenuto budget: no more" if status == 400 else "No."
    faulty.meet(*[Status(status, message)] * 40)
    given: dict[str, Any] = {"endpoint": Endpoint(faulty.url, "t"), "model": "gpt-5.5"}
    async with opened(CodexOneShot(codex), place, **given) as session:
        end = last(await heard(session, "Go"))
    assert (end.ok, end.kind, end.status) == (False, kind, status)


@pytest.mark.asyncio
@pytest.mark.promise("R1", "R2")
async def test_claude_answers_prompt_by_prompt(
    claude: str, place: Place, model: Model, faulty: Faulty
):
    model.play("One.", "Two.")
    given: dict[str, Any] = {"endpoint": Endpoint(faulty.url, "t"), "model": "claude-sonnet-4-5"}
    async with opened(ClaudeOneShot(claude), place, **given) as session:
        first = await heard(session, "The word is teapot.")
        second = await heard(session, "Which word?")
    assert (said(first), said(second)) == ("One.", "Two.")
    assert last(second) == Finished(ok=True, text="Two.")
    assert used(first) + used(second) == bills(model) and len(used(second)) == 1
    assert any("teapot" in text for text in model.shown.texts)
    assert len(place.nursery.children) == 2


@pytest.mark.asyncio
async def test_claude_is_interrupted_by_a_signal(claude: str, place: Place, faulty: Faulty):
    faulty.meet(Half())
    given: dict[str, Any] = {"endpoint": Endpoint(faulty.url, "t"), "model": "claude-sonnet-4-5"}
    async with opened(ClaudeOneShot(claude), place, **given) as session:

        async def react(event: RunEvent) -> None:
            if isinstance(event, Said):
                await session.interrupt()

        events = await heard(session, "Go", react)
    assert last(events).interrupted and used(events) == [(700, 1)]


def scripted(url: str) -> dict[str, str]:
    """Return the variables by which OpenCode uses the scripted model."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/openai/v1", "apiKey": "x"},
        "models": {"model": {"tool_call": True, "limit": {"context": 200_000, "output": 8000}}},
    }
    config = {"small_model": "scripted/model", "provider": {"scripted": provider},
              "enabled_providers": ["scripted"]}  # fmt: skip
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


@pytest.mark.full
@pytest.mark.asyncio
@pytest.mark.promise("R1", "R2")
async def test_opencode_uses_tools_and_its_session_is_taken_up(
    opencode: str, place: Place, model: Model, faulty: Faulty
):
    server = McpServer("little", (sys.executable, LITTLE, "x y"), {"LITTLE": "a secret"})
    model.play(
        Call("bash", command="echo hi", description="x"), Call("little_peek"), "One.", "Two."
    )
    given: dict[str, Any] = {"env": scripted(faulty.url), "model": "scripted/model"}
    given |= {"mcp": (server,), "bypass": True, "system": "Speak like a sailor."}
    async with opened(OpenCodeOneShot(opencode), place, **given) as session:
        first = await heard(session, "The word is teapot.")
        second = await heard(session, "Which word?")
    assert last(first) == Finished(ok=True, text="One."), last(first)
    assert [one.name for one in only(first, ToolBegan)] == ["bash", "little_peek"]
    assert "['x y'] a secret" in only(first, ToolEnded)[1].output
    assert last(second).text == "Two." and used(second) == bills(model)[-1:]
    texts = "\n".join(model.shown.texts)
    assert "teapot" in texts and texts.count("sailor") == 1


@pytest.mark.full
@pytest.mark.asyncio
async def test_opencode_goes_to_the_endpoint(
    opencode: str, place: Place, model: Model, faulty: Faulty
):
    given: dict[str, Any] = {"endpoint": Endpoint(faulty.url, "token-of-this-task")}
    given["model"] = "anthropic/claude-sonnet-4-5"
    model.play("Hello.")
    async with opened(OpenCodeOneShot(opencode), place, **given) as session:
        end = last(await heard(session, "Hi"))
    assert end == Finished(ok=True, text="Hello.")
    assert set(faulty.keys) == {"token-of-this-task"}
    assert all(path.startswith("/anthropic/v1/") for path in faulty.paths)


@pytest.mark.full
@pytest.mark.asyncio
async def test_opencode_is_interrupted_by_a_signal_and_told_of_its_budget(
    opencode: str, place: Place, faulty: Faulty
):
    half = Half()
    faulty.meet(half)
    given: dict[str, Any] = {"endpoint": Endpoint(faulty.url, "t")}
    given["model"] = "anthropic/claude-sonnet-4-5"
    async with opened(OpenCodeOneShot(opencode), place, **given) as session:
        listening = asyncio.ensure_future(heard(session, "Go"))
        await asyncio.to_thread(half.begun.wait, 60)
        await session.interrupt()
        assert last(await listening).interrupted
        faulty.meet(*[Status(400, "Tenuto budget: no more")] * 9)
        assert last(await heard(session, "Go on")).kind == "budget"
