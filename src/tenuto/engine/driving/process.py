"""The driver's process, from the first word of its keeper to its exit code.

It learns what to do from its own tape, and so takes up a task that was interrupted just as it
begins a new one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import cast

import msgspec

from tenuto.core.errors import DiskFull, EngineFault, TenutoError
from tenuto.core.plan import Plan, Step
from tenuto.core.rounds import round_of
from tenuto.core.runs import McpServer
from tenuto.core.task_events import Warned
from tenuto.core.tasks import TaskSpec
from tenuto.dispatch.fresh import FreshLauncher
from tenuto.engine.agent_settings import AgentSettings, load_agent_settings
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.driving.asking import Desk
from tenuto.engine.driving.brake import Brake
from tenuto.engine.driving.briefs import Briefs
from tenuto.engine.driving.choosing import Chooser
from tenuto.engine.driving.drive import Driver
from tenuto.engine.driving.nursery import ExecutionNursery
from tenuto.engine.driving.printing import Printer, plain
from tenuto.engine.driving.purse import Purse
from tenuto.engine.driving.saving import Saver
from tenuto.engine.driving.stepping import Walker
from tenuto.engine.driving.teller import Teller
from tenuto.engine.driving.workplaces import Workplaces
from tenuto.engine.recover import fold
from tenuto.engine.settings import Settings, load_settings
from tenuto.engine.strategies import build_plan, extend, review_verdict
from tenuto.engine.surroundings import seen_here
from tenuto.engine.tasks import progress_of, result_document, task_of
from tenuto.keeper.faults import point
from tenuto.keeper.procfs import MARK
from tenuto.metering.upstreams import WITHHELD
from tenuto.stores.layout import Project
from tenuto.stores.tape import TapeReader

_EXITS = {"completed": 0, "interrupted": 130}


class Given(msgspec.Struct, frozen=True):
    """What the keeper passes on: which project this is."""

    root: str
    home: str


def main() -> int:
    """Drive the task of this process's execution."""
    for stream in (sys.stdout, sys.stderr):  # agents say anything, whatever the user's locale takes
        cast("TextIOWrapper", stream).reconfigure(encoding="utf-8", errors="replace")
    teller, body = Teller.inherited()
    given = msgspec.json.decode(body, type=Given)
    project = Project(root=given.root, home=given.home)
    return asyncio.run(_drive(teller, project, os.environ[MARK]))


