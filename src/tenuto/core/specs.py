"""What is to run, as it stands in frame 0 of the tape: complete but for environment values."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from tenuto.core.errors import InvalidInput

Kind = Literal["code", "command", "task", "step"]
QuotaPolicy = Literal["hold", "fail"]
SandboxLevel = Literal["none", "auto", "require"]
Network = Literal["on", "loopback", "off"]
_MOST = 5 * 1024 * 1024  # escaped as JSON in the worst way it still fits in one frame


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds that the caller asked for. None means no bound: nothing is limited by itself."""

    memory: int | None = None
    """Bytes of private memory for each process; in a sandbox, of all memory for all together."""
    cpu: float | None = None
    """Seconds of processor time for each process; in a sandbox, for all together."""
    pids: int | None = None
    """Processes and threads at once; only a sandbox can hold it."""
    file_size: int | None = None
    """Bytes of the largest file it may write."""
    open_files: int | None = None
    """Descriptors for each process."""
    output: int | None = None
    """Bytes of output kept on the tape."""
    output_policy: QuotaPolicy = "hold"
    """What happens at the output quota: the writer is held back, or the execution fails."""


class FunctionSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function of the caller's that the code may call, by name and by what it takes."""

    name: str
    schema: dict[str, Any] = {}
    """A JSON schema of an object: the parameters by name."""
    description: str = ""


class Sandbox(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a full execution is held: what it may see, change and reach."""

    level: SandboxLevel = "auto"
    """`require` refuses to run with less than was asked for, `auto` runs and says what is missing."""
    net: Network = "off"
    """`loopback` is a network of its own, with nothing on it but itself."""
    writable: tuple[str, ...] = ()
    """Folders and files that it may change, besides its working directory."""
    readable: tuple[str, ...] = ()
    """Folders and files that it may read and run, besides the system's."""


class Spec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One piece of work. Environment values are never part of it, only their names."""

    kind: Kind
    argv: tuple[str, ...]
    cwd: str
    language: str | None = None
    engine: str | None = None
    """What runs code-mode: quickjs or deno; None for anything else."""
    code: str | None = None
    inputs: Any = None
    """What code-mode is given under the name `inputs`."""
    title: str = ""
    env_names: tuple[str, ...] = ()
    pty: bool = False
    echo: bool = False
    limits: Limits = Limits()
    sandbox: Sandbox | None = None
    deadline: float | None = None
    idle: float | None = None
    detached: bool = False
    parent: str | None = None
    functions: tuple[FunctionSpec, ...] = ()
    session: str | None = None
    """The session it runs in as a cell; or that it is, see below."""
    session_host: bool = False
    """It is the session itself: the process in which the cells run."""
    host: str | None = None
    """The execution that is the cell's session."""
    session_note: str = ""
    """What the one who starts a cell should know: that the session had to be begun anew."""
    tools: dict[str, int] = {}
    """The composed tools that the code may call, and in which version."""
    task: dict[str, Any] | None = None
    """What a task's driver is to do: a TaskSpec, as JSON has it, read by those who know tasks only."""

    def label(self) -> str:
        """Return one line that tells a person what this is."""
        text = self.title or self.code or " ".join(self.argv)
        line = " ".join(text.split())
        return line if len(line) <= 200 else line[:199] + "…"


def check_text(name: str, text: object) -> str:
    """Return text that can be recorded and passed to a program, or raise InvalidInput."""
    if not isinstance(text, str):
        raise InvalidInput(f"{name} must be text, not {text!r:.60}", "pass a str")
    if "\0" in text:
        raise InvalidInput(
            f"{name} holds a NUL character", "remove it: no program can be given one"
        )
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{name} is not valid text", "pass valid UTF-8") from None
    if size > _MOST:
        raise InvalidInput(f"{name} is larger than {_MOST >> 20} MiB", "put it in a file")
    return text


def check_session_name(name: object) -> str:
    """Return a session's name, or raise InvalidInput."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise InvalidInput(
            f"{name!r} is no name for a session",
            "use up to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
        )
    return name
