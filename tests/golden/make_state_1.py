"""Made the folder state_1, once: an interrupted task as the first release with state files left it.

What was released stays as it is. A new schema gets a script and a folder of its own.
"""

from __future__ import annotations

import os
import sys
from decimal import Decimal

from tenuto.core import events as ev
from tenuto.core.budget import Tokens
from tenuto.core.plan import Plan, Step
from tenuto.core.specs import Spec
from tenuto.core.state import StateFold
from tenuto.core.states import State
from tenuto.core.task_events import (
    EnvironmentSeen,
    Planned,
    StepFinished,
    StepSession,
    StepStarted,
    TaskFinished,
)
from tenuto.keeper.frames import EVENT
from tenuto.stores.pen import Pen
from tenuto.stores.states import write_state
from tenuto.stores.tape import TapeReader

ID = "01a1e300-0000-7000-8000-000000000001"


def main(folder: str) -> None:
    """Write the tape and the state files of one task."""
    plan = Plan(
        (
            Step("a", "[[say:first]] one"),
            Step("b", "[[say:second]] two", depends_on=("a",)),
            Step("c", "[[say:third]] three", depends_on=("b",)),
        )
    )
    argv = ("python", "-m", "tenuto.engine.driving")
    spec = Spec("task", argv, "/", title="golden", task={"strategy": "parallel"})
    pen = Pen.create(
        os.path.join(folder, ID),
        ev.Created(id=ID, spec=spec, version="0.1.0"),
        ev.Started(pid=1, pid_start=1, keeper_pid=1, keeper_start=1, boot="another"),
        EnvironmentSeen(cwd="/", host="golden", machine="golden", tenuto="0.1.0", python="3.11"),
        Planned(strategy="parallel", plan=plan, reason="it was named"),
        StepStarted(step="a", attempt=1, runtime="side", role="developer", cwd="/"),
        StepSession(step="a", session="gone", version="1"),
        StepFinished(
            step="a", status="completed", attempt=1, output="from the past", runtime="side",
            role="developer", session="gone", tokens=Tokens(7, 3), cost=Decimal("0.25"),
            duration_s=1.5,
        ),
        StepStarted(step="b", attempt=1, runtime="side", role="developer", cwd="/"),
    )  # fmt: skip
    _write_state(pen)
    pen.append(StepFinished(step="b", status="interrupted", attempt=1, runtime="side"))
    pen.append(TaskFinished(status="interrupted", steps={"a": "completed", "b": "interrupted"}))
    pen.append(ev.Ended(state=State.INTERRUPTED, reason="interrupted", detail="on request"))
    _write_state(pen)
    pen.put_down()


def _write_state(pen: Pen) -> None:
    fold = StateFold(ID)
    with TapeReader(pen.folder) as reader:
        for frame in reader.frames():
            if frame.stream == EVENT:
                fold.apply(frame.seq, frame.time_ns, frame.body)
    write_state(pen.folder, fold.state(), True)


if __name__ == "__main__":
    main(sys.argv[1])
