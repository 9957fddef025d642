"""Tools of agent tasks: start one, decide what it asks, go on with one that was interrupted."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core.errors import InvalidInput, TenutoError
from tenuto.core.execution import Snapshot
from tenuto.core.ids import new_id
from tenuto.core.task_events import Asked
from tenuto.mcp import task_replies
from tenuto.mcp.arguments import Arguments
from tenuto.mcp.pages import START, Cursor
from tenuto.mcp.reading import at_end
from tenuto.mcp.replies import Reply
from tenuto.mcp.task_results import DECISIONS

if TYPE_CHECKING:
    from tenuto.mcp.service import Caller, Service

_MOMENT_S = 0.05
_BY = "an MCP client"
_SAME = ("task", "plan", "strategy", "workingDirectory")
_OPTIONS = {  # of the engine, by the tool's names
    "strategy": "strategy", "type": "task_type", "files": "files", "role": "force_agent",
    "model": "force_model", "runtime": "force_runtime", "chain": "chain", "skills": "skills",
    "max_cost": "max_cost", "max_tokens": "max_tokens", "max_turns": "max_turns", "hard": "hard",
    "worktree": "worktree", "permissions": "permissions", "concurrency": "concurrency",
    "context": "context",
    "change": "change", "task_id": "task_id", "workflow": "workflow", "resume": "resume",
}  # fmt: skip


class InputWanted(Exception):
    """A call ends with a question to the client's user; the same call brings the answer."""

    def __init__(self, execution_id: str, asked: dict[int, Asked]) -> None:
        """Take whose questions they are, by their numbers."""
        super().__init__(execution_id)
        self.execution_id = execution_id
        self.asked = asked


async def execute(service: Service, given: Arguments, caller: Caller) -> Reply:
    """Start a task, and answer with its end or a handover."""
    wait, began, key = (
        service.wait_of(given.get("wait")), time.monotonic(), given.get("idempotencyKey"),
    )  # fmt: skip
    if key is None:
        execution_id = await _begin(service, given, new_id())
    else:
        same = {name: given.get(name) for name in _SAME}
        execution_id = await service.once(key, same, lambda new: _begin(service, given, new))
    return await service.attend(execution_id, wait, caller, began)


async def _begin(service: Service, given: Arguments, execution_id: str) -> str:
    if given.get("task") is None and given.get("plan") is None:
        raise InvalidInput(
            "there is no task", 'engine_execute(task="what is to be done"), or plan=[…]'
        )
    options = {name: given.get(ours) for name, ours in _OPTIONS.items()}
    options = {name: value for name, value in options.items() if value is not None}
    elicit = service.engine.settings.budget_elicit
    start = service.engine.start_task(
        given.get("task", ""),
        plan=given.get("plan"),
        execution_id=execution_id,
        cwd=given.get("workingDirectory"),
        detached=given.get("wait") == 0,
        budget_mode="ask" if elicit else "warn",
        **options,
    )
    return await service.started(execution_id, start)


# Decisions


async def approve(service: Service, given: Arguments, caller: Caller) -> Reply:
    """Say yes to what a task asks, and wait on."""
    return await _decide(service, given, caller, allow=True)


async def deny(service: Service, given: Arguments, caller: Caller) -> Reply:
    """Say no to what a task asks, and wait on."""
    return await _decide(service, given, caller, allow=False)


async def _decide(service: Service, given: Arguments, caller: Caller, allow: bool) -> Reply:
    began = time.monotonic()
    before = await at_end(service, given.get("execution_id"))
    await not_from_inside(service, before.id)
    place = Cursor(before.next_seq)
    asked = dict((await service.engine.progress(before.id)).asked)
    verb = service.engine.approve if allow else service.engine.deny
    decided = await verb(before.id, n=given.get("n"), why=given.get("why", ""), by=_BY)
    service.changed()
    said = [
        f"{'Approved' if one.allow else 'Denied'} #{one.n}: {asked[one.n].text}"
        for one in decided
        if one.n in asked
    ]
    opening = "; ".join(said) or "It was told; the task has not taken it yet"
    wait = service.wait_of(given.get("wait"))
    reply = await service.attend(before.id, wait, caller, began, place)
    return _opened(reply, f"{opening}.", decided=[msgspec.to_builtins(one) for one in decided])


