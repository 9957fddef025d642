"""Started as `python -u python_session.py`: runs one cell after the other in one `__main__`.

The session's channel brings cells, each with four descriptors: its stdin, stdout and stderr, which are
ours while it runs, and a channel of its own for its code, value and exception. Between cells our
descriptors are the session's own. Standard library only, Python 3.8 or later.
"""

from __future__ import annotations
import __future__

import _socket
import builtins
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tenuto.interpreters.runners import python_program as program
else:
    import python_program as program  # this folder is sys.path[0]

INTERRUPTED = 130
# What `from __future__ import …` sets in the flags of compiled code; 0x10 means CO_NESTED there.
FEATURES = sum(
    {getattr(__future__, name).compiler_flag & ~0x10 for name in __future__.all_feature_names}
)
_signal: Any = __import__("_signal")  # `signal` itself would load enum and re


class Sources(program.SourceLines):
    """The lines of all cells, for tracebacks and `inspect`."""

    def __init__(self) -> None:
        super().__init__([])
        self.cells: dict[str, list[str]] = {}

    def add(self, filename: str, lines: list[str]) -> None:
        """Keep the lines of one more cell."""
        self.cells[filename] = lines
        if "linecache" in sys.modules:
            self.register(sys.modules["linecache"])

    def register(self, linecache: Any) -> None:
        """Put everything kept so far into `linecache`, from now on its to hold."""
        for filename, lines in self.cells.items():
            linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)
        self.cells.clear()


class Session:
    """A namespace that outlives its cells."""

    def __init__(self, channel: program.Channel) -> None:
        self.channel = channel
        self.owner = os.getpid()
        self.own = [os.dup(descriptor) for descriptor in (0, 1, 2)]
        self.sources = Sources()
        self.cell_channel: program.Channel | None = None
        self.runner: Any = None
        self.features = 0
        self.number = 0
        self.on_interrupt: Any = _signal.default_int_handler
        _signal.signal(_signal.SIGINT, ignore)
        module = type(sys)("__main__")
        self.namespace: dict[str, Any] = module.__dict__
        self.namespace["__builtins__"] = builtins
        sys.modules["__main__"] = module
        if "linecache" not in sys.modules:
            sys.meta_path.insert(0, self.sources)  # type: ignore[arg-type]
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """Keep nothing of the session in a forked child: it ends when its cell's code does."""
        if self.cell_channel is not None:
            self.cell_channel.close()
        for descriptor in self.own:
            os.close(descriptor)

    def serve(self) -> int:
        """Run cells until nobody brings any more."""
        self.channel.send({"type": "cell_ready"})
        line = _socket.socket(fileno=self.channel.descriptor)
        try:
            while True:
                came = self._next(line)
                if came is None:
                    return 0
                message, descriptors = came
                code = self._cell(message, descriptors)
                self.channel.send({"type": "cell_done", "n": message["n"], "code": code})
        finally:
            line.detach()

    def _next(self, line: Any) -> tuple[dict[str, Any], list[int]] | None:
        data = b""
        descriptors: list[int] = []
        while not data.endswith(b"\n"):
            try:
                part, ancillary, _, _ = line.recvmsg(65536, 64, _socket.MSG_CMSG_CLOEXEC)
            except OSError:  # closed by the program, or gone
                return None
            if not part:
                return None
            data += part
            for _, _, packed in ancillary:
                step = 4
                for at in range(0, len(packed) - len(packed) % step, step):
                    descriptors.append(int.from_bytes(packed[at : at + step], sys.byteorder))
        return json.loads(data), descriptors

    # One cell

    def _cell(self, message: dict[str, Any], descriptors: list[int]) -> int:
        """Run a cell with its descriptors in place of ours, and return its exit code."""
        self.number = message["n"]
        channel = self.cell_channel = program.Channel(descriptors[3], ends_at_fork=False)
        for target in (0, 1, 2):
            os.dup2(descriptors[target], target)
            os.close(descriptors[target])
        fresh_streams()
        try:
            code, lines = program.lines_of(channel.receive_code())
            status = self._guarded(code, lines, f"<cell {message['n']}>", message.get("cwd"))
        except EOFError:
            status = program.BROKEN_START
        flush()
        if os.getpid() != self.owner:
            raise SystemExit(status)  # a fork of the program's own came to the cell's end
        try:
            for target, descriptor in enumerate(self.own):
                os.dup2(descriptor, target)
        except OSError as error:
            sys.stderr.write(
                f"tenuto: this cell closed the descriptors of its session, which ends: {error}\n"
            )
            raise SystemExit(program.BROKEN_START) from None
        self.cell_channel = None
        channel.close()
        return status

    def _guarded(self, code: str, lines: list[str], filename: str, cwd: str | None) -> int:
        """Run the code so that nothing of it but its effects gets out."""
        assert self.cell_channel is not None
        channel = self.cell_channel
        self.sources.add(filename, lines)
        status = 0
        try:
            try:
                _signal.signal(_signal.SIGINT, self.on_interrupt)
                self.channel.send({"type": "cell_begun", "n": self.number})
                if cwd:
                    os.chdir(cwd)
                self._execute(code, filename)
                value = self.namespace.pop(program.VALUE, None)
                if value is not None:
                    channel.send(program.describe(value))
            except SystemExit as leaving:
                status = exit_code(leaving)
            except KeyboardInterrupt:
                status = INTERRUPTED
            except BaseException as error:
                program.report(error, lines, channel, filename)
                status = 1
            finally:
                self.on_interrupt = _signal.getsignal(_signal.SIGINT)
                _signal.signal(_signal.SIGINT, ignore)
        except BaseException:  # an interrupt that came late, or a second one
            _signal.signal(_signal.SIGINT, ignore)
            status = INTERRUPTED
        if self.on_interrupt in (ignore, None):
            self.on_interrupt = _signal.default_int_handler
        self.namespace.pop(program.VALUE, None)
        return status

    def _execute(self, code: str, filename: str) -> None:
        compiled = program.compile_code(code, filename, self.features)
        self.features |= compiled.co_flags & FEATURES
        if not compiled.co_flags & 0x80:  # inspect.CO_COROUTINE
            exec(compiled, self.namespace)
            return
        self._await(eval(compiled, self.namespace))

    def _await(self, work: Any) -> None:
        """Run what awaits at its top in the session's one event loop: tasks live on in it."""
        import asyncio

        if self.runner is None and hasattr(asyncio, "Runner"):
            self.runner = asyncio.Runner()
        elif self.runner is None:
            self.runner = OldRunner()
        self.runner.run(work)


