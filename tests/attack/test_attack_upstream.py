"""Upstreams that answer as none should: packed, cut, garbled, without an end. All of it is counted."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from metering_help import ANTHROPIC, CHAT, KEY, Served

from tenuto.core.budget import Tokens

pytestmark = [pytest.mark.asyncio, pytest.mark.promise("B1", "B3")]

TOLD = {
    "type": "message", "model": "scripted", "content": [{"type": "text", "text": "hello" * 20}],
    "usage": {"input_tokens": 3, "output_tokens": 4},
}  # fmt: skip
BODY = json.dumps(TOLD).encode()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
STREAM = HEAD.replace(b"application/json", b"text/event-stream")
STARTED = b'data: {"type":"message_start","message":{"usage":{"input_tokens":9}}}\n\n'


@asynccontextmanager
async def answering(home: Path, *answers: bytes) -> AsyncIterator[Served]:
    """A gateway before an upstream that answers with these bytes, one answer to each request."""
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line.partition(b":")[2])
            for line in head.lower().splitlines()
            if line.startswith(b"content-length:")
        )
        await reader.readexactly(size)
        writer.write(left.pop(0))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    keys = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}
    where = {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1"}
    try:
        async with Served(home, keys | where) as served:
            yield served
            assert served.spend().unsettled == 0
    finally:
        server.close()
        await server.wait_closed()


def packed(way: str, data: bytes) -> bytes:
    return HEAD + f"content-encoding: {way}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


@pytest.mark.parametrize(
    ("way", "pack"),
    [
        ("gzip", gzip.compress), ("GZIP", gzip.compress),
        ("deflate", zlib.compress), ("identity", bytes), ("", bytes),
        ("gzip, identity", gzip.compress),
    ],
)  # fmt: skip
async def test_what_can_be_unpacked_is_counted_exactly(
    tmp_path: Path, way: str, pack: Callable[[bytes], bytes]
) -> None:
    async with answering(tmp_path, packed(way, pack(BODY))) as served:
        answer = await served.post(ANTHROPIC)
        assert answer.json() == TOLD
        assert served.spend().tokens == Tokens(3, 4) and not served.spend().estimated


@pytest.mark.parametrize("way", ["br", "zstd", "x-gzip", "gzip, br", "my-own"])
async def test_what_cannot_be_unpacked_passes_as_it_is_and_is_estimated(
    tmp_path: Path, way: str
) -> None:
    data = b"\x1b\x03packed in a way that only the client may know" * 9
    async with answering(tmp_path, packed(way, data)) as served:
        sent = ANTHROPIC.request(served.token(), False)
        async with served.client.stream("POST", **sent) as answer:
            got = b"".join([part async for part in answer.aiter_raw()])
            assert answer.headers["content-encoding"] == way
            assert int(answer.headers["content-length"]) == len(data)
        assert got == data
        spend = served.spend()
        assert (spend.requests, spend.estimated) == (1, 1)
        assert spend.tokens.input > 0 and spend.tokens.output >= len(data) // 4


async def test_a_packed_stream_of_chat_passes_as_it_is(tmp_path: Path) -> None:
    data = b"\x28\xb5\x2f\xfd a stream of events, packed"
    head = STREAM + b"content-encoding: zstd\r\n\r\n"
    async with answering(tmp_path, head + data) as served:
        sent = CHAT.request(served.token(), True)
        async with served.client.stream("POST", **sent) as answer:
            assert b"".join([part async for part in answer.aiter_raw()]) == data
        assert served.spend().estimated == 1


GARBAGE = {
    "nothing": b"",
    "noise": bytes(range(256)) * 4,
    "no head": b"HTTP/1.1 200 OK",
    "not http": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "old": b'{"type": "message"}',
    "no number": b"HTTP/1.1 many OK\r\n\r\n",
    "a huge header": HEAD + b"x: " + b"y" * (2 << 20) + b"\r\n\r\n",
    "many headers": HEAD + b"x: y\r\n" * 100_000 + b"\r\n",
    "a bare header": b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    "a NUL": b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
    "a length below zero": HEAD + b"content-length: -5\r\n\r\nhello",
    "two lengths": HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "no chunk": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    "a chunk without an end": HEAD + b"transfer-encoding: chunked\r\n\r\nffffffff\r\nhello",
    "short": HEAD + b"content-length: 500\r\n\r\n" + BODY[:40],
    "broken gzip": packed("gzip", gzip.compress(BODY)[:-9] + b"123456789"),
    "no gzip": packed("gzip", b"not packed at all"),
    "half an event": STREAM + b"\r\n" + STARTED + b'data: {"type":"message_de',
    "half a character": STREAM + b"\r\n" + STARTED + b'data: {"type":"\xe2\x82',
    "events of garbage": STREAM + b"\r\n" + STARTED + b"data: \xff\xfe\n\ndata: [[[[\n\n:\n\n\r\r",
    "deep": HEAD + b"\r\n" + b'{"usage":' * 50_000,
    "another type": HEAD.replace(b"application/json", b"image/png") + b"\r\n\x89PNG",
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_ends_the_request_and_nothing_else(
    tmp_path: Path, what: str, stream: bool
) -> None:
    good = HEAD + f"content-length: {len(BODY)}\r\n\r\n".encode() + BODY
    async with answering(tmp_path, GARBAGE[what], good) as served:
        sent = ANTHROPIC.request(served.token(), stream)
        status = 0
        try:
            async with served.client.stream("POST", **sent) as answer:
                status = answer.status_code
                async for _ in answer.aiter_raw():
                    pass
        except httpx2.TransportError:
            assert status == 200, "cut short for the client as it was for us"
        assert status in (200, 502)
        first = served.spend()
        assert first.requests == 1 and first.unsettled == 0
        assert first.estimated == 1, "nobody told what it used"
        answer = await served.post(ANTHROPIC)
        assert answer.json() == TOLD
        assert served.spend().requests == 2