async def not_from_inside(service: Service, execution_id: str = "") -> None:
    """Raise where this server works for an agent of that very task (or, without an id, of any)."""
    inside = service.engine.inside
    while inside:
        try:
            here = await service.engine.show(inside)
        except TenutoError:
            return
        if here.id == execution_id or (not execution_id and here.kind == "task"):
            raise InvalidInput(
                "a task's own agents do not decide about its permissions and budget",
                "its user does; go on with something that needs no decision",
            )
        inside = here.parent


async def goes_on(service: Service, snapshot: Snapshot, caller: Caller | None, left: float) -> bool:
    """Tell whether a wait that ended goes on: what was asked is answered, perhaps just now."""
    if snapshot.kind != "task" or snapshot.waiting_for not in DECISIONS:
        return False
    asked = dict((await service.engine.progress(snapshot.id)).asked)
    if not asked:  # all is answered: it is about to go on
        await asyncio.sleep(_MOMENT_S)
        return True
    about_money = {n: one for n, one in asked.items() if one.about == "budget"}
    if caller is None or not caller.can_be_asked:
        return False
    if not about_money or not service.engine.settings.budget_elicit:
        return False
    if caller.asks_by_result:
        raise InputWanted(snapshot.id, about_money)
    asking = service.aside(snapshot.id, _ask(service, snapshot, caller, about_money))
    if asking is None:  # another call has asked already
        return False
    await asyncio.wait({asking}, timeout=left)
    return asking.done() and asking.result()


async def _ask(
    service: Service, snapshot: Snapshot, caller: Caller, asked: dict[int, Asked]
) -> bool:
    """Ask the client's user, and bring the answers to the task; tell whether there were any."""
    for n, one in asked.items():
        allow = await caller.asked(f"{snapshot.title[:80]}: {one.text}. Go on?")
        if allow is None:
            return False
        await decided(service, snapshot.id, n, allow)
    return True


async def decided(service: Service, execution_id: str, n: int, allow: bool) -> None:
    """Bring an answer of the client's user to a task; one that came too late is passed."""
    verb = service.engine.approve if allow else service.engine.deny
    with suppress(TenutoError):
        await not_from_inside(service, execution_id)
        await verb(execution_id, n=n, by="the user of an MCP client")
    service.changed()


# Going on


async def resume(service: Service, given: Arguments, caller: Caller) -> Reply:
    """Go on with what was interrupted or lost, or from a checkpoint of it, and wait for it."""
    began, seq = time.monotonic(), given.get("from")
    before = await at_end(service, given.get("execution_id"))
    place = Cursor(before.next_seq) if seq is None else START
    resumed = await _resumed(service, given, before.id, seq)
    service.changed()
    wait = service.wait_of(given.get("wait"))
    reply = await service.attend(resumed, wait, caller, began, place)
    if seq is None:
        return _opened(reply, f"Resumed {before.id}.")
    opening = f"Task {resumed} begins at checkpoint {seq} of {before.id}, which stays as it is."
    return _opened(reply, opening, forked_from={"execution_id": before.id, "seq": seq})


async def _resumed(service: Service, given: Arguments, before: str, seq: int | None) -> str:
    """Go on with an execution, or begin another at a checkpoint of it, once for a key."""
    key, cwd = given.get("idempotencyKey"), given.get("workingDirectory")

    async def begin(fork_id: str = "") -> str:
        force = bool(given.get("force"))
        made = await service.engine.resume(
            before, force=force, from_seq=seq, cwd=cwd, wait=0, fork_id=fork_id
        )
        return made.id

    if key is None:
        return await begin()
    if seq is None:
        raise InvalidInput(
            "idempotencyKey goes with from, where a second call would begin another task",
            "leave it out: without from nothing is resumed twice",
        )
    same = {"resume": before, "from": seq, "workingDirectory": cwd}
    return await service.once(key, same, lambda new: service.started(new, begin(new)))


async def interrupted(service: Service, snapshot: Snapshot, before: bool) -> Reply:
    """Answer what an interrupt of a task stopped, now or `before`, and what is saved of it."""
    progress = await service.engine.progress(snapshot.id)
    return task_replies.stopped(
        snapshot, progress, await service.engine.checkpoints(snapshot.id), before
    )


def _opened(reply: Reply, opening: str, **more: Any) -> Reply:
    """Return an answer that first says what was done."""
    message = reply.data.get("message")
    data = {**reply.data, **more, "message": f"{opening} {message}" if message else opening}
    return msgspec.structs.replace(reply, text=f"{opening}\n\n{reply.text}", data=data)
