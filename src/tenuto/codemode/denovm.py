"""The second engine: a stem that starts a deno process without permissions, and stands beside it.

Deno tells the keeper itself (its stdout is the channel); what comes in goes through here, since a
program without permissions can read nothing but its stdin: the answers of host functions, and lines of
input when it asks for one. And somebody must say why it died, if it did. `harden` starts a
process before there is a job: a keeper may hold one ready.
"""

from __future__ import annotations

import base64
import gc
import json
import marshal
import os
import resource
import select
import signal
import struct

from tenuto.codemode import deno_process, hardening, source
from tenuto.codemode.deno_process import Deno, send
from tenuto.codemode.grammar import BadSourceError
from tenuto.codemode.line import receive
from tenuto.keeper import seccomp

TYPE_CHECKING = False  # typing would cost the image 10 ms and its pages
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

CHANNEL_FD = 3
_READ = 256 * 1024
_BADLY, _GONE = 1, 125
_OUT_OF_MEMORY, _TOLD = 2, 3  # exit codes of engine.js
_REHEARSALS = 16
_KEPT_ERRORS = 64 * 1024
_ROOM = 64 << 20  # for reading the source, which takes some fifty times its size
_WORDS_OF_MEMORY = (
    b"out of memory",
    b"OOM",
    b"allocation failed",
    b"memory allocation of",
    b"heap limit",
    b"Cannot allocate",
)
_CRASHES = (signal.SIGTRAP, signal.SIGABRT, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS)
_RESIDENT = 48 << 20  # what an idle process has of memory, most of it its program
_image: tuple[bytes, bytes] | None = None
_expected: tuple[str, int] | None = None
_ready: Deno | None = None


def warm(rehearse: bool = False) -> None:
    """Make all that does not depend on a job; what follows it is forked from here."""
    global _image  # noqa: PLW0603  the image is what this process is
    if _image is None:
        _image = deno_process.read_surface(), deno_process.make_filter()
    # Loads what no process of ours can load later; Python makes often used code faster, too.
    for _ in range(_REHEARSALS if rehearse else 1):
        for language in ("js", "ts"):
            source.prepare("await 1", language)


def expect(program: str, memory: str) -> None:
    """Say with what `harden` is to start a process."""
    global _expected  # noqa: PLW0603
    _expected = program, int(memory)


def harden() -> None:
    """Start a process before there is a job; from then on we can run no other."""
    global _ready  # noqa: PLW0603
    assert _expected is not None
    _ready = _start(*_expected, ())


def rest() -> None:
    """Wait until there is a job, as long as the process is there for it.

    What every job needs is touched before: a page that is touched first costs time.
    """
    assert _ready is not None
    json.dumps(_text("1", "js"))
    marshal.loads(marshal.dumps({"vm": {"module": "", "off": []}, "limits": None}))
    struct.unpack("<I", b"1234")
    _Relay(_ready, 0, None)
    poller = select.poll()
    poller.register(CHANNEL_FD, select.POLLIN)
    poller.register(_ready.errors, select.POLLIN)
    if any(fd == _ready.errors for fd, _ in poller.poll()):
        # It has died: our keeper starts another for its job, unless the job is on its way to us.
        text = "the deno process that was held ready for it died at that moment; run it again"
        tell({"type": "exec_failed", "errno": 0, "text": text})
        os._exit(_GONE)


def _start(program: str, memory: int, off: tuple[str, ...]) -> Deno:
    """Start a process, and give up here what is not needed to stand beside it."""
    warm()
    assert _image is not None
    gc.disable()  # one run of it would touch every page of the image
    deno = deno_process.start(program, memory, *_image, off)
    its_own = (seccomp.when(0, deno.pid),)
    rules = [seccomp.rule(name, seccomp.ALLOW, *its_own) for name in ("kill", "prlimit64", "wait4")]
    hardening.bound(memory + _ROOM, None, hardening.own_size())
    _, missing = hardening.harden(hardening.Plan(rules=rules, scope=False), off)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGPIPE,))  # its end shows elsewhere
    deno.missing += [one for one in missing if one not in deno.missing]
    return deno


