"""What came of a task, in pages: put together from its steps, or its log where there is nothing yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import InvalidInput
from tenuto.core.execution import Snapshot
from tenuto.core.states import State, WaitingFor
from tenuto.mcp import task_replies
from tenuto.mcp.pages import Cursor, result_page
from tenuto.mcp.replies import Reply

if TYPE_CHECKING:
    from tenuto.mcp.service import Service

DECISIONS = (WaitingFor.APPROVAL, WaitingFor.BUDGET)
"""What only somebody's decision ends."""
_WITH_RESULT = (State.SUCCEEDED, State.FAILED)


async def settled(service: Service, snapshot: Snapshot) -> Snapshot:
    """Return a task whose questions are all answered as one that goes on, as it is about to."""
    if snapshot.kind != "task" or snapshot.waiting_for not in DECISIONS:
        return snapshot
    if (await service.engine.progress(snapshot.id)).asked:
        return snapshot
    return msgspec.structs.replace(snapshot, state=State.RUNNING, waiting_for=None, detail="")


async def result(service: Service, snapshot: Snapshot, place: Cursor) -> Reply:
    """Answer with a task that has ended: its result, else what its agents said from a place on."""
    progress = await service.engine.progress(snapshot.id)
    whole = progress.finished.output if progress.finished is not None else ""
    if whole and snapshot.state in _WITH_RESULT:
        page = result_page(whole, 0, service.limit, snapshot.id)
    else:
        page = await service.page(snapshot, place, False)
    return task_replies.finished(snapshot, progress, page)


async def result_on(service: Service, execution_id: str, begin: int) -> Reply:
    """Answer with a task's result from a place on."""
    snapshot = await service.engine.show(execution_id)
    progress = await service.engine.progress(snapshot.id)
    if not snapshot.done or progress.finished is None:
        raise InvalidInput(
            f"task {snapshot.id} has no result yet",
            f'read its log: output(execution_id="{snapshot.id}")',
        )
    page = result_page(progress.finished.output, begin, service.limit, snapshot.id)
    return Reply(
        page.text or "(that was all)",
        {
            "execution_id": snapshot.id,
            "status": task_replies.status_of(snapshot, progress),
            **page.data(),
        },
    )
