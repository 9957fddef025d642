"""Turning what a caller asks for into a checked spec: every boundary value is validated here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

import msgspec

from tenuto.core.confinement import Confinement
from tenuto.core.errors import InvalidInput
from tenuto.core.event import Event
from tenuto.core.quantities import parse_duration
from tenuto.core.specs import (
    Limits,
    Network,
    Sandbox,
    SandboxLevel,
    Spec,
    check_session_name,
    check_text,
)
from tenuto.interpreters import command_for, interpreter, resolve_program, session_command
from tenuto.keeper.procfs import MARK
from tenuto.stores.layout import current_folder

_MOST = 2**60
_CODE_MODE = ("js", "ts")


class Work(msgspec.Struct, frozen=True):
    """A spec and what may not be recorded with it: the environment's values."""

    spec: Spec
    environ: dict[str, str]
    channel: bool = False
    served: bool = False
    """Whoever starts it will serve its functions; the keeper then waits for that."""
    session: dict[str, str] | None = None
    """Name and language, if this is a session's own process."""
    cell: dict[str, str | None] | None = None
    """Where the session is, if this is a cell that has been given its place."""
    body: str | None = None
    """What goes over the channel instead of the bare code."""
    confinement: Confinement | None = None
    tools: tuple[dict[str, Any], ...] = ()
    """Composed tools, for the VM: name, schema, parameters, language and code."""
    usage: dict[str, str] = {}
    """The files that count the uses of these tools."""
    vm: dict[str, Any] | None = None
    """What a stem is told that becomes a code-mode VM instead of a program."""
    tells: tuple[str, ...] = ()
    """The events that it may put on its own tape, if it is a task's driver."""
    tether: tuple[int, int] | None = None
    """Pid and start time of the process on whose behalf it runs, and with which it ends."""
    events: tuple[Event, ...] = ()
    """What goes on its tape before its process starts: a fork's first steps, what a resume mends."""
    execution_id: str = ""
    """The id it is to have, where someone had to know it before; else a new one."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How something is to run, for code and commands alike."""

    cwd: str | None = None
    env: Mapping[str, str] = {}
    title: str = ""
    pty: bool = False
    echo: bool = False
    limits: Limits = Limits()
    sandbox: Sandbox | str | None = None
    deadline: float | None = None
    idle: float | None = None
    detached: bool = False
    session: str | None = None
    engine: str = "auto"
    inputs: Mapping[str, Any] | None = None


def command_work(argv: Sequence[str], options: Options, environ: Mapping[str, str]) -> Work:
    """Return the work for a command line."""
    _only_plain(options)
    if not argv:
        raise InvalidInput("there is no command to run", "write it after --")
    if options.session is not None:
        raise InvalidInput("a command has no session", "sessions are for code: --lang python")
    for part in argv:
        check_text("the command", part)
    cwd = folder_of(options.cwd)
    full = _environment(environ, options.env)
    program = resolve_program(argv[0], full, cwd)
    return _work("command", (program, *argv[1:]), cwd, options, full)


def code_work(
    code: str,
    language: str,
    options: Options,
    environ: Mapping[str, str],
    programs: Mapping[str, str],
    memory: int | None = None,
) -> Work:
    """Return the work for code in a language; `memory` bounds code-mode where no limit is given."""
    check_text("the code", code)
    cwd = folder_of(options.cwd)
    if language in _CODE_MODE:
        work = _machine_work(code, language, cwd, options, environ, programs, memory)
        return work if options.session is None else _machine_cell(work, options)
    _only_plain(options)
    full = _environment(environ, options.env)
    if options.session is not None:
        return _cell_work(code, language, cwd, options, full)
    command = command_for(language, code, full, programs)
    full.update(command.env)
    work = _work("code", command.argv, cwd, options, full, language=language, code=code)
    return msgspec.structs.replace(work, channel=command.channel)


def _cell_work(
    code: str, language: str, cwd: str, options: Options, environ: dict[str, str]
) -> Work:
    """Return the work for code that runs in a session: which one is found when it starts."""
    session = check_session_name(options.session or "")
    if options.pty:
        raise InvalidInput("a cell has no terminal of its own", "leave out --pty or --session")
    work = _work("code", (), cwd, options, environ, language=language, code=code)
    spec = msgspec.structs.replace(work.spec, session=session)
    return Work(spec, environ, channel=True, cell={"cwd": cwd if options.cwd else None})


