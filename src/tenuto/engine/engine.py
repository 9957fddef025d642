"""The public engine: `async with Engine() as engine: …`. The same verbs as on the command line."""

from __future__ import annotations

import asyncio
import builtins
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, TypeVar

import msgspec

from tenuto.codemode.job import image_words
from tenuto.codemode.registry import Functions, Registry
from tenuto.core.errors import InvalidInput, NotRunning, TenutoError
from tenuto.core.execution import Chunk, Snapshot
from tenuto.core.quantities import parse_moment
from tenuto.core.specs import Limits, Sandbox, SandboxLevel
from tenuto.core.states import State
from tenuto.dispatch.launch import ZygoteLauncher
from tenuto.engine import sessions
from tenuto.engine.bell import Bell
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.deno import DenoPool
from tenuto.engine.goals import Waiting
from tenuto.engine.health import Check, examine
from tenuto.engine.hosting import Hosting
from tenuto.engine.places import cursor_since
from tenuto.engine.reports import Report, report
from tenuto.engine.retention import Cleaned, clean, clean_by_settings
from tenuto.engine.sessions import Session
from tenuto.engine.settings import Settings, load_settings
from tenuto.engine.task_verbs import TaskVerbs
from tenuto.engine.tools import EngineTools
from tenuto.engine.watch import Watch, as_chunk, is_output
from tenuto.engine.work import Options, Work
from tenuto.stores.layout import current_folder, find_project

_T = TypeVar("_T")
Heard = Callable[[Waiting], Awaitable[float]]
_THREADS = 8


