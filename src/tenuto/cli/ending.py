"""tenuto kill, interrupt, clear: what takes something away, and says what it did."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from tenuto.cli import exits
from tenuto.cli.arguments import add_id, opened
from tenuto.cli.words import state_of
from tenuto.core.errors import InvalidInput, NotRunning, TenutoError
from tenuto.core.ids import short
from tenuto.core.states import State

if TYPE_CHECKING:
    import argparse

    from tenuto.cli.console import Console
    from tenuto.core.execution import Snapshot
    from tenuto.engine.blocking import BlockingEngine


def kill_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto kill`."""
    parser.add_argument("ids", metavar="ID", nargs="*", help="executions to end")
    parser.add_argument("--all", action="store_true", help="everything that runs in this project")
    parser.add_argument("--signal", metavar="S", default="KILL", help="another one, such as TERM")


def kill(args: argparse.Namespace, console: Console) -> int:
    """End executions; one that cannot be ended does not spare the others."""
    from tenuto.engine.ending import signal_name

    if bool(args.ids) == args.all:
        raise InvalidInput("which executions?", "name ids, or --all for everything that runs")
    name = signal_name(args.signal)
    documents: list[dict[str, Any]] = []
    code = 0
    with closing(opened()) as engine:
        ids = [one.id for one in engine.at_work()] if args.all else args.ids
        for one in ids:
            try:
                snapshot = engine.kill(one, name)
            except TenutoError as error:
                if args.all and isinstance(error, NotRunning):
                    continue  # it ended by itself meanwhile: that is what was wanted
                code = max(code, exits.of_error(error))
                documents.append(_refused(one, error, console))
                continue
            dead = name == "SIGKILL"
            what = "every process of it is verified dead" if dead else f"{name} sent"
            documents.append(_tell(snapshot, what, console))
    if console.json:
        alone = len(ids) == 1 and not args.all
        console.document(documents[0] if alone else documents)
    elif args.all and not ids:
        console.message("Nothing is running.")
    return code


def _refused(one: str, error: TenutoError, console: Console) -> dict[str, Any]:
    if not console.json:
        console.error(error.code, error.message, error.hint)
    told = {"code": error.code, "message": error.message, "hint": error.hint}
    return {"schema": 1, "id": one, "error": told}


def interrupt_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto interrupt`."""
    add_id(parser)


def interrupt(args: argparse.Namespace, console: Console) -> int:
    """Ask an execution to stop, and wait until it has."""
    with closing(opened()) as engine:
        snapshot = engine.interrupt(args.id)
        if snapshot.kind == "task":
            return _tell_stopped(engine, snapshot, console)
    again = ""
    if snapshot.state is State.INTERRUPTED:
        again = f"from its beginning: tenuto resume --force {short(snapshot.id)}"
    return _tell_one(snapshot, again, console)


def _tell_stopped(engine: BlockingEngine, snapshot: Snapshot, console: Console) -> int:
    """Say which steps of a task were stopped, and what is saved."""
    document = _tell(snapshot, snapshot.hint, console)
    if console.json:
        from tenuto.engine import stopped
        from tenuto.engine.tasks import progress_of

        progress = progress_of(engine.project.folder(snapshot.id))
        console.document({**document, "steps": stopped.document(progress)})
    return 0


def clear_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto clear`."""
    add_id(parser)


def clear(args: argparse.Namespace, console: Console) -> int:
    """Drop the output so far; the events stay."""
    with closing(opened()) as engine:
        return _tell_one(engine.clear(args.id), "its output is dropped", console)


def _tell_one(snapshot: Snapshot, what: str, console: Console) -> int:
    document = _tell(snapshot, what, console)
    if console.json:
        console.document(document)
    return 0


def _tell(snapshot: Snapshot, what: str, console: Console) -> dict[str, Any]:
    """Print what changed; with --json, return it instead."""
    if console.json:
        from tenuto.engine.documents import execution_document

        return execution_document(snapshot, with_output=False)
    if console.quiet:
        console.out(snapshot.id)
    else:
        state = console.paint_state(state_of(snapshot))
        console.out(f"{short(snapshot.id)}  {state}  {what}".rstrip())
    return {}
