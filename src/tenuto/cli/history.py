"""tenuto history: what has ended, with totals; or how one execution came to its end.

With --steps, or a flag that only they have, it is about agents' steps: cli/steps.py.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tenuto.cli.arguments import count, opened
from tenuto.cli.console import Console, one_line, width
from tenuto.cli.show import transition_documents
from tenuto.cli.table import table
from tenuto.cli.words import plural
from tenuto.core.ids import short
from tenuto.core.quantities import brief_duration, iso, parse_moment
from tenuto.core.states import ENDED, State
from tenuto.engine.reports import is_gateway

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tenuto.core.execution import Snapshot
    from tenuto.engine.blocking import BlockingEngine

_MOST = 50
_SPARE = 40  # for gateways, which nobody started on purpose


def history_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto history`."""
    add = parser.add_argument
    add("id", metavar="ID", nargs="?", help="the transitions of one execution, a task's steps")
    add("--since", metavar="T", help="only after a time, or an age such as 7d")
    add("-n", metavar="N", type=count, help="list at most so many (50; with --csv all)")
    steps = parser.add_argument_group("agents' steps")
    add = steps.add_argument
    add("--steps", action="store_true", help="list the steps of tasks, with tokens and cost")
    add("--by", metavar="WHAT", help="total them by model, runtime, day, change, workflow, task, …")
    add("--until", metavar="T", help="only before a time, or an age")
    add("--change", metavar="ID", default="", help="only of this change")
    add("--task-id", metavar="ID", default="", help="only of tasks with this id of yours")
    add("--failed", action="store_true", help="only those without success")
    add("--csv", action="store_true", help="print them as CSV")


def history(args: argparse.Namespace, console: Console) -> int:
    """Print the history of the project or of one execution."""
    if any((args.steps, args.by, args.until, args.change, args.task_id, args.failed, args.csv)):
        from tenuto.cli.steps import steps

        return steps(args, console)
    with closing(opened()) as engine:
        if args.id is not None:
            return _of_one(engine, args.id, console)
        since = parse_moment(args.since, time.time_ns()) if args.since else 0
        most = args.n or _MOST
        found = engine.list(states=tuple(ENDED), since_ns=since, most=most + _SPARE)
        found = [one for one in found if not is_gateway(one)][:most]
    totals = _totals(found)
    if console.json:
        from tenuto.engine.documents import execution_document

        documents = [execution_document(one, with_output=False) for one in found]
        console.document({"schema": 1, "executions": documents, "totals": totals})
    elif console.quiet:
        for one in found:
            console.out(one.id)
    elif found:
        header = ("ID", "STATE", "ENDED", "DURATION", "EXIT", "TITLE")
        rows = [_row(one) for one in found]
        paint = {1: console.paint_state}
        console.out("\n".join(table(header, rows, width(), right=(3, 4), paint=paint)))
        console.out(_summary(totals))
    else:
        console.message("Nothing has ended yet.")
    return 0


def _row(one: Snapshot) -> tuple[str, ...]:
    ended = iso(one.ended_ns)[:19] + "Z" if one.ended_ns else "-"
    code = "-" if one.exit_code is None else str(one.exit_code)
    return (short(one.id), str(one.state), ended, brief_duration(one.duration_s), code, one.title)


def _totals(found: Sequence[Snapshot]) -> dict[str, Any]:
    durations = [one.duration_s for one in found]
    succeeded = sum(one.state is State.SUCCEEDED for one in found)
    return {
        "count": len(found),
        "succeeded": succeeded,
        "success_rate": round(succeeded / len(found), 4) if found else None,
        "duration_s": round(sum(durations), 6),
        "longest_s": round(max(durations, default=0.0), 6),
    }


def _summary(totals: dict[str, Any]) -> str:
    mean = totals["duration_s"] / totals["count"]
    return (
        f"{plural(totals['count'], 'execution')}, {totals['success_rate']:.0%} succeeded, "
        f"{brief_duration(totals['duration_s'])} in all, {brief_duration(mean)} on average, "
        f"{brief_duration(totals['longest_s'])} at most"
    )


def _of_one(engine: BlockingEngine, execution_id: str, console: Console) -> int:
    from tenuto.core.errors import UnknownExecution

    try:
        execution = engine.execution(execution_id)
    except UnknownExecution:  # of a task that was cleaned away, its steps are still known
        from tenuto.cli.steps import steps_of_one

        return steps_of_one(engine, execution_id, console)
    is_task = execution.spec is not None and execution.spec.kind == "task"
    if console.json:
        transitions = transition_documents(execution)
        document = {"schema": 1, "id": execution.id, "transitions": transitions}
        if is_task:
            from tenuto.engine.history import history as of_steps
            from tenuto.engine.history import history_document

            document |= history_document(of_steps(engine, execution.id, most=None))
        console.document(document)
        return 0
    before = 0
    for one in execution.transitions:
        step = f"+{brief_duration((one.time_ns - before) / 1e9)}" if before else ""
        state = console.paint_state(f"{one.state:<11}")
        console.out(f"{iso(one.time_ns)}  {state}  {step:>8}  {one_line(one.reason)}".rstrip())
        before = one.time_ns
    if is_task:
        from tenuto.cli.steps import steps_of_one

        console.out("")
        return steps_of_one(engine, execution.id, console)
    return 0
