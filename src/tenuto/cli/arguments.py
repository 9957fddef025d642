"""Arguments shared by the verbs, and a parser whose errors are ours."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

from tenuto.cli.console import Console, width
from tenuto.core.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from tenuto.engine.blocking import BlockingEngine

# argparse has every message translated; looking for a catalogue loads locale and searches the disk
setattr(argparse, "_", str)  # noqa: B010  it is not among its declared names


class Parser(argparse.ArgumentParser):
    """Raises InvalidInput instead of printing and leaving; writes help without a buffer."""

    def __init__(self, prog: str, summary: str) -> None:
        """Take the command's name and what it does."""
        super().__init__(
            prog=prog, description=summary, allow_abbrev=False, formatter_class=_formatter
        )

    def parse(self, words: list[str]) -> argparse.Namespace:
        """Parse; flags may stand between arguments, which takes the slower way."""
        try:
            return self.parse_args(words)
        except InvalidInput:
            return self.parse_intermixed_args(words)

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        hint = f"see: {self.prog} --help"
        if self.prog == "tenuto run" and message.startswith("unrecognized"):
            hint = "a command stands after --, such as: tenuto run -- ls -l"
        raise InvalidInput(message, hint)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        del file
        Console().write(1, message.encode())


def _formatter(prog: str) -> argparse.HelpFormatter:
    # its width is given, or argparse would load shutil to find one, for every parser
    return argparse.HelpFormatter(prog, width=min(width(), 100))


def parser_for(verb: str, summary: str) -> Parser:
    """Return a verb's parser with the flags that all verbs take."""
    parser = Parser(f"tenuto {verb}", summary)
    common = parser.add_argument_group("everywhere")
    common.add_argument("--json", action="store_true", help="print JSON on stdout")
    common.add_argument("--no-color", action="store_true", help="no colours, even on a terminal")
    common.add_argument("--project", metavar="DIR", help="act as if started in that folder")
    common.add_argument("-q", "--quiet", action="store_true", help="ids only, no messages")
    return parser


def opened(strict: bool = False) -> BlockingEngine:
    """Return the engine of the project around the current folder; use it in a `with closing()`.

    A settings file that cannot be taken must not keep anybody from what runs: it is told, and the
    defaults count. Only verbs whose work depends on the settings are `strict`.
    """
    from tenuto.engine.blocking import BlockingEngine

    return BlockingEngine.open_here(without_settings=None if strict else _warn)


def _warn(error: InvalidInput) -> None:
    Console().message(f"tenuto: warning: {error.message}; going on without any settings")


def only_running(engine: BlockingEngine, execution_id: str | None) -> str:
    """Return the whole id; without one, that of the only running execution. Never a guess."""
    if execution_id is not None:
        return engine.resolve(execution_id)
    from tenuto.core.errors import AmbiguousId, UnknownExecution
    from tenuto.core.ids import short
    from tenuto.engine.reports import serves

    found = engine.list(running=True, most=None)
    # An agent is a part of its task, and who asks means the task.
    live = [one for one in found if one.kind != "step" and not serves(one)]
    if len(live) == 1:
        return live[0].id
    if not live:
        raise UnknownExecution("nothing is running, so name an execution", "list: tenuto ps -a")
    names = "\n".join(f"{short(one.id)}  {one.title[:60]}" for one in live)
    raise AmbiguousId(f"{len(live)} executions are running; name one of them", names)


def add_id(
    parser: argparse.ArgumentParser, optional: bool = False, default: str = "the only running one"
) -> None:
    """Add the execution's id."""
    if optional:
        text = f"the execution, or a unique prefix of its id (default: {default})"
        parser.add_argument("id", metavar="ID", nargs="?", help=text)
    else:
        text = "the execution, or a unique prefix of its id"
        parser.add_argument("id", metavar="ID", help=text)


def count(text: str) -> int:
    """Return a whole number above zero."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def whole(text: str) -> int:
    """Return a whole number, zero included."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
