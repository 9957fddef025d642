"""tenuto run and tenuto resume: start something, stay with it for a while, hand it over."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from tenuto.cli import follow
from tenuto.cli.arguments import add_id, count, whole
from tenuto.cli.stay import Stay
from tenuto.core.errors import InvalidInput
from tenuto.core.ids import short
from tenuto.core.quantities import parse_duration, parse_size
from tenuto.engine.blocking import BlockingEngine

if TYPE_CHECKING:
    import argparse
    from typing import Any

    from tenuto.cli.console import Console
    from tenuto.core.specs import Sandbox
    from tenuto.engine.settings import Settings
    from tenuto.engine.work import Options, Work

_LANGUAGES = ("js", "ts", "python", "node", "deno", "bash")


def run_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto run`."""
    parser.usage = "tenuto run [OPTION]... CODE | tenuto run [OPTION]... -- COMMAND [ARGUMENT]..."
    add = parser.add_argument
    add("code", metavar="CODE", nargs="?", help="code in --lang; - reads it from stdin")
    add("--lang", choices=_LANGUAGES, help="the language of the code")
    add("--file", metavar="F", help="run the code in a file; its extension tells the language")
    add("--cwd", metavar="D", help="working directory (default: this one)")
    add("--session", metavar="S", help="run it in a session, where variables persist; see sessions")
    add("--title", metavar="T", default="", help="a name for lists")
    add("--env", metavar="K=V", action="append", default=[], help="set a variable; repeatable")
    add("--inputs", metavar="JSON", help="an object for js and ts code, under the name inputs")
    add("--engine", choices=("auto", "quickjs", "deno"), default="auto", help="for js and ts")
    add("--pty", action="store_true", help="give it a terminal")
    add("-i", "--interactive", action="store_true", help="forward our stdin to it, and stay")
    _staying(parser)
    limits = parser.add_argument_group("limits (none unless asked for)")
    add = limits.add_argument
    add("--deadline", metavar="T", type=parse_duration, help="end it after so long")
    add("--idle", metavar="T", type=parse_duration, help="end it after so long without output")
    add("--mem", metavar="S", type=parse_size, help="memory for each process, such as 512M")
    add("--cpu", metavar="T", type=parse_duration, help="processor time for each process")
    add("--pids", metavar="N", type=count, help="processes and threads at once, in a sandbox")
    add(
        "--fsize",
        "--max-file-size",
        dest="fsize",
        metavar="S",
        type=parse_size,
        help="its largest file",
    )
    add("--open-files", metavar="N", type=count, help="open files for each process")
    add("--max-output", metavar="S", type=parse_size, help="bytes of output kept")
    add(
        "--output-policy",
        choices=("hold", "fail"),
        help="at --max-output: hold the writer, or fail",
    )
    _sandbox_arguments(parser)


def _sandbox_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sandbox (none unless asked for; limits then hold together)")
    add = group.add_argument
    text = "none, auto (as much as this machine can) or require (or else do not run)"
    add("--sandbox", choices=("none", "auto", "require"), help=text)
    text = "network: on, loopback (its own), off (default in a sandbox)"
    add("--net", choices=("on", "loopback", "off"), help=text)
    text = "let it change that too, besides its working directory; repeatable"
    add("--writable", metavar="PATH", action="append", default=[], help=text)
    text = "let it read that too, besides the system; repeatable"
    add("--readable", metavar="PATH", action="append", default=[], help=text)


