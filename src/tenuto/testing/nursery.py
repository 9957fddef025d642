"""A nursery without an engine: plain subprocesses, for tests of runners alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from tenuto.core.ids import new_id
from tenuto.core.runs import ChildEnd

_LINE_MOST = 64 * 1024 * 1024


class PlainChild:
    """A process in a session of its own; killing it kills that session's processes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Take a process whose three streams are pipes."""
        self.id = new_id()
        self.process = process
        self._errors = bytearray()
        self._reading = asyncio.create_task(self._read_errors())

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(65536):
            self._errors += data
            del self._errors[:-65536]

    async def send(self, data: bytes) -> None:
        """Write to its stdin."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            self.process.stdin.write(data)
            await self.process.stdin.drain()

    async def close_input(self) -> None:
        """Close its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield its lines."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            yield line.rstrip(b"\n")

    async def last_words(self) -> str:
        """Return the end of its stderr, once that is closed if it has ended."""
        if self.process.returncode is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        return self._errors[-4096:].decode("utf-8", "replace")

    async def signal(self, name: str) -> None:
        """Signal its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.Signals[f"SIG{name.removeprefix('SIG')}"])

    async def kill(self) -> None:
        """Kill its group and wait for it."""
        await self.signal("KILL")
        await self.process.wait()

    async def wait(self) -> ChildEnd:
        """Return how it ended."""
        code = await self.process.wait()
        state = "succeeded" if code == 0 else "failed"
        return ChildEnd(state, code if code >= 0 else None, "" if code >= 0 else f"signal {-code}")


class PlainNursery:
    """Starts subprocesses and knows them all, so that a test can see that they are gone."""

    def __init__(self) -> None:
        """Begin with none."""
        self.children: list[PlainChild] = []

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str] = {},
        unset: Sequence[str] = (),
        title: str = "",
    ) -> PlainChild:
        """Start a process."""
        del title
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env={**kept, **env},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LINE_MOST,
        )
        child = PlainChild(process)
        self.children.append(child)
        return child

    async def close(self) -> None:
        """Kill what is left."""
        for child in self.children:
            await child.kill()
