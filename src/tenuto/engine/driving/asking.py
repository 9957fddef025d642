"""Questions that somebody has to decide: a tool's permission, a budget, a step that was cut short."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any, Literal, cast

import msgspec

from tenuto.core.task_events import Asked, Decided
from tenuto.core.tasks import PermissionPolicy
from tenuto.engine.driving.printing import plain
from tenuto.engine.driving.teller import Teller

About = Literal["permission", "budget", "step"]
_READING = frozenset(
    {
        "read", "glob", "grep", "ls", "search", "list", "find", "read_file", "list_files",
        "todowrite", "todoread", "think", "toolsearch",
    }
)  # fmt: skip
_EDITING = frozenset(
    {"edit", "write", "multiedit", "notebookedit", "edit_file", "write_file", "patch", "move"}
)
# what protocols say that a call does; fetching is not among it, since an address can carry words out
_KINDS_READING = ("read", "search", "think")
_KINDS_EDITING = ("edit", "move")
# our own tools that only look; those that start something can do whatever a shell can
_LOOKING = re.compile(r"(?:mcp(?:__|\.))?tenuto(?:__|[_.:/])(?:output|list|engine_status)")
_PATHS = ("file_path", "path", "filepath", "filePath", "notebook_path", "abs_path")
# what takes effect on the user's side without anybody's yes: settings, state, hooks
_GUARDED = frozenset({".git", ".tenuto", "tenuto.toml", ".claude", ".mcp.json"})


_OPEN_MOST = 100
_DETAIL_MOST = 64 * 1024
_TEXT_MOST = 2000


class Withdrawn(Exception):
    """Nobody is asked any more: the task is being stopped."""


class Desk:
    """Puts questions to whoever watches the task, and brings the answers to those who asked."""

    def __init__(self, teller: Teller) -> None:
        """Ask over this line."""
        self._teller = teller
        self._open: dict[int, asyncio.Future[Decided]] = {}
        self._stopped = False

    def void_old(self) -> None:
        """Withdraw what an earlier life of this task asked: whoever asked is gone."""
        for number in list(self._teller.progress.asked):
            self._teller.tell(Decided(n=number, allow=False, by="resume", why="it is asked anew"))

    async def ask(self, about: About, text: str, step: str = "", detail: Any = None) -> Decided:
        """Ask and wait, for as long as it takes; the execution shows as waiting meanwhile.

        Raises Withdrawn when the task is stopped before somebody has decided.
        """
        if self._stopped:
            raise Withdrawn
        if len(self._open) >= _OPEN_MOST:  # nobody reads so many, and each one is kept
            why = f"{_OPEN_MOST} questions are open already: wait for their answers first"
            return Decided(n=0, allow=False, by="tenuto", why=why)
        number = self._teller.progress.numbered + 1
        text, detail = plain(text)[:_TEXT_MOST], _bounded(detail)
        self._teller.tell(Asked(n=number, about=about, text=text, step=step, detail=detail))
        self._open[number] = asyncio.get_running_loop().create_future()
        self._show()
        try:
            return await self._open[number]
        finally:
            if not self._open.pop(number).done():  # nobody waits for the answer any more
                why = "what it was about has ended"
                self._teller.tell(Decided(n=number, allow=False, by="end", why=why))
            self._show()

    def _show(self, besides: int = 0) -> None:
        """Let the execution wait for the oldest open question, or go on."""
        asked = self._teller.progress.asked
        for number in self._open:
            if number in asked and number != besides:
                question = asked[number]
                on = "budget" if question.about == "budget" else "approval"
                self._teller.wait_for(on, f"#{number}: {question.text}")
                return
        self._teller.go_on()

    def stop(self) -> None:
        """Withdraw what is open, and ask nothing more: whoever waits here would hold up a stop."""
        self._stopped = True
        for number, future in self._open.items():
            if not future.done():
                why = "the task was stopped"
                self._teller.tell(Decided(n=number, allow=False, by="interrupt", why=why))
                future.set_exception(Withdrawn())

    def decide(self, message: dict[str, Any]) -> None:
        """Take an answer to the question of a number; never to one that nobody has seen yet."""
        number = message.get("n")
        future = self._open.get(number) if isinstance(number, int) else None
        if future is None or future.done():
            return
        decided = Decided(
            n=cast("int", number),
            allow=bool(message.get("allow")),
            by=str(message.get("by", ""))[:200],
            why=str(message.get("why", ""))[:2000],
        )
        self._show(besides=decided.n)  # first: who sees the decision finds the task at work
        self._teller.tell(decided)
        future.set_result(decided)


def _bounded(detail: Any) -> Any:
    """Return a detail, or its beginning as text; the whole is on the runtime's own tape."""
    shown = msgspec.json.encode(detail)
    if len(shown) <= _DETAIL_MOST:
        return detail
    text = shown[:_DETAIL_MOST].decode("utf-8", "ignore")
    return {"beginning": text, "cut": f"{_DETAIL_MOST} of {len(shown)} bytes are shown"}


def by_policy(
    policy: PermissionPolicy, tool: str, kind: str = "", given: Any = None, cwd: str = ""
) -> Decided | None:
    """Return what a policy says about a use of a tool, or None where a person has to decide.

    `kind` is what the runtime's protocol says that it does; where there is one it counts, and the
    name, which may be a title that the model wrote, does not.
    """
    name = tool.partition("(")[0].strip().lower()
    if kind:
        reads, edits = kind in _KINDS_READING, kind in _KINDS_EDITING
    else:
        reads, edits = name in _READING, name in _EDITING
    looks = kind in ("", "other") and _LOOKING.fullmatch(name) is not None
    by = f"permissions={policy}"
    if policy == "allow":
        return Decided(n=0, allow=True, by=by)
    if looks or (reads and _inside(given, cwd)):
        return Decided(n=0, allow=True, by=by)
    if policy == "edits" and edits and _inside(given, cwd, guarded=True):
        return Decided(n=0, allow=True, by=by)
    if policy == "deny":
        return Decided(n=0, allow=False, by=by, why=f"{tool} is not allowed here")
    return None


def _inside(given: Any, cwd: str, guarded: bool = False) -> bool:
    """Tell whether the paths of a tool's input lie in the folder that a step works in.

    An input without a path is about that folder. `guarded` leaves out the places in it that decide
    what is allowed, or that git and Tenuto run.
    """
    if not cwd or not isinstance(given, dict):
        return True
    root = os.path.realpath(cwd)
    fields = cast("dict[str, Any]", given)
    for path in (fields[name] for name in _PATHS if isinstance(fields.get(name), str)):
        try:
            whole = os.path.realpath(os.path.join(root, os.path.expanduser(path)))
        except ValueError:  # a NUL
            return False
        if whole != root and not whole.startswith(root.rstrip("/") + "/"):
            return False
        if guarded and not _GUARDED.isdisjoint(whole[len(root) :].split("/")):
            return False
    return True
