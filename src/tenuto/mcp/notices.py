"""What clients hear unasked: ends of executions, updates of resources, and the execution report.

One look a second at what runs, while anything runs and someone listens, finds it all, whoever started
the work. Old clients (with a handshake) get log messages and updates of what they subscribed to; new
ones get updates on the streams they opened. The report goes to stderr as well.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tenuto.core.errors import TenutoError
from tenuto.core.execution import Snapshot
from tenuto.core.quantities import brief_duration
from tenuto.engine.reports import is_gateway
from tenuto.mcp.catalogue import REPORT
from tenuto.mcp.replies import state_words
from tenuto.mcp.service import Service
from tenuto.mcp.task_results import DECISIONS

Context = ServerRequestContext[Any, Any]
_LOOK_S = 1.0
_SEND_S = 5.0
_PEERS = 64
_LAST_LINES = 5
_LAST_BYTES = 2000
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class Peer:
    """A client that made a handshake: its channel, its subscriptions, the least level it wants."""

    def __init__(self, session: ServerSession) -> None:
        """Take its session."""
        self.session = session
        self.uris: set[str] = set()
        self.level = "info"


class Notices:
    """Looks at what runs and tells whoever listens."""

    def __init__(self, service: Service, bus: InMemorySubscriptionBus) -> None:
        """Take what knows the executions and the bus of the new clients' streams."""
        self._service = service
        self._bus = bus
        self._peers: OrderedDict[int, Peer] = OrderedDict()
        self._seen: dict[str, tuple[str, int]] = {}
        self._reported = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # Who listens

    def meet(self, ctx: Context) -> Peer | None:
        """Remember a client of the handshake era; the newest ones are kept."""
        params = ctx.session.client_params
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS or params is None:
            return None
        peer = self._peers.pop(id(params), None) or Peer(ctx.session)
        self._peers[id(params)] = peer
        while len(self._peers) > _PEERS:
            self._peers.popitem(last=False)
        return peer

    async def subscribe(self, ctx: Context, uri: str) -> None:
        """Take a subscription of a handshake client."""
        peer = self.meet(ctx)
        if peer is not None:
            peer.uris.add(uri)

    async def unsubscribe(self, ctx: Context, uri: str) -> None:
        """Drop one."""
        peer = self.meet(ctx)
        if peer is not None:
            peer.uris.discard(uri)

    async def set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> Any:
        """Take the least level of messages a client wants."""
        peer = self.meet(ctx)
        if peer is not None:
            peer.level = params.level
        return types.EmptyResult()

    # Looking

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S + 0.02 * len(self._seen))
            with suppress(TenutoError, OSError):  # the next look may go better
                await self._look()

    async def _look(self) -> None:
        engine = self._service.engine
        running = await engine.list(running=True, most=None)
        live = {one.id: one for one in running if not is_gateway(one)}
        known = self._seen.keys() | self._service.open
        self._service.open.clear()
        for execution_id in [one for one in known if one not in live]:
            self._seen.pop(execution_id, None)
            await self._ended(await engine.show(execution_id))
        for one in live.values():
            now = (state_words(one), one.output_bytes)
            before = self._seen.get(one.id)
            self._seen[one.id] = now
            if before is not None and before != now:
                await self._updated(one, before[0] != now[0])
            elif before is None and one.waiting_for in DECISIONS:
                await self._updated(one, True)
        every = engine.settings.report_every
        if live and every > 0 and time.monotonic() - self._reported >= every:
            self._reported = time.monotonic()
            await self._report()

    async def _updated(self, one: Snapshot, moved: bool) -> None:
        await self._publish(f"exec://{one.id}/log")
        if moved:
            await self._publish(f"exec://{one.id}/state")
        if moved and one.needs_input:
            await self._say("notice", {"execution_id": one.id, "message": "it waits for input"})
        elif moved and one.waiting_for in DECISIONS:
            message = f"it waits for {one.waiting_for}: {one.detail[:500]}"
            await self._say("notice", {"execution_id": one.id, "message": message})

    async def _ended(self, one: Snapshot) -> None:
        await self._publish(f"exec://{one.id}/log")
        await self._publish(f"exec://{one.id}/state")
        chunks = await self._service.engine.logs(one.id, tail=_LAST_LINES, most=_LAST_BYTES)
        last = b"".join(chunk.data for chunk in chunks).decode("utf-8", "replace")
        message = f"Execution {one.id} {one.state} after {brief_duration(one.duration_s)}"
        level = "info" if one else "warning"
        await self._say(
            level,
            {"message": message, "execution_id": one.id, "state": str(one.state),
             "exit_code": one.exit_code, "last_lines": last},
        )  # fmt: skip

    async def _report(self) -> None:
        report = await self._service.engine.report()
        text = self._service.redactor.text(report.text())
        with suppress(OSError, ValueError):
            sys.stderr.write(f"[Execution report {report.at}]\n{text}\n")
            sys.stderr.flush()
        await self._publish(REPORT)
        await self._say("info", {"message": text, "report": True})

    # Telling

    async def _publish(self, uri: str) -> None:
        await self._bus.publish(ResourceUpdated(uri=uri))
        for key, peer in list(self._peers.items()):
            if uri in peer.uris:
                await self._send(key, peer, types.ResourceUpdatedNotification(
                    params=types.ResourceUpdatedNotificationParams(uri=uri)
                ))  # fmt: skip

    async def _say(self, level: str, data: dict[str, Any]) -> None:
        clean = self._service.redactor.data(data)
        for key, peer in list(self._peers.items()):
            if _LEVELS.index(level) >= _LEVELS.index(peer.level):
                await self._send(key, peer, types.LoggingMessageNotification(
                    params=types.LoggingMessageNotificationParams(
                        level=level, logger="tenuto", data=clean  # pyright: ignore
                    )
                ))  # fmt: skip

    async def _send(self, key: int, peer: Peer, notification: Any) -> None:
        """Send to one client; one that does not read, or is gone, is forgotten."""
        try:
            async with asyncio.timeout(_SEND_S):
                await peer.session.send_notification(notification)
        except Exception:
            self._peers.pop(key, None)
