"""tenuto show and tenuto export: everything that is known of an execution, without its secrets."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from tenuto.cli.arguments import add_id, only_running, opened
from tenuto.cli.console import Console, one_line
from tenuto.cli.table import pairs
from tenuto.cli.words import plural, printed_value, state_of
from tenuto.core.quantities import brief_duration, brief_size, iso

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from tenuto.core.execution import Execution, Snapshot
    from tenuto.core.progress import Progress
    from tenuto.core.specs import Limits, Spec
    from tenuto.engine.blocking import BlockingEngine

_CODE_LINES = 20
_NAMED = 12


def show_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto show`."""
    add_id(parser, optional=True)
    parser.add_argument("--events", action="store_true", help="list its events instead")
    parser.add_argument("--checkpoints", action="store_true", help="where it can be forked from")
    parser.add_argument("--state", action="store_true", help="what is saved of a task")


def show(args: argparse.Namespace, console: Console) -> int:
    """Show an execution, or its events."""
    from tenuto.engine.redact import Redactor

    with closing(opened()) as engine:
        execution_id = only_running(engine, args.id)
        if args.events:
            return _events(engine, execution_id, console)
        if args.checkpoints or args.state:
            from tenuto.cli.checkpoint import show_checkpoints, show_state

            shown = show_checkpoints if args.checkpoints else show_state
            return shown(engine, execution_id, console)
        execution = engine.execution(execution_id)
        snapshot = engine.show(execution_id)
        redactor = Redactor(engine.environ)
        progress = _progress(engine, execution)
        if console.json:
            document = _document(snapshot, execution)
            if progress is not None:
                from tenuto.engine.tasks import result_document

                document["task"] = result_document(progress)
                document["checkpoint"] = _newest(engine, execution)
            console.document(redactor.data(document))
            return 0
        facts = _facts(snapshot, execution, engine, console)
        if progress is not None and (newest := _newest(engine, execution)) is not None:
            told = f"{newest['seq']}: {newest['what']}, {newest['time']}"
            facts.append(("checkpoint", one_line(told)))
        lines = pairs(facts)
        if progress is not None:
            from tenuto.cli.task import questions, summary

            lines += [f"steps ({progress.strategy}: {one_line(progress.reason)})"]
            lines += [f"  {line}" for line in summary(progress)]
            if not snapshot.done:
                lines += [f"  {line}" for line in questions(progress)]
        lines += _transitions(execution, console) + _code(execution.spec)
        console.out(redactor.text("\n".join(lines)))
    return 0


def _progress(engine: BlockingEngine, execution: Execution) -> Progress | None:
    """Return how far it is, if it is a task."""
    if execution.spec is None or execution.spec.kind != "task":
        return None
    from tenuto.engine.tasks import progress_now

    return progress_now(engine.project, execution.id)


def _newest(engine: BlockingEngine, execution: Execution) -> dict[str, Any] | None:
    """Return the newest checkpoint of a task, if it has one."""
    from tenuto.engine.saved import checkpoints_of

    places = checkpoints_of(engine, execution.id)
    if not places:
        return None
    return {"seq": places[-1].seq, "time": iso(places[-1].time_ns), "what": places[-1].what}


def _document(snapshot: Snapshot, execution: Execution) -> dict[str, Any]:
    import msgspec

    from tenuto.engine.documents import execution_document

    return {
        **execution_document(snapshot, with_output=False),
        "spec": None if execution.spec is None else msgspec.to_builtins(execution.spec),
        "transitions": transition_documents(execution),
    }


def transition_documents(execution: Execution) -> list[dict[str, str]]:
    """Return the changes of state, oldest first."""
    return [
        {"state": str(one.state), "time": iso(one.time_ns), "reason": one.reason}
        for one in execution.transitions
    ]


def _facts(
    snapshot: Snapshot, execution: Execution, engine: BlockingEngine, console: Console
) -> list[tuple[str, str]]:
    facts = [("id", snapshot.id), ("title", one_line(snapshot.title))]
    state = console.paint_state(state_of(snapshot))
    parts = (snapshot.reason, one_line(snapshot.detail))
    why = ": ".join(part for part in parts if part and part != snapshot.waiting_for)
    facts.append(("state", f"{state}  {why}"))
    _add(facts, "exit code", snapshot.exit_code, str)
    _add(facts, "signal", snapshot.signal, str)
    if snapshot.kind != "task":  # what came of its steps is shown below
        _add(facts, "value", printed_value(execution), one_line)
    if execution.spec is not None:
        facts += _of_spec(execution.spec)
    facts.append(("created", iso(snapshot.created_ns)))
    _add(facts, "started", snapshot.started_ns, iso)
    _add(facts, "ended", snapshot.ended_ns, iso)
    facts.append(("duration", brief_duration(snapshot.duration_s)))
    size = brief_size(snapshot.output_bytes)
    facts.append(("output", f"{size}, {snapshot.output_lines} lines"))
    usage = snapshot.usage
    if usage.max_rss or usage.user_s or usage.system_s:
        spent = f"{usage.user_s:.2f} s user, {usage.system_s:.2f} s system"
        memory = f", {brief_size(usage.max_rss)} at most" if usage.max_rss else ""
        facts.append(("used", spent + memory))
    _add(facts, "engine", snapshot.engine, str)
    if snapshot.confinement is not None:
        held = snapshot.confinement
        net = f", network {held.net}" if held.net else ""
        facts.append(("confined by", f"{one_line(held.level)}{net}"))
        facts += [("not confined", one_line(what)) for what in held.missing]
    marks = {"async": snapshot.is_async, "interactive": snapshot.interactive}
    _add(facts, "marks", ", ".join(name for name, on in marks.items() if on) or None, str)
    if execution.started is not None and execution.live:
        started = execution.started
        facts.append(("processes", f"main {started.pid}, keeper {started.keeper_pid}"))
    for left in snapshot.left_behind:
        facts.append(("left behind", f"pid {left.pid}  {one_line(left.command)}"))
    facts.append(("folder", engine.project.folder(snapshot.id)))
    _add(facts, "hint", snapshot.hint or None, str)
    return facts


