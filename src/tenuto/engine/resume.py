"""Running an interrupted or lost execution again, on the same tape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import InvalidInput, NotFinished, NotRunning, StateDamaged
from tenuto.core.execution import Execution
from tenuto.core.ids import short
from tenuto.core.ports import Connection
from tenuto.core.specs import Spec
from tenuto.core.states import RESUMABLE, State
from tenuto.engine.moving import placed
from tenuto.engine.work import Options, recorded_inputs
from tenuto.stores.tape import TapeReader

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine


def resume(
    engine: BlockingEngine,
    execution_id: str,
    force: bool,
    from_seq: int | None = None,
    by: str = "",
    cwd: str | None = None,
    fork_id: str = "",
) -> tuple[str, Connection]:
    """Start it again: a task goes on where it was; code and commands begin anew, with `force`.

    With `from_seq`, a new task begins from that checkpoint, with `fork_id` if that is given, and this
    one stays as it is. `force` takes
    over a task whose driver or keeper does not answer, and passes what else can be passed. `cwd` is
    another folder to go on in, from here on.
    """
    execution = engine.execution(execution_id)
    spec = placed(_checked(engine, execution), cwd)
    if from_seq is not None:
        from tenuto.engine.forking import fork

        return fork(engine, execution, spec, from_seq, fork_id)
    if execution.live and spec.kind == "task" and force:
        from tenuto.engine.takeover import take_over

        take_over(engine, execution)
        execution = engine.execution(execution.id)
    if execution.live:
        raise NotFinished(f"{short(execution.id)} is still {execution.state}", _while(execution))
    if execution.state not in RESUMABLE:
        how = "was killed" if execution.state is State.KILLED else str(execution.state)
        raise NotRunning(
            f"{short(execution.id)} {how}: only interrupted and lost ones resume",
            _instead(engine, execution),
        )
    if spec.kind == "task":
        return execution.id, _task(engine, execution, spec, force, by)
    if not force:
        raise InvalidInput(
            f"resuming a {spec.kind} runs it again from its beginning",
            f"if that is safe: tenuto resume --force {short(execution.id)}",
        )
    return execution.id, _again(engine, execution.id, spec)


def _checked(engine: BlockingEngine, execution: Execution) -> Spec:
    """Return the spec of an execution that can run again at all."""
    spec = execution.spec
    if spec is None:
        lost = "spec"
        try:
            with TapeReader(engine.project.folder(execution.id)):
                pass  # NewerTape says better why
        except FileNotFoundError:
            lost = "tape"
        name = short(execution.id)
        raise StateDamaged(
            f"the {lost} of {name} cannot be read, so it cannot run again",
            f"run the work anew; of a task, what is saved: tenuto show {name} --state",
        )
    if spec.session_host:
        raise InvalidInput(
            "a session cannot be resumed, its state is gone",
            f"run a cell: it begins session {spec.session} anew",
        )
    return spec


def _instead(engine: BlockingEngine, execution: Execution) -> str:
    if execution.spec is None or execution.spec.kind != "task":
        return "run the work anew"
    if execution.state is State.FAILED:
        from tenuto.engine.stopped import again

        if hint := again(engine.project.folder(execution.id), execution.id):
            return hint
    return f"run it anew, or fork it: tenuto show {short(execution.id)} --checkpoints"


def _while(execution: Execution) -> str:
    name = short(execution.id)
    if execution.spec is None or execution.spec.kind != "task":
        return f"wait for its end, or: tenuto kill {name}"
    return f"follow it: tenuto logs -f {name}; if it does not answer: tenuto resume --force {name}"


def _task(
    engine: BlockingEngine, execution: Execution, spec: Spec, force: bool, by: str
) -> Connection:
    from tenuto.engine.tasks import resumed_work
    from tenuto.engine.validation import check_resume

    passed = check_resume(engine, execution, spec, force)
    work = resumed_work(engine, spec)
    work = msgspec.structs.replace(work, events=passed.events)
    return engine.starter.resume(execution.id, work, by, forced=passed.forced)


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
