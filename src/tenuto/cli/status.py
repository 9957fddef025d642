"""tenuto status and tenuto tree: the whole at a glance, and what belongs to what."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from tenuto.cli.arguments import add_id, opened
from tenuto.cli.console import Console, one_line, width
from tenuto.cli.table import cut
from tenuto.cli.words import state_of
from tenuto.core.ids import short
from tenuto.core.quantities import brief_duration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from tenuto.core.execution import Snapshot
    from tenuto.engine.blocking import BlockingEngine


def status_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto status`."""
    del parser


def status(args: argparse.Namespace, console: Console) -> int:
    """Print the execution report and how many executions stand in each state."""
    del args
    from tenuto.engine.reports import report

    with closing(opened()) as engine:
        now = report(engine)
        if console.json:
            import msgspec

            console.document({"schema": 1, **msgspec.to_builtins(now)})
            return 0
        console.out("\n".join(cut(one_line(line), width()) for line in now.text().splitlines()))
        if now.counts:
            counts = sorted(now.counts.items())
            console.out("All: " + ", ".join(f"{number} {state}" for state, number in counts))
        console.note(f"State of this project: {engine.project.home}")
    return 0


def tree_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto tree`."""
    add_id(parser, optional=True, default="all that run or left something running")


class Node:
    """An execution with those started inside it."""

    def __init__(self, snapshot: Snapshot, children: list[Node]) -> None:
        """Take the execution and its children, oldest first."""
        self.snapshot = snapshot
        self.children = children

    def document(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        from tenuto.engine.documents import execution_document

        own = execution_document(self.snapshot, with_output=False)
        return {**own, "children": [child.document() for child in self.children]}


def tree(args: argparse.Namespace, console: Console) -> int:
    """Print an execution with its descendants; without an id, the trees of what runs."""
    with closing(opened()) as engine:
        if args.id is not None:
            roots = [_grown(engine, engine.resolve(args.id), lambda _: True)]
        else:
            roots = _running_trees(engine)
    if console.json:
        documents = [root.document() for root in roots]
        console.document(documents[0] if args.id is not None else documents)
    elif roots:
        for root in roots:
            for line in _drawn(root, console):
                console.out(line)
    else:
        console.message("Nothing is running.")
    return 0


def _grown(engine: BlockingEngine, execution_id: str, wanted: Callable[[str], bool]) -> Node:
    children = [
        _grown(engine, row.id, wanted)
        for row in engine.index.children(execution_id)
        if wanted(row.id)
    ]
    return Node(engine.show(execution_id), children)


def _running_trees(engine: BlockingEngine) -> list[Node]:
    """Return what runs under the ancestors that started it, ended ones included."""
    from tenuto.engine.reports import is_gateway

    roots: dict[str, None] = {}
    wanted: set[str] = set()
    for one in reversed([one for one in engine.at_work() if not is_gateway(one)]):
        place, above = one.id, one.parent
        wanted.add(place)
        while above and above not in wanted and (row := engine.index.get(above)) is not None:
            wanted.add(above)
            place, above = above, row.parent
        if above not in wanted:
            roots[place] = None
    return [_grown(engine, root, wanted.__contains__) for root in roots]


def _drawn(node: Node, console: Console, lead: str = "", below: str = "") -> Iterator[str]:
    one = node.snapshot
    head = f"{lead}{short(one.id)}  "
    state = state_of(one)
    age = brief_duration(one.duration_s)
    room = width() - len(head) - len(state) - len(age) - 4
    title = cut(one_line(one.title), max(10, room))
    yield f"{head}{console.paint_state(state)}  {age}  {title}"
    rows = len(one.left_behind) + len(node.children)
    for number, left in enumerate(one.left_behind, 1):
        mark = "└─ " if number == rows else "├─ "
        yield cut(f"{below}{mark}left behind: pid {left.pid}  {one_line(left.command)}", width())
    for number, child in enumerate(node.children, 1 + len(one.left_behind)):
        last = number == rows
        yield from _drawn(
            child, console, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")
        )
