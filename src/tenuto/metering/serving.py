"""The gateway's process: a port that stays the same, a line that says it is ready, an end when idle."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tenuto.core.layouts import lay_out
from tenuto.metering import passes, upstreams
from tenuto.metering.gateway import Gateway, Herald, Teller
from tenuto.metering.ledger import Ledger
from tenuto.metering.prices import Prices
from tenuto.metering.upstreams import Upstream

READY = "the metering gateway is ready"
_GRACE_S = 2
_KEEP_ALIVE_S = 3600  # clients reuse a connection after a tool has run for a while
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Record(msgspec.Struct, frozen=True):
    """Where a gateway listens, for those who look for it and for the one after it."""

    port: int
    execution: str
    fingerprint: str

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


lay_out(Record)


def record_path(home: str, fingerprint: str) -> str:
    """Return the file that says where the gateway of these keys listens."""
    return os.path.join(home, "gateway", f"{fingerprint}.json")


def read_record(home: str, fingerprint: str) -> Record | None:
    """Return what a gateway of these keys wrote down last."""
    try:
        with open(record_path(home, fingerprint), "rb") as file:
            return msgspec.json.decode(file.read(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None


def listen(home: str, fingerprint: str) -> socket.socket:
    """Return a socket on loopback: on the port of the gateway before, if it is still free."""
    before = read_record(home, fingerprint)
    for port in (before.port if before else 0, 0):
        # named as TCP, for asyncio to send small answers at once
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen(2048)
            return sock
        except OSError:
            sock.close()
            if not port:
                raise
    raise AssertionError("unreachable")


def write_record(home: str, record: Record) -> None:
    """Write down where we listen; nobody reads half of it."""
    path = record_path(home, record.fingerprint)
    fresh = f"{path}.{secrets.token_hex(4)}"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(msgspec.json.encode(record))
    os.rename(fresh, path)


def client_for(upstreams: Mapping[str, Upstream], trust: Any = True) -> Any:
    """Return a client without a timeout: a model may think for as long as it likes.

    What is on this machine is never asked through a proxy.
    """
    import httpx2

    near = {
        f"all://{urlsplit(one.url).hostname}": None
        for one in upstreams.values()
        if urlsplit(one.url).hostname in _LOOPBACK
    }
    return httpx2.AsyncClient(
        timeout=None,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
        mounts=near,
        verify=trust,
    )


async def serve(
    home: str,
    environ: Mapping[str, str],
    execution: str,
    *,
    idle_s: float = 600.0,
    needed: Callable[[], bool] = lambda: False,
    limits: Callable[[], Any] | None = None,
    prices: Prices | None = None,
    on_ask: Teller | None = None,
    on_warn: Teller | None = None,
    lives: Callable[[str], bool] = lambda _: True,
    on_trouble: Herald | None = None,
) -> None:
    """Serve until a signal comes, or until nobody has asked for so long and nobody will."""
    import uvicorn

    where = upstreams.from_environ(environ)
    mark = upstreams.fingerprint(where)
    known = prices or Prices()
    sock = listen(home, mark)
    record = Record(sock.getsockname()[1], execution, mark)
    client = client_for(where)
    told: dict[str, Any] = {"execution": execution, "fingerprint": mark}
    optional: dict[str, Any] = {
        "limits": limits, "on_ask": on_ask, "on_warn": on_warn, "on_trouble": on_trouble,
    }  # fmt: skip
    gateway = Gateway(
        Ledger(home), where, passes.secret_of(home), client, prices=known, about=told, lives=lives,
        **{name: value for name, value in optional.items() if value is not None},
    )  # fmt: skip
    config = uvicorn.Config(
        gateway, lifespan="off", log_config=None, log_level="critical", access_log=False,
        http="h11", ws="none", server_header=False, date_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S, timeout_graceful_shutdown=_GRACE_S,
    )  # fmt: skip
    server = uvicorn.Server(config)
    watching = asyncio.ensure_future(_end_when_idle(server, gateway, idle_s, needed))
    # the data takes its time to load: not at the first request, and nobody waits for it
    loading = asyncio.ensure_future(asyncio.to_thread(known.context_window, "gpt-5"))
    write_record(home, record)
    sys.stdout.write(f"{READY} on {record.url}\n")
    sys.stdout.flush()
    try:
        await server.serve(sockets=[sock])
    finally:
        watching.cancel()
        await asyncio.gather(watching, loading, return_exceptions=True)
        await gateway.close()
        await client.aclose()
        with suppress(OSError):
            sock.close()


async def _end_when_idle(
    server: Any, gateway: Gateway, idle_s: float, needed: Callable[[], bool]
) -> None:
    while True:
        await asyncio.sleep(max(0.05, idle_s - (time.monotonic() - gateway.last_active)))
        if gateway.in_flight or time.monotonic() - gateway.last_active < idle_s:
            continue
        if not await asyncio.to_thread(needed):
            server.should_exit = True
            return
        gateway.last_active = time.monotonic()
