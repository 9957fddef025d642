"""tenuto sessions: what is kept alive between cells, and an end to it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from tenuto.cli import exits
from tenuto.cli.arguments import opened
from tenuto.cli.console import Console, width
from tenuto.cli.table import table
from tenuto.cli.words import plural
from tenuto.core.errors import InvalidInput, TenutoError
from tenuto.core.ids import short
from tenuto.core.quantities import brief_duration, brief_size, iso
from tenuto.engine import recover
from tenuto.engine.sessions import Session, clear
from tenuto.engine.sessions import sessions as living

if TYPE_CHECKING:
    import argparse

    from tenuto.engine.blocking import BlockingEngine

_HEADER = ("NAME", "LANGUAGE", "STATE", "CELLS", "AGE", "MEMORY", "HOST")


def sessions_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto sessions`."""
    parser.usage = "tenuto sessions [OPTION]... | tenuto sessions clear NAME... | clear --all"
    parser.add_argument("words", metavar="clear NAME", nargs="*", help="end these sessions")
    parser.add_argument("--all", action="store_true", help="with clear: every session")


def sessions(args: argparse.Namespace, console: Console) -> int:
    """List the sessions that live, or end some."""
    words: list[str] = args.words
    verb, names = ("", words) if not words else (words[0], words[1:])
    if verb not in ("", "clear"):
        raise InvalidInput(f"sessions knows no {verb!r}", "tenuto sessions clear NAME")
    if verb == "clear" and bool(names) == args.all:
        raise InvalidInput("which sessions?", "name them, or --all for every one")
    if not verb and args.all:
        raise InvalidInput("--all goes with clear", "all sessions are listed anyway")
    with closing(opened()) as engine:
        if verb:
            return _clear(engine, names, args.all, console)
        found = living(engine)
    if console.json:
        console.document([_document(one) for one in found])
    elif console.quiet:
        for one in found:
            console.out(one.name)
    elif found:
        rows = [_row(one) for one in found]
        console.out("\n".join(table(_HEADER, rows, width(), right=(3, 4, 5))))
    else:
        console.message("There is no session.")
    return 0


def tell_note(engine: BlockingEngine, execution_id: str, console: Console) -> None:
    """Say if a cell's session had to be begun anew: what its code counts on may be gone."""
    execution = recover.load(engine.project, execution_id)
    spec = execution.spec if execution is not None else None
    if spec is not None and spec.session_note and not console.json:
        console.message(f"tenuto: {spec.session_note}")


def _clear(engine: BlockingEngine, names: list[str], everything: bool, console: Console) -> int:
    code = 0
    documents: list[dict[str, Any]] = []
    for name in [one.name for one in living(engine)] if everything else names:
        try:
            session = clear(engine, name)
        except TenutoError as error:
            if everything:
                continue  # it ended by itself meanwhile
            code = max(code, exits.of_error(error))
            told = {"code": error.code, "message": error.message, "hint": error.hint}
            documents.append({"schema": 1, "name": name, "error": told})
            if not console.json:
                console.error(error.code, error.message, error.hint)
            continue
        documents.append({**_document(session), "state": "cleared"})
        if console.quiet and not console.json:
            console.out(name)
        elif not console.json:
            what = plural(session.cells, "cell")
            console.out(f"{name}  cleared after {what}; its process is verified dead")
    if console.json:
        console.document(documents[0] if len(names) == 1 else documents)
    elif everything and not documents:
        console.message("There is no session.")
    return code


def _row(one: Session) -> tuple[str, ...]:
    state = f"{one.state}, {len(one.queued)} queued" if one.queued else one.state
    age, memory = brief_duration(one.age_s), brief_size(one.memory)
    return (one.name, one.language, state, str(one.cells), age, memory, short(one.host))


def _document(one: Session) -> dict[str, Any]:
    return {
        "schema": 1,
        "name": one.name,
        "language": one.language,
        "state": one.state,
        "host": one.host,
        "cells": one.cells,
        "current": one.current,
        "queued": list(one.queued),
        "created_at": iso(one.created_ns),
        "age_s": round(one.age_s, 3),
        "memory": one.memory,
        "cwd": one.cwd,
    }