def run(words: dict[str, Any]) -> NoReturn:
    """Run the code of a job in a deno process, to its end."""
    wish: dict[str, Any] = words["vm"]
    memory, off = int(wish["memory"]), tuple(wish.get("off") or ())
    deno = _ready or _start(wish["program"], memory, off)
    if (deno.program, deno.memory) != (wish["program"], memory):
        raise OSError("the deno process that was held ready is not the one that was asked for")
    limits: dict[str, Any] = words.get("limits") or {}
    cpu: float | None = limits.get("cpu")
    if cpu:
        seconds = max(1, int(-(-cpu // 1)))
        resource.prlimit(deno.pid, resource.RLIMIT_CPU, (seconds, seconds + 1))
    code = receive(CHANNEL_FD)
    tell({"type": "confined", "level": deno.level, "missing": deno.missing})
    if deno.missing and wish.get("level") == "require":
        text = f"the sandbox is required, and this is missing: {', '.join(deno.missing)}"
        tell({"type": "exec_failed", "errno": 0, "text": text})
        os._exit(126)
    job: dict[str, Any] = {
        "inputs": json.dumps(wish.get("inputs") or {}),
        "functions": json.dumps([one["name"] for one in words.get("functions") or ()]),
    }
    try:
        job["tools"] = _tools(words.get("tools") or ())
        job |= _text(code, wish.get("language") or "js")
        job["rows"] = code.count("\n") + 1
    except BadSourceError as error:
        _raise("SyntaxError", str(error), error.line, error.column)
        os._exit(_BADLY)
    except MemoryError:
        _end_by_memory(memory)
    send(deno, json.dumps(job).encode() + b"\n")
    os._exit(_Relay(deno, memory, cpu).run())


def _text(code: str, language: str) -> dict[str, Any]:
    """Return what is to be evaluated, prepared as for the other engine; else as a module of deno's."""
    try:
        prepared = source.prepare(code, language)
    except BadSourceError:
        if language != "ts":
            raise
    else:
        return {"text": prepared.text, "source": None, "moves": prepared.moves}
    prepared = source.prepare_module(code)
    data = base64.b64encode(prepared.text.encode("utf-8", "replace")).decode()
    value = f"'{source.MODULE_VALUE}' in module ? module.{source.MODULE_VALUE} : module.default"
    text = f"import('data:application/typescript;base64,{data}').then((module) => {value})"
    return {"text": text, "source": prepared.text, "moves": prepared.moves}


def _tools(given: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return composed tools with their code as a function, or the reason why it cannot be one."""
    found: list[dict[str, Any]] = []
    for tool in given:
        one = {key: tool[key] for key in ("name", "schema", "parameters")}
        try:
            one["text"] = source.prepare_function(tool["code"], tool["language"], "inputs,tools")
        except BadSourceError as error:
            one["flaw"] = f"{error} (line {error.line})"
        found.append(one)
    return found


class _Relay:
    """Brings deno what it is sent, and sees it end."""

    def __init__(self, deno: Deno, memory: int, cpu: float | None) -> None:
        self._deno = deno
        self._memory = memory
        self._cpu = cpu
        self._answers = bytearray()
        self._lines: list[bytes] = []
        self._partial = b""
        self._errors = b""
        self._watches = self._input_ended = self._done = False

    def run(self) -> int:
        """Serve until the process has ended; return the exit code."""
        poller = select.poll()
        poller.register(CHANNEL_FD, select.POLLIN)
        poller.register(self._deno.errors, select.POLLIN)
        watched = False
        while True:
            if self._watches != watched:
                watched = self._watches
                if watched:
                    poller.register(0, select.POLLIN)
                else:
                    poller.unregister(0)
            for fd, _ in poller.poll():
                if fd == CHANNEL_FD:
                    self._pass_on()
                elif fd == self._deno.errors:
                    if not self._heard():
                        return self._ended()
                else:
                    # It stays where it is until deno has said that it no longer waits: meanwhile
                    # the keeper sees that there is something to read.
                    self._watches = False
                    self._say({"type": "come"})

    def _pass_on(self) -> None:
        """Pass whole lines on: those of ours must not come in between."""
        data = os.read(CHANNEL_FD, _READ)
        if not data:
            os._exit(_BADLY)  # our keeper is gone
        self._answers += data
        end = data.rfind(b"\n")
        if end >= 0:
            whole = len(self._answers) - len(data) + end + 1
            send(self._deno, bytes(self._answers[:whole]))
            del self._answers[:whole]

    def _heard(self) -> bool:
        """Take requests for a line of input, and what deno says for itself when it dies."""
        data = os.read(self._deno.errors, _READ)
        if data.strip(b"re"):
            self._errors = (self._errors + data)[-_KEPT_ERRORS:]
        elif b"e" in data:
            self._done = True
            os.kill(self._deno.pid, signal.SIGKILL)
        elif data:
            self._deliver()
        return bool(data) and not self._done

    def _read(self) -> None:
        data = os.read(0, _READ)
        if data:
            *whole, self._partial = (self._partial + data).split(b"\n")
            self._lines += whole
        else:
            self._input_ended = True
            if self._partial:
                self._lines.append(self._partial)

    def _deliver(self) -> None:
        """Give the line that was asked for, or say that there is none yet."""
        poller = select.poll()
        poller.register(0, select.POLLIN)
        while not self._lines and not self._input_ended and poller.poll(0):
            self._read()
        if self._lines or self._input_ended:
            line = self._lines.pop(0).decode("utf-8", "replace") if self._lines else None
            self._say({"type": "item", "line": line})
        else:
            self._watches = True
            self._say({"type": "empty"})

    def _say(self, message: dict[str, object]) -> None:
        send(self._deno, json.dumps(message).encode() + b"\n")

    def _ended(self) -> int:
        _, status, usage = os.wait4(self._deno.pid, 0)
        if self._done:
            return 0
        grown = usage.ru_maxrss * 1024 - _RESIDENT
        if os.WIFEXITED(status):
            code = os.WEXITSTATUS(status)
            if code in (0, _TOLD):
                return _BADLY if code else 0
            if code == _OUT_OF_MEMORY or self._ran_out(0, grown):
                _end_by_memory(self._memory)
            return self._crashed(f"deno ended with code {code}")
        number = os.WTERMSIG(status)
        if number in (signal.SIGXCPU, signal.SIGKILL) and self._cpu:
            tell({"type": "limit", "resource": "cpu", "bound": f"{self._cpu:g} s"})
            return _BADLY
        name = signal.Signals(number).name
        if number in _CRASHES and self._ran_out(number, grown):
            _end_by_memory(self._memory)
        return self._crashed(f"deno was ended by {name}")

    def _ran_out(self, number: int, grown: int) -> bool:
        """Tell whether it died because there was no memory for it.

        V8 says so if its heap is full. Whatever else finds no memory there may say it in other words,
        or nothing: libraries abort without a word, or write to where they got nothing.
        """
        if any(word in self._errors for word in _WORDS_OF_MEMORY) or grown >= self._memory / 2:
            return True
        return number == signal.SIGABRT and not self._errors

    def _crashed(self, what: str) -> int:
        errors = self._errors.decode("utf-8", "replace")
        lines = errors[max(0, errors.find("\nthread '")) :].split("\n")  # after a long preamble
        said = " ".join(line for line in lines if line and not line.startswith("note: "))
        _raise("InternalError", f"{what}: {said[:500]}" if said else what)
        return _BADLY


def _end_by_memory(memory: int) -> NoReturn:
    tell({"type": "limit", "resource": "memory", "bound": f"{memory / (1 << 20):g} MB"})
    os._exit(_BADLY)


def tell(message: dict[str, object]) -> None:
    """Send the keeper a message of our own."""
    rest = memoryview(json.dumps(message).encode() + b"\n")
    try:
        while rest:
            rest = rest[os.write(CHANNEL_FD, rest) :]
    except OSError:
        return


def _raise(name: str, message: str, line: int = 0, column: int = 0) -> None:
    fields: dict[str, object] = {"type": "raised", "name": name, "message": message}
    place = ""
    if line:
        fields |= {"line": line, "column": column}
        place = f"\n    at code:{line}:{column}"
    tell(fields)
    tell({"type": "log", "level": "error", "text": f"Uncaught {name}: {message}{place}"})
