"""The metering gateway under attack: paths that lie, answers that do not end, work that hides."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest
from metering_help import ANTHROPIC, RESPONSES, Served

from tenuto.core.budget import Grant, Tokens
from tenuto.metering.usage import Events
from tenuto.testing.models import Model
from tenuto.testing.models.steps import Say

pytestmark = [pytest.mark.asyncio]


async def raw(served: Served, head: str, body: bytes = b"") -> bytes:
    """Send bytes as no decent client would; return all that comes until the line is closed."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head.replace("\n", "\r\n").encode() + body)
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()
        await writer.wait_closed()


def head(served: Served, method: str, target: str, size: int, *more: str) -> str:
    lines = [
        f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {served.token()}",
        "Content-Type: application/json", f"Content-Length: {size}", "Connection: close", *more,
    ]  # fmt: skip
    return "\n".join(lines) + "\n\n"


@pytest.mark.promise("B3")
@pytest.mark.parametrize(
    "target",
    [
        "/google/v1beta/models/scripted:generateContent#/:countTokens",
        "/google/v1beta/models/scripted:generateContent#:countTokens",
        "/openai/v1/responses/#/cancel",
        "/openai/v1/responses/%2e%2e/responses/x/cancel",
        "/openai%2Fv1/responses/x/cancel",
        "/anthropic%2fv1/messages/count_tokens",
        "/anthropic/v1/messages;x=/../messages/count_tokens",
        "/anthropic/v1\\messages/count_tokens",
        "/google/v1beta/models/scripted:generateContent%23:countTokens",
        "/google/v1beta/models/scripted:generateContent%3f:countTokens",
        "//evil.example/v1/messages/count_tokens",
        "http://evil.example/anthropic/v1/messages",
        "*",
    ],
)
async def test_no_path_passes_for_another_one(served: Served, model: Model, target: str) -> None:
    model.play(Say("for nothing", usage=Tokens(100, 7)), bare=True)
    body = json.dumps({**RESPONSES.body, "contents": [], "messages": []}).encode()
    answer = await raw(served, head(served, "POST", target, len(body)), body)
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400", b"HTTP/1.1 403")), answer[:300]
    assert not model.seen and not served.spend().requests


@pytest.mark.promise("B3")
async def test_work_that_goes_on_behind_the_answer_is_refused(served: Served, model: Model) -> None:
    answer = await served.post(RESPONSES, background=True)
    assert answer.status_code == 400 and "background" in answer.text
    assert not model.seen


@pytest.mark.parametrize(
    "lines",
    [
        ["POST /anthropic/v1/messages HTTP/1.1", "Host: evil.example"],
        ["POST /anthropic/v1/messages HTTP/1.1", "Host: 127.0.0.1", "Host: evil.example"],
        ["POST /anthropic/v1/messages HTTP/1.0"],
        ["CONNECT evil.example:443 HTTP/1.1", "Host: evil.example:443"],
        ["GET /_tenuto/../anthropic/v1/messages HTTP/1.1", "Host: 127.0.0.1"],
    ],
)
async def test_what_is_not_meant_for_it_is_refused(
    served: Served, model: Model, lines: list[str]
) -> None:
    sent = [*lines, f"X-Api-Key: {served.token()}", "Content-Length: 0", "Connection: close"]
    answer = await raw(served, "\n".join(sent) + "\n\n")
    assert answer[9:12] in (b"400", b"403", b"404"), answer[:200]
    assert not model.seen


async def test_two_framings_make_one_request_and_no_second_one(
    served: Served, model: Model
) -> None:
    model.play(Say("one", usage=Tokens(10, 1)), Say("two", usage=Tokens(10, 1)), bare=True)
    hidden = head(served, "POST", "/anthropic/v1/messages", 0).replace("\n", "\r\n").encode()
    body = json.dumps(ANTHROPIC.body).encode()
    chunked = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    sent = head(served, "POST", "/anthropic/v1/messages", 4, "Transfer-Encoding: chunked")
    await raw(served, sent, chunked + hidden)
    assert len(model.seen) <= 1 and served.spend().requests == len(model.seen)


async def test_an_upgrade_is_not_taken_for_a_way_past_the_count(
    served: Served, model: Model
) -> None:
    more = ("Upgrade: websocket", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13")
    sent = head(served, "GET", "/openai/v1/responses", 0, *more)
    sent = sent.replace("Connection: close", "Connection: Upgrade, close")
    answer = await raw(served, sent)
    assert not answer.startswith(b"HTTP/1.1 101"), answer[:200]


async def test_an_event_that_never_ends_takes_no_more_than_its_share() -> None:
    events = Events(most=1 << 16)
    piece = b"data: " + b"x" * 1000 + b"\n"
    passed = 0
    for _ in range(1000):
        passed += sum(len(one) for one, _ in events.feed(piece))
        assert events.held < 3 << 16
    assert passed + len(events.remainder()) == 1000 * len(piece), "every byte goes on"


async def test_a_line_that_never_ends_is_not_copied_for_each_piece() -> None:
    events = Events(most=1 << 22)
    piece = b"y" * 4096
    passed = 0
    for _ in range(4096):  # 16 MiB in all
        passed += sum(len(one) for one, _ in events.feed(piece))
        assert events.held <= (1 << 22) + len(piece)
    assert passed + len(events.remainder()) == 4096 * len(piece)


@pytest.mark.promise("B1")
@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": -5, "output_tokens": -7},
        {"input_tokens": 1e300, "output_tokens": "9"},
        {"input_tokens": 2**80, "output_tokens": None},
        {"input_tokens": True, "output_tokens": [1]},
        [1, 2],
        "much",
    ],
)
async def test_absurd_usage_is_estimated_and_never_lowers_what_is_spent(
    served: Served, usage: Any
) -> None:
    from tenuto.metering.dialects.anthropic import MessagesReader

    reader = MessagesReader("whole")
    reader.feed(json.dumps({"type": "message", "model": "m", "usage": usage}).encode())
    found = reader.end(asked=12)
    assert found.estimated and found.tokens.input == 12 and found.tokens.output >= 0
    served.ledger.grant(Grant(served.execution, max_cost=Decimal(1)))
    assert served.spend().cost >= 0
