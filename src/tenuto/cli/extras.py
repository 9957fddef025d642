"""tenuto bench, completion, version: what serves the tool itself."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Any

from tenuto import __version__

if TYPE_CHECKING:
    from tenuto.cli.console import Console

_SHELLS = ("bash", "zsh", "tcsh")


def bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto bench`."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="what to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")


def bench(args: argparse.Namespace, console: Console) -> int:
    """Measure this machine."""
    main: Any = importlib.import_module("tenuto.bench.main").main
    flags = ["--quick"] * args.quick + ["--json"] * console.json
    return int(main([*args.names, *flags]) or 0)


def completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto completion`."""
    parser.add_argument("shell", choices=_SHELLS, help="the shell that will read the script")


def completion(args: argparse.Namespace, console: Console) -> int:
    """Print a script that teaches a shell our verbs and flags."""
    shtab: Any = importlib.import_module("shtab")
    script: str = shtab.complete(whole_parser(), args.shell)
    if console.json:
        console.document({"schema": 1, "shell": args.shell, "script": script})
    else:
        console.out(script.rstrip("\n"))
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser for all verbs; the command itself never needs it."""
    from tenuto.cli.arguments import parser_for
    from tenuto.cli.main import VERBS

    parser = argparse.ArgumentParser(prog="tenuto")
    verbs = parser.add_subparsers(dest="verb")
    for verb, (module_name, summary) in VERBS.items():
        module = importlib.import_module(f"tenuto.cli.{module_name}")
        own = parser_for(verb, summary)
        getattr(module, f"{verb}_arguments")(own)
        verbs.add_parser(verb, parents=[own], add_help=False, help=summary, description=summary)
    return parser


def version_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto version`."""
    del parser


def version(args: argparse.Namespace, console: Console) -> int:
    """Print the version."""
    del args
    if console.json:
        import sys

        python = sys.version.split()[0]
        console.document({"schema": 1, "version": __version__, "python": python})
    else:
        console.out(f"tenuto {__version__}")
    return 0
