"""Tools that read: an execution's output, its history, and what it says to input."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.execution import Chunk, Snapshot
from tenuto.core.quantities import brief_duration, parse_duration
from tenuto.mcp import replies, task_results
from tenuto.mcp.arguments import Arguments
from tenuto.mcp.pages import STAMP, Cursor, Room, parse_cursor, parse_result
from tenuto.mcp.replies import Reply

if TYPE_CHECKING:
    from tenuto.mcp.service import Caller, Service

_REACTION_S = 2.0


async def output(service: Service, given: Arguments, caller: Caller) -> Reply:
    """Give the output after a cursor; wait for the end if asked to."""
    execution_id, begin = given.get("execution_id"), parse_result(given.get("cursor"))
    if begin is not None:
        return await task_results.result_on(service, execution_id, begin)
    place, tail = parse_cursor(given.get("cursor")), given.get("tail")
    if tail is not None:
        return await _tail(service, execution_id, tail)
    wait, until = given.get("wait_s"), given.get("until")
    if wait is None and until is None:
        snapshot = await service.engine.read(execution_id, after=place.after)
    else:
        began = time.monotonic()
        snapshot = await service.waited(
            execution_id, service.wait_of(wait), caller, began, place, until
        )
        service.changed()
    return await _told(service, snapshot, place)


async def _told(service: Service, snapshot: Snapshot, place: Cursor) -> Reply:
    page = await service.page(snapshot, place, True)
    if snapshot.done:
        return msgspec.structs.replace(await service.finished(snapshot, page), is_error=False)
    opening = f"Execution {snapshot.id}: {replies.state_words(snapshot)} for "
    opening += f"{brief_duration(snapshot.duration_s)}."
    if snapshot.matched is not None:
        opening += f" Found {snapshot.matched[:200]!r}."
    return await service.going(snapshot, page, opening, "New output")


async def _tail(service: Service, execution_id: str, lines: int) -> Reply:
    snapshot = await service.engine.show(execution_id)
    chunks = tuple(await service.engine.logs(snapshot.id, tail=lines, most=service.limit))
    last = chunks[-1].seq if chunks else -1
    # from the end backwards: the newest lines matter here
    kept: list[Chunk] = []
    room = Room(service.limit, STAMP)
    for chunk in reversed(chunks):
        fits = room.end(chunk.data)
        if fits:
            kept.append(msgspec.structs.replace(chunk, data=chunk.data[-fits:]))
        if fits < len(chunk.data):
            break
    shown = msgspec.structs.replace(snapshot, chunks=tuple(kept[::-1]), next_seq=last)
    return await _told(service, shown, Cursor(last))


async def history(service: Service, action: str, execution_id: str, given: Arguments) -> Reply:
    """Answer get_async_log and get_progress."""
    place = parse_cursor(given.get("cursor"))
    since = given.get("since") if action == "get_progress" else None
    snapshot = await service.engine.read(execution_id, after=place.after, since=since)
    if since is not None:
        place = Cursor(snapshot.next_seq)
        if snapshot.chunks:  # a newline alone ends the line before, it is none of its own
            first = snapshot.chunks[0]
            place = Cursor(first.seq - 1, int(first.data[:1] == b"\n"))
    page = await service.page(snapshot, place, True)
    name = "Async Execution" if action == "get_async_log" else "Progress for Execution"
    count = "" if action == "get_async_log" else f" ({len(snapshot.chunks)} entries)"
    opening = f"{name} {snapshot.id}{count}: {replies.state_words(snapshot)}"
    if not snapshot.done:
        return await service.going(snapshot, page, opening, "Output")
    ended = await service.finished(snapshot, page)
    text, data = f"{opening}\n\n{ended.text}", {**ended.data, "message": opening}
    return Reply(text, data)


async def send_input(service: Service, given: Arguments, caller: Caller) -> Reply:
    """Write to stdin and give the program's reaction."""
    del caller
    execution_id = given.get("execution_id")
    before = await at_end(service, execution_id)
    raw, eof = given.get("raw", False), given.get("eof", False)
    text = given.get("text") or ("" if eof or raw else "\n")
    place = Cursor(before.next_seq)
    fate = await service.engine.send(before.id, text, raw=raw, eof=eof)
    wait = given.get("wait_s")
    pause = _REACTION_S if wait is None else parse_duration(wait)
    snapshot = await _reaction(service, before.id, place, pause, fate)
    service.changed()
    page = await service.page(snapshot, place, True)
    opening = f"Stdin data sent to execution {snapshot.id}: {fate}."
    if snapshot.done:
        reply = replies.finished(snapshot, page)
        reply = msgspec.structs.replace(reply, is_error=False)
    else:
        reply = replies.still_going(snapshot, page, opening, "Output since")
    data = {**reply.data, "message": opening, "input": fate}
    text = reply.text if reply.text.startswith(opening) else f"{opening}\n\n{reply.text}"
    return msgspec.structs.replace(reply, text=text, data=data)


async def at_end(service: Service, execution_id: str) -> Snapshot:
    """Return an execution whose cursor is at the end of what is there, however much that is."""
    snapshot = await service.engine.read(execution_id, since="0s")
    while snapshot.truncated:
        snapshot = await service.engine.read(snapshot.id, after=snapshot.next_seq)
    return snapshot


async def _reaction(
    service: Service, execution_id: str, place: Cursor, pause: float, fate: str
) -> Snapshot:
    """Return what a program said to its input: until it asks again, ends, or falls silent."""
    if fate == "queued" or not pause:
        return await service.engine.read(execution_id, after=place.after)
    limit = time.monotonic() + pause
    quiet = min(0.3, pause)
    while True:
        seen = await service.engine.read(execution_id, after=place.after)
        left = limit - time.monotonic()
        asks = seen.waiting_for is not None and seen.changed_ns > 0 and bool(seen.chunks)
        if seen.done or asks or left <= 0:
            return seen
        more = await service.engine.wait(
            execution_id, min(quiet, left), after=seen.next_seq, until="/(?s)./"
        )
        if more.matched is None and seen.chunks:
            return await service.engine.read(execution_id, after=place.after)
