"""One step from its first attempt to its end: prompt, runtime, events, permissions, tries, fallback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from tenuto.core.budget import Tokens
from tenuto.core.errors import RunnerFailed
from tenuto.core.plan import Step
from tenuto.core.ports import AgentSession
from tenuto.core.progress import StepProgress
from tenuto.core.runs import (
    NO_FALLBACK,
    TRANSIENT,
    Finished,
    McpServer,
    PermissionAsked,
    Retried,
    RunEvent,
    RunRequest,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.core.task_events import (
    Decided,
    FellBack,
    StepFinished,
    StepSaid,
    StepSession,
    StepStarted,
    StepUsed,
    Warned,
)
from tenuto.core.tasks import PermissionPolicy, TaskSpec
from tenuto.engine.driving.asking import Desk, Withdrawn, by_policy
from tenuto.engine.driving.attempts import Brief, Tries, handed_on, opening, valid
from tenuto.engine.driving.brake import Beginnings
from tenuto.engine.driving.choosing import Chooser, Chosen
from tenuto.engine.driving.nursery import ExecutionNursery
from tenuto.engine.driving.printing import Printer
from tenuto.engine.driving.purse import Purse
from tenuto.engine.driving.teller import Teller
from tenuto.engine.driving.workplaces import Workplaces
from tenuto.keeper.faults import point

_OUTPUT_MOST = 2 * 1024 * 1024
_TOLD_MOST = 8 * 1024
_SAID_MOST = 4000
_ERROR_MOST = 16 * 1024


class Walker:
    """Runs steps; one object for the whole task, many steps at once."""

    def __init__(
        self,
        task: TaskSpec,
        teller: Teller,
        desk: Desk,
        printer: Printer,
        chooser: Chooser,
        purse: Purse,
        nursery: Callable[[Callable[[str], None], bool], ExecutionNursery],
        brief: Callable[[Step, str], Brief],
        places: Workplaces,
        policy: PermissionPolicy,
        mcp: tuple[McpServer, ...] = (),
    ) -> None:
        """Take everything a step needs; `nursery` is made for each step, to know its processes."""
        self._task = task
        self._teller = teller
        self._desk = desk
        self._printer = printer
        self._chooser = chooser
        self._purse = purse
        self._nursery = nursery
        self._brief = brief
        self._places = places
        self._policy: PermissionPolicy = policy
        self._mcp = mcp
        self._active: dict[str, AgentSession] = {}
        self._kept: dict[str, tuple[str, AgentSession]] = {}
        self._stopping = asyncio.Event()
        self._beginnings = Beginnings()
        self._why = self._kind = ""

    # A step

    async def walk(self, step: Step, gate: Callable[[], Awaitable[None]]) -> StepFinished:
        """Take a step to its end; behind the gate is what it builds on, before it only preparation."""
        began = time.monotonic()
        one = self._teller.progress.steps[step.id]
        await self._purse.before(step)
        if self._places.separate:  # they are made of what the steps before have changed
            await gate()
        cwd = await self._places.place(step)
        if one.cwd not in ("", cwd):
            one.session = ""  # sessions of runtimes belong to the folder that they began in
        brief = self._brief(step, cwd)
        choosing = self._chooser.choose(step.runtime or self._task.runtime)
        chosen = await self._beginnings.unless_given_up(choosing)
        if chosen is None:
            await gate()
            raise Withdrawn
        if step.runtime not in (None, chosen.name):
            self._announce(step, str(step.runtime), chosen, chosen.reason)
        await gate()
        tried = {chosen.name}
        attempt, failures = one.attempt, 0
        text, anew = brief.text, False
        while True:
            attempt += 1
            model = brief.model(chosen.name)
            self._teller.tell(
                StepStarted(
                    step=step.id, attempt=attempt, runtime=chosen.name, role=brief.role,
                    model=model, reason=f"runtime: {chosen.reason}; {brief.reason}", cwd=brief.cwd,
                )
            )  # fmt: skip
            point("driver-step-started")
            tries = await self._attempt(step, one, chosen, brief, model, text, anew)
            end, anew = tries.finished, False
            if end.ok or end.interrupted or self._stopping.is_set():
                break
            if end.kind == "session":  # all it needs is told anew; what it did is in its files
                anew = True
                self._note(step, Retried(text=f"{end.message}; a new session begins"))
                self._printer.note(f"[{step.id}] {end.message}; a new session begins")
                continue
            failures += 1
            if self._may_retry(step, end, failures):
                await self._pause(step, end, failures)
                if not self._stopping.is_set():
                    continue
                break
            other = await self._substitute(chosen, end, tries, tried)
            if other is None:
                break
            self._announce(step, chosen.name, other, end.message)
            tried.add(other.name)
            one.session, chosen, failures = "", other, 0
            text = handed_on(brief.text, tries) if tries.tools else brief.text
        return await self._result(step, one, chosen, brief, end, attempt, time.monotonic() - began)

    def _may_retry(self, step: Step, end: Finished, failures: int) -> bool:
        passing = end.kind in TRANSIENT
        worth = passing or (step.retry.on_any and end.kind not in NO_FALLBACK)
        return worth and failures <= step.retry.times

    async def _pause(self, step: Step, end: Finished, failures: int) -> None:
        """Wait before the next try; an interrupt ends the wait."""
        seconds = step.retry.pause * 2 ** (failures - 1)
        self._note(step, Retried(text=f"try {failures + 1} in {seconds:g} s: {end.message}"))
        self._printer.note(f"[{step.id}] {end.message}; trying again in {seconds:g} s")
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _substitute(
        self, chosen: Chosen, end: Finished, tries: Tries, tried: set[str]
    ) -> Chosen | None:
        """Return who may take over: only where nothing was done yet, or in a worktree of its own."""
        safe = not tries.tools or self._task.worktree is not None
        if end.kind in NO_FALLBACK or end.kind == "failed" or not safe:
            return None
        return await self._chooser.substitute(chosen.name, tried)

    def _warn(self, step: Step, text: str) -> None:
        if text not in self._teller.progress.warnings:
            self._teller.tell(Warned(text=text, step=step.id))
            self._printer.note(f"[{step.id}] warning: {text}")

    def _announce(self, step: Step, of: str, to: Chosen, why: str) -> None:
        self._teller.tell(FellBack(step=step.id, of=of, to=to.name, why=why))
        self._printer.note(f"[{step.id}] {of} cannot go on ({why}): {to.name} takes over")

    async def _result(
        self,
        step: Step,
        one: StepProgress,
        chosen: Chosen,
        brief: Brief,
        end: Finished,
        attempt: int,
        duration: float,
    ) -> StepFinished:
        self._printer.end(step.id)
        branch = await self._places.ended(step.id)
        tokens, cost, unmetered = self._purse.spent(one)
        stopped = self._stopping.is_set() and not end.ok
        status = "completed" if end.ok else "interrupted" if stopped else "failed"
        error = "" if end.ok else end.message or ("interrupted" if stopped else "it failed")
        kind = end.kind or ""
        if stopped and self._why:
            error, kind = self._why, self._kind
        error = error[:_ERROR_MOST]
        if len(end.text) > _OUTPUT_MOST:
            kept = f"the first {_OUTPUT_MOST} of {len(end.text)} characters"
            self._warn(step, f"of the answer of {step.id} {kept} are kept")
        return StepFinished(
            step=step.id, status=status, attempt=attempt, output=end.text[:_OUTPUT_MOST],
            error=error, kind=kind, runtime=chosen.name, role=brief.role,
            model=one.model, session=one.session, tokens=tokens, cost=cost, unmetered=unmetered,
            duration_s=round(duration, 3), branch=branch,
        )  # fmt: skip

    # An attempt

    async def _attempt(
        self,
        step: Step,
        one: StepProgress,
        chosen: Chosen,
        brief: Brief,
        model: str,
        text: str,
        anew: bool,
    ) -> Tries:
        """Prompt an agent once; `anew` in a new session, though an earlier one is known."""
        cut_short = bool(one.session) and chosen.runner.capabilities.resume
        try:
            session, goes_on = await self._open(step, one, chosen, brief, model, anew)
        except RunnerFailed as error:
            kind: Any = error.kind
            return Tries(Finished(ok=False, kind=kind, message=str(error)))
        if session is None or self._stopping.is_set():  # nothing was asked of it, nothing is to be
            if session is not None:
                await session.close()
            return Tries(Finished(ok=False, interrupted=True))
        self._active[step.id] = session
        if not goes_on and brief.alone:
            text = text.replace(brief.text, brief.alone)
        tries = Tries(Finished(ok=False, kind="crash", message="it ended without a last word"))
        try:
            words = opening(chosen.runner.capabilities, brief, text, cut_short, anew)
            await self._listen(step, one, session, words, tries)
        finally:
            self._active.pop(step.id, None)
            if tries.finished.ok and self._teller.progress.is_continued(step.id):
                self._kept[step.id] = (chosen.name, session)
            else:
                await self._close(step, session)
        tries.finished = tries.verdict()
        return tries

    async def _close(self, step: Step, session: AgentSession) -> None:
        """End a session; where that goes wrong, what came of it before counts all the same."""
        try:
            await session.close()
        except Exception as error:
            self._warn(
                step, f"the session of {step.id} did not close: {type(error).__name__}: {error}"
            )

    async def _listen(
        self, step: Step, one: StepProgress, session: AgentSession, prompt: str, tries: Tries
    ) -> None:
        """Take what comes of a prompt, until its last word."""
        asking: set[asyncio.Task[None]] = set()
        stopped = False
        try:
            async for told in session.prompt(prompt):
                event = valid(told)
                if isinstance(event, Finished):
                    tries.finished = event
                elif isinstance(event, PermissionAsked):
                    task = asyncio.create_task(self._permit(step, session, event, one.cwd, tries))
                    asking.add(task)
                    task.add_done_callback(asking.discard)
                else:
                    self._take(step, one, event, tries)
                if tries.over and not stopped:
                    stopped = True
                    await session.interrupt()
        finally:
            for task in asking:
                task.cancel()

    async def _open(
        self, step: Step, one: StepProgress, chosen: Chosen, brief: Brief, model: str, anew: bool
    ) -> tuple[AgentSession | None, bool]:
        """Return the session to speak in, and whether it is one that goes on; none if it is stopped."""
        before = self._kept.pop(step.continues, None) if step.continues else None
        if before is not None and before[0] == chosen.name:
            self._purse.goes_on(step)
            known = self._teller.progress.steps[str(step.continues)]
            self._teller.tell(
                StepSession(step=step.id, session=known.session, execution=known.execution)
            )
            return before[1], True
        if before is not None:
            await self._close(step, before[1])
        earlier = one.session or self._earlier(step, chosen.name, brief.cwd)
        taken_up = "" if anew else earlier
        runner = chosen.runner
        execution = ""

        def started(execution_id: str) -> None:
            nonlocal execution
            execution = execution_id
            self._teller.tell(StepSession(step=step.id, session=one.session, execution=execution))

        request = RunRequest(
            cwd=brief.cwd,
            model=model,
            system=brief.system if runner.capabilities.system else "",
            session=(taken_up or None) if runner.capabilities.resume else None,
            new_session=_uuid(),
            mcp=self._mcp if runner.capabilities.mcp else (),
            endpoint=await self._purse.endpoint(step, chosen),
            bypass=self._task.bypass,
            unasked=self._policy == "allow",
            max_turns=self._task.max_turns,
            title=f"{chosen.name}: {step.id}",
        )
        if request.max_turns is not None and not runner.capabilities.turns:
            self._warn(step, f"{chosen.name} takes no bound on its turns, only a budget holds it")
        nursery = self._nursery(started, request.endpoint is not None)
        opening = runner.open(request, nursery)
        session = await self._beginnings.unless_given_up(opening, nursery.end)
        return session, request.session is not None

    def _earlier(self, step: Step, runtime: str, cwd: str) -> str:
        """Return the session of the step that this one goes on from, if it was this runtime's."""
        one = self._teller.progress.steps.get(step.continues or "")
        if one is None or one.runtime != runtime:
            return ""
        moved = self._task.worktree is None and one.cwd not in ("", cwd)
        return "" if moved else one.session

    def _take(self, step: Step, one: StepProgress, event: RunEvent, tries: Tries) -> None:
        match event:
            case Said(text=text, thought=thought):
                if not thought:
                    self._printer.say(step.id, text)
                    tries.said = (tries.said + text)[-_SAID_MOST:]
            case SessionOpened(session=session, version=version):
                self._teller.tell(
                    StepSession(
                        step=step.id, session=session, execution=one.execution, version=version
                    )
                )
            case Used():
                tokens = Tokens.told(event.input, event.output, event.cache_read, event.cache_write)
                self._teller.tell(StepUsed(step=step.id, model=event.model, tokens=tokens))
                tries.over = tries.over or self._purse.used(step.id, event)
            case ToolBegan() | ToolEnded():
                tries.tools += isinstance(event, ToolBegan)
                self._printer.end(step.id)
                self._note(step, event)
            case Retried(text=text):
                self._note(step, event)
                if not self._purse.metered(step.id):  # else the gateway has told of it
                    self._printer.note(f"[{step.id}] {one.runtime} tries again: {text}")
            case _:
                self._note(step, event)

    def _note(self, step: Step, event: RunEvent) -> None:
        what = msgspec.to_builtins(event)
        if len(msgspec.json.encode(what)) > _TOLD_MOST:  # the whole is on the runtime's own tape
            what = {
                name: value if len(str(value)) < _TOLD_MOST // 4 else str(value)[: _TOLD_MOST // 4]
                for name, value in what.items()
            }
        self._teller.tell(StepSaid(step=step.id, what=what))

    def heard(self, message: Mapping[str, Any]) -> None:
        """Take word from the gateway that a model's server fails a step's requests, or does no more.

        Most runtimes try again by themselves, for a minute or for many, and not all of them say so.
        """
        name, text = str(message["step"]), str(message["text"])
        one = self._teller.progress.steps.get(name)
        if one is None or one.status != "running":
            return
        self._teller.tell(StepSaid(step=name, what={"type": message["type"], "text": text}))
        if text:
            self._printer.note(f"[{name}] {text}: {one.runtime} may try again by itself")

    async def _permit(
        self, step: Step, session: AgentSession, asked: PermissionAsked, cwd: str, tries: Tries
    ) -> None:
        """Answer a request for permission, by rule or by whoever is asked."""
        self._note(step, asked)
        decided = by_policy(self._policy, asked.tool, asked.kind, asked.input, cwd)
        if decided is None:
            shown = {"tool": asked.tool, "input": asked.input}
            text = f"{step.id} wants to use {asked.tool}"
            try:
                decided = await self._desk.ask("permission", text, step.id, shown)
            except Withdrawn:  # its turn is being stopped, too
                return
        else:
            self._note_rule(step, asked, decided)
        try:
            await session.answer(asked.id, decided.allow, decided.why)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            tries.fault = f"its request to use {asked.tool} could not be answered: {told}"
            await session.interrupt()

    def _note_rule(self, step: Step, asked: PermissionAsked, decided: Decided) -> None:
        what = {"type": "permission_given" if decided.allow else "permission_refused"}
        self._teller.tell(
            StepSaid(
                step=step.id, what={**what, "id": asked.id, "tool": asked.tool, "by": decided.by}
            )
        )

    # Stopping

    async def stop(self, kind: str = "", why: str = "") -> None:
        """Ask every agent to stop its turn; steps that it stops are told to have ended for this."""
        self._kind, self._why = kind, why
        self._stopping.set()
        turns = [session.interrupt() for session in self._active.values()]
        await asyncio.gather(self._beginnings.give_up(), *turns, return_exceptions=True)

    async def close(self) -> None:
        """End every session, by force if need be."""
        self._stopping.set()
        open_ones = [*self._active.values(), *(session for _, session in self._kept.values())]
        ends = [one.close() for one in open_ones]
        await asyncio.gather(self._beginnings.give_up(), *ends, return_exceptions=True)


def _uuid() -> str:
    import uuid

    return str(uuid.uuid4())