def resume_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto resume`."""
    add_id(parser)
    text = "code and commands: yes, from the beginning; tasks: take over, pass what has changed"
    parser.add_argument("--force", action="store_true", help=text)
    text = "begin a new task from that checkpoint of it; see: tenuto show ID --checkpoints"
    parser.add_argument("--from", dest="from_seq", metavar="SEQ", type=whole, help=text)
    text = "go on in that folder: its own is gone, or it ran on another machine"
    parser.add_argument("--cwd", metavar="DIR", help=text)
    _staying(parser)


def _staying(parser: argparse.ArgumentParser) -> None:
    text = "hand over after so long (default: the setting `wait`, 30s)"
    parser.add_argument("--wait", metavar="T", type=parse_duration, help=text)
    parser.add_argument("-d", "--detach", action="store_true", help="do not wait; print the id")


def run(args: argparse.Namespace, console: Console) -> int:
    """Start code or a command."""
    with closing(BlockingEngine.open_here(args.launcher)) as engine:
        work = _work(engine, args)
        with follow.uninterrupted() as interruption:
            execution_id, sock = engine.start(work)
            stay = Stay(engine, console, execution_id, sock)
        if work.spec.session is not None:
            from tenuto.cli.sessions import tell_note

            tell_note(engine, execution_id, console)
        return stay.until_the_end(args, interruption)


def resume(args: argparse.Namespace, console: Console) -> int:
    """Run an interrupted or lost execution again."""
    with closing(BlockingEngine.open_here(args.launcher)) as engine:
        last = [chunk.seq for chunk in engine.logs(engine.resolve(args.id), tail=1, most=1)]
        after = max(last, default=-1) if args.from_seq is None else -1
        with follow.uninterrupted() as interruption:
            resumed = engine.resume(args.id, args.force, args.from_seq, cwd=args.cwd)
            stay = _stay_of(engine, resumed[0])(engine, console, *resumed, after)
        if args.from_seq is not None and not console.json:
            of = short(engine.resolve(args.id))
            console.note(f"new task {short(resumed[0])}, from checkpoint {args.from_seq} of {of}")
        args.interactive = args.pty = False
        return stay.until_the_end(args, interruption)


def _stay_of(engine: BlockingEngine, execution_id: str) -> type[Stay]:
    if engine.show(execution_id).kind != "task":
        return Stay
    from tenuto.cli.task import TaskStay

    return TaskStay


def _work(engine: BlockingEngine, args: argparse.Namespace) -> Work:
    options = _options(args, engine.settings)
    if args.command is not None and args.lang is None:
        if args.code is not None or args.file is not None:
            raise InvalidInput(
                "there is code and a command", "give CODE or --file or -- COMMAND, one of them"
            )
        return engine.command(args.command, options)
    code, language = _code(args)
    return engine.code(code, language, options)


def _code(args: argparse.Namespace) -> tuple[str, str]:
    command: list[str] = args.command or []
    given = [one for one in (args.code, args.file, *command) if one is not None]
    if len(given) != 1:
        what = "there is nothing to run" if not given else "there is more than one piece of code"
        raise InvalidInput(what, "give CODE with --lang, or --file F, or -- COMMAND ARGUMENT...")
    from tenuto.cli.texts import read_stdin, read_text  # a command needs neither

    languages = ", ".join(_LANGUAGES)
    if args.file is not None:
        language = args.lang
        if language is None:
            from tenuto.interpreters import language_of

            language = language_of(args.file)
        if language is None:
            raise InvalidInput(
                f"the name of {args.file} does not tell its language", f"add --lang: {languages}"
            )
        return read_text(args.file), language
    if args.lang is None:
        raise InvalidInput(f"code needs --lang: {languages}", _without_language(args.code))
    code = command[0] if command else args.code
    return (read_stdin() if code == "-" else code), args.lang


def _without_language(word: str) -> str:
    """Return what someone may have meant who gave a word and no language."""
    import os
    import shlex

    if os.path.isfile(word) and not os.access(word, os.X_OK):
        return f"or is it a file? tenuto run --file {shlex.quote(word)}"
    return f"or is it a command? tenuto run -- {word}"


def _options(args: argparse.Namespace, settings: Settings) -> Options:
    import sys

    from tenuto.core.specs import Limits
    from tenuto.engine.work import Options

    env: dict[str, str] = {}
    for pair in args.env:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidInput(f"--env {pair!r} sets nothing", "write it as --env NAME=VALUE")
        env[name] = value
    limits = Limits(
        memory=args.mem,
        cpu=args.cpu,
        pids=args.pids,
        file_size=args.fsize,
        open_files=args.open_files,
        output=args.max_output,
        output_policy=args.output_policy or "hold",
    )
    return Options(
        cwd=args.cwd, env=env, title=args.title, pty=args.pty, limits=limits,
        echo=args.interactive and sys.stdin.isatty(),
        deadline=args.deadline, idle=args.idle, detached=args.detach,
        session=args.session,
        sandbox=_sandbox(args, settings), inputs=_inputs(args.inputs), engine=args.engine,
    )  # fmt: skip


def _sandbox(args: argparse.Namespace, settings: Settings) -> Sandbox | None:
    """Return the wish for a sandbox; None leaves it to the settings."""
    if args.sandbox is None and args.net is None and not args.writable and not args.readable:
        return None
    from tenuto.core.specs import Sandbox

    level = args.sandbox or settings.sandbox
    if level == "none" and (args.net or args.writable or args.readable):
        raise InvalidInput(
            "--net, --writable and --readable say what a sandbox lets through, and there is none",
            "add --sandbox auto or --sandbox require",
        )
    net = args.net or settings.sandbox_net
    return Sandbox(level, net, tuple(args.writable), tuple(args.readable))


def _inputs(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    import json

    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"--inputs is not JSON: {error}", "such as '{\"n\": 3}'") from None
    if not isinstance(value, dict):
        raise InvalidInput("--inputs is no JSON object", "such as '{\"n\": 3}'")
    return value  # pyright: ignore[reportUnknownVariableType]