def _add(
    facts: list[tuple[str, str]], name: str, value: Any | None, text: Callable[[Any], str]
) -> None:
    if value is not None:
        facts.append((name, text(value)))


def _of_spec(spec: Spec) -> list[tuple[str, str]]:
    facts = [("kind", spec.kind + (f", {spec.language}" if spec.language else ""))]
    if spec.task is not None:
        facts += _of_task(spec.task, spec.label())
    elif spec.code is None:
        import shlex

        facts.append(("command", one_line(shlex.join(spec.argv))))
    elif spec.argv:
        facts.append(("program", spec.argv[0]))
    _add(facts, "session", spec.session, str)
    _add(facts, "host", spec.host, str)
    facts.append(("cwd", spec.cwd))
    _add(facts, "parent", spec.parent, str)
    _add(facts, "env", ", ".join(spec.env_names) or None, str)
    _add(facts, "terminal", "yes" if spec.pty else None, str)
    _add(facts, "limits", _limits(spec.limits) or None, str)
    _add(facts, "deadline", spec.deadline, brief_duration)
    _add(facts, "idle", spec.idle, brief_duration)
    return facts


def _of_task(task: dict[str, Any], title: str) -> list[tuple[str, str]]:
    """Return what was asked for; the driver's own command is nothing to a user."""
    facts: list[tuple[str, str]] = []
    text = one_line(task.get("text", ""))
    if text and text != title:
        facts.append(("task", text))
    if plan := task.get("plan"):
        names = [one["id"] for one in plan["steps"]]
        more = ", …" if len(names) > _NAMED else ""
        facts.append(("plan", f"{plural(len(names), 'step')}: {', '.join(names[:_NAMED])}{more}"))
    asked = [
        f"{name} {', '.join(cast('list[str]', value)) if isinstance(value, list) else value}"
        for name, value in task.items()
        if name not in ("text", "plan", "forked_from")
    ]
    if asked:
        facts.append(("asked for", one_line("; ".join(asked))))
    if origin := task.get("forked_from"):
        facts.append(("forked from", f"{origin['id']} at {origin['seq']}"))
    return facts


def _limits(limits: Limits) -> str:
    texts = {
        "memory": limits.memory and brief_size(limits.memory),
        "cpu": limits.cpu and brief_duration(limits.cpu),
        "file size": limits.file_size and brief_size(limits.file_size),
        "open files": limits.open_files,
        f"output ({limits.output_policy})": limits.output and brief_size(limits.output),
    }
    return ", ".join(f"{name} {text}" for name, text in texts.items() if text)


def _transitions(execution: Execution, console: Console) -> list[str]:
    lines = ["transitions"]
    for one in execution.transitions:
        state = console.paint_state(str(one.state))
        lines.append(f"  {iso(one.time_ns)}  {state}  {one_line(one.reason)}".rstrip())
    return lines


def _code(spec: Spec | None) -> list[str]:
    if spec is None or spec.code is None:
        return []
    lines = [one_line(line.replace("\t", "    ")) for line in spec.code.splitlines()]
    more = len(lines) - _CODE_LINES
    shown = [f"  {line}" for line in lines[:_CODE_LINES]]
    return ["code", *shown, *([f"  … {more} more lines"] if more > 0 else [])]


def _events(engine: BlockingEngine, execution_id: str, console: Console) -> int:
    import msgspec

    from tenuto.engine.documents import event_documents

    documents = event_documents(engine, execution_id)
    if console.json:
        console.document(list(documents))
        return 0
    for document in documents:
        head = f"{document.pop('seq'):>6}  {document.pop('time')}  {document.pop('type', '?')}"
        fields = msgspec.json.encode(document).decode() if document else ""
        console.out(f"{head}  {one_line(fields)}".rstrip())
    return 0


def export_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto export`."""
    add_id(parser)


def export(args: argparse.Namespace, console: Console) -> int:
    """Print a whole execution as NDJSON: the document, then events and output in their order."""
    from tenuto.engine.documents import export_documents

    with closing(opened()) as engine:
        for document in export_documents(engine, engine.resolve(args.id)):
            console.line(document)
    return 0
