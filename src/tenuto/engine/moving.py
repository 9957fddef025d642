"""The folder that a task goes on in: its own, or another where that is gone, moved or elsewhere."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping

import msgspec

from tenuto.core.errors import FolderGone, WorktreeFailed
from tenuto.core.ids import short
from tenuto.core.progress import Progress
from tenuto.core.specs import Spec
from tenuto.core.task_events import EnvironmentSeen
from tenuto.engine.surroundings import other_machine, seen_here
from tenuto.engine.work import folder_of

_GIT_S = 30.0


def placed(spec: Spec, cwd: str | None) -> Spec:
    """Return a spec that works in another folder, if one is given; raise InvalidInput for none such."""
    return msgspec.structs.replace(spec, cwd=folder_of(cwd)) if cwd else spec


def words(execution_id: str, cwd: str | None, *more: str) -> str:
    """Return the command that resumes something, for a hint."""
    parts = ["tenuto resume", *more, short(execution_id)]
    return " ".join(parts + ([f"--cwd {shlex.quote(cwd)}"] if cwd else []))


def check_folder(
    cwd: str, execution_id: str, before: EnvironmentSeen | None = None, *more: str
) -> None:
    """Raise FolderGone where a task's working directory is not there; `more` is of the next command."""
    if os.path.isdir(cwd):
        return
    what = f"the working directory of {short(execution_id)}, {cwd},"
    if before is not None and other_machine(before, seen_here(cwd)):
        where = before.host or before.machine
        raise FolderGone(
            f"{what} is not on this machine: it last ran on another ({where})",
            "put it there, or go on in another folder: "
            f"{words(execution_id, None, '--force', *more)} --cwd DIR",
        )
    raise FolderGone(
        f"{what} does not exist any more",
        "put it back (check it out, mount it), then resume; or go on in another folder: "
        f"{words(execution_id, None, *more)} --cwd DIR",
    )


def check_checkout(
    cwd: str, base: str, execution_id: str, environ: Mapping[str, str], seq: int | None, *more: str
) -> None:
    """Raise WorktreeFailed where git can make no worktree: each step would fail, and that stays.

    `seq` is the checkpoint to fork from, if there is one; `more` is of the next command.
    """
    from tenuto.engine.worktrees import Worktrees

    try:
        Worktrees(cwd, base, execution_id, environ)
    except WorktreeFailed as error:
        name = short(execution_id)
        hint = "put its repository back, then resume; or go on in another checkout of it: "
        if "git is not installed" in error.message:
            hint = "install it, then resume; or, where git is: "
        hint += f"{words(execution_id, None, *more)} --cwd DIR"
        if seq is not None:
            fork = words(execution_id, None, f"--from {seq}")
            hint += f"; or in a new task, which leaves this one as it is: {fork} --cwd DIR"
        raise WorktreeFailed(
            f"the steps of {name} work in git worktrees, and {error.message}", hint
        ) from None


def lost_branches(progress: Progress, cwd: str) -> list[str]:
    """Return the branches of steps that have ended which the repository around a folder lacks."""
    known = {one.branch: None for one in progress.steps.values() if one.branch and not one.open}
    if not known:
        return []
    found = _git(cwd, "for-each-ref", "--format=%(refname:short)", "refs/heads/tenuto")
    there = found.stdout.decode("utf-8", "replace").split() if found is not None else []
    return [name for name in known if name not in there]


def mend_worktrees(cwd: str, base: str) -> None:
    """Let the worktrees of a task know where their repository is now."""
    try:
        trees = [one.path for one in os.scandir(base) if one.is_dir(follow_symlinks=False)]
    except OSError:
        return
    if trees:
        _git(
            cwd, "worktree", "repair", *trees
        )  # what stays broken is told by the step that needs it


def _git(cwd: str, *arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(
            ["git", "-C", cwd, *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