def _machine_cell(work: Work, options: Options) -> Work:
    """Return code-mode work as a cell; its `vm` is for the session, if that has to be begun."""
    if work.spec.engine != "quickjs":
        raise InvalidInput(
            f"there are no sessions with the engine {work.spec.engine}", "leave --engine out"
        )
    spec = msgspec.structs.replace(
        work.spec, session=check_session_name(options.session), limits=options.limits
    )
    return msgspec.structs.replace(work, spec=spec, cell={"cwd": None})


def session_work(cell: Work, programs: Mapping[str, str]) -> Work:
    """Return the work for the session that a cell's starter asks for."""
    asked = cell.spec
    name, language = asked.session or "", session_language(asked)
    limits = session_limits(asked.limits)
    argv: tuple[str, ...] = ()
    environ: dict[str, str] = {}
    vm: dict[str, Any] | None = None
    if cell.vm is not None:
        from tenuto.codemode.job import SESSION_MODULE

        vm = {**cell.vm, "module": SESSION_MODULE, "inputs": {}}
        limits = msgspec.structs.replace(limits, memory=vm["memory"])
    else:
        command = session_command(language, cell.environ, programs)
        argv, environ = command.argv, {**cell.environ, **command.env}
    spec = Spec(
        kind="code",
        argv=argv,
        cwd=asked.cwd,
        language=language,
        engine=asked.engine,
        code="",
        title=f"session {name}",
        env_names=asked.env_names,
        limits=limits,
        sandbox=asked.sandbox,
        detached=True,
        parent=asked.parent,
        session=name,
        session_host=True,
    )
    session = {"name": name, "language": language}
    return Work(spec, environ, channel=True, session=session, vm=vm)


def session_language(spec: Spec) -> str:
    """Return the language of the session that a cell needs: TypeScript runs where JavaScript does."""
    return "js" if spec.language in _CODE_MODE else spec.language or ""


def cell_body(work: Work) -> str | None:
    """Return what a cell's process is given instead of the bare code; None if that is enough."""
    spec = work.spec
    if spec.language not in _CODE_MODE:
        return None
    given = {
        "code": spec.code,
        "language": spec.language,
        "inputs": spec.inputs,
        "functions": [one.name for one in spec.functions],
        "tools": work.tools,
    }
    return msgspec.json.encode(given).decode()


def session_limits(limits: Limits) -> Limits:
    """Return the limits that are the session's own; those on output hold for each cell."""
    return msgspec.structs.replace(limits, output=None, output_policy="hold")


def _machine_work(
    code: str,
    language: str,
    cwd: str,
    options: Options,
    environ: Mapping[str, str],
    programs: Mapping[str, str],
    memory: int | None,
) -> Work:
    """Return the work for code-mode. The VM has no environment, so that none can be read there."""
    from tenuto.codemode import job as codemode  # other languages start without it

    if options.pty or options.env:
        raise InvalidInput(
            f"{language} code runs in a VM without a terminal and an environment",
            "pass values as inputs; for a whole Node: --lang node",
        )
    engine = codemode.choose_engine(options.engine)
    bound = options.limits.memory or memory or codemode.DEFAULT_MEMORY
    limits = msgspec.structs.replace(options.limits, memory=bound)
    wish = _sandbox(options.sandbox)
    level = "require" if wish is not None and wish.level == "require" else "auto"
    options = msgspec.structs.replace(options, limits=limits, sandbox="none")
    inputs = _checked_inputs(options.inputs)
    if engine == "deno":
        program = interpreter("deno", environ, programs)
        vm = codemode.deno_job(program, language, bound, inputs, level)
    else:
        vm = codemode.vm_job(language, bound, inputs, level)
    mark = {MARK: environ[MARK]} if MARK in environ else {}
    work = _work("code", (), cwd, options, mark, language=language, code=code)
    spec = msgspec.structs.replace(work.spec, engine=engine, inputs=inputs)
    return Work(spec, {}, channel=True, vm=vm)


def recorded_inputs(spec: Spec) -> Any:
    """Return the inputs that a spec holds, as they were given."""
    if spec.inputs is None:
        return None
    from tenuto.codemode import wire

    return wire.from_wire(spec.inputs)


