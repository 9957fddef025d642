"""A runner whose answers depend on what it was told alone, and that counts in files what it does.

The task of a step says what it does: `work as=x needs=a,b delay=0.01 kind=plain`. Its answer is a mark
made of its name and of the marks in its prompt, so that two runs come to the same only if every step
was handed the same outputs. Each run leaves lines that outlive every process: `begin` and `end`, `use`
before it tells that it used something, `counted` once the driver has taken that.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import uuid
from collections.abc import AsyncIterator, Mapping

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import Child, Nursery
from tenuto.core.runs import (
    Capabilities,
    Finished,
    PermissionAsked,
    Probe,
    RunEvent,
    RunRequest,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.keeper.procfs import MARK

TOKENS = (100, 7)
KINDS = ("plain", "twice", "tool", "child", "flaky", "ask", "fail")
_TASK = re.compile(r"work as=(\S*) needs=(\S*) delay=(\S+) kind=(\w+)")
_PART = re.compile(r"Your part as ([\w-]+):")
_SAID = re.compile(r"<<([\w.-]+)=(\w+)>>")


def place() -> str:
    """Return the folder of an execution's lines and sessions."""
    return os.path.join(os.environ["TENUTO_TEST_COUNTS"], os.environ[MARK])


class CountedRunner:
    """Opens sessions that need no model, and no process unless a step is of the kind child."""

    name = family = "counted"
    capabilities = Capabilities(interrupt=True, resume=True, permissions=True, usage="request")

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        return Probe(available=True, version="1")

    async def open(self, request: RunRequest, nursery: Nursery) -> CountedSession:
        os.makedirs(place(), 0o700, exist_ok=True)
        session = request.session or request.new_session
        path = os.path.join(place(), f"session-{session}")
        if request.session is None:
            _append(path, "")
        elif not os.path.exists(path):
            raise RunnerFailed(f"there is no session {session}", "begin a new one")
        return CountedSession(session, path, request, nursery)


class CountedSession:
    """A conversation, kept in a file as it goes."""

    def __init__(self, session: str, path: str, request: RunRequest, nursery: Nursery) -> None:
        self.session = session
        self._path = path
        self._request = request
        self._nursery = nursery
        self._step = ""
        self._stop = asyncio.Event()
        self._answers: dict[str, asyncio.Future[bool]] = {}
        self._child: Child | None = None

    async def prompt(self, text: str) -> AsyncIterator[RunEvent]:
        with open(self._path, encoding="utf-8") as file:
            known = "".join(json.loads(line) for line in file if line.strip())
        _append(self._path, json.dumps(text))
        name, needs, delay, kind = _TASK.findall(text)[-1]
        reviews = "VERDICT: SEND BACK" in text
        self._step = step = _whose(name, text, reviews)
        self._note("begin", step)
        yield SessionOpened(self.session, "counted", "1")
        said = {name: mark for name, mark in _SAID.findall(text) if name != step}
        told = {name.removesuffix(".2") for name, _ in _SAID.findall(known + text)}
        missing = [name for name in needs.split(",") if name and name not in told]
        whole = json.dumps([step, sorted(said.items()), missing])
        answer = f"<<{step}={hashlib.sha256(whole.encode()).hexdigest()[:12]}>>"
        if missing:
            answer += f" was not told of {missing}"
        async for event in self._work(kind, float(delay)):
            yield event
            if isinstance(event, Finished):
                return
        if reviews:
            answer += f"\n\nVerdict: {'approve' if step.endswith('.2') else 'send back'}"
        yield Said(answer)
        self._note("end", step)
        yield Finished(ok=True, text=answer)

    async def _work(self, kind: str, delay: float) -> AsyncIterator[RunEvent]:
        for _ in range(2 if kind == "twice" else 1):
            self._note("use", self._step)
            yield Used("counted", *TOKENS)
            self._note("counted", self._step)
            if await self._stopped(delay):
                yield Finished(ok=False, message="interrupted", interrupted=True)
                return
        if kind == "fail":
            yield Finished(ok=False, kind="auth", message="it was told to fail")
        elif kind == "flaky":
            tried = os.path.join(place(), f"tried-{self._step}")
            if not os.path.exists(tried):
                _append(tried, "once")
                yield Finished(ok=False, kind="overloaded", message="try again")
        elif kind in ("tool", "ask"):
            async for event in self._tool(kind == "ask", delay):
                yield event
        elif kind == "child":
            async for event in self._program(delay):
                yield event

    async def _tool(self, ask: bool, delay: float) -> AsyncIterator[RunEvent]:
        call = uuid.uuid4().hex
        yield ToolBegan(call, "Bash", {"command": "true"})
        if ask:
            answer = self._answers[call] = asyncio.get_running_loop().create_future()
            yield PermissionAsked(call, "Bash", {"command": "true"}, "execute")
            stop = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait({answer, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
        if await self._stopped(delay):
            yield ToolEnded(call, False, "interrupted")
            yield Finished(ok=False, message="interrupted", interrupted=True)
            return
        yield ToolEnded(call, True, "done")

    async def _program(self, delay: float) -> AsyncIterator[RunEvent]:
        words = ["sleep", str(delay)]
        self._child = await self._nursery.spawn(words, cwd=self._request.cwd, title="counted")
        end = await self._child.wait()
        if end.exit_code != 0:
            stopped = self._stop.is_set()
            yield Finished(ok=False, kind="crash", message=end.state, interrupted=stopped)

    async def _stopped(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _note(self, what: str, step: str) -> None:
        _append(os.path.join(place(), "lines"), f"{what} {step}")

    async def answer(self, request_id: str, allow: bool, why: str = "") -> None:
        future = self._answers.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(allow)

    async def interrupt(self) -> None:
        self._stop.set()
        if self._child is not None:
            await self._child.kill()

    async def close(self) -> None:
        await self.interrupt()


def _whose(name: str, text: str, reviews: bool) -> str:
    """Return the step that a prompt is for; a session that goes on was opened for another one."""
    name = name or _PART.findall(text)[-1]
    again = re.search(r"Output of step \S+\.2 ", text) if reviews else "## Review of your" in text
    return f"{name}.2" if again else name


def _append(path: str, line: str) -> None:
    """Add a line in one write: a kill leaves it whole or not at all."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)
