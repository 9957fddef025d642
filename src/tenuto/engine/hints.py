"""What to do next about a failure, from how it ended and what it last said."""

from __future__ import annotations

import re

from tenuto.core.execution import Execution
from tenuto.core.ids import short
from tenuto.core.states import RESUMABLE, State, WaitingFor

_UNREADABLE = "the code does not parse: look at the line named above"
_DENIED = "permission denied: check the file's rights and owner"
_MISSING = "a file is missing: check the path and the working directory (--cwd)"

_PATTERNS: tuple[tuple[str, str], ...] = (
    (
        r"ModuleNotFoundError|No module named|Cannot find (module|package)|ERR_MODULE_NOT_FOUND",
        "a module is missing: install it for the interpreter that ran, or check the working directory",
    ),
    (
        r"EADDRINUSE|[Aa]ddress already in use",
        "the port is in use: choose another, or end what holds it (tenuto ps)",
    ),
    (
        r"SyntaxError|IndentationError|TabError|syntax error",
        _UNREADABLE,
    ),
    (
        r"MemoryError|JavaScript heap out of memory|Cannot allocate memory|ENOMEM|Allocation failed",
        "it ran out of memory: raise --mem, or work on smaller pieces",
    ),
    (
        r"EACCES|EPERM|PermissionError|[Pp]ermission denied|Operation not permitted",
        _DENIED,
    ),
    (
        r"ENOENT|FileNotFoundError|No such file or directory|can't open file",
        _MISSING,
    ),
    (r"ENOSPC|No space left on device", "the disk is full: make room, then run it again"),
    (
        r"ECONNREFUSED|ConnectionRefusedError|Connection refused",
        "nothing listens at that address: start the server first, or check host and port",
    ),
    (
        r"ENOTFOUND|EAI_AGAIN|Name or service not known|Temporary failure in name resolution",
        "the host name cannot be resolved: check it, and the network",
    ),
    (r"EMFILE|[Tt]oo many open files", "too many open files: close some, or raise the limit"),
    (r"command not found", "a command is missing: install it, or check PATH"),
    (
        r"ETIMEDOUT|TimeoutError|timed out",
        "something it called timed out by itself: raise that timeout, or check what it waits for",
    ),
    (
        r"KeyError|IndexError|TypeError|ReferenceError|AttributeError|NameError|ValueError",
        "the code raised an exception: see the line it names",
    ),
)

_IN_SANDBOX = {
    _DENIED: "permission denied, perhaps by the sandbox: see --net, --readable and --writable",
    _MISSING: "a file is missing, or the sandbox does not show it: see --readable and --writable",
}

_NOWHERE = {  # of code-mode, where an error names its line if anybody knows it
    "SyntaxError": "the code does not parse: without --engine deno the line is named",
}

# What code for Node, Deno or a browser finds there, and not in code-mode.
_ELSEWHERE = re.compile(
    r"(require|module|exports|process|Buffer|__dirname|__filename|global|Deno|fetch|window|document"
    r"|XMLHttpRequest|WebSocket|Worker|crypto|URL|Intl|WebAssembly) is not defined"
)

_BY_SIGNAL = {
    "SIGKILL": "it was killed from outside, perhaps by the kernel for lack of memory (see dmesg)",
    "SIGSEGV": "it crashed in native code: a broken extension or too deep a recursion",
    "SIGABRT": "it aborted itself: the reason should stand in its last lines",
    "SIGBUS": "it crashed on a file or device that went away, or a full /dev/shm",
    "SIGILL": "it met an instruction this processor lacks: a build for another machine",
    "SIGPIPE": "it wrote to a pipe whose reader was gone",
}

_BY_REASON = {
    "deadline": "the partial output is kept; raise or drop --deadline",
    "idle": "the partial output is kept; raise or drop --idle",
    "limit": "the partial output is kept; raise that limit",
    "session": "the session's state is gone; the next cell of that name begins it anew",
    "exec": "the program could not be started: check its path, its rights and its first line",
}

_NOT_EXECUTED: tuple[tuple[str, str], ...] = (
    (
        r"^no process",
        "there are too many processes, or too little memory: end some (tenuto ps), or raise the limit",
    ),
    (
        r"^(\[Errno \d+\] )?Argument list too long",
        "its arguments and variables are too long: put them in a file, or send them to its stdin",
    ),
)


def suggest(execution: Execution, last_words: str) -> str:
    """Return the next step to take, or an empty text."""
    note = execution.spec.session_note if execution.spec is not None else ""
    if note:
        return "; ".join(filter(None, (_suggest(execution, last_words), note)))
    return _suggest(execution, last_words)


def _suggest(execution: Execution, last_words: str) -> str:
    if execution.live:
        return _while_live(execution)
    ended = execution.ended
    if execution.state is State.LOST and execution.spec is not None and execution.spec.session_host:
        return "its state is gone; the next cell of that name begins it anew"
    where = short(execution.id)
    if execution.state in RESUMABLE and execution.spec is not None and execution.spec.task:
        return f"what is done is saved; to go on: tenuto resume {where}"
    if execution.state is State.LOST:
        return f"see tenuto logs {where}; run it again with: tenuto resume --force {where}"
    if ended is None or execution.state in (State.SUCCEEDED, State.KILLED, State.INTERRUPTED):
        return ""
    if ended.reason in ("deadline", "idle") and execution.spec is not None and execution.spec.task:
        go_on = f"to go on from a checkpoint: tenuto show {where} --checkpoints"
        return f"what its steps completed is kept; {go_on}; or raise or drop --{ended.reason}"
    if ended.reason in _BY_REASON:
        found = (advice for pattern, advice in _NOT_EXECUTED if re.search(pattern, ended.detail))
        return next(found, _BY_REASON[ended.reason])
    return _by_words(execution, last_words) or _BY_SIGNAL.get(ended.signal or "", "")


def _by_words(execution: Execution, last_words: str) -> str:
    raised = execution.raised
    words = f"{raised.name}: {raised.message}\n{last_words}" if raised else last_words
    if raised is not None and raised.line is None and execution.spec and execution.spec.engine:
        return _NOWHERE.get(raised.name, f"the code raised {raised.name}: see its message")
    in_vm = execution.spec is not None and execution.spec.engine
    if in_vm and raised is not None and (found := _ELSEWHERE.fullmatch(raised.message)):
        return (
            f"code-mode has no {found[1]}: hand it a function for that, or run it in node "
            "(--lang node), with all that you may do"
        )
    for pattern, advice in _PATTERNS:
        if re.search(pattern, words):
            boxed = execution.confined is not None and execution.confined.net
            return _IN_SANDBOX.get(advice, advice) if boxed else advice
    return f"the code raised {raised.name}: see the line it names" if raised is not None else ""


def _while_live(execution: Execution) -> str:
    where = short(execution.id)
    match execution.waiting_for:
        case WaitingFor.INPUT:
            return f"it waits for input: tenuto send {where} TEXT"
        case WaitingFor.DISK:
            quota = execution.transitions[-1].reason.startswith("the output quota")
            room = "" if quota else "free disk space, or "
            return f"{room}drop its output with: tenuto clear {where}"
        case WaitingFor.HOST:
            serve = f'engine.serve("{where}", functions)'
            return f"it waits for host: serve its functions with {serve}, or tenuto kill {where}"
        case None:
            return ""
        case other:
            return f"it waits for {other}: tenuto approve {where}"
