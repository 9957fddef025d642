"""The real Claude Code, offline, with a scripted model behind it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from agent_help import Place, bills, heard, last, only, said, used
from faulty import Faulty, Half, Status

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import AgentSession
from tenuto.core.runs import (
    Endpoint,
    Finished,
    McpServer,
    PermissionAsked,
    Retried,
    RunEvent,
    RunRequest,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
)
from tenuto.runners.claude import ClaudeRunner, ClaudeSession
from tenuto.testing.models import Call, Model

LITTLE = str(Path(__file__).parent / "little_server.py")
pytestmark = pytest.mark.asyncio


class Bench:
    """Opens sessions with the real program."""

    def __init__(self, path: str, place: Place, model: Model, faulty: Faulty) -> None:
        self.runner = ClaudeRunner(path)
        self.place, self.model, self.faulty = place, model, faulty

    @asynccontextmanager
    async def open(self, **given: Any):
        fields: dict[str, Any] = {
            "cwd": str(self.place.project),
            "model": "claude-sonnet-4-5",
            "endpoint": Endpoint(self.faulty.url, "token-of-this-task"),
            "env": {"CLAUDE_CODE_MAX_RETRIES": "1"},
        }
        session = await self.runner.open(RunRequest(**fields | given), self.place.nursery)
        try:
            yield session
        finally:
            await session.close()


@pytest.fixture
def bench(claude: str, place: Place, model: Model, faulty: Faulty) -> Bench:
    return Bench(claude, place, model, faulty)


def bash(command: str) -> Call:
    return Call("Bash", command=command, description="A step")


def answering(session: AgentSession, allow: bool, why: str = ""):
    async def react(event: RunEvent) -> None:
        if isinstance(event, PermissionAsked):
            await session.answer(event.id, allow, why)

    return react


@pytest.mark.promise("R1", "R2")
async def test_prompts_share_a_process_and_all_requests_go_to_the_endpoint(bench: Bench):
    bench.place.set("ANTHROPIC_API_KEY", "the-users-own-key")
    bench.place.set("CLAUDE_CODE_OAUTH_TOKEN", "the-users-login")
    chosen = str(uuid4())
    bench.model.play("Hello.", "Again.")
    async with bench.open(new_session=chosen, system="Speak like a sailor.") as session:
        assert session.session == chosen
        first = await heard(session, "Hi")
        second = await heard(session, "And again")
    (opened,) = only(first, SessionOpened)
    assert (opened.session, opened.model) == (chosen, "claude-sonnet-4-5") and opened.version
    assert said(first) == "Hello." and last(first) == Finished(ok=True, text="Hello.")
    assert said(second) == "Again." and last(second).text == "Again."
    assert used(first) + used(second) == bills(bench.model) and not only(second, SessionOpened)
    assert set(bench.faulty.keys) == {"token-of-this-task"}
    assert all(path.startswith("/anthropic/v1/messages") for path in bench.faulty.paths)
    assert "Speak like a sailor." in bench.model.shown.system
    assert len(bench.place.nursery.children) == 1


@pytest.mark.promise("R2")
async def test_a_tool_is_asked_for_and_runs_when_it_is_allowed(bench: Bench):
    bench.model.play(bash("touch made; echo done"), "Made it.")
    async with bench.open() as session:
        events = await heard(session, "Make a file", answering(session, True))
    (asked,), (began,), (ended,) = (
        only(events, kind) for kind in (PermissionAsked, ToolBegan, ToolEnded)
    )
    assert asked.tool == began.name == "Bash" and asked.input == began.input
    assert ended.ok and ended.output == "done" and ended.id == began.id
    assert (bench.place.project / "made").exists() and last(events).ok
    assert used(events) == bills(bench.model) and len(used(events)) == 2


@pytest.mark.promise("R2")
async def test_a_tool_that_is_refused_does_not_run_and_the_model_is_told_why(bench: Bench):
    bench.model.play(bash("touch made"), "As you wish.")
    async with bench.open() as session:
        events = await heard(session, "Go", answering(session, False, "Not in this house."))
    (ended,) = only(events, ToolEnded)
    assert not ended.ok and ended.output == "Not in this house."
    assert bench.model.results[0].startswith("Not in this house.")
    assert not (bench.place.project / "made").exists() and last(events).text == "As you wish."


@pytest.mark.full
async def test_with_a_bypass_nothing_is_asked(bench: Bench):
    bench.model.play(bash("touch made"), "Made it.")
    async with bench.open(bypass=True) as session:
        events = await heard(session, "Go")
    assert not only(events, PermissionAsked) and (bench.place.project / "made").exists()
    assert last(events).ok


@pytest.mark.promise("R2")
async def test_an_mcp_server_is_handed_over_with_its_words_and_variables_as_they_are(bench: Bench):
    secret = "a ${HOME} secret"
    command = (sys.executable, LITTLE, "${HOME}", "plain")
    server = McpServer("little", command, {"LITTLE": secret})
    bench.model.play(Call("mcp__little__peek"), "Seen.")
    async with bench.open(mcp=(server,)) as session:
        child = bench.place.nursery.children[0].process.pid
        assert secret.encode() not in Path(f"/proc/{child}/cmdline").read_bytes()
        events = await heard(session, "Peek", answering(session, True))
    (asked,), (ended,) = only(events, PermissionAsked), only(events, ToolEnded)
    assert asked.tool == "mcp__little__peek"
    assert ended.output == f"['${{HOME}}', 'plain'] {secret}" and last(events).ok


@pytest.mark.promise("R1")
async def test_an_interrupt_is_quick_counted_and_the_next_prompt_works(bench: Bench):
    bench.model.play(*["Hello."] * 9)
    bench.faulty.meet(*[Half()] * 3)
    took: list[float] = []
    async with bench.open() as session:
        for _ in range(3):
            asked_at: list[float] = []

            async def react(event: RunEvent, at: list[float] = asked_at) -> None:
                if isinstance(event, Said):
                    at.append(time.monotonic())
                    await session.interrupt()

            events = await heard(session, "Hi", react)
            took.append(time.monotonic() - asked_at[0])
            assert last(events).interrupted and not last(events).ok
            assert said(events) == "The beginning" and used(events) == [(700, 1)]
        after = await heard(session, "Hi")
    assert last(after) == Finished(ok=True, text="Hello.") and said(after) == "Hello."
    assert len(bench.place.nursery.children) == 1
    assert min(took) < 2, took  # the figure itself is the benchmark's


async def test_an_interrupt_before_the_turn_has_begun_is_not_lost(bench: Bench):
    bench.faulty.meet(Half(), Half())
    async with bench.open() as session:
        events = session.prompt("Hi")
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await session.interrupt()
        told = [await first]
        told += [event async for event in events]
    assert last(told).interrupted


@pytest.mark.full
async def test_an_interrupt_ends_a_tool_and_withdraws_a_question(bench: Bench):
    bench.model.play(bash("touch made"), "No.")
    async with bench.open() as session:

        async def react(event: RunEvent) -> None:
            if isinstance(event, PermissionAsked):
                await session.interrupt()

        events = await heard(session, "Go", react)
        (asked,) = only(events, PermissionAsked)
        await session.answer(asked.id, True)  # too late: nothing comes of it
        after = await heard(session, "Hi")
    assert last(events).interrupted and last(after).ok
    assert not (bench.place.project / "made").exists()


@pytest.mark.promise("R1")
async def test_a_session_is_taken_up_in_a_new_process(bench: Bench):
    bench.model.play("One.", "Two.")
    async with bench.open(new_session=str(uuid4())) as session:
        await heard(session, "The word is teapot.")
        kept = session.session
    async with bench.open(session=kept) as session:
        events = await heard(session, "Which word?")
        assert session.session == kept
    assert last(events).text == "Two." and bench.model.shown.spoken == 1
    assert any("teapot" in text for text in bench.model.shown.texts)
    assert only(events, SessionOpened)[0].session == kept


@pytest.mark.promise("R2")
async def test_a_process_that_is_killed_is_a_crash_and_its_request_is_counted(bench: Bench):
    bench.faulty.meet(Half())
    async with bench.open() as session:

        async def react(event: RunEvent) -> None:
            if isinstance(event, Said):
                await bench.place.nursery.children[0].signal("KILL")

        events = await heard(session, "Hi", react)
        after = await heard(session, "Still there?")
    assert last(events).kind == last(after).kind == "crash"
    assert "signal 9" in last(events).message and used(events) == [(700, 1)]


async def test_a_budget_refusal_of_the_gateway_is_known_as_one_and_ends_the_turn(bench: Bench):
    refusal = Status(400, "Tenuto budget: 2.00 of 2.00 dollars are spent", "invalid_request_error")
    bench.faulty.meet(*[refusal] * 9)
    async with bench.open() as session:
        events = await heard(session, "Hi")
    assert (last(events).kind, last(events).status) == ("budget", 400)
    assert "2.00 of 2.00" in last(events).message and said(events) == ""


ERRORS = {
    401: ("auth", "authentication_error"),
    404: ("bad_request", "not_found_error"),
    429: ("rate_limit", "rate_limit_error"),
    500: ("server", "api_error"),
    529: ("overloaded", "overloaded_error"),
}


@pytest.mark.full
@pytest.mark.parametrize("status", ERRORS)
async def test_an_error_of_the_model_is_told_by_its_kind(bench: Bench, status: int):
    kind, name = ERRORS[status]
    bench.faulty.meet(*[Status(status, "No.", name)] * 9)
    async with bench.open() as session:
        events = await heard(session, "Hi")
        bench.faulty.meet()
        after = await heard(session, "Hi")
    assert (last(events).ok, last(events).kind, last(events).status) == (False, kind, status)
    assert [one.status for one in only(events, Retried)] == ([status] if status != 404 else [])
    assert last(after).ok, "the session lives on"


@pytest.mark.full
async def test_a_prompt_that_is_too_long_is_known(bench: Bench):
    long = Status(
        400, "prompt is too long: 250000 tokens > 200000 maximum", "invalid_request_error"
    )
    bench.faulty.meet(*[long] * 9)
    async with bench.open() as session:
        assert last(await heard(session, "Hi")).kind == "context"


@pytest.mark.full
@pytest.mark.parametrize("garbage", [b"", b'event: content_block_delta\ndata: {"typ\n\n'])
async def test_streams_that_are_cut_or_garbled_are_no_success(bench: Bench, garbage: bytes):
    halves = [Half(garbage=garbage) for _ in range(9)]
    for half in halves:
        half.go.set()
    bench.faulty.meet(*halves)
    async with bench.open() as session:
        events = await heard(session, "Hi")
    assert (last(events).ok, last(events).kind) == (False, "network")
    assert used(events)


@pytest.mark.full
async def test_nobody_at_the_endpoint_is_a_network_error(bench: Bench):
    async with bench.open(endpoint=Endpoint("http://127.0.0.1:9", "x")) as session:
        assert last(await heard(session, "Hi")).kind == "network"


@pytest.mark.full
async def test_turns_are_limited_for_each_prompt(bench: Bench):
    bench.model.play(*[bash("echo 1")] * 5)
    async with bench.open(max_turns=1) as session:
        assert last(await heard(session, "Hi")).kind == "turns"


@pytest.mark.full
async def test_long_texts_pass(bench: Bench):
    system, prompt = "Rule. " * 40_000 + "END-OF-SYSTEM", "Word. " * 100_000 + "END-OF-PROMPT"
    bench.model.play(Call("Write", file_path="long", content="x" * 300_000), "Done.")
    async with bench.open(system=system) as session:
        events = await heard(session, prompt, answering(session, True))
    assert last(events).text == "Done."
    assert "END-OF-SYSTEM" in bench.model.shown.system
    assert any("END-OF-PROMPT" in text for text in bench.model.shown.texts)
    assert (bench.place.project / "long").stat().st_size >= 300_000


async def test_a_users_settings_do_not_lead_past_the_endpoint(bench: Bench):
    folder = bench.place.home / "claude"
    folder.mkdir()
    elsewhere = {"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}}
    (folder / "settings.json").write_text(json.dumps(elsewhere))
    async with bench.open() as session:
        assert last(await heard(session, "Hi")).ok
    assert bench.faulty.paths


async def test_a_session_that_does_not_exist_cannot_be_taken_up(bench: Bench):
    unknown = str(uuid4())
    told = f"No conversation found with session ID: {unknown}"
    with pytest.raises(RunnerFailed, match=told) as failed:
        async with bench.open(session=unknown):
            pass
    assert failed.value.kind == "session"


async def test_a_turn_that_nobody_hears_to_its_end_is_stopped(bench: Bench):
    bench.model.play("Hello.", "Hello again.")
    bench.faulty.meet(Half())
    async with bench.open() as session:
        events = session.prompt("Hi")
        async for event in events:
            if isinstance(event, Said):
                break
        await events.aclose()  # type: ignore[attr-defined]
        after = await heard(session, "Hi")
    assert last(after).ok and "beginning" not in said(after)


async def test_closing_in_the_middle_of_a_tool_leaves_nothing(bench: Bench):
    pipe = bench.place.base / "pipe"
    os.mkfifo(pipe)
    bench.model.play(bash(f"echo up > {pipe}; sleep 600"), "Never.")
    async with bench.open(bypass=True) as session:
        assert isinstance(session, ClaudeSession)
        listening = asyncio.ensure_future(heard(session, "Go"))
        await asyncio.to_thread(pipe.read_text)
        began = time.monotonic()
        await session.close()
        took = time.monotonic() - began
        events = await listening
    assert last(events).interrupted and took < 20
    assert bench.place.strays() == []
