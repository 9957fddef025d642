"""Clients that send as none should: slowly, without an end, two at once, names without a measure."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from metering_help import ANTHROPIC, CHAT, Served

from tenuto.core.budget import Tokens
from tenuto.testing.models import Model
from tenuto.testing.models.steps import Say

pytestmark = [pytest.mark.asyncio, pytest.mark.promise("B3")]

BODY = json.dumps(ANTHROPIC.body).encode()


@asynccontextmanager
async def line_to(
    served: Served,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = served.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):  # the other side may have been first
            await writer.wait_closed()


def head(served: Served, *more: str, token: str = "", version: str = "1.1") -> bytes:
    lines = [
        f"POST {ANTHROPIC.path} HTTP/{version}", "Host: 127.0.0.1",
        f"x-api-key: {token or served.token()}", "content-type: application/json", *more, "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


async def test_many_who_never_finish_hold_up_nobody(served: Served, model: Model) -> None:
    whole = head(served, f"content-length: {len(BODY)}") + BODY
    beginnings = [b"", b"POST", whole[:60], whole[: len(whole) - len(BODY)], whole[:-1]]
    model.play(*[Say("in time", usage=Tokens(3, 4))] * 6, by="request")
    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(line_to(served)) for _ in range(400)]
        for number, (_, writer) in enumerate(lines):
            writer.write(beginnings[number % len(beginnings)])
            await writer.drain()
        for _ in range(5):
            answer = await asyncio.wait_for(served.post(ANTHROPIC), 10)
            assert answer.status_code == 200
        reader, writer = lines[4]  # one that is slow, and no more than that
        writer.write(whole[-1:])
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200")
    assert len(model.seen) == 6 and served.spend().tokens == model.billed()


async def test_a_body_without_an_end_is_refused_at_its_bound(served: Served, model: Model) -> None:
    part = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    async with line_to(served) as (reader, writer):
        writer.write(head(served, "transfer-encoding: chunked"))
        answering = asyncio.ensure_future(reader.readline())
        with suppress(ConnectionError):
            for _ in range(200):
                if answering.done():
                    break
                writer.write(part)
                await writer.drain()
        assert (await answering).startswith(b"HTTP/1.1 413")
    assert not model.seen and not served.spend().requests


@pytest.mark.parametrize(
    "chunk", [b"zz\r\n", b"-1\r\n", b"fffffffffffffffff1\r\n", b"1;" + b"x" * 99_999]
)
async def test_a_body_in_broken_chunks_is_refused(
    served: Served, model: Model, chunk: bytes
) -> None:
    async with line_to(served) as (reader, writer):
        writer.write(head(served, "transfer-encoding: chunked", "connection: close") + chunk)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 10)
    assert not answer.startswith(b"HTTP/1.1 200")
    assert not model.seen and not served.spend().requests
    model.play("fine", by="request")
    assert (await served.post(ANTHROPIC)).status_code == 200


async def test_the_oldest_http_is_served_and_counted(served: Served, model: Model) -> None:
    model.play(Say("old", usage=Tokens(3, 4)), by="request")
    async with line_to(served) as (reader, writer):
        writer.write(head(served, f"content-length: {len(BODY)}", version="1.0") + BODY)
        answer = await asyncio.wait_for(reader.read(), 10)  # and the line is closed
    assert answer.startswith(b"HTTP/1.1 200") and b"old" in answer
    assert served.spend().tokens == Tokens(3, 4)


async def test_requests_one_behind_the_other_are_each_checked_and_counted(
    served: Served, model: Model
) -> None:
    model.play(*[Say("yes", usage=Tokens(3, 4))] * 2, by="request")
    size = f"content-length: {len(BODY)}"
    good = head(served, size) + BODY
    bad = head(served, size, token=served.token()[:-1] + "x") + BODY
    last = head(served, size, "connection: close") + BODY
    async with line_to(served) as (reader, writer):
        writer.write(good + bad + last)
        answer = await asyncio.wait_for(reader.read(), 20)
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"401", b"200"]
    assert served.spend().requests == 2 and served.spend().tokens == Tokens(6, 8)


@pytest.mark.parametrize("way", [ANTHROPIC, CHAT], ids=lambda way: way.name)
async def test_a_model_with_a_name_without_measure_is_refused_and_not_kept(
    served: Served, model: Model, way: object
) -> None:
    for number in range(3):
        name = f"{number}" + "x" * (4 << 20)
        answer = await served.post(way, model=name)  # type: ignore[arg-type]
        assert answer.status_code == 400 and len(answer.content) < 1000
    assert not model.seen
    kept = sum(
        os.path.getsize(os.path.join(root, one))
        for root, _, names in os.walk(served.home)
        for one in names
    )
    assert kept < 100_000
