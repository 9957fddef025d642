"""What the tests of metering share: requests in every dialect, and a gateway in this process."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import httpx2
import uvicorn

from tenuto.core.budget import BudgetLimits, Crossing, Spend
from tenuto.core.ids import new_id
from tenuto.metering import passes
from tenuto.metering.gateway import Gateway
from tenuto.metering.ledger import Ledger
from tenuto.metering.prices import Price, Prices
from tenuto.metering.serving import client_for
from tenuto.metering.upstreams import from_environ
from tenuto.testing.models import Model

_TRUST = ssl.create_default_context()  # made once: it takes its time
KEY = "sk-the-real-key-0123456789"
DOLLAR = Prices({"scripted": Price(Decimal(0), Decimal(1_000_000))})
"""A dollar for each token of output."""


@dataclass(frozen=True)
class Way:
    """One dialect, as a client speaks it."""

    name: str
    path: str
    body: dict[str, Any]
    header: str
    stream_path: str = ""

    def request(self, token: str, stream: bool, **more: Any) -> dict[str, Any]:
        """Return what httpx is to send."""
        body = {**self.body, **more}
        path = self.path
        if stream and self.stream_path:
            path = self.stream_path
        elif stream:
            body["stream"] = True
        value = f"Bearer {token}" if self.header == "authorization" else token
        headers = {self.header: value, "content-type": "application/json"}
        return {"url": path, "content": json.dumps(body), "headers": headers}


_SAY = [{"role": "user", "content": "Say something."}]
ANTHROPIC = Way(
    "anthropic", "/anthropic/v1/messages",
    {"model": "scripted", "max_tokens": 100, "messages": _SAY}, "x-api-key",
)  # fmt: skip
CHAT = Way(
    "chat", "/openai/v1/chat/completions", {"model": "scripted", "messages": _SAY}, "authorization"
)
RESPONSES = Way(
    "responses", "/openai/v1/responses", {"model": "scripted", "input": _SAY}, "authorization"
)
GOOGLE = Way(
    "google", "/google/v1beta/models/scripted:generateContent",
    {"contents": [{"role": "user", "parts": [{"text": "Say something."}]}]}, "x-goog-api-key",
    "/google/v1beta/models/scripted:streamGenerateContent?alt=sse",
)  # fmt: skip
WAYS = [ANTHROPIC, CHAT, RESPONSES, GOOGLE]


def environ_for(model: Model, key: str = KEY) -> dict[str, str]:
    """Return the environment of a gateway in front of the scripted model."""
    return {
        "ANTHROPIC_API_KEY": key,
        "OPENAI_API_KEY": key,
        "GEMINI_API_KEY": key,
        "TENUTO_UPSTREAM_ANTHROPIC": model.url,
        "TENUTO_UPSTREAM_OPENAI": f"{model.url}/v1",
        "TENUTO_UPSTREAM_GOOGLE": model.url,
    }


class NotingLedger(Ledger):
    """Says when a request was settled."""

    def __init__(self, home: str) -> None:
        super().__init__(home)
        self.settled = asyncio.Semaphore(0)

    def settle(self, *arguments: Any, **named: Any) -> bool:
        done = super().settle(*arguments, **named)
        self.settled.release()
        return done


class Served:
    """A gateway on a port of its own, in this event loop."""

    def __init__(self, home: Any, environ: dict[str, str], **options: Any) -> None:
        self.home = str(home)
        self.execution = new_id()
        self.limits = BudgetLimits()
        self.asked: asyncio.Queue[tuple[str, str, Sequence[Crossing]]] = asyncio.Queue()
        self.warned: asyncio.Queue[tuple[str, str, Sequence[Crossing]]] = asyncio.Queue()
        self.troubles: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()
        self.environ = environ
        self.options = options

    async def __aenter__(self) -> Served:
        loop = asyncio.get_running_loop()

        def teller(queue: Any) -> Any:
            return lambda *told: loop.call_soon_threadsafe(queue.put_nowait, told)

        self.ledger = NotingLedger(self.home)
        self.secret = passes.secret_of(self.home)
        where = from_environ(self.environ)
        self._upstream = client_for(where, _TRUST)
        given = {
            "prices": Prices(), "limits": lambda: self.limits,
            "on_ask": teller(self.asked), "on_warn": teller(self.warned),
            "on_trouble": teller(self.troubles), **self.options,
        }  # fmt: skip
        self.gateway = Gateway(self.ledger, where, self.secret, self._upstream, **given)
        sock = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        config = uvicorn.Config(
            self.gateway, lifespan="off", log_config=None, log_level="critical", ws="none",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[sock])
        self.client = httpx2.AsyncClient(
            base_url=self.url, timeout=30, trust_env=False, verify=_TRUST
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.aclose()
        await self._server.shutdown()
        await self.gateway.close()
        await self._upstream.aclose()
        self.ledger.close()
        assert self.gateway.in_flight == 0
        assert self.gateway.held == 0

    def token(self, step: str = "one", execution: str = "") -> str:
        return passes.token(self.secret, execution or self.execution, step)

    async def post(self, way: Way, stream: bool = False, step: str = "one", **more: Any) -> Any:
        """Send a request and read its answer to the end."""
        return await self.client.post(**way.request(self.token(step), stream, **more))

    def spend(self, execution: str = "") -> Spend:
        return self.ledger.spend(execution or self.execution)

    async def wake(self) -> int:
        proof = passes.proof(self.secret, "wake")
        answer = await self.client.post("/_tenuto/wake", headers={"x-tenuto-proof": proof})
        assert answer.status_code == 200
        return int(answer.json()["held"])