def _checked_inputs(inputs: object) -> Any:
    if inputs is None:
        return None
    if not isinstance(inputs, Mapping):
        raise InvalidInput("the inputs are values by their names", 'such as {"n": 3}')
    from tenuto.codemode import wire

    try:
        value = wire.to_wire(dict(cast("Mapping[str, Any]", inputs)))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"the inputs cannot be passed on: {error}", "pass plain values"
        ) from None
    check_text("the inputs", msgspec.json.encode(value).decode())
    return value


def _only_plain(options: Options) -> None:
    if options.inputs is not None or options.engine != "auto":
        raise InvalidInput(
            "inputs and an engine are for code-mode only", "--lang js or ts; else use --env"
        )


def _work(
    kind: str,
    argv: tuple[str, ...],
    cwd: str,
    options: Options,
    environ: dict[str, str],
    language: str | None = None,
    code: str | None = None,
) -> Work:
    sandbox = _sandbox(options.sandbox)
    spec = Spec(
        kind="code" if kind == "code" else "command",
        argv=argv,
        cwd=cwd,
        language=language,
        code=code,
        title=check_text("the title", options.title),
        env_names=tuple(sorted(options.env)),
        pty=options.pty,
        echo=options.echo,
        limits=_checked(options.limits, sandbox),
        sandbox=sandbox,
        deadline=_positive("deadline", options.deadline),
        idle=_positive("idle", options.idle),
        detached=options.detached,
        parent=environ.get(MARK) or None,
    )
    return Work(spec, environ)


def folder_of(cwd: str | None) -> str:
    """Return the whole path of a working directory, the current one if none is given, or raise."""
    path = os.path.abspath(os.path.expanduser(cwd)) if cwd else current_folder()
    check_text("the working directory", path)
    if os.path.isfile(path):
        raise InvalidInput(f"the working directory {path} is a file", "name a folder with --cwd")
    if not os.path.isdir(path):
        raise InvalidInput(
            f"the working directory {path} does not exist", "make it, or name another with --cwd"
        )
    if not os.access(path, os.X_OK):
        raise InvalidInput(f"the working directory {path} cannot be entered", "check its rights")
    return path


def _environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    for name, value in extra.items():
        if not name or "=" in name or "\0" in name:
            raise InvalidInput(f"{name!r} is not a variable's name", "write it as NAME=VALUE")
        check_text(f"the name of the variable {name!r}", name)
        check_text(f"the variable {name}", value)
    return {"PYTHONUNBUFFERED": "1", **base, **extra}


def _checked(limits: object, sandbox: Sandbox | None) -> Limits:
    if not isinstance(limits, Limits):
        raise InvalidInput(
            f"limits are no {type(limits).__name__}", "such as Limits(memory=64 << 20)"
        )
    if limits.pids is not None and sandbox is None:
        raise InvalidInput("only a sandbox can limit the number of processes", "add --sandbox auto")
    for name in ("memory", "cpu", "pids", "file_size", "open_files", "output"):
        value = getattr(limits, name)
        if value is not None and not isinstance(value, (int, float)):
            raise InvalidInput(f"the {name} limit must be a number, not {value!r}")
        if value is not None and not 0 < value < _MOST:
            raise InvalidInput(f"the {name} limit must be above zero and below 2^60, not {value}")
    return limits


def _sandbox(wish: Sandbox | str | None) -> Sandbox | None:
    """Return a checked wish, or None for an execution that nothing is to hold."""
    if wish is None:
        return None
    chosen = wish if isinstance(wish, Sandbox) else Sandbox(wish)  # pyright: ignore
    for what, value, allowed in (
        ("level", chosen.level, get_args(SandboxLevel)),
        ("network", chosen.net, get_args(Network)),
    ):
        if value not in allowed:
            known = ", ".join(allowed)
            raise InvalidInput(f"there is no sandbox {what} {value!r}", f"use one of {known}")
    for path in (*chosen.writable, *chosen.readable):
        check_text("a path for the sandbox", path)
    return None if chosen.level == "none" else chosen


def _positive(name: str, seconds: float | None) -> float | None:
    if seconds is None:
        return None
    value = parse_duration(seconds)
    if value <= 0:
        raise InvalidInput(f"the {name} must be above zero", "leave it out for none")
    return value
