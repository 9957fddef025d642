"""All settings in one frozen object: flag > environment > project file > user file > default."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from tenuto.core.errors import InvalidInput
from tenuto.core.quantities import parse_duration, parse_size
from tenuto.core.specs import Network, QuotaPolicy, SandboxLevel, check_session_name

PROJECT_FILE = "tenuto.toml"


class Settings(msgspec.Struct, frozen=True):
    """What can be set, with its default."""

    wait: float = 30.0
    """Seconds a call waits before it hands over; 0 hands over at once."""
    report_every: float = 60.0
    """Seconds between execution reports while anything runs; 0 for none."""
    on_cancel: Literal["detach", "kill"] = "detach"
    """What a client's cancel does to the execution it waits for."""
    interrupt_grace: float = 5.0
    """Seconds between SIGINT, SIGTERM and SIGKILL when an execution is interrupted."""
    output_quota: int | None = None
    """Bytes of output kept per execution."""
    output_policy: QuotaPolicy = "hold"
    """What happens at the quota: the writer is held back, or the execution fails."""
    output_inline: int = 1024 * 1024
    """Bytes of output given with one answer; the cursor tells where to go on."""
    mcp_output: int = 32 * 1024
    """Bytes of output given with one answer over MCP; the cursor tells where to go on."""
    retention_age: float | None = None
    """Seconds after which ended executions are cleaned."""
    retention_count: int | None = None
    """How many ended executions are kept."""
    retention_size: int | None = None
    """Bytes that ended executions may take on disk."""
    code_memory: int = 128 * 1024 * 1024
    """Bytes of memory for code-mode, where no other limit is asked for."""
    keepers_ahead: int = 2
    """Keepers that a warm engine holds ready."""
    deno_ahead: int = 1
    """Processes of the deno engine that a warm engine holds ready, from its first use on."""
    health_every: float = 15.0
    """Seconds between health checks while anything runs."""
    session: str | None = None
    """The session that an MCP client's code runs in unless it names one; none by default."""
    sandbox: SandboxLevel = "none"
    """What holds full executions that do not say: nothing by default."""
    sandbox_net: Network = "off"
    """The network that they have then."""
    programs: dict[str, str] = {}
    """The program for a language, where it is not the one on PATH."""

    def patience(self, wait: object) -> float:
        """Return for how many seconds a call waits that was told this; any number will do."""
        if wait is None:
            return self.wait
        if isinstance(wait, (int, float)) and not isinstance(wait, bool) and not math.isnan(wait):
            return wait
        return parse_duration(wait)


class Source(msgspec.Struct, frozen=True):
    """Where a value came from, for `doctor`."""

    key: str
    value: Any
    source: str


def _one_of(value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidInput(f"{value!r} is none of {', '.join(allowed)}")
    return str(value)


def _count(value: Any) -> int:
    text = str(value)
    if not text.isdecimal():
        raise InvalidInput(f"{value!r} is not a whole number")
    return int(text)


_seconds = parse_duration
_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "wait": ("wait", _seconds),
    "report.every": ("report_every", _seconds),
    "on_cancel": ("on_cancel", lambda v: _one_of(v, ("detach", "kill"))),
    "interrupt.grace": ("interrupt_grace", _seconds),
    "output.quota": ("output_quota", parse_size),
    "output.policy": ("output_policy", lambda v: _one_of(v, ("hold", "fail"))),
    "output.inline": ("output_inline", parse_size),
    "mcp.output": ("mcp_output", parse_size),
    "retention.age": ("retention_age", _seconds),
    "retention.count": ("retention_count", _count),
    "retention.size": ("retention_size", parse_size),
    "limits.memory": ("code_memory", parse_size),
    "keepers.ahead": ("keepers_ahead", _count),
    "session": ("session", check_session_name),
    "deno.ahead": ("deno_ahead", _count),
    "health.every": ("health_every", _seconds),
    "sandbox": ("sandbox", lambda v: _one_of(v, ("none", "auto", "require"))),
    "sandbox_net": ("sandbox_net", lambda v: _one_of(v, ("on", "loopback", "off"))),
    # names that users of the seed system know, in milliseconds
    "asyncHandoverTimeout": ("wait", lambda v: parse_duration(v) / 1000),
    "executionReportInterval": ("report_every", lambda v: parse_duration(v) / 1000),
}


def user_file(environ: Mapping[str, str]) -> str:
    """Return the path of the user's settings file."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", ""), ".config")
    return os.path.join(base, "tenuto", "config.toml")


def load_settings(
    root: str, environ: Mapping[str, str], flags: Mapping[str, Any] = {}
) -> tuple[Settings, list[Source]]:
    """Return the settings in force and where each that is not a default came from."""
    chosen: dict[str, Any] = {}
    sources: dict[str, Source] = {}

    def take(key: str, value: Any, source: str) -> None:
        if key not in _KEYS:
            known = ", ".join(sorted(_KEYS))
            raise InvalidInput(f"{source} sets {key!r}, which is unknown", f"known: {known}")
        field, parse = _KEYS[key]
        try:
            chosen[field] = parse(value)
        except (InvalidInput, TypeError, ValueError) as error:
            text = error.message if isinstance(error, InvalidInput) else str(error)
            raise InvalidInput(f"{key} in {source}: {text}", "correct it or remove it") from None
        sources[field] = Source(key, chosen[field], source)

    for path in (user_file(environ), os.path.join(root, PROJECT_FILE)):
        for key, value in _from_file(path).items():
            if key.startswith("programs."):
                programs = dict(chosen.get("programs", {}))
                # a path is meant from where the file is, a bare name is looked up on PATH
                program = str(value)
                if "/" in program:
                    program = os.path.normpath(os.path.join(os.path.dirname(path), program))
                programs[key.removeprefix("programs.")] = program
                chosen["programs"] = programs
                sources["programs"] = Source("programs", programs, path)
            else:
                take(key, value, path)
    for key in _KEYS:
        name = "TENUTO_" + key.upper().replace(".", "_")
        if name in environ:
            take(key, environ[name], name)
    for key, value in flags.items():
        if value is not None:
            take(key, value, "the command line")
    return Settings(**chosen), list(sources.values())


def _from_file(path: str) -> dict[str, Any]:
    """Return a TOML file's values under dotted keys; a missing file has none."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}", "check its rights") from None
    import tomllib

    try:
        tree = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{path} is not valid TOML: {error}", "correct the line it names"
        ) from None
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            for inner, item in value.items():  # pyright: ignore[reportUnknownVariableType]
                flat[f"{key}.{inner}"] = item
        else:
            flat[key] = value
    return flat
