"""Serving functions to executions: calls come over the keeper's control socket, answers go back.

An execution's functions live here, in the caller's process. Async functions run on the event loop
itself, the others in threads. Whatever a function raises arrives in the code as an exception with its
name and message; tracebacks stay here, and known secrets are taken out of the message.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.codemode import wire
from tenuto.codemode.registry import Functions, Refused, Registered, Registry
from tenuto.core.errors import InvalidInput, NotRunning
from tenuto.core.ids import short
from tenuto.dispatch import control
from tenuto.engine.redact import Redactor
from tenuto.keeper.protocol import LENGTH, READ

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine
    from tenuto.engine.watch import Watch
    from tenuto.engine.work import Work


_TEXT_MOST = 4096
_THREADS = 32


class Server:
    """Serves one execution's calls until it ends, another one serves, or this is closed."""

    def __init__(
        self,
        sock: socket.socket,
        registry: Registry,
        threads: Callable[[], ThreadPoolExecutor],
        redactor: Redactor,
    ) -> None:
        """Take a connection that has asked to serve; must be made in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._registry = registry
        self._threads = threads
        self._redactor = redactor
        self._in = bytearray()
        self._out = bytearray()
        self._full = False
        self._open: dict[int, asyncio.Task[None]] = {}
        self.closed = asyncio.Event()
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    def close(self) -> None:
        """Stop serving: what still runs is cancelled, and its calls wait for another server."""
        if self.closed.is_set():
            return
        self.closed.set()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for task in tuple(self._open.values()):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until nothing of it runs any more."""
        self.close()
        await asyncio.gather(*self._open.values(), return_exceptions=True)

    # Bytes

    def _readable(self) -> None:
        try:
            data = self._sock.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._in += data
        at = 0
        while len(self._in) - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._in, at)
            end = at + LENGTH.size + size
            if len(self._in) < end:
                break
            self._take(bytes(self._in[at + LENGTH.size : end]))
            at = end
        del self._in[:at]

    def _send(self, body: bytes) -> None:
        if self.closed.is_set():
            return
        self._out += LENGTH.pack(len(body)) + body
        self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            self._full = True
            self._loop.add_writer(self._sock.fileno(), self._flush)
            return
        except OSError:
            self.close()
            return
        if self._full:
            self._full = False
            self._loop.remove_writer(self._sock.fileno())

    # Calls

    def _take(self, body: bytes) -> None:
        message: dict[str, Any] = json.loads(body)
        kind = message.get("push")
        if kind == "call":
            n = int(message["n"])
            try:
                function = self._registry.get(str(message["name"]))
                plain, named = function.bind(message["args"])
            except Refused as refusal:
                self._answer_error(n, refusal.error)
                return
            self._open[n] = self._loop.create_task(self._serve(n, function, plain, named))
        elif kind in ("ended", "replaced"):
            self.close()

    async def _serve(
        self, n: int, function: Registered, plain: list[Any], named: dict[str, Any]
    ) -> None:
        try:
            value: Any
            if function.is_async:
                value = await function.call(*plain, **named)
            else:
                value = await self._in_thread(function, plain, named)
                if inspect.isawaitable(value):
                    value = await value
            self._answer(n, function.name, value)
        except asyncio.CancelledError:
            if self.closed.is_set():
                raise
            self._answer_error(n, {"name": "CancelledError", "message": "the call was cancelled"})
        except (Exception, SystemExit) as error:  # that a function leaves is not our end
            self._answer_error(n, self._told(error))
        finally:
            del self._open[n]

    async def _in_thread(
        self, function: Registered, plain: list[Any], named: dict[str, Any]
    ) -> Any:
        context = contextvars.copy_context()

        def call() -> Any:
            try:
                return context.run(function.call, *plain, **named)
            except StopIteration as error:  # no future can hold it
                raise RuntimeError("StopIteration") from error

        return await self._loop.run_in_executor(self._threads(), call)

    def _answer(self, n: int, name: str, value: Any) -> None:
        try:
            body = wire.dumps(value)
        except wire.WireError as error:
            message = f"{name} returned what cannot be passed on: {error}"
            self._answer_error(n, {"name": "TypeError", "message": message})
            return
        if len(body) > wire.MOST_BYTES:
            message = (
                f"{name} returned {len(body)} bytes, at most {wire.MOST_BYTES} can be passed on"
            )
            self._answer_error(n, {"name": "RangeError", "message": message})
            return
        self._send(b'{"v":1,"op":"answer","n":%d,"ok":true,"value":%s}' % (n, body))

    def _answer_error(self, n: int, error: dict[str, Any]) -> None:
        message = {"v": 1, "op": "answer", "n": n, "ok": False, "error": error}
        self._send(json.dumps(message).encode())

    def _told(self, error: BaseException) -> dict[str, Any]:
        """Return what the code may know of an exception of ours."""
        try:
            text = str(error)[:_TEXT_MOST]
        except Exception:
            text = ""
        return {"name": type(error).__name__, "message": self._redactor.text(text)}


