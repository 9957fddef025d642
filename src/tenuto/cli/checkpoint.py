"""tenuto checkpoint: have a task's state saved now, and say where it is."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from tenuto.cli.arguments import add_id, only_running, opened
from tenuto.cli.console import one_line
from tenuto.cli.table import pairs
from tenuto.core.ids import short
from tenuto.core.quantities import iso

if TYPE_CHECKING:
    import argparse

    from tenuto.cli.console import Console
    from tenuto.core.state import ExecutionState
    from tenuto.engine.blocking import BlockingEngine


def checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto checkpoint`."""
    add_id(parser, optional=True)


def checkpoint(args: argparse.Namespace, console: Console) -> int:
    """Save a task's state; return once it is on disk."""
    from tenuto.engine import saved

    with closing(opened()) as engine:
        found = saved.checkpoint(engine, only_running(engine, args.id))
    for problem in found.problems:
        console.message(f"tenuto: {problem}")
    if console.json:
        console.document(
            {
                "schema": 1, "id": found.id, "seq": found.seq, "path": found.path,
                "status": found.state.status, "covers": found.state.seq,
                "sha256": found.state.sha256,
            }
        )  # fmt: skip
    elif console.quiet:
        console.out(str(found.seq))
    else:
        done = len(found.state.cursor.finished)
        console.out(
            f"{short(found.id)}  checkpoint {found.seq}  {found.state.status}, {done} of "
            f"{len(found.state.results)} steps ended  {found.path}"
        )
        console.note(f"to fork it from here: tenuto resume {short(found.id)} --from {found.seq}")
    return 0


def show_checkpoints(engine: BlockingEngine, execution_id: str, console: Console) -> int:
    """List the places from which a task can be forked."""
    from tenuto.core.state import before_failure
    from tenuto.engine.saved import checkpoints_of

    places = checkpoints_of(engine, execution_id)
    if console.json:
        console.document(
            [{"seq": one.seq, "time": iso(one.time_ns), "what": one.what} for one in places]
        )
        return 0
    for one in places:
        console.out(f"{one.seq:>6}  {iso(one.time_ns)}  {one_line(one.what)}")
    where = short(engine.resolve(execution_id))
    if not places:
        console.note("there are no checkpoints yet: its plan is not made")
    elif failed := before_failure(places):
        step, seq = failed
        console.note(f"to do {step} again in a new task: tenuto resume {where} --from {seq}")
    else:
        console.note(f"to begin a new task at one of them: tenuto resume {where} --from NUMBER")
    return 0


def show_state(engine: BlockingEngine, execution_id: str, console: Console) -> int:
    """Show the saved state of a task, checked against its tape."""
    import msgspec

    from tenuto.engine.redact import Redactor
    from tenuto.engine.saved import state_of

    known = state_of(engine, execution_id)
    for problem in known.problems:
        console.message(f"tenuto: {problem}")
    redactor = Redactor(engine.environ)
    if console.json:
        document: Any = redactor.data(msgspec.to_builtins(known.state))
        console.document(document)
    else:
        console.out(redactor.text("\n".join(pairs(_facts(known.state)))))
    return 0


def _facts(state: ExecutionState) -> list[tuple[str, str]]:
    cursor, place = state.cursor, state.environment
    facts = [
        ("id", state.id),
        ("status", state.status),
        ("covers", f"events up to {state.seq}, at {state.updated_at}"),
        ("finished", ", ".join(cursor.finished)),
        ("running", ", ".join(cursor.running)),
        ("interrupted", ", ".join(cursor.interrupted)),
        ("ready", ", ".join(cursor.ready)),
        ("waiting", ", ".join(cursor.waiting)),
        (
            "sessions",
            ", ".join(f"{name}: {one['runtime']}" for name, one in state.sessions.items()),
        ),
        ("cwd", place.cwd),
        ("commit", place.commit),
        ("host", place.host),
        ("runtimes", ", ".join(f"{name} {version}" for name, version in place.runtimes.items())),
        ("versions", f"tenuto {place.tenuto}, python {place.python}"),
        ("sha256", state.sha256),
    ]
    return [(name, one_line(text)) for name, text in facts if text]
