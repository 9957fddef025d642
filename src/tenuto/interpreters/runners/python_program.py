"""Runs the Python code that arrives over the channel, once, as a fresh `__main__`.

Standard library only, Python 3.8 or later, and as few imports as possible: every one delays the
user's program. What is needed late is imported late, and never from the working directory.
"""

from __future__ import annotations

import _ast
import builtins
import os
import sys

TYPE_CHECKING = False  # `typing` alone would cost a third of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any

FILENAME = "<tenuto>"
VALUE = " value"  # no program can spell a name with a blank, so none can collide with it
MESSAGE_MAX = 16 * 1024 * 1024
TEXT_MAX = 4096
DEPTH_MAX = 200  # readers of JSON bound the nesting
BROKEN_START = 125


class Channel:
    """This process's end of the channel. A forked child has none."""

    def __init__(self, descriptor: int, ends_at_fork: bool = True) -> None:
        self.descriptor = descriptor
        self.identity = self._look()
        self.owner = os.getpid()
        os.set_blocking(descriptor, True)
        os.set_inheritable(descriptor, False)
        if ends_at_fork:
            os.register_at_fork(after_in_child=self.close)

    def receive_code(self) -> str:
        """Return the code, which comes first, after its length."""
        size = int.from_bytes(self._receive(4), "little")
        return self._receive(size).decode("utf-8")

    def send(self, message: dict[str, Any]) -> None:
        """Send one message if anyone is there; the program goes on in any case."""
        # The program may have closed our descriptor and opened its own under the same number.
        if os.getpid() != self.owner or self._look() != self.identity:
            return
        line = encode(message).encode("ascii") + b"\n"
        if len(line) > MESSAGE_MAX:
            note = f"value too large ({len(line)} bytes): print it or write it to a file instead"
            line = encode({"type": "value", "repr": note}).encode("ascii") + b"\n"
        _signal: Any = __import__("_signal")  # `signal` itself would load enum and re
        # A program may have asked to die of SIGPIPE; a reader of ours that left is not its affair.
        deadly = _signal.getsignal(_signal.SIGPIPE) == _signal.SIG_DFL
        if deadly:
            _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:
            pass
        finally:
            if deadly:
                _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)

    def _look(self) -> tuple[int, int] | None:
        try:
            status = os.fstat(self.descriptor)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = os.read(self.descriptor, min(size - len(data), 1 << 20))
            if not part:
                raise EOFError("the channel closed before the code arrived")
            data += part
        return bytes(data)

    def close(self) -> None:
        """Close it, if it is still ours."""
        if self._look() == self.identity:
            os.close(self.descriptor)


class Inexact(Exception):
    """JSON cannot represent this value."""


def encode(value: Any, depth: int = 0) -> str:
    """Return JSON that reads back as the very same value, or raise Inexact."""
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if value is None or kind is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if kind is int or (kind is float and value - value == 0):  # neither NaN nor an infinity
        return repr(value)
    if kind is str:
        return quote(value)
    if kind is list and depth < DEPTH_MAX:
        return "[" + ",".join([encode(item, depth + 1) for item in value]) + "]"
    if kind is dict and depth < DEPTH_MAX and all(type(key) is str for key in value):
        pairs = [quote(key) + ":" + encode(item, depth + 1) for key, item in value.items()]
        return "{" + ",".join(pairs) + "}"
    raise Inexact


def quote(text: str) -> str:
    """Return the text as a JSON string; half a surrogate pair is no text."""
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        from json.encoder import encode_basestring_ascii
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Inexact from None
    return encode_basestring_ascii(text)


