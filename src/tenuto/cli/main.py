"""The entry point: finds the verb, loads that verb alone, and turns every ending into an exit code.

A command that only lists or starts something should feel like `ls`: modules are imported when their
verb is named, and the keeper's interpreter is started before anything else is loaded.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

from tenuto.cli.console import CannotWrite, Console, ReaderGone

TYPE_CHECKING = False  # typing itself costs as much as all of this file
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from tenuto.dispatch.fresh import FreshLauncher

VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "run code or a command; hand it over if it takes long"),
    "task": ("task", "have agents do a task: one, a chain of them, or a graph"),
    "approve": ("task", "say yes to what a task asks"),
    "deny": ("task", "say no to what a task asks"),
    "budget": ("budget", "what agents spent and may spend"),
    "ps": ("ps", "list what runs"),
    "status": ("status", "what runs, and how many stand in each state"),
    "tree": ("status", "executions with those started inside them"),
    "logs": ("logs", "print the output of an execution"),
    "attach": ("attach", "join an execution: its output here, this keyboard there"),
    "send": ("send", "write to an execution's stdin"),
    "wait": ("wait", "wait for executions to end, or for a text in their output"),
    "kill": ("ending", "end executions with all their processes"),
    "interrupt": ("ending", "ask an execution to stop, then insist"),
    "resume": ("run", "go on with a task; run code or a command again"),
    "checkpoint": ("checkpoint", "have a task's state saved now"),
    "show": ("show", "everything known about an execution"),
    "history": ("history", "past executions, or agents' steps with totals, or one of them"),
    "export": ("show", "an execution with its events and output as NDJSON"),
    "clear": ("ending", "drop an execution's output"),
    "sessions": ("sessions", "list the sessions, or clear some"),
    "clean": ("clean", "remove ended executions"),
    "tools": ("tools", "save, list, show, run and delete composed tools"),
    "mcp": ("mcp", "serve MCP clients: Claude Code, Codex, OpenCode, Cursor, …"),
    "doctor": ("doctor", "check that everything works"),
    "bench": ("extras", "measure this machine"),
    "completion": ("extras", "print a completion script for a shell"),
    "version": ("extras", "print the version"),
}
_FLAGS = ("--json", "--no-color", "-q", "--quiet")
_FAULT = 125
_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without arguments, it is this process's own."""
    code = _main(list(sys.argv[1:] if arguments is None else arguments))
    if arguments is None:
        # Taking the interpreter apart would cost more than some commands do; all is written.
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # it may be closed, or not there
                stream.flush()
        os._exit(code)
    return code


def _main(argv: list[str]) -> int:
    own = argv[: argv.index("--")] if "--" in argv else argv
    console = Console(
        json="--json" in own,
        colour="--no-color" not in own,
        quiet="-q" in own or "--quiet" in own,
    )
    gc.disable()  # nothing is freed while modules load
    try:
        return _guarded(argv, console)
    except KeyboardInterrupt:
        return 130
    except ReaderGone as gone:
        return _FAULT if isinstance(gone, CannotWrite) else 141
    except SystemExit as leaving:  # argparse has printed help
        return int(leaving.code or 0)


def _guarded(argv: list[str], console: Console) -> int:
    from tenuto.core.errors import TenutoError

    try:
        return _dispatch(argv, console)
    except TenutoError as error:
        if os.environ.get("TENUTO_DEBUG"):
            raise
        from tenuto.cli import exits

        console.error(error.code, error.message, error.hint)
        return exits.of_error(error)
    except (KeyboardInterrupt, ReaderGone):
        raise
    except Exception as error:
        if os.environ.get("TENUTO_DEBUG"):
            raise
        text = f"{type(error).__name__}: {error}"
        hint = "this is a defect; TENUTO_DEBUG=1 shows where it happened"
        console.error("engine_fault", f"unexpected {text}", hint)
        return _FAULT


