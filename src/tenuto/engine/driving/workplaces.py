"""Where steps work: all in the task's own folder, or each in a git worktree of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tenuto.core.errors import TenutoError
from tenuto.core.plan import Step
from tenuto.core.progress import Progress
from tenuto.core.tasks import TaskSpec
from tenuto.engine.driving.printing import Printer

if TYPE_CHECKING:
    from tenuto.engine.worktrees import Worktree, Worktrees


class Workplaces:
    """Gives steps their folder, records what they changed, and says what became of it."""

    def __init__(
        self,
        task: TaskSpec,
        progress: Progress,
        printer: Printer,
        cwd: str,
        home: str,
        execution: str,
        environ: Mapping[str, str],
    ) -> None:
        """Take the task's folder; worktrees are made below the project's home, not in the checkout."""
        self._mode = task.worktree
        self._progress = progress
        self._printer = printer
        self._cwd = cwd
        self._made: dict[str, Worktree] = {}
        self._trees: Worktrees | None = None
        if self._mode is not None:
            from tenuto.engine.worktrees import Worktrees

            base = os.path.join(home, "worktrees", execution)
            self._trees = Worktrees(cwd, base, execution, environ)
            left_out = self._trees.uncommitted() if progress.plan is None else []
            if left_out:
                shown = ", ".join(left_out[:5]) + (", …" if len(left_out) > 5 else "")
                printer.note(f"changes that are not committed are in no worktree: {shown}")

    @property
    def separate(self) -> bool:
        """Each step has a folder of its own."""
        return self._trees is not None

    async def place(self, step: Step) -> str:
        """Return the folder for a step; a worktree is made in a thread, since it takes git."""
        if self._trees is None:
            return self._cwd
        after = [name for name in step.depends_on if self._progress.steps[name].branch]
        tree = await asyncio.to_thread(self._trees.add, step.id, after)
        self._made[step.id] = tree
        return tree.cwd

    async def ended(self, step: str) -> str:
        """Record what a step changed on its branch; return the branch, if it has one."""
        tree = self._made.get(step)
        if self._trees is None or tree is None:
            return ""
        title = self._progress.steps[step].step.task.strip().partition("\n")[0][:60]
        await asyncio.to_thread(self._trees.commit, tree, f"{step}: {title}")
        return tree.branch

    async def finish(self) -> list[str]:
        """Merge, discard or keep all worktrees, as was asked; return what could not be done."""
        if self._trees is None:
            return []
        done = [one.step.id for one in self._progress.in_order() if one.status == "completed"]
        try:
            return await asyncio.to_thread(self._finish, self._trees, done)
        except TenutoError as error:
            return [str(error)]

    def _finish(self, trees: Worktrees, done: list[str]) -> list[str]:
        if self._mode == "discard":
            for name in self._progress.steps:
                trees.discard(name)
            trees.tidy()
            return []
        if self._mode == "keep":
            for name in done:
                self._printer.note(f"[{name}] kept on branch {trees.branch_of(name)}")
            return []
        problems: list[str] = []
        found = [self._made.get(name) or trees.find(name) for name in done]
        for merged in trees.merge([tree for tree in found if tree is not None]):
            if merged.ok:
                self._printer.note(f"[{merged.step}] merged {merged.branch}")
            else:
                problems.append(f"{merged.branch} is not merged: {merged.why}")
        trees.tidy()
        return problems