class OldRunner:
    """What asyncio.Runner does, for Python before 3.11."""

    def __init__(self) -> None:
        import asyncio

        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def run(self, work: Any) -> None:
        """Run it to its end; an interrupt cancels it first."""
        task = self.loop.create_task(work)
        try:
            self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            try:
                self.loop.run_until_complete(task)
            except BaseException:
                pass
            raise


def ignore(_number: int, _frame: object) -> None:
    """Do nothing: there is no cell to interrupt."""


def exit_code(leaving: SystemExit) -> int:
    """Return the code that Python itself would exit with."""
    code = leaving.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    try:
        sys.stderr.write(f"{code}\n")
    except Exception:
        pass
    return 1


def fresh_streams() -> None:
    """Give the cell a stdin that has read nothing yet, and outputs that are open."""
    old = sys.__stdin__
    sys.stdin = sys.__stdin__ = open(  # noqa: SIM115  it is the cell's
        0,
        encoding=getattr(old, "encoding", "utf-8"),
        errors=getattr(old, "errors", "surrogateescape"),
        closefd=False,
    )
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None or getattr(stream, "closed", False):
            fresh = open(  # noqa: SIM115  it is the session's
                number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
            )
            setattr(sys, name, fresh)
            setattr(sys, f"__{name}__", fresh)


def flush() -> None:
    """Write out what Python buffers while the descriptors are the cell's; under -u, C has no buffer."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def main() -> int:
    """Serve one session."""
    program.OURS.add(main.__code__.co_filename)
    try:
        channel = program.Channel(int(os.environ.pop("TENUTO_CHANNEL")))
        channel.receive_code()  # a session has none of its own
    except (KeyError, ValueError, OSError, EOFError) as error:
        sys.stderr.write(f"tenuto: the session cannot start: {error}\n")
        return program.BROKEN_START
    session = Session(channel)
    sys.argv = [program.FILENAME]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = ""
    return session.serve()


if __name__ == "__main__":
    del sys.modules["python_program"]  # the name is free for a module of the user's
    sys.exit(main())
