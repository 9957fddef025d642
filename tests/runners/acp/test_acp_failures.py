"""How an ACP agent fails: each failure has its kind, keeps what was said, and leaves nothing."""

from __future__ import annotations

import asyncio
import os

import pytest
from acp_help import Agents, end, told

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import RunEvent, RunRequest, Said
from tenuto.runners.acp_errors import kind_of
from tenuto.runners.acp_session import AcpSession
from tenuto.runners.agents_known import by_command
from tenuto.testing.nursery import PlainNursery

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.promise("R1")
async def test_a_crash_in_the_middle_keeps_the_text_and_tells_the_last_words(
    agents: Agents,
) -> None:
    session = await agents.open()
    last = end(await told(session, "now crash"))
    assert (last.ok, last.kind, last.text) == (False, "crash", "so far")
    assert "exit 3" in last.message
    assert "out of cheese" in last.message
    after = end(await told(session, "say hello"))
    assert (after.ok, after.kind) == (False, "crash")
    await session.close()


async def test_an_agent_that_is_killed_crashed(agents: Agents) -> None:
    session = await agents.open()

    async def kill(event: RunEvent) -> None:
        if isinstance(event, Said):
            await session.child.kill()

    last = end(await told(session, "now wait", kill))
    assert (last.kind, last.text) == ("crash", "waiting")
    await session.close()


async def test_lines_that_are_no_messages_and_updates_of_tomorrow_are_passed_over(
    shared: AcpSession,
) -> None:
    session = shared
    last = end(await told(session, "something stray"))
    assert (last.ok, last.text) == (True, "still here")


@pytest.mark.parametrize(("word", "said"), [("torn", "no JSON"), ("nonsense", "makes no sense")])
async def test_a_message_that_cannot_be_read_ends_the_turn(
    agents: Agents, word: str, said: str
) -> None:
    session = await agents.open()
    last = end(await told(session, f"be {word}"))
    assert (last.ok, last.kind) == (False, "protocol")
    assert said in last.message
    await session.close()


async def test_an_agent_that_closes_its_stdout_is_ended(agents: Agents) -> None:
    session = await agents.open()
    last = end(await told(session, "be shut"))
    assert last.kind == "crash"
    await session.close()


@pytest.mark.parametrize(
    ("stop", "kind"),
    [("refusal", "bad_request"), ("max_tokens", "context"), ("max_turn_requests", "turns")],
)
async def test_a_turn_that_stops_early_failed(shared: AcpSession, stop: str, kind: str) -> None:
    session = shared
    last = end(await told(session, f"{stop} stop"))
    assert (last.ok, last.kind, last.text) == (False, kind, "half of")
    assert last.message


async def test_errors_have_their_kind_and_the_session_goes_on(shared: AcpSession) -> None:
    session = shared
    for said, kind, status in (
        ("-32000 sign in", "auth", None),
        ("-32603 400 Bad Request: Tenuto budget of 2.00 USD is reached", "budget", 400),
        ("-32603 status code: 429", "rate_limit", 429),
    ):
        last = end(await told(session, f"{said} fail"))
        assert (last.ok, last.kind, last.status) == (False, kind, status)
    assert end(await told(session, "say hello")).ok


async def test_not_logged_in_is_told_when_the_session_is_opened(agents: Agents) -> None:
    with pytest.raises(RunnerFailed, match="Authentication required") as failed:
        await agents.open("login")
    assert failed.value.kind == "auth"
    assert "log in to scripted" in failed.value.hint


async def test_an_agent_of_another_version_is_refused(agents: Agents) -> None:
    with pytest.raises(RunnerFailed, match="version 7") as failed:
        await agents.open("version")
    assert failed.value.kind == "outdated"


async def test_a_model_that_cannot_be_chosen_is_refused(agents: Agents) -> None:
    with pytest.raises(RunnerFailed, match="no model heavy"):
        await agents.open(model="heavy")


async def test_a_program_that_is_not_there_and_one_that_says_nothing(
    tmp_path, nursery: PlainNursery
) -> None:
    request = RunRequest(cwd=str(tmp_path))
    with pytest.raises(RunnerFailed, match="not installed") as failed:
        await by_command("none", ["/nowhere/agent"]).open(request, nursery)
    assert failed.value.kind == "missing"
    with pytest.raises(RunnerFailed, match=r"exit 4.*oh no") as failed:
        await by_command("ends", ["sh", "-c", "echo oh no >&2; exit 4"]).open(request, nursery)
    assert failed.value.kind == "crash"


async def test_who_gives_up_opening_leaves_nothing(tmp_path, nursery: PlainNursery) -> None:
    opening = asyncio.create_task(
        by_command("mute", ["sleep", "600"]).open(RunRequest(cwd=str(tmp_path)), nursery)
    )
    while not nursery.children:
        await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(ProcessLookupError):
        os.kill(nursery.children[0].process.pid, 0)


async def test_closing_in_the_middle_of_a_turn_ends_the_turn(agents: Agents) -> None:
    session = await agents.open()
    closing: list[asyncio.Task[None]] = []

    async def close(event: RunEvent) -> None:
        if isinstance(event, Said):
            closing.append(asyncio.create_task(session.close()))

    last = end(await told(session, "now wait", close))
    await asyncio.gather(*closing)
    assert (last.ok, last.message) == (False, "scripted was closed")


@pytest.mark.parametrize(
    ("code", "text", "kind", "status"),
    [
        (-32603, '{"error":{"code":400,"message":"tenuto BUDGET reached"}}', "budget", 400),
        (-32603, "prompt is too long: 210000 tokens (status 400)", "context", 400),
        (-32603, "unexpected status 529 Overloaded", "overloaded", 529),
        (-32603, "HTTP 500 from the model", "server", 500),
        (-32603, "fetch failed", "network", None),
        (-32603, "stream disconnected before completion", "network", None),
        (-32603, "invalid api key", "auth", None),
        (-32603, "Internal error: invalid x-api-key", "auth", None),
        (
            -32603,
            '{"error":{"code":400,"message":"exceeds the maximum number of tokens allowed"}}',
            "context",
            400,
        ),
        (-32601, "Method not found", "protocol", None),
        (-32603, "port 4500 is 4291 things", "failed", None),
    ],
)
async def test_the_kind_of_an_error_is_read_from_its_text(
    code: int, text: str, kind: str, status: int | None
) -> None:
    assert kind_of(code, text) == (kind, status)
