"""What the tests of the history share: records at random, tapes by hand, tasks without a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from tenuto.core import events as ev
from tenuto.core.budget import Tokens
from tenuto.core.event import Event
from tenuto.core.history import DAY_NS, ExecutionRecord, known_cost
from tenuto.core.ids import new_id
from tenuto.core.listing import Row
from tenuto.core.specs import Spec
from tenuto.core.states import State
from tenuto.stores.index import Index
from tenuto.stores.layout import Project
from tenuto.stores.pen import Pen

NOON = 20_000 * DAY_NS + DAY_NS // 2
ECHO = """
[runtime]
preferred = "echo"
order = ["echo"]
[runners]
echo = "tenuto.testing.agents:EchoRunner"
"""
STATUSES = ("completed", "failed", "interrupted", "skipped_dependency_failed")


def with_echo(folder: Path) -> None:
    """Let the tasks of a project be done by agents without a model."""
    (folder / ".git").mkdir()  # this is the project, whatever is above it
    (folder / "tenuto.toml").write_text(ECHO)


def row(execution: str, ended_ns: int = NOON) -> Row:
    return Row(execution, "task", State.SUCCEEDED, created_ns=1, ended_ns=ended_ns)


def at_random(chance: random.Random, number: int) -> list[ExecutionRecord]:
    """Return records of a few tasks over a few days, with everything that may be missing missing."""
    ids = [new_id() for _ in range(max(1, number // 3))]

    def some(*names: str) -> str:
        return chance.choice(("", *names))

    return [
        ExecutionRecord(
            execution=chance.choice(ids),
            seq=seq,
            step=f"s{seq}",
            status=chance.choice(STATUSES),
            executed_ns=NOON + chance.randrange(3 * DAY_NS),
            attempt=chance.randrange(3),
            task_id=some("T-1", "T-2"),
            change=some("c1"),
            workflow=some("w1", "w2", "w3"),
            role=some("coder"),
            model=some("m1", "m2"),
            runtime=some("echo"),
            strategy=some("single"),
            kind=some("auth"),
            tokens=Tokens(*(chance.choice((0, 1, chance.randrange(1 << 40))) for _ in range(4))),
            cost=known_cost(
                chance.choice(
                    (None, Decimal(chance.randrange(10**14)).scaleb(-12), Decimal(999999))
                )
            ),
            unmetered=chance.random() < 0.3,
            duration_s=chance.choice((0.0, chance.randrange(10**9) / 1e6, 99_999_999.999999)),
        )
        for seq in range(number)
    ]


def filled(project: Project, records: Sequence[ExecutionRecord]) -> Index:
    """Return an index that has the records, task by task."""
    index = Index(project, list)
    for execution in dict.fromkeys(one.execution for one in records):
        index.settle(row(execution), [one for one in records if one.execution == execution])
    return index


def tape(project: Project, events: Sequence[Event], task: dict[str, object] | None = None) -> str:
    """Write a task's tape and return its id."""
    execution = new_id()
    spec = Spec(kind="task", argv=("driver",), cwd="/", task=task or {"text": "x"})
    pen = Pen.create(project.folder(execution), ev.Created(id=execution, spec=spec))
    for one in events:
        pen.append(one)
    pen.put_down()
    return execution