class Engine(TaskVerbs):
    """A project's executions, from Python. Leaving it ends nothing that it started."""

    def __init__(self, folder: str | None = None, *, settings: Settings | None = None) -> None:
        """Work for the project around a folder (the current one); `settings` replace the files'."""
        self._folder, self._settings = folder, settings
        self._blocking: BlockingEngine | None = None
        self._zygote: ZygoteLauncher | None = None
        self._deno: DenoPool | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._health: asyncio.Task[None] | None = None
        self._checks: list[Check] = []
        self._noted: set[Future[None]] = set()
        self._hosting: Hosting | None = None

    async def __aenter__(self) -> Engine:
        self._threads = ThreadPoolExecutor(_THREADS, "tenuto")
        self._blocking = await self._call(self._open)
        self._health = asyncio.create_task(self._watch_health())
        self._recovering = self._later(self._recover)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._health is not None:
            self._health.cancel()
            await asyncio.gather(self._health, return_exceptions=True)
        if self._hosting is not None:
            await self._hosting.close()
        await asyncio.gather(*map(asyncio.wrap_future, tuple(self._noted)), return_exceptions=True)
        if self._blocking is not None:
            await self._call(self._blocking.close)
            self._blocking = None
        if self._deno is not None:
            await self._call(self._deno.close)
        if self._threads is not None:
            self._threads.shutdown()

    def _open(self) -> BlockingEngine:
        project = find_project(self._folder or current_folder(), os.environ)
        settings = self._settings or load_settings(project.root, os.environ)[0]
        self._zygote = ZygoteLauncher(settings.keepers_ahead, image=image_words())
        engine = BlockingEngine(project, settings, self._zygote)
        self._deno = DenoPool(settings)
        engine.starter.ready = self._deno.launcher
        clean_by_settings(engine)
        return engine

    @property
    def _engine(self) -> BlockingEngine:
        if self._blocking is None:
            raise InvalidInput("the engine is not open", "use it as: async with Engine() as engine")
        return self._blocking

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._engine.settings

    @property
    def home(self) -> str:
        """The project's state folder."""
        return self._engine.project.home

    async def _call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run what may block in a thread of ours."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*arguments))

    def _later(self, function: Callable[..., None], *arguments: Any) -> Future[None]:
        """Do in a thread what no caller needs to wait for; leaving the engine does."""
        assert self._threads is not None
        future = self._threads.submit(function, *arguments)
        self._noted.add(future)
        future.add_done_callback(self._noted.discard)
        return future

    # Start

    async def start(
        self,
        code: str | None = None,
        *,
        command: Sequence[str] | None = None,
        language: str | None = None,
        execution_id: str = "",
        **options: Any,
    ) -> str:
        """Start code in a language, or a command, and return its id (a new one unless given).

        Options: cwd, env, title, pty, limits (Limits), sandbox (Sandbox), deadline, idle (seconds),
        session (a name); for js and ts also inputs and engine.
        """
        work = await self._call(self._work, code, command, language, {"detached": True, **options})
        work = msgspec.structs.replace(work, execution_id=execution_id)
        execution_id, sock = await self._call(self._engine.start, work)
        sock.close()
        return execution_id

    async def run(
        self,
        code: str | None = None,
        *,
        command: Sequence[str] | None = None,
        language: str | None = None,
        wait: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        title: str = "",
        pty: bool = False,
        limits: Limits | None = None,
        sandbox: Sandbox | SandboxLevel | None = None,
        deadline: float | None = None,
        idle: float | None = None,
        session: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        engine: str = "auto",
    ) -> Snapshot:
        """Start, then wait; after `wait` seconds (30 by default) it is handed over, still running."""
        options = {
            "cwd": cwd, "env": env or {}, "title": title, "pty": pty, "limits": limits or Limits(),
            "deadline": deadline, "idle": idle, "session": session, "sandbox": sandbox,
            "inputs": inputs, "engine": engine,
        }  # fmt: skip
        began, wait = time.monotonic(), self.settings.patience(wait)
        work = self._work(code, command, language, options)
        execution_id, sock = await self._call(self._engine.start, work)
        watch = self._engine.watch(execution_id, -1, sock)
        return await self._wait(watch, wait, None, began)

    def _work(
        self,
        code: str | None,
        command: Sequence[str] | None,
        language: str | None,
        options: dict[str, Any],
    ) -> Work:
        if isinstance(command, str):
            raise InvalidInput("a command is a list of words", 'such as command=["ls", "-l"]')
        if (code is None) == (command is None):
            raise InvalidInput("give either code or a command", "engine.run(code, language=…)")
        try:
            chosen = Options(**options)
        except TypeError as error:
            raise InvalidInput(str(error), "see the options in the documentation") from None
        if command is not None:
            return self._engine.command(command, chosen)
        if language is None:
            raise InvalidInput("the code's language is not given", 'such as language="python"')
        return self._engine.code(code or "", language, chosen)

    async def code(
        self,
        code: str,
        *,
        functions: Functions | None = None,
        inputs: Mapping[str, Any] | None = None,
        language: str = "js",
        wait: float | None = None,
        **options: Any,
    ) -> Snapshot:
        """Run code in the VM, with functions of ours that it may call, and wait for it.

        Options: cwd, title, limits, deadline, idle, engine, session.
        """
        began, wait = time.monotonic(), self.settings.patience(wait)
        registry = Registry(functions or {})
        work = self._work(code, None, language, {**options, "inputs": inputs})
        watch = await self._host.start(work, registry)
        return await self._wait(watch, wait, None, began)

    async def serve(self, execution_id: str, functions: Functions) -> None:
        """Serve an execution's functions from here, until it ends or this engine is left.

        Whoever served before is replaced; calls without an answer are made again, here.
        """
        await self._host.serve(execution_id, functions)

    @property
    def _host(self) -> Hosting:
        if self._hosting is None:
            self._hosting = Hosting(self._engine, self._call)
        return self._hosting

    @property
    def tools(self) -> EngineTools:
        """The composed tools: save, list, show, run, delete."""
        return EngineTools(self._engine, self._host, self._call, self._wait)

    # Wait and read

    async def wait(
        self,
        execution_id: str,
        up_to: float | None = None,
        *,
        until: str | None = None,
        after: int = -1,
        heard: Heard | None = None,
    ) -> Snapshot:
        """Wait for the end, a text or /regex/ in the output, or for someone being waited for.

        `heard` is told of what was gathered meanwhile, and says after how many seconds again.
        """
        whole = await self._call(self._engine.resolve, execution_id)
        watch = await self._call(self._engine.watch, whole, after)
        return await self._wait(watch, up_to, until, time.monotonic(), heard)

    async def read(
        self, execution_id: str, *, after: int = -1, since: str | None = None
    ) -> Snapshot:
        """Return an execution with its output so far, as much as one answer holds, and the cursor."""
        whole = await self._call(self._engine.resolve, execution_id)
        if since is not None:
            after = await self._call(cursor_since, self._engine, whole, since)
        with await self._call(self._engine.watch, whole, after) as watch:
            waiting = Waiting(watch, self.settings.output_inline, early=False)
            while not waiting.take(await self._look(watch)) and watch.more:
                pass
            return await self._call(self._engine.found, waiting)

    async def detach(self, execution_id: str, waited_s: float = 0.0) -> None:
        """Record that a caller left it running: from here on it counts as async."""

        def note() -> None:
            execution = self._engine.execution(execution_id)
            if execution.live:
                self._engine.gave_up(execution, waited_s)

        await self._call(note)

    async def _wait(
        self,
        watch: Watch,
        up_to: float | None,
        until: str | None,
        began: float,
        heard: Heard | None = None,
    ) -> Snapshot:
        limit = began + self.settings.patience(up_to)
        with watch:
            waiting = Waiting(watch, self.settings.output_inline, until)
            with Bell(watch) as bell:
                while not waiting.take(await self._look(watch)):
                    left = limit - time.monotonic()
                    if left <= 0:
                        break
                    if heard is not None:
                        left = min(left, await heard(waiting))
                    await bell.sleep(left)
            if watch.execution.live:
                return await self._call(self._engine.conclude, waiting, time.monotonic() - began)
            self._later(self._engine.note_end, watch.execution)
            return self._engine.found(waiting)

    async def _look(self, watch: Watch) -> list[Any]:
        found = watch.news()
        if watch.adrift:
            await self._call(watch.anchor)
            found += watch.news()
        return found

    async def follow(self, execution_id: str, *, after: int = -1) -> AsyncIterator[Chunk]:
        """Yield the output as it comes, from a cursor on, until the execution ends."""
        whole = await self._call(self._engine.resolve, execution_id)
        with await self._call(self._engine.watch, whole, after) as watch:
            while True:
                for frame in await self._look(watch):
                    if is_output(frame):
                        yield as_chunk(frame)
                if watch.over:
                    return
                with Bell(watch) as bell:  # not while the caller has the chunk
                    await bell.sleep(None)

    async def logs(
        self,
        execution_id: str,
        *,
        after: int = -1,
        since: str | None = None,
        tail: int | None = None,
        most: int | None = None,
    ) -> list[Chunk]:
        """Return the output so far: all, after a cursor, since a time (ISO or `10m`), or last lines.

        With `most`, so many bytes of the last lines.
        """

        def read() -> list[Chunk]:
            whole = self._engine.resolve(execution_id)
            moment = None if since is None else parse_moment(since, time.time_ns())
            return list(self._engine.logs(whole, after, moment, tail, most))

        return await self._call(read)

    async def show(self, execution_id: str) -> Snapshot:
        """Return an execution as it is now, without its output."""
        return await self._call(self._engine.show, execution_id)

    async def list(
        self,
        *,
        running: bool = False,
        states: Sequence[State] = (),
        kind: str = "",
        text: str = "",
        since: str | None = None,
        most: int | None = 50,
        only_async: bool = False,
    ) -> list[Snapshot]:
        """Return executions, newest first."""
        moment = 0 if since is None else parse_moment(since, time.time_ns())
        return await self._call(
            self._engine.list, running, states, kind, text, moment, most, only_async
        )

    # Act

    async def send(
        self, execution_id: str, data: str | bytes, *, raw: bool = False, eof: bool = False
    ) -> Literal["delivered", "queued", "closed"]:
        """Write to its stdin, a newline added unless raw; tell what became of it."""
        body = data.encode() if isinstance(data, str) else data
        if body and not raw and not body.endswith(b"\n"):
            body += b"\n"
        fate = await self._call(self._engine.send, execution_id, body, eof)
        return "delivered" if fate == "delivered" else "queued" if fate == "queued" else "closed"

    async def kill(self, execution_id: str, *, signal: str = "KILL") -> Snapshot:
        """End its whole tree; returns once that is verified. Another signal is only sent."""
        return await self._call(self._engine.kill, execution_id, signal)

    async def kill_all(self) -> list[Snapshot]:
        """Kill every execution of the project that has processes."""
        killed: list[Snapshot] = []
        for snapshot in await self._call(self._engine.at_work):
            with suppress(NotRunning):
                killed.append(await self.kill(snapshot.id))
        return killed

    async def interrupt(self, execution_id: str) -> Snapshot:
        """Ask it to stop, insist after a while; returns once it has ended."""
        return await self._call(self._engine.interrupt, execution_id)

    async def resize(self, execution_id: str, rows: int, cols: int) -> None:
        """Tell its terminal its size."""
        await self._call(self._engine.resize, execution_id, rows, cols)

    async def clear(self, execution_id: str) -> Snapshot:
        """Drop its output so far; the tape says so, and sequence numbers stay."""
        return await self._call(self._engine.clear, execution_id)

    async def clean(
        self,
        *,
        older_s: float | None = None,
        keep: int | None = None,
        max_size: int | None = None,
        history: bool = False,
    ) -> Cleaned:
        """Remove ended executions that are too old, too many or too large; their history if asked."""
        return await self._call(clean, self._engine, older_s, keep, max_size, history)

    # Sessions

    async def sessions(self) -> builtins.list[Session]:
        """Return the sessions that live, the oldest first."""
        return await self._call(sessions.sessions, self._engine)

    async def clear_session(self, name: str) -> Session:
        """End a session with all its processes, verified; return it as it was."""
        return await self._call(sessions.clear, self._engine, name)

    # Reports and health

    async def report(self) -> Report:
        """Return what is running now."""
        return await self._call(report, self._engine)

    async def reports(self) -> AsyncIterator[Report]:
        """Yield a report every `report_every` seconds in which anything runs."""
        while self.settings.report_every > 0:
            await asyncio.sleep(self.settings.report_every)
            if (current := await self.report()).running:
                yield current

    async def health(self) -> list[Check]:
        """Check keepers, zygote, index, disk and interpreters now."""
        self._checks = await self._call(examine, self._engine)
        return self._checks

    async def _watch_health(self) -> None:
        """Keep the zygote alive, and the last checks at hand, while anything runs."""
        while True:
            await asyncio.sleep(self.settings.health_every or 3600.0)
            zygote = self._zygote
            with suppress(TenutoError, OSError):  # the next round may go better
                if zygote is not None and not zygote.alive:
                    await self._call(zygote.renew)
                if await self._call(self._engine.index.live):
                    await self.health()
