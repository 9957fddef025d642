"""What a task is asked to do, as it stands in its spec."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

import msgspec

from tenuto.core.budget import BudgetMode
from tenuto.core.layouts import lay_out
from tenuto.core.plan import MergeMode, Plan

PermissionPolicy = Literal["ask", "edits", "allow", "deny"]
"""What happens when an agent asks before it uses a tool: a person decides; edits and reading are
allowed and the rest asked; all is allowed; all but reading is refused."""


class ForkedFrom(msgspec.Struct, frozen=True):
    """Where a task was forked from: another one, and the checkpoint in it."""

    id: str
    seq: int


class TaskSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a task's driver is given: what is wanted, and every choice that its user made."""

    text: str = ""
    strategy: str = "auto"
    plan: Plan | None = None
    """A plan of the user's own; else the strategy builds one from the text."""
    runtime: str | None = None
    role: str | None = None
    model: str | None = None
    type: str | None = None
    skills: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    max_cost: Decimal | None = None
    max_tokens: int | None = None
    max_turns: int | None = None
    """How often an agent may ask its model for one prompt; None for what the settings say."""
    budget_mode: BudgetMode = "ask"
    hard: bool | None = None
    """None for what the settings say."""
    permissions: PermissionPolicy | None = None
    """None for what the settings say."""
    bypass: bool = False
    """The runtimes may use every tool unasked; asked for by the user."""
    worktree: MergeMode | None = None
    """A git worktree for each step, and what becomes of it afterwards."""
    concurrency: int | None = None
    chain: tuple[str, ...] = ()
    """The roles of a handoff, where they are not the usual ones."""
    change: str = ""
    task_id: str = ""
    workflow: str = ""
    context: str = ""
    resume: Literal["", "auto"] = ""
    """`auto`: taken up again by itself after a crash of the machine."""
    forked_from: ForkedFrom | None = None
    """Set where its first steps are another task's, up to a checkpoint of that."""


lay_out(TaskSpec)