class Hosting:
    """All servers of one engine."""

    def __init__(self, engine: BlockingEngine, call: Callable[..., Awaitable[Any]]) -> None:
        """Serve nothing yet; `call` runs what may block in a thread."""
        self._engine = engine
        self._call = call
        self._redactor = Redactor(engine.environ)
        self._servers: dict[str, Server] = {}
        self._pool: ThreadPoolExecutor | None = None

    async def start(self, work: Work, registry: Registry) -> Watch:
        """Start work whose functions live here, and return a watch on it."""
        specs = registry.specs
        served = bool(specs)
        if served and work.spec.engine is None:
            raise InvalidInput("only code-mode can call functions", "use language js or ts")
        spec = msgspec.structs.replace(work.spec, functions=specs)
        work = msgspec.structs.replace(work, spec=spec, served=served)
        execution_id, sock = await self._call(self._engine.start, work)
        watch = self._engine.watch(execution_id, -1, sock)
        if not served:
            return watch
        folder = self._engine.project.folder(execution_id)
        try:
            self._adopt(execution_id, await self._call(_ask_to_serve, folder), registry)
        except NotRunning:
            pass  # it needed none of them
        except BaseException:
            watch.close()
            raise
        return watch

    async def serve(self, execution_id: str, functions: Functions) -> None:
        """Serve the functions of an execution that runs already."""
        registry = Registry(functions)
        whole = await self._call(self._engine.resolve, execution_id)
        sock = await self._call(_attach, self._engine, whole, registry)
        self._adopt(whole, sock, registry)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "tenuto-function")
        return self._pool

    def _adopt(self, execution_id: str, sock: socket.socket, registry: Registry) -> None:
        """Serve over a connection that has asked to."""
        before = self._servers.pop(execution_id, None)
        if before is not None:
            before.close()
        server = Server(sock, registry, self._threads, self._redactor)
        self._servers = {key: one for key, one in self._servers.items() if not one.closed.is_set()}
        self._servers[execution_id] = server

    async def close(self) -> None:
        """Stop serving; executions with open calls wait for another host."""
        servers, self._servers = self._servers, {}
        await asyncio.gather(*(one.wait_closed() for one in servers.values()))
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _attach(engine: BlockingEngine, execution_id: str, registry: Registry) -> socket.socket:
    """Have an execution's keeper pass its calls to us, and return the connection. This may block."""
    spec = engine.execution(execution_id).spec
    names = {one.name for one in spec.functions} if spec is not None else set[str]()
    if not names:
        raise InvalidInput(
            f"{short(execution_id)} was started without functions", "give them where it is started"
        )
    missing = registry.missing(names)
    if missing:
        raise InvalidInput(
            f"{short(execution_id)} may also call {', '.join(missing)}", "serve all its functions"
        )
    return _ask_to_serve(engine.project.folder(execution_id))


def _ask_to_serve(folder: str) -> socket.socket:
    """Return a connection over which calls will come, or raise NotRunning."""
    try:
        sock = control.connect(folder)
        try:
            control.ask(sock, "serve")
        except BaseException:
            sock.close()
            raise
    except (control.NoKeeper, NotRunning):
        raise NotRunning("it has ended: nothing is left to serve", "see: tenuto show ID") from None
    return sock
