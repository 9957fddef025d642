"""Runners and strategies of a user's own, as a driver loads them by name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping

from tenuto.core.plan import Plan, Step
from tenuto.core.ports import Nursery
from tenuto.core.runs import Capabilities, Finished, Probe, RunEvent, RunRequest
from tenuto.core.tasks import TaskSpec
from tenuto.testing.agents import EchoRunner, EchoSession


def _note(line: str) -> None:
    """Leave a line that outlives every process, in one write."""
    fd = os.open(os.environ["TENUTO_TEST_SIDE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


class FrugalRunner(EchoRunner):
    """Would ask its model through the gateway, and never has to."""

    capabilities = Capabilities(interrupt=True, metered=True, usage="request")

    def __init__(self) -> None:
        super().__init__("frugal", "frugal")


class SideRunner(EchoRunner):
    """Notes in a file that a step began, and that it came to its end.

    [[await:file]] waits for a file, [[review]] sends back in the first round and approves in the second.
    """

    def __init__(self) -> None:
        super().__init__("side", "side")

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        session = await super().open(request, nursery)
        session.prompt = _noted(session, request.title.partition(": ")[2])  # type: ignore[method-assign]
        return session


def _noted(session: EchoSession, step: str):
    prompt = session.prompt

    async def noted(text: str) -> AsyncIterator[RunEvent]:
        _note(f"begin {step}")
        file = text.rpartition("[[await:")[2].partition("]]")[0] if "[[await:" in text else ""
        while file and not os.path.exists(file):
            await asyncio.sleep(0.01)
        verdict = "approve" if step.endswith(".2") else "send back"
        async for event in prompt(text.replace("[[review]]", f"[[say:Verdict: {verdict}]]")):
            if isinstance(event, Finished) and event.ok:
                _note(f"end {step}")
            yield event

    return noted


class WriterRunner(EchoRunner):
    """Writes a file into the working directory: [[write:name]]."""

    def __init__(self) -> None:
        super().__init__("writer", "writer")

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        session = await super().open(request, nursery)
        prompt = session.prompt

        async def writing(text: str) -> AsyncIterator[RunEvent]:
            name = text.rpartition("[[write:")[2].partition("]]")[0]
            with open(os.path.join(request.cwd, name), "w", encoding="utf-8") as file:
                file.write(f"{name}\n")
            async for event in prompt(text):
                yield event

        session.prompt = writing  # type: ignore[method-assign]
        return session


class _Family(EchoRunner):
    """One of two that stand in for each other; the environment says which one is missing."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "ours", answer=f"{name} says {{text}}")

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        kind = environ.get(f"TENUTO_TEST_{self.name.upper()}")
        if kind is None:
            return Probe(available=True, version="1")
        return Probe(available=False, kind=kind, why=f"it is {kind}", hint="mend it")  # type: ignore[arg-type]


BRIEFED = EchoRunner("briefed", "briefed", "{system}")
LOUD = EchoRunner("loud", "loud", answer="word " * 200_000)
FIRST = _Family("first")
SECOND = _Family("second")


class _Session:
    session = "s"

    async def prompt(self, text: str) -> AsyncIterator[RunEvent]:
        del text
        await asyncio.Event().wait()
        yield Finished(ok=True)

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None: ...

    async def interrupt(self) -> None: ...

    async def close(self) -> None: ...


class DeafRunner:
    """Its agent never ends and does not react to anything."""

    name = family = "deaf"
    capabilities = Capabilities()

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        return Probe(available=True)

    async def open(self, request: RunRequest, nursery: Nursery) -> _Session:
        _note("begin deaf")
        return _Session()


class BlockedRunner(DeafRunner):
    """It blocks the whole driver, signals and all."""

    name = family = "blocked"

    async def open(self, request: RunRequest, nursery: Nursery) -> _Session:
        _note("begin blocked")
        while True:
            time.sleep(1000)


class BombRunner(DeafRunner):
    """What it runs goes off inside the driver."""

    name = family = "bomb"

    async def open(self, request: RunRequest, nursery: Nursery) -> _Session:
        made = _Session()

        async def prompt(text: str) -> AsyncIterator[RunEvent]:
            if "os_exit" in text:
                os._exit(0)
            if "exit" in text:
                raise SystemExit(0)
            if "abort" in text:
                os.abort()
            if "raise" in text:
                raise RuntimeError("boom")
            _talk_nonsense()
            yield Finished(ok=True, text="fine")

        made.prompt = prompt  # type: ignore[method-assign]
        return made


def _talk_nonsense() -> None:
    """Write to every socket of this process what no driver would say."""
    lines = [
        b"\0\1\2", b"{", b"[]", b"7", b'{"type": "ended", "state": "succeeded"}', b'{"type": []}',
        b'{"type": "tell", "events": [{"type": "ended"}]}', b'{"type": "outcome", "state": "lost"}',
        b'{"type": "waiting", "on": "nobody"}', b'{"type": "tell"}', b'{"n": 1, "type": "told"}',
        b'{"type": "continuing", "x": "' + b"x" * 100_000 + b'"}',
    ]  # fmt: skip
    for name in os.listdir("/proc/self/fd"):
        try:
            kind = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if kind.startswith("socket:") and int(name) > 2:
            with socket.socket(fileno=os.dup(int(name))) as line:
                if line.family == socket.AF_UNIX and line.type == socket.SOCK_STREAM:
                    with contextlib.suppress(OSError):
                        line.setblocking(False)
                        line.send(b"\n".join(lines) + b"\n")


class SleeperRunner(EchoRunner):
    """It has a process, as agents have, which only sleeps."""

    def __init__(self) -> None:
        super().__init__("sleeper", "sleeper")

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        await nursery.spawn(["sleep", "1000"], cwd=request.cwd)
        return await super().open(request, nursery)


class NestRunner(EchoRunner):
    """Its process starts a task of its own, which hangs, and notes its id."""

    def __init__(self) -> None:
        super().__init__("nest", "nest")

    async def open(self, request: RunRequest, nursery: Nursery) -> EchoSession:
        words = [sys.executable, "-m", "tenuto.cli.main", "task", "-d", "--runtime", "sleeper"]
        child = await nursery.spawn([*words, "[[hang]] inside"], cwd=request.cwd)
        async for line in child.lines():
            _note(f"nested {line.decode()}")
        await child.wait()
        return await super().open(request, nursery)


class TiredRunner(DeafRunner):
    """Its agent says that it was interrupted, though nobody asked for that."""

    name = family = "tired"

    async def open(self, request: RunRequest, nursery: Nursery) -> _Session:
        _note("begin tired")
        made = _Session()

        async def prompt(text: str) -> AsyncIterator[RunEvent]:
            yield Finished(ok=False, interrupted=True, message="somebody else stopped it")

        made.prompt = prompt  # type: ignore[method-assign]
        return made


def pair(spec: TaskSpec) -> Plan:
    """A strategy: one writes, the other recalls."""
    return Plan((Step("left", f"{spec.text} left"), Step("right", "[[recall]]", ("left",))))


def broken(spec: TaskSpec) -> Plan:
    raise RuntimeError(f"no plan for {spec.text}")
