"""All settings in one frozen object: flag > environment > project file > user file > default."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import msgspec

from tenuto.core.errors import InvalidInput
from tenuto.core.quantities import parse_duration, parse_size
from tenuto.core.specs import Network, QuotaPolicy, SandboxLevel, check_session_name

PROJECT_FILE = "tenuto.toml"
AGENT_TABLES = (
    "agents", "prices", "providers", "roles", "runners", "selection", "skills", "strategies",
    "tiers",
)  # fmt: skip
"""Tables of the same files that agent_settings reads, when agents are to work."""


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
    runtime_preferred: str | None = None
    """The runtime of agent tasks that name none, if it can be used here."""
    runtime_order: tuple[str, ...] = ("claude-code", "open-code", "cli")
    """The runtimes that are tried else, the first that can be used is taken."""
    max_turns: int | None = None
    """How often an agent may ask its model for one prompt; no bound but its budget by default."""
    concurrency: int = 4
    """How many steps of one task run at the same time."""
    budget_daily: Decimal | None = None
    """Dollars that the project may spend on a day of UTC."""
    budget_monthly: Decimal | None = None
    """Dollars that the project may spend in a month of UTC."""
    budget_task: Decimal | None = None
    """Dollars for each task that has no bound of its own."""
    budget_hard: bool = False
    """Nothing is admitted at or past a bound, and nobody is asked."""
    budget_elicit: bool = False
    """Over MCP the client's user is asked at a bound; else the work goes on with a warning."""
    permissions: Literal["ask", "edits", "allow", "deny"] = "ask"
    """What happens when an agent asks before it uses a tool, where a task does not say."""
    checkpoint_every: float = 1.0
    """Seconds between two writings of a running task's state file; 0 for as often as it changes."""
    checkpoint_keep: int = 8
    """How many checkpoints that were asked for stay as files of their own, for each task."""
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


def _some(value: Any) -> int:
    count = _count(value)
    if not count:
        raise InvalidInput("0 is too few, 1 is the least")
    return count


_DOLLARS_MOST = Decimal(10) ** 9


def parse_dollars(value: Any) -> Decimal:
    """Return an amount of dollars, or raise InvalidInput."""
    if isinstance(value, (str, int, float, Decimal)) and not isinstance(value, bool):
        try:
            amount = Decimal(str(value).strip().removeprefix("$"))
        except (InvalidOperation, ValueError):
            amount = Decimal("nan")
        if amount.is_finite() and 0 <= amount <= _DOLLARS_MOST:
            return amount
    raise InvalidInput(f"{value!r:.80} is no amount of dollars, such as 2.50")


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if not isinstance(value, str) or value.lower() not in words:
        raise InvalidInput(f"{value!r:.80} is neither true nor false")
    return words[value.lower()]


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


def check_name(value: Any) -> str:
    """Return the name of a runtime, role or strategy if it can be one; else raise InvalidInput."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidInput(f"{value!r:.80} is no name: a letter, then letters, digits, . _ -")
    return value


def _names(value: Any) -> tuple[str, ...]:
    """Return names from a list, or from a text with commas between them."""
    parts: Any = [one.strip() for one in value.split(",")] if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not parts:
        raise InvalidInput(f"{value!r:.80} is no list of names")
    return tuple(dict.fromkeys(check_name(one) for one in parts))  # pyright: ignore[reportUnknownVariableType]


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
    "runtime.preferred": ("runtime_preferred", check_name),
    "runtime.order": ("runtime_order", _names),
    "runtime.max_turns": ("max_turns", _some),
    "parallel.concurrency": ("concurrency", _some),
    "budget.daily": ("budget_daily", parse_dollars),
    "budget.monthly": ("budget_monthly", parse_dollars),
    "budget.task": ("budget_task", parse_dollars),
    "budget.hard": ("budget_hard", _flag),
    "budget.elicit": ("budget_elicit", _flag),
    "checkpoint.every": ("checkpoint_every", _seconds),
    "checkpoint.keep": ("checkpoint_keep", _some),
    "permissions": ("permissions", lambda v: _one_of(v, ("ask", "edits", "allow", "deny"))),
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
            known = ", ".join([*sorted(_KEYS), *(f"[{table}]" for table in AGENT_TABLES)])
            raise InvalidInput(f"{source} sets {key!r}, which is unknown", f"known: {known}")
        field, parse = _KEYS[key]
        try:
            chosen[field] = parse(value)
        except (InvalidInput, TypeError, ValueError) as error:
            text = error.message if isinstance(error, InvalidInput) else str(error)
            raise InvalidInput(f"{key} in {source}: {text}", "correct it or remove it") from None
        sources[field] = Source(key, chosen[field], source)

    for path in settings_files(root, environ):
        for key, value in _flat(read_file(path)).items():
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


def describe(settings: Settings, sources: list[Source]) -> dict[str, Source]:
    """Return every setting under its name in Settings, with its key, value and source."""
    keys: dict[str, str] = {}
    for key, (field, _) in _KEYS.items():
        keys.setdefault(field, key)  # names of the seed system come last
    places = {_KEYS[one.key][0] if one.key in _KEYS else one.key: one.source for one in sources}
    return {
        field: Source(
            keys.get(field, field), getattr(settings, field), places.get(field, "default")
        )
        for field in settings.__struct_fields__
    }


def settings_files(root: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the files that settings come from, the stronger one last."""
    return user_file(environ), os.path.join(root, PROJECT_FILE)


def read_file(path: str) -> dict[str, Any]:
    """Return what a TOML file says; a missing file says nothing."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}", "check its rights") from None
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(
            f"{path} is not valid TOML: {error}", "correct the line it names"
        ) from None


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file under dotted keys, without the tables of agents."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if key in AGENT_TABLES:
            continue
        if isinstance(value, dict):
            for inner, item in value.items():  # pyright: ignore[reportUnknownVariableType]
                flat[f"{key}.{inner}"] = item
        else:
            flat[key] = value
    return flat