def _dispatch(argv: list[str], console: Console) -> int:
    flags, verb, rest = _split(argv)
    if verb in ("", "-h", "--help", "help"):
        return _help(rest, console)
    if verb == "--version":
        verb = "version"
    if verb not in VERBS:
        return _unknown(verb)
    if verb not in ("run", "resume", "task") or "--help" in rest or "-h" in rest:
        return _perform(verb, flags, rest, console, None)
    from tenuto.dispatch.fresh import FreshLauncher

    launcher = FreshLauncher()
    launcher.prepare()  # the keeper's interpreter comes up while we still load our modules
    try:
        return _perform(verb, flags, rest, console, launcher)
    finally:
        launcher.close()


def _perform(
    verb: str, flags: list[str], rest: list[str], console: Console, launcher: FreshLauncher | None
) -> int:
    _load_msgspec()
    from tenuto.cli.arguments import parser_for

    module = _module(verb)
    parser = parser_for(verb, VERBS[verb][1])
    getattr(module, f"{verb}_arguments")(parser)
    command: list[str] | None = None
    if verb == "run" and "--" in rest:  # what follows belongs to the command, flags and all
        cut = rest.index("--")
        rest, command = rest[:cut], rest[cut + 1 :]
    args = parser.parse(flags + rest)
    args.command, args.launcher = command, launcher
    console.json, console.quiet = args.json, args.quiet  # as -aq says it too
    if args.project is not None:
        _enter(args.project)
    gc.enable()
    return int(getattr(module, verb)(args, console))


def _split(argv: list[str]) -> tuple[list[str], str, list[str]]:
    """Return the flags before the verb, the verb, and the rest."""
    flags: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--project" and rest:
            flags += [word, rest.pop(0)]
        elif word in _FLAGS or word.startswith("--project="):
            flags.append(word)
        else:
            return flags, word, rest
    return flags, "", []


def _module(verb: str) -> ModuleType:
    name = f"tenuto.cli.{VERBS[verb][0]}"
    __import__(name)  # importlib itself would have to be loaded
    return sys.modules[name]


def _load_msgspec() -> None:
    """Load msgspec without two modules that it would take along and can do without here.

    typing_extensions (used if it is there) brings `inspect` and its like; `uuid` loads platform to
    tell AIX from Linux. Together they are a tenth of a whole `ps`.
    """
    if "msgspec" in sys.modules:
        return
    from types import SimpleNamespace

    system = os.uname().sysname
    lean: dict[str, object] = {
        "typing_extensions": None,
        "platform": SimpleNamespace(system=lambda: system),
    }
    lean = {name: one for name, one in lean.items() if name not in sys.modules}
    sys.modules.update(lean)  # type: ignore[arg-type]
    try:
        __import__("msgspec")
    finally:
        for name in lean:
            del sys.modules[name]


def _enter(folder: str) -> None:
    from tenuto.core.errors import InvalidInput

    try:
        os.chdir(folder)
    except OSError as error:
        message = f"--project {folder}: {error.strerror}"
        raise InvalidInput(message, "name a folder that exists") from None


def _help(rest: list[str], console: Console) -> int:
    for word in rest:
        if word in VERBS:
            return _dispatch([word, "--help"], console)
    console.out("usage: tenuto VERB [ARGUMENT...]     tenuto VERB --help\n")
    console.out("Work runs to its end and stays in your hands.\n")
    for verb, (_, summary) in VERBS.items():
        console.out(f"  {verb:<11} {summary}")
    console.out("\nEverywhere: --json, --no-color, --project DIR, -q, and --version")
    return 0


def _unknown(verb: str) -> int:
    from difflib import get_close_matches

    from tenuto.core.errors import InvalidInput

    near = get_close_matches(verb, VERBS, 1, 0.7)
    hint = f"did you mean: tenuto {near[0]}" if near else "see: tenuto --help"
    raise InvalidInput(f"there is no verb {verb!r}", hint)


if __name__ == "__main__":
    sys.exit(main())
