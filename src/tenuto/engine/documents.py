"""The public JSON documents: one shape for an execution, wherever it is shown. Schema 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core.errors import UnknownExecution
from tenuto.core.events import decode_event
from tenuto.core.execution import Chunk, Snapshot
from tenuto.core.ids import short
from tenuto.core.quantities import iso
from tenuto.engine.redact import Redactor
from tenuto.engine.watch import as_chunk
from tenuto.keeper.frames import EVENT, Frame
from tenuto.stores.tape import TapeReader

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

SCHEMA = 1


def execution_document(snapshot: Snapshot, with_output: bool = True) -> dict[str, Any]:
    """Return an execution as `--json` shows it."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "id": snapshot.id,
        "kind": snapshot.kind,
        "title": snapshot.title,
        "state": str(snapshot.state),
        "waiting_for": str(snapshot.waiting_for) if snapshot.waiting_for else None,
        "reason": snapshot.reason,
        "detail": snapshot.detail,
        "exit_code": snapshot.exit_code,
        "signal": snapshot.signal,
        "value": snapshot.value,
        "has_value": snapshot.has_value,
        "handed_over": snapshot.handed_over,
        "async": snapshot.is_async,
        "interactive": snapshot.interactive,
        "created_at": iso(snapshot.created_ns),
        "started_at": iso(snapshot.started_ns) if snapshot.started_ns else None,
        "ended_at": iso(snapshot.ended_ns) if snapshot.ended_ns else None,
        "duration_s": round(snapshot.duration_s, 6),
        "output_bytes": snapshot.output_bytes,
        "output_lines": snapshot.output_lines,
        "left_behind": [msgspec.to_builtins(one) for one in snapshot.left_behind],
        "usage": msgspec.to_builtins(snapshot.usage),
        "engine": snapshot.engine,
        "confinement": confinement_document(snapshot),
        "parent": snapshot.parent,
        "session": _session(snapshot),
        "matched": snapshot.matched,
        "hint": snapshot.hint,
    }
    if with_output:
        document |= {
            "output": snapshot.output,
            "next_seq": snapshot.next_seq,
            "truncated": snapshot.truncated,
        }
    return document


def confinement_document(snapshot: Snapshot) -> dict[str, Any] | None:
    """Return what held an execution, or None if nothing did."""
    held = snapshot.confinement
    if held is None:
        return None
    return {"level": held.level, "missing": list(held.missing), "net": held.net or None}


def _session(snapshot: Snapshot) -> dict[str, Any] | None:
    """Return what a cell or a session says of its session."""
    if snapshot.session is None:
        return None
    return {
        "name": snapshot.session,
        "is_host": snapshot.session_host,
        "host": snapshot.id if snapshot.session_host else snapshot.host,
        "note": snapshot.session_note,
    }


def chunk_document(chunk: Chunk) -> dict[str, Any]:
    """Return a piece of output as a line of NDJSON; bytes that are no UTF-8 are also given whole."""
    document: dict[str, Any] = {
        "seq": chunk.seq,
        "time": iso(chunk.time_ns),
        "stream": chunk.stream,
        "text": chunk.text,
    }
    if chunk.level:
        document["level"] = chunk.level
    try:
        chunk.data.decode()
    except UnicodeDecodeError:
        import base64

        document["base64"] = base64.b64encode(chunk.data).decode()
    return document


def event_documents(engine: BlockingEngine, execution_id: str) -> Iterator[dict[str, Any]]:
    """Yield the tape's events in order, without secrets."""
    redactor = Redactor(engine.environ)
    with _tape(engine, execution_id) as reader:
        for frame in reader.events():
            yield {"seq": frame.seq, "time": iso(frame.time_ns), **_event(frame, redactor)}


def export_documents(engine: BlockingEngine, execution_id: str) -> Iterator[dict[str, Any]]:
    """Yield a whole execution, a line each: the document, then events and output in tape order."""
    redactor = Redactor(engine.environ)
    snapshot = engine.show(execution_id)
    with _tape(engine, snapshot.id) as reader:
        yield redactor.data(execution_document(snapshot, with_output=False))  # pyright: ignore
        for frame in reader.frames():
            if frame.stream == EVENT:
                head = {"seq": frame.seq, "time": iso(frame.time_ns)}
                yield {**head, "event": _event(frame, redactor)}
            else:
                yield redactor.data(chunk_document(as_chunk(frame)))  # pyright: ignore


def _tape(engine: BlockingEngine, execution_id: str) -> TapeReader:
    try:
        return TapeReader(engine.project.folder(execution_id))
    except OSError:
        raise UnknownExecution(f"{short(execution_id)} has no tape", "tenuto ps -a") from None


def _event(frame: Frame, redactor: Redactor) -> dict[str, Any]:
    try:
        body: Any = msgspec.json.decode(frame.body)
    except (msgspec.MsgspecError, RecursionError):
        body = {"type": type(decode_event(frame.body)).__name__.lower()}
    return redactor.data(body)  # pyright: ignore