async def _drive(teller: Teller, project: Project, execution_id: str) -> int:
    await teller.open()
    try:
        with TapeReader(project.folder(execution_id)) as reader:
            spec = fold(reader, execution_id).spec
        task = task_of(spec)
        teller.progress = progress_of(project.folder(execution_id))
        settings, _ = load_settings(project.root, os.environ)
        agents, _ = load_agent_settings(project.root, os.environ)
        engine = BlockingEngine(project, settings, FreshLauncher())
        cwd = spec.cwd if spec is not None else os.getcwd()
        every, keep = settings.checkpoint_every, settings.checkpoint_keep
        saver = Saver(teller, project.folder(execution_id), execution_id, every, keep)
        saver.begin()
        teller.tell(seen_here(cwd))
        try:
            status = await _work(teller, engine, task, settings, agents, cwd, saver)
        finally:
            await saver.end()
    except TenutoError as error:
        print(f"tenuto: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        again = isinstance(error, (EngineFault, DiskFull))  # not for what was asked: it can go on
        teller.outcome("interrupted" if again else "failed", error.code, str(error))
        await teller.close()
        return 1
    point("driver-done")
    teller.value(lambda most: result_document(teller.progress, most))
    _tell_outcome(teller, status)
    await teller.close()
    engine.close()
    return _EXITS.get(status, 1)


def _tell_outcome(teller: Teller, status: str) -> None:
    """Say how the task ends: its own state, and the reason by the first step that failed."""
    if status == "completed":
        teller.outcome("succeeded")
        return
    if status == "interrupted":
        teller.outcome("interrupted", "interrupted", "on request")
        return
    failed = [one for one in teller.progress.steps.values() if one.status == "failed"]
    told = [f"{one.step.id}: {one.error}" for one in failed]
    detail = plain("; ".join(told or teller.progress.warnings))
    kind = failed[0].kind if failed and failed[0].kind else "failed"
    teller.outcome("failed", "partial" if status == "partial" else kind, detail[:4096])


async def _work(
    teller: Teller,
    engine: BlockingEngine,
    task: TaskSpec,
    settings: Settings,
    agents: AgentSettings,
    cwd: str,
    saver: Saver,
) -> str:
    from tenuto.runners.registry import runner

    project = engine.project
    home = os.path.join(project.folder(os.environ[MARK]), "agents")
    printer, desk = Printer(several=False), Desk(teller)
    policy = task.permissions or settings.permissions
    task = msgspec.structs.replace(task, max_turns=task.max_turns or settings.max_turns)
    briefs = Briefs(task, teller.progress, agents, cwd, project.root, os.environ)
    places = Workplaces(
        task, teller.progress, printer, cwd, project.home, os.environ[MARK], os.environ
    )
    chooser = Chooser(
        lambda name: runner(
            name,
            commands=agents.agents,
            programs=settings.programs,
            custom=agents.runners,
            home=home,
        ),
        settings.runtime_order,
        settings.runtime_preferred,
        os.environ,
        asks=policy != "allow" and not task.bypass,
    )
    nurseries: list[ExecutionNursery] = []

    def nursery(started: Callable[[str], None], metered: bool) -> ExecutionNursery:
        made = ExecutionNursery(engine, started, WITHHELD if metered else ())
        nurseries.append(made)
        return made

    def planner() -> tuple[str, Plan, str]:
        built = build_plan(
            task, roles=agents.roles, tables=agents.selection, strategies=agents.strategies
        )
        return built.strategy, built.plan, built.reason

    def further(plan: Plan, step: Step, output: str) -> tuple[tuple[Step, ...], Warned | None]:
        more = extend(plan, step, output, round_of(plan, step))
        verdict = None if more else review_verdict(output)
        if more or verdict == "approve":
            return more, None
        if verdict == "send_back":
            text = f"{step.id} still sends {step.reviews} back, and no round is left"
            return (), Warned(text=text, step=step.id, about="rejected")
        text = f"{step.id} gave no verdict on {step.reviews}: it is taken as it is"
        return (), Warned(text=text, step=step.id, about="review")

    purse = Purse(engine, os.environ[MARK], task, agents, teller, desk, printer)
    driver = Driver(teller, desk, printer, planner, further, places.finish, purse.counted)
    walker = Walker(
        task, teller, desk, printer, chooser, purse, nursery, briefs.brief, places,
        policy, (_server(project),),
    )  # fmt: skip

    brake = Brake(driver, desk, walker)

    def heard(message: dict[str, object]) -> None:
        if message.get("type") == "decide":
            desk.decide(message)
        elif message.get("type") == "checkpoint":
            saver.checkpoint(str(message.get("key", "")))
        elif message.get("type") == "over":
            brake.over(message)
        elif message.get("type") in ("model_failed", "model_answered"):
            walker.heard(message)
        else:
            purse.heard(message)

    teller.heard = heard
    brake.listen()
    try:
        left = await brake.end_leftovers(engine, os.environ[MARK], settings.interrupt_grace)
        _warn(teller, printer, left)
        return await driver.run(walker.walk, settings.concurrency)
    finally:
        await walker.close()
        for one in nurseries:
            await one.close()
        await brake.see_off(engine, os.environ[MARK])
        purse.close()


def _warn(teller: Teller, printer: Printer, text: str) -> None:
    if text:
        teller.tell(Warned(text=text))
        printer.note(f"warning: {text}")


def _server(project: Project) -> McpServer:
    """Return our own MCP server, for agents: what they start there are executions of this project."""
    command = (sys.executable, "-m", "tenuto.cli.main", "mcp")
    return McpServer(name="tenuto", command=command, env={"TENUTO_HOME": project.home})
