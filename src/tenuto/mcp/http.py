"""Streamable HTTP: loopback, a bearer token, and checks of Host and Origin."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server

from tenuto.core.errors import InvalidInput
from tenuto.mcp.opening import opened, settings_home

_LARGEST = 64 * 1024 * 1024
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SHUTDOWN_S = 2
Scope = MutableMapping[str, Any]
App = Callable[
    [Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]


class Guard:
    """Lets through who has the token."""

    def __init__(self, app: App, token: str) -> None:
        """Take the application behind and the token."""
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(given) != 1 or not hmac.compare_digest(given[0], self._expected):
                await _refuse(send)
                return
        await self._app(scope, receive, send)


async def _refuse(send: Any) -> None:
    body = b'{"error":"unauthorized","message":"send the token as: Authorization: Bearer TOKEN"}'
    headers = [
        (b"content-type", b"application/json"),
        (b"www-authenticate", b"Bearer"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def app_of(server: Server[Any], host: str, token: str | None) -> App:
    """Return the web application of a server; without a token only for tests."""
    if host not in _LOOPBACK:
        raise InvalidInput(
            f"{host} is not a loopback address, and this is no encrypted connection",
            "serve on 127.0.0.1 and reach it from elsewhere through a tunnel",
        )
    app: Any = server.streamable_http_app(host=host, max_request_body_size=_LARGEST)
    return app if token is None else Guard(app, token)


def stored_token(home: str) -> str:
    """Return the project's token, made at first use and readable by its user only."""
    given = os.environ.get("TENUTO_MCP_TOKEN")
    if given is not None:
        if len(given) < 16:
            raise InvalidInput("TENUTO_MCP_TOKEN is too short", "give at least 16 characters")
        return given
    path = os.path.join(home, "mcp-token")
    for _ in range(2):
        with suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            found = file.read().strip()
            if len(found) >= 16:
                return found
        with suppress(FileExistsError):
            fresh = f"{path}.{secrets.token_hex(4)}"
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
            try:
                os.link(fresh, path)  # whoever is first wins; nobody reads half a token
            finally:
                os.unlink(fresh)
    raise InvalidInput(f"{path} holds no token", "remove that file")


async def serve(host: str, port: int) -> int:
    """Serve until a signal comes; executions go on."""
    sockets = _listening(host, port)
    async with opened() as server:
        token = stored_token(settings_home())
        config = uvicorn.Config(
            app_of(server, host, token),
            log_level="warning",
            lifespan="on",
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        await _Announcing(config, token).serve(sockets)
    return 0


def _listening(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of the host, or say why there is none."""
    found: list[socket.socket] = []
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            found.append(socket.create_server((str(address[0]), port), family=family))
    except (OSError, OverflowError) as error:
        for one in found:
            one.close()
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(
            f"cannot listen on port {port} of {host}: {why}",
            "name another with --port N; 0 takes any that is free",
        ) from None
    return found


class _Announcing(uvicorn.Server):
    """Says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, token: str) -> None:
        super().__init__(config)
        self._token = token

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for one in self.servers:
            for sock in one.sockets:
                address, port = sock.getsockname()[:2]
                name = f"[{address}]" if ":" in address else address
                sys.stderr.write(f"MCP server: http://{name}:{port}/mcp\n")
        sys.stderr.write(f"Authorization: Bearer {self._token}\n")
        sys.stderr.flush()
        await asyncio.sleep(0)
