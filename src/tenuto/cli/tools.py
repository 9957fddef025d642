"""tenuto tools: save, list, show, run and delete composed tools."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from tenuto.cli import follow
from tenuto.cli.arguments import count, opened
from tenuto.cli.console import one_line
from tenuto.cli.stay import Stay
from tenuto.cli.texts import read_stdin, read_text
from tenuto.core.errors import InvalidInput
from tenuto.core.quantities import parse_duration
from tenuto.engine.composed import Tools

if TYPE_CHECKING:
    import argparse

    from tenuto.cli.console import Console
    from tenuto.core.tools import Problem, Scope, Tool
    from tenuto.engine.blocking import BlockingEngine

_ACTIONS = ("save", "list", "show", "run", "delete")


def tools_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto tools`."""
    parser.usage = (
        "tenuto tools save NAME --file F [--schema F] [--description T] [--lang js|ts] [--global]\n"
        "       tenuto tools list | show NAME [--version N] | run NAME [INPUT] | delete NAME [--purge]"
    )
    add = parser.add_argument
    add("action", metavar="ACTION", choices=_ACTIONS, help=", ".join(_ACTIONS))
    add("name", metavar="NAME", nargs="?", help="the tool")
    add("input", metavar="INPUT", nargs="?", help="for run: a JSON object; - reads it from stdin")
    saving = parser.add_argument_group("save")
    saving.add_argument("--file", metavar="F", help="its code; - reads it from stdin")
    saving.add_argument("--schema", metavar="F", help="a file with the JSON schema of its input")
    saving.add_argument("--description", metavar="T", help="what it is good for")
    saving.add_argument("--lang", choices=("js", "ts"), help="default: what the file's name says")
    where = parser.add_argument_group("save, show, delete")
    where.add_argument(
        "--global", dest="everywhere", action="store_true", help="the tools of all projects"
    )
    where.add_argument("--version", metavar="N", type=count, help="show: one of its versions")
    where.add_argument("--purge", action="store_true", help="delete: all its versions too")
    running = parser.add_argument_group("run")
    text = "hand over after so long (default: the setting `wait`, 30s)"
    running.add_argument("--wait", metavar="T", type=parse_duration, help=text)
    running.add_argument("-d", "--detach", action="store_true", help="do not wait; print the id")


def tools(args: argparse.Namespace, console: Console) -> int:
    """Do what the action says."""
    if args.action == "list":
        if args.name is not None:
            raise InvalidInput("list takes no name", f"tenuto tools show {args.name}")
    elif args.name is None:
        raise InvalidInput(f"{args.action} needs a name", f"tenuto tools {args.action} NAME")
    if args.input is not None and args.action != "run":
        raise InvalidInput(f"{args.action} takes one name", f"tenuto tools {args.action} NAME")
    with closing(opened(strict=True)) as engine:
        return _DO[args.action](Tools(engine), args, console, engine)


def _scope(args: argparse.Namespace) -> Scope | None:
    return "global" if args.everywhere else None


def _save(tools: Tools, args: argparse.Namespace, console: Console, _: BlockingEngine) -> int:
    if args.file is None:
        raise InvalidInput("there is no code to save", "name its file: --file greet.js")
    language = args.lang or ("ts" if args.file.endswith(".ts") else "js")
    schema = None if args.schema is None else _json(read_text(args.schema), f"{args.schema}")
    saved = tools.save(
        args.name,
        read_text(args.file),
        schema=schema,
        description=args.description or "",
        language=language,
        scope=_scope(args) or "project",
    )
    if console.json:
        console.document(tool_document(saved))
    else:
        console.note(f"saved {saved.name}, version {saved.version} ({saved.scope})")
    return 0


def _list(tools: Tools, _: argparse.Namespace, console: Console, __: BlockingEngine) -> int:
    found, problems = tools.list()
    _warn(console, problems)
    if console.json:
        console.document([tool_document(tool, with_code=False) for tool in found])
        return 0
    if not found:
        console.note("no tools yet: tenuto tools save NAME --file F")
    width = max((len(tool.name) for tool in found), default=0)
    for tool in found:
        if console.quiet:
            console.out(tool.name)
            continue
        used = f"{tool.uses} uses" if tool.uses != 1 else "1 use"
        where = "" if tool.scope == "project" else ", global"
        words = one_line(tool.description)[:100]
        console.out(f"{tool.name:<{width}}  v{tool.version}, {used}{where}  {words}".rstrip())
    return 0


def _show(tools: Tools, args: argparse.Namespace, console: Console, _: BlockingEngine) -> int:
    from tenuto.codemode.schemas import parameters

    tool = tools.show(args.name, version=args.version, scope=_scope(args))
    older = [one for one in tools.versions(args.name, tool.scope) if one != tool.version]
    if console.json:
        console.document({**tool_document(tool), "versions": older})
        return 0
    console.out(f"{tool.name}  version {tool.version}, {tool.language}, {tool.scope}")
    if tool.description:
        console.out(one_line(tool.description))
    console.out(f"parameters  {one_line(parameters(tool.input_schema))}")
    last = f", last {tool.last_used}" if tool.last_used else ""
    console.out(f"used        {tool.uses}{last}")
    console.out(f"saved       {tool.updated}")
    if older:
        console.out(f"versions    {', '.join(map(str, older))}")
    console.out(f"\n{tool.code.rstrip()}")
    return 0


def _run(tools: Tools, args: argparse.Namespace, console: Console, engine: BlockingEngine) -> int:
    from tenuto.engine.work import Options

    given: Any = {}
    if args.input is not None:
        given = _json(read_stdin() if args.input == "-" else args.input, "the input")
    if not isinstance(given, dict):
        raise InvalidInput("the input is no JSON object", 'such as \'{"name": "Ada"}\'')
    work = tools.work(args.name, given, Options(detached=args.detach))  # pyright: ignore
    with follow.uninterrupted() as interruption:
        stay = Stay(engine, console, *engine.start(work))
        tools.used(args.name)
    args.interactive = args.pty = False
    return stay.until_the_end(args, interruption)


def _delete(tools: Tools, args: argparse.Namespace, console: Console, _: BlockingEngine) -> int:
    scope = tools.delete(args.name, scope=_scope(args), purge=args.purge)
    if console.json:
        console.document({"schema": 1, "deleted": args.name, "scope": scope, "purged": args.purge})
    else:
        console.note(f"deleted {args.name} ({scope})")
        if not args.purge:
            console.note(f"its versions can be read: tenuto tools show {args.name} --version N")
    return 0


_DO = {"save": _save, "list": _list, "show": _show, "run": _run, "delete": _delete}


def _warn(console: Console, problems: list[Problem]) -> None:
    for one in problems:
        console.message(f"tenuto: warning: passed over {one.path}: {one_line(one.why)}")


def tool_document(tool: Tool, with_code: bool = True) -> dict[str, Any]:
    """Return a tool as `--json` shows it."""
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(tool)
    if not with_code:
        del fields["code"]
    return {"schema": 1, **fields}


def _json(text: str, what: str) -> Any:
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} is not JSON: {error}", "check quotes and commas") from None
