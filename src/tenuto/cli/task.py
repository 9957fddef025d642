"""tenuto task, approve and deny: have agents do something, and decide what they ask."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from tenuto.cli import follow
from tenuto.cli.arguments import add_id, count, opened
from tenuto.cli.console import ERR, OUT, one_line
from tenuto.cli.stay import Stay
from tenuto.cli.words import how_it_ended
from tenuto.core.errors import AmbiguousId, NothingAsked
from tenuto.core.ids import short
from tenuto.core.quantities import money, parse_duration
from tenuto.core.states import WaitingFor
from tenuto.core.task_events import StepStarted, decode_task_event
from tenuto.engine import tasks
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.work import Options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tenuto.cli.console import Console
    from tenuto.core.execution import Snapshot
    from tenuto.core.progress import Progress
    from tenuto.core.task_events import Asked
    from tenuto.engine.goals import Waiting

_MOMENT_S = 0.05
_DETAIL = 2000
_DECISIONS = (WaitingFor.APPROVAL, WaitingFor.BUDGET)


def task_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto task`."""
    parser.usage = "tenuto task [OPTION]... TEXT | tenuto task [OPTION]... --plan F.json"
    add = parser.add_argument
    add("text", metavar="TEXT", nargs="?", help="what is to be done; - reads it from stdin")
    add(
        "--strategy", metavar="S", default="auto", help="auto, single, multi, parallel, or your own"
    )
    add("--plan", metavar="F", help="a plan as JSON: steps with id, task, depends_on; - for stdin")
    add("--chain", metavar="R,R", help="the roles of a handoff, such as architect,developer")
    add("--runtime", metavar="R", help="claude-code, open-code, cli, codex, gemini, or your own")
    add("--role", metavar="R", help="who does it (default: by type and complexity)")
    add("--model", metavar="M", help="fast, main, heavy, or a model as the runtime names it")
    add("--type", metavar="T", help="feature, bugfix, refactor, test, documentation, …")
    add("--file", metavar="F", action="append", default=[], help="show it a file; repeatable")
    add("--skill", metavar="S", action="append", default=[], help="teach it a skill; repeatable")
    add("--context", metavar="TEXT", default="", help="something it should know")
    add("--change", metavar="ID", default="", help="the change that it belongs to")
    add("--task-id", metavar="ID", default="", help="its id in your own planning")
    add("--workflow", metavar="ID", default="", help="the workflow that it is part of")
    add("--cwd", metavar="D", help="working directory (default: this one)")
    add("--title", metavar="T", default="", help="a name for lists")
    add("--concurrency", metavar="N", type=count, help="steps at the same time")
    text = "give each step a git worktree of its own, and keep, merge or discard it"
    add(
        "--worktree", metavar="HOW", nargs="?", const="keep",
        choices=("keep", "merge", "discard"), help=text,
    )  # fmt: skip
    _bounds(parser)
    text = "hand over after so long (default: the setting `wait`, 30s)"
    add("--wait", metavar="T", type=parse_duration, help=text)
    add("-d", "--detach", action="store_true", help="do not wait; print the id")
    text = "auto: taken up again by itself after a crash of the machine"
    add("--resume", metavar="HOW", choices=("auto",), help=text)


