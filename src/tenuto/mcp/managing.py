"""Tools that manage: list, kill, interrupt, and the actions of `execute`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenuto.core.errors import InvalidInput
from tenuto.core.execution import Snapshot
from tenuto.core.quantities import brief_duration
from tenuto.engine.reports import is_gateway
from tenuto.mcp import replies, task_tools
from tenuto.mcp.arguments import Arguments
from tenuto.mcp.reading import history, send_input
from tenuto.mcp.replies import Reply

if TYPE_CHECKING:
    from tenuto.mcp.service import Caller, Service

_RECENT = 10
_SPARE = 40  # for gateways, which are left out afterwards


async def manage(service: Service, action: str, given: Arguments, caller: Caller) -> Reply:
    """Do what `action` asks for."""
    execution_id = given.get("executionId")
    if action == "list_async_executions":
        return await list_async(service)
    if action == "kill" and execution_id is None:
        return await kill_all(service)
    if execution_id is None:
        raise InvalidInput(
            f"executionId is required for the action {action}",
            'see the ids with execute(action="list_async_executions")',
        )
    renamed = given.renamed(executionId="execution_id", stdinData="text")
    if action == "kill":
        return await kill(service, renamed, caller)
    if action == "send_stdin":
        if given.get("stdinData") is None and not given.get("eof"):
            raise InvalidInput("stdinData is required for send_stdin", "or eof: true")
        return await send_input(service, renamed, caller)
    if action == "clear_history":
        return await clear(service, execution_id, given.get("clearHistory", True))
    return await history(service, action, execution_id, given)


async def clear(service: Service, execution_id: str, really: bool) -> Reply:
    """Drop an execution's output, or only say how much there is."""
    if not really:
        snapshot = await service.engine.show(execution_id)
        text = f"Nothing cleared: execution {snapshot.id} has {snapshot.output_lines} lines."
        return Reply(text, {"message": text, **replies.facts(snapshot)})
    snapshot = await service.engine.clear(execution_id)
    text = f"Output history of execution {snapshot.id} cleared; its record says so."
    return Reply(text, {"message": text, **replies.facts(snapshot)})


async def list_executions(service: Service, given: Arguments, caller: Caller) -> Reply:
    """List executions."""
    del caller
    which, most = given.get("which", "running"), given.get("limit", 50)
    found = await service.engine.list(
        running=which == "running",
        only_async=which == "async",
        text=given.get("text", ""),
        most=most + _SPARE,
    )
    shown = [one for one in found if which == "all" or not is_gateway(one)]
    return _listing(shown[:most], f"{which} executions".capitalize())


async def list_async(service: Service) -> Reply:
    """List what runs, and what was handed over and ended lately."""
    running = await service.engine.list(running=True, most=200)
    live = [one for one in running if not is_gateway(one)]
    handed = await service.engine.list(only_async=True, most=_RECENT + _SPARE)
    ended = [one for one in handed if one.done and not is_gateway(one)]
    if not live and not ended:
        text = "No async executions currently running"
        return Reply(text, {"message": text, "executions": []})
    return _listing([*live, *ended[:_RECENT]], "Async Executions")


async def kill(service: Service, given: Arguments, caller: Caller) -> Reply:
    """End one, verified."""
    del caller
    name = given.get("signal") or "KILL"
    snapshot = await service.engine.kill(given.get("execution_id"), signal=name)
    service.changed()
    if snapshot.done:
        text = f"Execution {snapshot.id} is {snapshot.state}: all its processes are gone."
    else:
        text = f"Sent {name} to execution {snapshot.id}; it is {snapshot.state}."
    return Reply(text, {"message": text, **replies.facts(snapshot)})


async def kill_all(service: Service) -> Reply:
    """End everything of this project."""
    killed = await service.engine.kill_all()
    service.changed()
    ids = [one.id for one in killed]
    text = f"Killed {len(ids)} executions: {', '.join(ids)}" if ids else "Nothing was running."
    return Reply(text, {"message": text, "killed": ids})


async def interrupt(service: Service, given: Arguments, caller: Caller) -> Reply:
    """Ask one to stop, and insist."""
    del caller
    found = await service.engine.show(given.get("execution_id"))
    snapshot = await service.engine.interrupt(found.id)
    service.changed()
    if snapshot.kind == "task":
        return await task_tools.interrupted(service, snapshot, found.done)
    text = f"Execution {snapshot.id} is {snapshot.state}. Its output is kept."
    return Reply(text, {"message": text, **replies.facts(snapshot)})


def _listing(found: list[Snapshot], title: str) -> Reply:
    lines = [
        f"- Execution {one.id}: {replies.state_words(one)}, Started "
        f"{replies.facts(one)['started_at']}, Duration: {brief_duration(one.duration_s)}, "
        f"{one.output_lines} lines: {one.title[:60]}"
        for one in found
    ]
    text = f"{title} ({len(found)}):\n\n" + ("\n".join(lines) or "(none)")
    return Reply(text, {"message": f"{title}: {len(found)}",
                        "executions": [replies.facts(one) for one in found]})  # fmt: skip
