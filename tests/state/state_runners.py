"""Runners of these tests, as a driver loads them by name."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping

from tenuto.core.ports import Child, Nursery
from tenuto.core.runs import (
    Finished,
    Probe,
    RunEvent,
    RunRequest,
    SessionOpened,
    ToolBegan,
    ToolEnded,
)
from tenuto.testing.agents import EchoRunner, EchoSession


class SideRunner(EchoRunner):
    """Leaves a line in a file whenever a step begins; hangs in new sessions only, or as a file says."""

    def __init__(self) -> None:
        super().__init__("side", "side")

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        session = await super().open(request, nursery)
        prompt, step = session.prompt, request.title.partition(": ")[2]

        async def noted(text: str) -> AsyncIterator[RunEvent]:
            side = os.environ["TENUTO_TEST_SIDE"]
            fd = os.open(side, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(fd, f"{step} {request.session or 'new'}\n".encode())
            os.close(fd)
            if request.session or os.path.exists(os.environ["TENUTO_TEST_GO"]):
                text = text.replace("[[hang]]", "")
            async for event in prompt(text):
                yield event

        session.prompt = noted  # type: ignore[method-assign]
        return session


class VersionedRunner(EchoRunner):
    """Is of the version that a file says, and not there without the file."""

    def __init__(self) -> None:
        super().__init__("versioned", "versioned")

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        try:
            with open(environ["TENUTO_TEST_VERSION"], encoding="utf-8") as file:
                return Probe(available=True, version=file.read())
        except FileNotFoundError:
            return Probe(False, kind="missing", why="it was taken away", hint="put it back")

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        session = await super().open(request, nursery)
        prompt = session.prompt
        version = (await self.probe(os.environ)).version

        async def told(text: str) -> AsyncIterator[RunEvent]:
            async for event in prompt(text):
                if isinstance(event, SessionOpened):
                    yield SessionOpened(event.session, event.model, version)
                else:
                    yield event

        session.prompt = told  # type: ignore[method-assign]
        return session


class _ProgramSession:
    """A turn lasts as long as its program."""

    def __init__(self, child: Child) -> None:
        self.session = "program"
        self._child = child

    async def prompt(self, text: str) -> AsyncIterator[RunEvent]:
        del text
        end = await self._child.wait()
        yield Finished(ok=end.exit_code == 0, kind="crash", message=end.state, text="done")

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None: ...

    async def interrupt(self) -> None:
        await self._child.kill()

    async def close(self) -> None:
        await self._child.kill()


class ProgramRunner(EchoRunner):
    """Has a program of its own, an execution inside the task's."""

    def __init__(self) -> None:
        super().__init__("program", "program")

    async def open(self, request: RunRequest, nursery: Nursery) -> _ProgramSession:  # type: ignore[override]
        child = await nursery.spawn(["sleep", "1000"], cwd=request.cwd, title=request.title)
        return _ProgramSession(child)


class SlowRunner(EchoRunner):
    """Its program takes for ever to start, until a file says that it has; it does not go by itself."""

    def __init__(self) -> None:
        super().__init__("slow", "slow")

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        child = await nursery.spawn(["sleep", "1000"], cwd=request.cwd, title=request.title)
        try:
            while not _may_go():
                await asyncio.sleep(0.01)
        finally:
            if _may_go():
                await child.kill()
            await child.wait()
        return await super().open(request, nursery)


class LateRunner(SideRunner):
    """Opens its session though nobody wants it any more."""

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        _note("opening")
        while not _may_go():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                break
        return await super().open(request, nursery)


class StubbornRunner(ProgramRunner):
    """Makes its driver ignore everything but SIGKILL."""

    def __init__(self) -> None:
        super().__init__()
        self.name = self.family = "stubborn"

    async def open(self, request: RunRequest, nursery: Nursery) -> _ProgramSession:  # type: ignore[override]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        return await super().open(request, nursery)


def _note(line: str) -> None:
    fd = os.open(os.environ["TENUTO_TEST_SIDE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def _may_go() -> bool:
    return os.path.exists(os.environ["TENUTO_TEST_GO"])


class LookedForRunner(EchoRunner):
    """It takes for ever to find out whether it is there, until a file says that it is."""

    def __init__(self) -> None:
        super().__init__("looked_for", "looked_for")

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        _note("looking")
        while not _may_go():
            await asyncio.sleep(0.01)
        return Probe(available=True, version="1")


class FlakyRunner(EchoRunner):
    """Its model has no room for anybody, until a file says otherwise."""

    def __init__(self) -> None:
        super().__init__("flaky", "flaky")

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        session = await super().open(request, nursery)
        prompt = session.prompt

        async def refused(text: str) -> AsyncIterator[RunEvent]:
            async for event in prompt(text if _may_go() else f"[[fail:overloaded]] {text}"):
                yield event

        session.prompt = refused  # type: ignore[method-assign]
        return session


class ToolRunner(EchoRunner):
    """Is inside a tool until it is interrupted, or a file says that the tool is done."""

    def __init__(self) -> None:
        super().__init__("tool", "tool")

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        session = await super().open(request, nursery)
        prompt = session.prompt

        async def within(text: str) -> AsyncIterator[RunEvent]:
            yield ToolBegan("call", "Bash", {"command": "make"})
            async for event in prompt(text if _may_go() else f"[[hang]] {text}"):
                if isinstance(event, Finished):
                    yield ToolEnded("call", event.ok, "done")
                yield event

        session.prompt = within  # type: ignore[method-assign]
        return session


class NestRunner(SideRunner):
    """Starts a task of its own, unless it goes on in a session: it knows then that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.name = self.family = "nest"

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        if not request.session:
            words = [sys.executable, "-m", "tenuto.cli.main", "task", "-d", "--plan", "nested.json"]
            child = await nursery.spawn([*words, "--resume", "auto"], cwd=request.cwd)
            async for line in child.lines():
                _note(f"nested {line.decode()}")
            await child.wait()
        return await super().open(request, nursery)
