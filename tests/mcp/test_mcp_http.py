"""Over HTTP: the token, the checks of Host and Origin, both eras, with the SDK's own client."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_help import META, MODERN, Place, slow


class Listening:
    """A server over HTTP, its address and token as it printed them."""

    def __init__(self, place: Place) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tenuto.cli.main", "mcp", "--http", "--port", "0"],
            cwd=place.folder, env=place.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        found = re.fullmatch(r"MCP server: (http://127\.0\.0\.1:(\d+)/mcp)\n", self._line())
        assert found is not None
        self.url, self.port = found.group(1), int(found.group(2))
        self.token = self._line().removeprefix("Authorization: Bearer ").strip()

    def _line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def post(self, body: bytes, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        common = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {self.token}",
        }
        given = {**common, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request("POST", "/mcp", body, {k: v for k, v in given.items() if v})
        answer = connection.getresponse()
        result = answer.status, answer.read()
        connection.close()
        return result

    def close(self) -> None:
        self.process.terminate()
        out, _ = self.process.communicate(timeout=60)
        assert out == ""


@pytest.fixture
def listening(place: Place) -> Iterator[Listening]:
    here = Listening(place)
    yield here
    here.close()


@pytest.mark.promise("M3", "X16")
def test_without_the_token_or_from_elsewhere_nobody_gets_in(place: Place, listening: Listening):
    meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    body = json.dumps(message).encode()
    headers = {"mcp_protocol_version": MODERN, "mcp_method": "tools/list"}
    status, answer = listening.post(body, **headers)
    assert status == 200 and b'"execute"' in answer
    for wrong in ("", "Bearer ", "Bearer wrong", listening.token, f"Basic {listening.token}"):
        assert listening.post(body, **{**headers, "authorization": wrong})[0] == 401
    assert listening.post(body, **headers, origin="http://evil.example")[0] == 403
    assert listening.post(body, **headers, host="evil.example")[0] in (400, 403, 421)
    assert listening.post(body, **headers, origin=f"http://localhost:{listening.port}")[0] == 200
    assert listening.post(b"{not json", **headers)[0] == 400
    assert os.stat(place.home / "mcp-token").st_mode & 0o777 == 0o600
    assert (place.home / "mcp-token").read_text().strip() == listening.token


@pytest.mark.parametrize(("port", "why"), [(None, "Address already in use"), (99999, "0-65535")])
def test_a_port_that_cannot_be_had_is_told(place: Place, port: int | None, why: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = str(taken.getsockname()[1] if port is None else port)
        words = [sys.executable, "-m", "tenuto.cli.main", "mcp", "--http", "--port", given]
        done = subprocess.run(
            words, cwd=place.folder, env=place.env, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    assert done.returncode == 2
    what, way = done.stderr.splitlines()
    assert what.startswith(f"tenuto: error: cannot listen on port {given} of 127.0.0.1: ")
    assert why in what and "--port N" in way


@pytest.mark.promise("M3")
@pytest.mark.parametrize("mode", ["legacy", MODERN])
@pytest.mark.asyncio
async def test_the_sdks_client_over_http(place: Place, listening: Listening, mode: str):
    headers = {"authorization": f"Bearer {listening.token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=120) as web:
        transport = streamable_http_client(listening.url, http_client=web)
        async with Client(transport, mode=mode) as client:
            await works(client)


@pytest.mark.promise("M3")
@pytest.mark.parametrize("mode", [slow("legacy"), "auto", slow(MODERN)])
@pytest.mark.asyncio
async def test_the_sdks_client_over_stdio(place: Place, mode: str):
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "tenuto.cli.main", "mcp"],
        cwd=str(place.folder), env=place.env,
    )  # fmt: skip
    async with Client(server, mode=mode) as client:
        await works(client)


async def works(client: Client) -> None:
    told: list[str] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    names = [tool.name for tool in (await client.list_tools()).tools]
    assert names[:2] == ["execute", "output"]
    count = "import time\nfor i in range(5):\n    print(i, flush=True)\n    time.sleep(0.4)\n"
    code = count + "print(input())"
    asked = await client.call_tool(
        "execute", {"code": code, "language": "python", "wait": 50}, progress_callback=progress
    )
    data = asked.structured_content
    assert data is not None and data["waiting_for"] == "input"
    assert told and told[0].startswith("0")
    sent = await client.call_tool(
        "send_input", {"execution_id": data["execution_id"], "text": "hello"}
    )
    assert sent.structured_content is not None and "hello" in sent.structured_content["output"]
    read = await client.read_resource(f"exec://{data['execution_id']}/log")
    assert "hello" in str(read.contents[0])