def clean(text: str) -> str:
    """Spell out what UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def describe(value: object) -> dict[str, Any]:
    """Return the message that tells the value of the last expression."""
    try:
        encode(value)
        return {"type": "value", "json": value}
    except Exception:  # Inexact, or too long an integer for this interpreter
        pass
    try:
        text = repr(value)
    except Exception as error:  # a __repr__ of the user's, which must not fail the program
        text = f"<{type(value).__name__} object: repr() raised {type(error).__name__}>"
    return {"type": "value", "repr": clean(text)}


def compile_code(code: str, filename: str = FILENAME, features: int = 0) -> CodeType:
    """Compile the code so that the value of a last expression is kept."""
    flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | features
    tree: Any = compile(code, filename, "exec", flags | _ast.PyCF_ONLY_AST, dont_inherit=True)
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = tree.body[-1]
        place = {name: getattr(last, name) for name in last._attributes}
        target = _ast.Name(id=VALUE, ctx=_ast.Store(), **place)
        tree.body[-1] = _ast.Assign(targets=[target], value=last.value, **place)
    return compile(tree, filename, "exec", flags, dont_inherit=True)


def execute(code: CodeType, namespace: dict[str, Any]) -> None:
    """Run the code; an event loop only if it awaits something at its top."""
    if not code.co_flags & 0x80:  # inspect.CO_COROUTINE
        exec(code, namespace)
        return
    import asyncio

    asyncio.run(eval(code, namespace))


def own_frames(error: BaseException | None, seen: set[int], filename: str = FILENAME) -> None:
    """Cut what lies above the user's code off every traceback of the chain."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    trace = error.__traceback__
    if trace is not None and trace.tb_frame.f_code.co_filename in OURS:
        while trace is not None and trace.tb_frame.f_code.co_filename != filename:
            trace = trace.tb_next
        error.__traceback__ = trace
    own_frames(error.__cause__, seen, filename)
    own_frames(error.__context__, seen, filename)


OURS = {own_frames.__code__.co_filename}


def line_of(error: BaseException, filename: str = FILENAME) -> int | None:
    """Return the line of the user's code that the error comes from."""
    if isinstance(error, SyntaxError) and error.filename == filename:
        return error.lineno
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def report(
    error: BaseException, lines: list[str], channel: Channel, filename: str = FILENAME
) -> None:
    """Tell the channel and stderr about an error that nobody caught."""
    own_frames(error, set(), filename)
    line = line_of(error, filename)
    if isinstance(error, SyntaxError) and error.text is None and line and line <= len(lines):
        error.text = lines[line - 1]
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception:
        text = "<str() of the error failed>"
    text = clean(text).encode("utf-8")[:TEXT_MAX].decode("utf-8", "ignore")
    message: dict[str, Any] = {
        "type": "raised",
        "name": clean(type(error).__name__),
        "message": text,
    }
    if line is not None:
        message["line"] = line
    channel.send(message)
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, error.__traceback__)
        return
    path = sys.path
    sys.path = [entry for entry in path if entry]  # a token.py of the user's is not the library's
    try:
        import traceback

        traceback.print_exception(type(error), error, error.__traceback__)
    except Exception:
        sys.__excepthook__(type(error), error, error.__traceback__)
    finally:
        sys.path = path


class SourceLines:
    """Puts the user's lines into `linecache` when something first imports it.

    Importing it beforehand would slow the start of every program, for the few that fail.
    """

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def register(self, linecache: Any) -> None:
        """Make tracebacks and `inspect` find the source; no modification time: never dropped."""
        linecache.cache[FILENAME] = (sum(map(len, self.lines)), None, self.lines, FILENAME)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Let the other finders find `linecache`, and fill it once it is loaded."""
        if name != "linecache":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader
                loader.exec_module = self._then_register(loader.exec_module)
                return spec
        return None

    def _then_register(self, load: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def load_and_register(module: ModuleType) -> None:
            load(module)
            self.register(module)

        return load_and_register


def lines_of(code: str) -> tuple[str, list[str]]:
    """Return the code without a byte order mark, and its lines as `linecache` wants them."""
    code = code[1:] if code.startswith("\ufeff") else code
    return code, [
        line + "\n" for line in code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    ]


def main() -> int:
    """Run one program and return its exit code; SystemExit passes through."""
    try:
        channel = Channel(int(os.environ.pop("TENUTO_CHANNEL")))
        code = channel.receive_code()
    except (KeyError, ValueError, OSError, EOFError) as error:
        sys.stderr.write(f"tenuto: the code did not arrive: {error}\n")
        return BROKEN_START
    code, lines = lines_of(code)
    source = SourceLines(lines)
    if "linecache" in sys.modules:
        source.register(sys.modules["linecache"])
    else:
        sys.meta_path.insert(0, source)  # type: ignore[arg-type]
    module = type(sys)("__main__")
    namespace = module.__dict__
    namespace["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.argv = [FILENAME]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = ""
    try:
        execute(compile_code(code), namespace)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        report(error, lines, channel)
        return 1
    value = namespace.pop(VALUE, None)
    if value is not None:
        channel.send(describe(value))
    return 0