def _bounds(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("bounds and permissions")
    add = group.add_argument
    add("--max-cost", metavar="USD", help="dollars that it may cost")
    add("--max-tokens", metavar="N", type=count, help="tokens that it may use")
    text = "how often an agent may ask its model in one go (default: no bound)"
    add("--max-turns", metavar="N", type=count, help=text)
    add("--hard", action="store_true", default=None, help="stop at a bound instead of asking")
    add("-y", "--yes", action="store_true", help="go on past bounds that are not hard, unasked")
    text = "what agents may do unasked: ask (read), edits, allow (all), deny"
    add("--permissions", choices=("ask", "edits", "allow", "deny"), help=text)
    add("--bypass", action="store_true", help="start runtimes with their own checks switched off")
    add("--deadline", metavar="T", type=parse_duration, help="end it after so long")
    add("--idle", metavar="T", type=parse_duration, help="end it after so long without news")


def approve_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto approve`."""
    add_id(parser, optional=True, default="the only one that waits")
    parser.add_argument("-n", metavar="N", type=count, help="one question by its number")
    parser.add_argument("--why", metavar="TEXT", default="", help="what the agent is told")


def deny_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto deny`."""
    approve_arguments(parser)


def task(args: argparse.Namespace, console: Console) -> int:
    """Start a task and stay with it."""
    with closing(BlockingEngine.open_here(args.launcher)) as engine:
        spec = tasks.task_spec(
            _text(args), plan=_plan(args), strategy=args.strategy, runtime=args.runtime,
            role=args.role, model=args.model, type=args.type, files=args.file, skills=args.skill,
            context=args.context, change=args.change, task_id=args.task_id,
            workflow=args.workflow,
            concurrency=args.concurrency, worktree=args.worktree, max_cost=args.max_cost,
            max_tokens=args.max_tokens, max_turns=args.max_turns, hard=args.hard,
            permissions=args.permissions, bypass=args.bypass, chain=_chain(args.chain),
            resume=args.resume, budget_mode="warn" if args.yes else "ask",
        )  # fmt: skip
        options = Options(
            cwd=args.cwd, title=args.title, deadline=args.deadline, idle=args.idle,
            detached=args.detach,
        )  # fmt: skip
        work = tasks.task_work(engine, tasks.checked(engine, spec, args.cwd), options)
        with follow.uninterrupted() as interruption:
            stay = TaskStay(engine, console, *engine.start(work))
        args.interactive = args.pty = False
        return stay.until_the_end(args, interruption)


def approve(args: argparse.Namespace, console: Console) -> int:
    """Say yes."""
    return _decide(args, console, allow=True)


def deny(args: argparse.Namespace, console: Console) -> int:
    """Say no."""
    return _decide(args, console, allow=False)


def _decide(args: argparse.Namespace, console: Console, allow: bool) -> int:
    with closing(opened()) as engine:
        whole = engine.resolve(args.id) if args.id is not None else _only_waiting(engine)
        asked = tasks.progress_of(engine.project.folder(whole)).asked
        decided = tasks.decide(engine, whole, allow, args.n, args.why)
        if console.json:
            answers = [{"n": one.n, "allow": one.allow, "by": one.by} for one in decided]
            console.document({"schema": 1, "id": whole, "decided": answers})
            return 0 if decided else 1
        for one in decided:
            text = asked[one.n].text if one.n in asked else ""
            console.note(f"{'approved' if one.allow else 'denied'} #{one.n}: {one_line(text)}")
        return 0 if decided else 1


def _only_waiting(engine: BlockingEngine) -> str:
    live = engine.list(running=True, kind="task", most=None)
    waiting = [one for one in live if one.waiting_for in _DECISIONS]
    if len(waiting) == 1:
        return waiting[0].id
    if not waiting:
        raise NothingAsked("no task waits for a decision", "see: tenuto ps --kind task")
    names = "\n".join(f"{short(one.id)}  {one_line(one.detail)[:60]}" for one in waiting)
    raise AmbiguousId(f"{len(waiting)} tasks wait for a decision; name one of them", names)


def _text(args: argparse.Namespace) -> str:
    if args.text != "-":
        return args.text or ""
    from tenuto.cli.texts import read_stdin

    return read_stdin()


def _plan(args: argparse.Namespace) -> str | None:
    if args.plan is None:
        return None
    from tenuto.cli.texts import read_stdin, read_text

    return read_stdin() if args.plan == "-" else read_text(args.plan)


def _chain(text: str | None) -> Sequence[str] | None:
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


class TaskStay(Stay):
    """Stays with a task: on a terminal, what it asks is asked there."""

    def _wait(self, waiting: Waiting, wait: float | None, args: argparse.Namespace) -> bool:
        left = super()._wait(waiting, wait, args)
        while not left and not self._console.json and self._asks() and _there():
            self._put_questions()
            left = super()._wait(waiting, None, args)  # whoever answers is there, and stays
        return left

    def _tell(self, time_ns: int, body: bytes) -> None:
        """Say on a terminal who begins: agents take seconds to come up, and think in silence."""
        before = self._watch.execution.started_ns or 0  # of a resumed one, what is told already
        if time_ns < before or not os.isatty(ERR):
            return
        event = decode_task_event(body)
        if isinstance(event, StepStarted):
            who = ", ".join(part for part in (event.role, event.runtime, event.model) if part)
            self._console.fresh_line()
            self._console.note(self._console.paint(f"{event.step}: begins ({who})", "grey", ERR))
            self._reported = 0

    def _asks(self) -> bool:
        return self._watch.execution.waiting_for in _DECISIONS

    def _put_questions(self) -> None:
        asked = tasks.progress_of(self._engine.project.folder(self._id)).asked
        if not asked:  # all is answered: it is about to go on
            follow.rest([self._watch.fileno()], [_MOMENT_S])
        for number, question in asked.items():
            self._console.fresh_line()
            allow = _answered(self._console, question)
            tasks.decide(self._engine, self._id, allow, number, by="the terminal")

    def _tell_end(self, snapshot: Snapshot) -> None:
        console = self._console
        console.fresh_line(anywhere=True)
        progress = tasks.progress_now(self._engine.project, self._id)
        for line in summary(progress):
            console.note(line)
        if not snapshot:
            if not console.quiet and _told_already(progress, snapshot.detail):
                snapshot = msgspec.structs.replace(snapshot, detail="")
            console.message(f"tenuto: {how_it_ended(snapshot, console)}")
            if snapshot.hint:
                console.message(f"  {snapshot.hint}")

    def _tell_handover(self, snapshot: Snapshot, wait: float | None) -> None:
        for line in questions(tasks.progress_of(self._engine.project.folder(self._id))):
            self._console.message(line)
        super()._tell_handover(snapshot, wait)
        if snapshot.waiting_for in _DECISIONS:
            self._console.note(follow.decisions(snapshot.id))


def summary(progress: Progress) -> list[str]:
    """Return a line for each step and one for the whole."""
    lines: list[str] = []
    for one in progress.in_order():
        what = f"{one.step.id}: {one.status}"
        if one.runtime:
            what += f" ({', '.join(part for part in (one.role, one.runtime, one.model) if part)})"
        if one.trouble:
            what += f": {one_line(one.trouble)}; {one.runtime} may try again"
        elif one.error and one.status != "completed":
            what += f": {one_line(one.error)}"
        lines.append(f"{what}, inherited" if one.inherited else what)
    tokens = progress.tokens
    if tokens.total:
        used = f"{tokens.total - tokens.output} tokens in, {tokens.output} out"
        lines.append(f"{used}, cost {money(progress.cost)}{_inherited(progress)}")
    lines += [f"warning: {one}" for one in progress.warnings]
    return lines


def _inherited(progress: Progress) -> str:
    """Return what of a fork's tokens and cost was spent by the task that it was forked from."""
    if not progress.inherited:
        return ""
    from tenuto.core.progress import spent

    tokens, cost = spent(progress.inherited)
    used = f"{tokens.total - tokens.output} in, {tokens.output} out, {money(cost)}"
    return f"; of which inherited, and counted there: {used}"


def _told_already(progress: Progress, detail: str) -> bool:
    """Tell whether the summary has said why it failed."""
    reasons = [one.error for one in progress.in_order()] + list(progress.warnings)
    return any(one and one in detail for one in reasons)


def questions(progress: Progress) -> list[str]:
    """Return what is asked, and what exactly would be done: nobody can decide without that."""
    lines: list[str] = []
    for number, one in progress.asked.items():
        lines.append(f"asks #{number}: {one_line(one.text)}")
        if one.detail is not None:
            lines.append(f"  {_exactly(one)}")
    return lines


def _exactly(question: Asked) -> str:
    return one_line(msgspec.json.encode(question.detail).decode())[:_DETAIL]


def _there() -> bool:
    """Tell whether somebody can be asked."""
    return sys.stdin.isatty() and os.isatty(OUT)


def _answered(console: Console, question: Asked) -> bool:
    """Ask on the terminal until the answer is one."""
    console.message(f"{console.paint('?', 'yellow', 2)} {one_line(question.text)}")
    if question.detail is not None:
        console.message(f"  {_exactly(question)}")
    while True:
        try:
            console.write(2, b"  approve? [y/n] ")
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            console.message("")  # what is told next begins on a line of its own
            raise
        if not answer:
            raise KeyboardInterrupt  # the terminal is gone: the task goes on waiting
        if answer.strip().lower() in ("y", "yes"):
            return True
        if answer.strip().lower() in ("n", "no"):
            return False
