"""Questions that somebody has to decide: a tool's permission, a budget, a step that was cut short."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from tenuto.core.task_events import Asked, Decided
from tenuto.core.tasks import PermissionPolicy
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
_LOOKING = frozenset({"output", "list", "engine_status"})
"""Tools of our own server that start and change nothing; the others are asked about."""


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
        number = self._teller.progress.numbered + 1
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

    def _show(self) -> None:
        """Let the execution wait for the oldest open question, or go on."""
        asked = self._teller.progress.asked
        for number in self._open:
            if number in asked:
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
        """Take an answer: for one number, or for all that is open."""
        wanted = message.get("n")
        numbers = [number for number in list(self._open) if wanted in (None, number)]
        for number in numbers:
            decided = Decided(
                n=number,
                allow=bool(message.get("allow")),
                by=str(message.get("by", ""))[:200],
                why=str(message.get("why", ""))[:2000],
            )
            future = self._open[number]
            if not future.done():
                self._teller.tell(decided)
                future.set_result(decided)


def by_policy(policy: PermissionPolicy, tool: str, detail: str = "") -> Decided | None:
    """Return what a policy says about a tool, or None where a person has to decide."""
    name = _bare(tool)
    kind = detail.partition(":")[0]
    reads = name in _READING or kind in ("read", "search", "think") or _looks(name)
    edits = name in _EDITING or kind in ("edit", "move")
    by = f"permissions={policy}"
    if policy == "allow" or reads or (policy == "edits" and edits):
        return Decided(n=0, allow=True, by=by)
    if policy == "deny":
        return Decided(n=0, allow=False, by=by, why=f"{tool} is not allowed here")
    return None


def _bare(tool: str) -> str:
    """Return a tool's name without arguments and in small letters."""
    return tool.partition("(")[0].strip().lower()


def _looks(name: str) -> bool:
    """Tell whether it is a tool of our server that only looks, whatever a runtime puts before it."""
    for prefix in ("mcp__tenuto__", "mcp.tenuto.", "tenuto_", "tenuto.", "tenuto/"):
        if name.startswith(prefix):
            return name.removeprefix(prefix) in _LOOKING
    return False
