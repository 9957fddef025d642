"""The loop without its process: the same code on queues, so that a test loads the libraries once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tenuto.core.ids import new_id
from tenuto.core.runs import ChildEnd, Endpoint, Finished, PermissionAsked, RunEvent, RunRequest
from tenuto.runners.cli import CliRunner, CliSession
from tenuto.runners.loop.process import Process
from tenuto.testing.runner_conformance import checked


class InlineChild:
    """Stands in for the process; killing it drops it where it is."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.id = new_id()
        self.written: list[bytes] = []
        self._in: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.task = asyncio.create_task(self._run(environ))

    async def _run(self, environ: Mapping[str, str]) -> None:
        try:
            await Process(self._write, environ).serve(self._commands())
        finally:
            self._out.put_nowait(None)

    def _write(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        self.written.append(data)
        self._out.put_nowait(data[:-1])

    async def _commands(self) -> AsyncIterator[bytes]:
        while (line := await self._in.get()) is not None:
            yield line

    async def send(self, data: bytes) -> None:
        for line in data.splitlines():
            self._in.put_nowait(line)

    async def close_input(self) -> None:
        self._in.put_nowait(None)

    async def lines(self) -> AsyncIterator[bytes]:
        while (line := await self._out.get()) is not None:
            yield line

    async def last_words(self) -> str:
        return ""

    async def signal(self, name: str) -> None:
        raise NotImplementedError(name)

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    async def wait(self) -> ChildEnd:
        await asyncio.wait({self.task})
        failed = self.task.cancelled() or self.task.exception() is not None
        detail = "cancelled" if self.task.cancelled() else repr(self.task.exception())
        return ChildEnd("failed" if failed else "succeeded", None if failed else 0, detail)

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Return the lines of one type that were written."""
        lines = [msgspec.json.decode(line) for line in self.written]
        return [line for line in lines if line["type"] == kind]


class InlineNursery:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        self.children: list[InlineChild] = []

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str] = {},
        unset: Sequence[str] = (),
        title: str = "",
    ) -> InlineChild:
        assert tuple(argv[1:]) == ("-P", "-m", "tenuto.runners.loop")
        assert os.path.isdir(cwd)
        assert title
        kept = {name: value for name, value in self.environ.items() if name not in unset}
        child = InlineChild({**kept, **env})
        self.children.append(child)
        return child

    def left(self) -> list[str]:
        return [child.id for child in self.children if not child.task.done()]


class Stand:
    """One workspace, one API, sessions on demand."""

    def __init__(self, workspace: Path, api: Any, nursery: InlineNursery) -> None:
        self.workspace = workspace
        self.api = api
        self.nursery = nursery
        self.sessions: list[CliSession] = []

    def request(self, **fields: Any) -> RunRequest:
        given: dict[str, Any] = {
            "cwd": str(self.workspace),
            "model": "anthropic:claude-sonnet-5-5",
            "endpoint": Endpoint(self.api.url, "the-token"),
        }
        return RunRequest(**{**given, **fields})

    async def open(self, **fields: Any) -> CliSession:
        session = await CliRunner().open(self.request(**fields), self.nursery)
        self.sessions.append(session)
        return session

    async def close(self) -> None:
        for session in self.sessions:
            await session.close()


async def ask(
    session: CliSession, text: str = "go", allow: Callable[[PermissionAsked], bool] | None = None
) -> list[RunEvent]:
    """Return the events of a turn; what is asked is allowed unless told otherwise."""
    events: list[RunEvent] = []
    async for event in session.prompt(text):
        events.append(event)
        if isinstance(event, PermissionAsked):
            await session.answer(event.id, allow is None or allow(event), "not today")
    return checked(events)


def end_of(events: list[RunEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def only(events: list[RunEvent], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]
