"""Running an interrupted or lost execution again, on the same tape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenuto.core.errors import InvalidInput
from tenuto.core.ids import short
from tenuto.core.ports import Connection
from tenuto.core.specs import Spec
from tenuto.core.states import State
from tenuto.engine.work import Options, recorded_inputs

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine


def resume(engine: BlockingEngine, execution_id: str, force: bool) -> tuple[str, Connection]:
    """Start it again: a task goes on where it was; code and commands begin anew, with `force`."""
    execution = engine.execution(execution_id)
    if execution.live:
        raise InvalidInput(f"{short(execution.id)} is still {execution.state}")
    spec = execution.spec
    if spec is None:
        raise InvalidInput("its spec cannot be read, so it cannot run again")
    if spec.session_host:
        raise InvalidInput(
            "a session cannot be resumed, its state is gone",
            f"run a cell: it begins session {spec.session} anew",
        )
    if execution.state not in (State.INTERRUPTED, State.LOST):
        raise InvalidInput(
            f"{short(execution.id)} {execution.state}: only interrupted and lost ones resume",
            "run the work anew",
        )
    if spec.kind == "task":
        from tenuto.engine.tasks import resumed_work

        return execution.id, engine.starter.resume(execution.id, resumed_work(engine, spec))
    if not force:
        raise InvalidInput(
            f"resuming a {spec.kind} runs it again from its beginning",
            f"if that is safe: tenuto resume --force {short(execution.id)}",
        )
    return execution.id, _again(engine, execution.id, spec)


def _again(engine: BlockingEngine, execution_id: str, spec: Spec) -> Connection:
    options = Options(
        cwd=spec.cwd, title=spec.title, pty=spec.pty, limits=spec.limits,
        deadline=spec.deadline, idle=spec.idle, detached=spec.detached, session=spec.session,
        sandbox=spec.sandbox or "none",
        engine=spec.engine or "auto", inputs=recorded_inputs(spec),
    )  # fmt: skip
    if spec.code is not None:
        work = engine.code(spec.code, spec.language or "", options)
    else:
        work = engine.command(spec.argv, options)
    if spec.session is not None:
        from tenuto.engine import sessions

        work = sessions.placed(engine, work)
    return engine.starter.resume(execution_id, work)
