"""Git worktrees: a checkout of its own for each step, and what becomes of its changes.

The user's checkout is written to by `merge` alone, and only if git knows beforehand that it can.
No hook, editor, prompt or signature is asked for. All calls block: use them from a thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from tenuto.core.errors import WorktreeFailed
from tenuto.core.ids import short
from tenuto.metering.upstreams import KEY_NAMES

_TRIES = 40  # while another git holds a lock: about 8 s in all
_PAUSE = 0.2
_LOCKED = re.compile(r"\.lock'?: File exists|could not lock|cannot lock ref|unable to lock", re.I)
_START = "refs/worktree/tenuto-start"  # each worktree has its own refs of this kind
_NOTE = ".branch"  # in the folder of the worktrees: what was checked out when the task began
_QUIET = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "commit.gpgSign=false",
    "-c", "user.name=Tenuto", "-c", "user.email=tenuto@localhost", "-c", "gc.auto=0",
    "-c", "core.quotePath=false", "-c", "advice.detachedHead=false", "-c", "merge.ff=true",
    "-c", "rerere.enabled=false", "-c", "core.editor=true",
)  # fmt: skip


class Worktree(msgspec.Struct, frozen=True):
    """A step's own checkout."""

    step: str
    path: str
    """Its top folder."""
    cwd: str
    """The folder in it that stands for the one the task was started in."""
    branch: str
    start: str
    """The commit that its work began at, with the work of the steps before it."""


class Merged(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a step's branch."""

    step: str
    branch: str
    ok: bool
    why: str = ""
    """Why not, or what is left; a branch that was not merged is still there, as is its worktree."""
    conflicts: tuple[str, ...] = ()


class Worktrees:
    """The worktrees of one task. Several may be made at a time, by several processes too."""

    def __init__(
        self, cwd: str, base: str, task: str, environ: Mapping[str, str] = os.environ
    ) -> None:
        """Take the folder the task was started in, a folder for the worktrees, and the task's id."""
        self._environ = _clean(environ)
        self._top = self._repository(cwd)
        self._inner = os.path.relpath(os.path.realpath(cwd), self._top)
        self._base = os.path.realpath(base)
        inside = self._base == self._top or self._base.startswith(self._top + "/")
        # a folder that git ignores is as good as one outside
        if inside and self._run(("check-ignore", "--quiet", self._base), self._top)[0]:
            raise WorktreeFailed(
                f"the folder for worktrees, {base}, is inside the checkout {self._top}",
                "name one outside of it, or let git ignore it",
            )
        self._prefix = f"tenuto/{short(task)}/"
        common = self._git("rev-parse", "--git-common-dir")
        self._common = os.path.join(self._top, common)
        self._target = self._noted() or self._current()

    @property
    def target(self) -> str:
        """The user's branch when the task began; empty where none was checked out."""
        return self._target

    def uncommitted(self) -> list[str]:
        """Return the user's changed files: no worktree has these changes."""
        return self._changed(self._top, untracked=True)

    def branch_of(self, step: str) -> str:
        """Return the name of a step's branch."""
        safe = step.replace("..", "-").rstrip(".").removesuffix(".lock")
        if safe != step:  # what git takes for no name must not become another step's
            safe += "-" + hashlib.sha256(step.encode()).hexdigest()[:8]
        return self._prefix + safe

    def add(self, step: str, after: Sequence[str] = ()) -> Worktree:
        """Make a step's worktree from the user's head and the branches of the steps before it.

        One that is there already, from a run that was cut short, is taken up as it stands.
        """
        branch = self.branch_of(step)
        path = os.path.join(self._base, branch.removeprefix(self._prefix))
        os.makedirs(self._base, mode=0o700, exist_ok=True)
        with self._lock():
            self._note()
            begun = self._registered(path)
            if begun and self._start(path):
                return self._worktree(step, path, branch)
        if begun:  # cut short before anybody worked there
            self.discard(step)
        with self._lock():
            if os.path.lexists(path):
                raise WorktreeFailed(
                    f"{path} is in the way of the worktree of step {step!r}", "move it away"
                )
            self._git("worktree", "prune")
            if self._commit_of(branch):  # its folder was removed by somebody
                self._git("worktree", "add", "--quiet", path, branch)
                self._begin(path, self._git("merge-base", "HEAD", branch))
                return self._worktree(step, path, branch)
            self._git("worktree", "add", "--quiet", "-b", branch, path, "HEAD")
        for other in after:
            try:
                self._take(path, self.branch_of(other))
            except WorktreeFailed:
                self.discard(step)
                raise
        self._begin(path, self._git("rev-parse", "HEAD", at=path))
        return self._worktree(step, path, branch)

    def find(self, step: str) -> Worktree | None:
        """Return a step's worktree if it has one, without making any."""
        branch = self.branch_of(step)
        path = os.path.join(self._base, branch.removeprefix(self._prefix))
        with self._lock():
            there = self._registered(path) and self._start(path)
        return self._worktree(step, path, branch) if there else None

    def commit(self, tree: Worktree, message: str) -> bool:
        """Record all changes of a step on its branch; tell whether it has any of its own."""
        at = tree.path
        if not os.path.isdir(at):
            raise WorktreeFailed(
                f"the worktree of step {tree.step!r}, {at}, is gone",
                f"its commits are on the branch {tree.branch}",
            )
        unmerged = self._git("ls-files", "--unmerged", at=at)
        if unmerged:
            raise WorktreeFailed(
                f"step {tree.step!r} left a merge with conflicts in {at}",
                "resolve and commit it there",
            )
        self._git("add", "--all", at=at)
        if self._git("diff", "--cached", "--name-only", at=at):
            self._git("commit", "--quiet", "--no-verify", "--message", message, at=at)
        head = self._git("rev-parse", "HEAD", at=at)
        tip = self._commit_of(tree.branch)
        if head != tip:  # the agent went to another branch, or to none
            if tip and not self._holds(head, tip):
                raise WorktreeFailed(
                    f"step {tree.step!r} left its branch {tree.branch} and lost what is on it",
                    f"its worktree stands at {head[:12]}: look at {at}",
                )
            with self._lock():
                self._git("update-ref", f"refs/heads/{tree.branch}", head, tip)
        return head != tree.start

    def merge(self, trees: Sequence[Worktree]) -> list[Merged]:
        """Merge branches, in this order, into the user's; what was merged is then removed.

        Each is merged wholly or not at all: the checkout is as before where it cannot be.
        """
        return [self._merge(tree) for tree in trees]

    def discard(self, step: str) -> None:
        """Remove a step's worktree and its branch, with all that was not merged."""
        branch = self.branch_of(step)
        path = os.path.join(self._base, branch.removeprefix(self._prefix))
        with self._lock():
            if self._registered(path):
                self._git("worktree", "remove", "--force", "--force", path)
            if os.path.isfile(os.path.join(path, ".git")):  # one that git has forgotten
                shutil.rmtree(path, ignore_errors=True)
            self._git("worktree", "prune")
            if self._commit_of(branch):
                self._git("branch", "--quiet", "-D", branch)
        if os.path.lexists(path):
            raise WorktreeFailed(f"{path} cannot be removed", "remove it by hand")

    def leave(self) -> None:
        """Remove the checkouts; branches stay, and so does a checkout with what is not committed."""
        with self._lock():
            for one in os.scandir(self._base):
                if one.is_dir(follow_symlinks=False):
                    self._run(("worktree", "remove", one.path), self._common)
        self.tidy()

    def tidy(self) -> None:
        """Remove the folder of the worktrees, if none is left in it."""
        try:
            if os.listdir(self._base) == [_NOTE]:
                os.unlink(os.path.join(self._base, _NOTE))
            os.rmdir(self._base)
        except OSError:
            pass

    # the parts

    def _merge(self, tree: Worktree) -> Merged:
        with self._lock():
            why = self._refusal()
            if why:
                return Merged(tree.step, tree.branch, False, why)
            files = self._conflicts("HEAD", tree.branch, self._top)
            if files:
                return Merged(
                    tree.step, tree.branch, False,
                    f"it conflicts with {self._target} in {', '.join(files[:10])}: merge "
                    f"{tree.branch} by hand",
                    files,
                )  # fmt: skip
            before = self._git("rev-parse", "HEAD")
            try:
                self._git(
                    "merge", "--quiet", "--no-edit", "--no-verify", "-m",
                    f"Merge step {tree.step} of task {self._prefix.split('/')[1]}", tree.branch,
                )  # fmt: skip
            except WorktreeFailed as error:
                self._undo(before)
                return Merged(tree.step, tree.branch, False, error.message)
        return self._after_merge(tree)

    def _after_merge(self, tree: Worktree) -> Merged:
        """Remove what was merged; but never a worktree in which something is left."""
        left = self._changed(tree.path, untracked=True) if os.path.isdir(tree.path) else []
        inner = self._git("diff", "--raw", tree.start, tree.branch)
        if left or ":160000" in inner or " 160000" in inner:
            what = f"changes in {', '.join(left[:5])}" if left else "a repository of its own"
            return Merged(
                tree.step, tree.branch, True, f"merged; {tree.path} is kept, it has {what}"
            )
        self.discard(tree.step)
        return Merged(tree.step, tree.branch, True)

    def _refusal(self) -> str:
        """Return why nothing can be merged into the user's checkout now, or nothing."""
        now = self._current()
        if not now:
            return "no branch is checked out to merge into: merge it by hand"
        if now != self._target:
            return f"{now} is checked out now, and the task began on {self._target or 'no branch'}"
        if os.path.lexists(
            os.path.join(self._top, self._git("rev-parse", "--git-path", "MERGE_HEAD"))
        ):
            return "another merge is under way in the checkout"
        changed = self._changed(self._top, untracked=False)
        if changed:
            return (
                f"the checkout has uncommitted changes ({', '.join(changed[:5])}): commit or "
                "stash them, then merge it by hand"
            )
        return ""

    def _current(self) -> str:
        return self._git("symbolic-ref", "--quiet", "--short", "HEAD", fine=(1,))

    def _noted(self) -> str:
        """Return the branch on which the task began, from a run before this one."""
        try:
            with open(os.path.join(self._base, _NOTE), encoding="utf-8") as file:
                return file.read()
        except OSError:
            return ""

    def _note(self) -> None:
        if not os.path.exists(os.path.join(self._base, _NOTE)):
            with open(os.path.join(self._base, _NOTE), "w", encoding="utf-8") as file:
                file.write(self._target)

    def _undo(self, before: str) -> None:
        """Bring the checkout back to where it was before a merge that failed half way."""
        if os.path.lexists(
            os.path.join(self._top, self._git("rev-parse", "--git-path", "MERGE_HEAD"))
        ):
            self._git("merge", "--abort")
        if self._git("rev-parse", "HEAD") != before:
            raise WorktreeFailed(
                f"a merge failed and left {self._top} changed", f"go back with: git reset {before}"
            )

    def _take(self, path: str, branch: str) -> None:
        """Merge the branch of an earlier step into a worktree."""
        if not self._commit_of(branch):
            return  # it was merged into the user's branch already, or discarded
        files = self._conflicts("HEAD", branch, path)
        if files:
            raise WorktreeFailed(
                f"the steps before it changed the same places, in {', '.join(files[:10])} "
                f"(branch {branch})",
                "let one of them depend on the other, or merge their branches by hand",
            )
        with self._lock():
            self._git(
                "merge", "--quiet", "--no-edit", "--no-verify", "-m", f"Merge {branch}", branch,
                at=path,
            )  # fmt: skip

    def _conflicts(self, ours: str, theirs: str, at: str) -> tuple[str, ...]:
        """Return the files in which two commits conflict, without touching any checkout."""
        code, out, err = self._run(
            ("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", ours, theirs), at
        )
        if code == 0:
            return ()
        if code == 1:
            return tuple(one for one in out.split("\0")[1:] if one)
        raise WorktreeFailed(
            f"git cannot compare {ours} with {theirs}: {err.strip() or out.strip()}",
            "git 2.38 or newer is needed",
        )

    def _holds(self, commit: str, other: str) -> bool:
        """Tell whether a commit has another one in its history."""
        return self._run(("merge-base", "--is-ancestor", other, commit), self._top)[0] == 0

    def _worktree(self, step: str, path: str, branch: str) -> Worktree:
        cwd = os.path.normpath(os.path.join(path, self._inner))
        return Worktree(step, path, cwd if os.path.isdir(cwd) else path, branch, self._start(path))

    def _begin(self, path: str, commit: str) -> None:
        """Note in the worktree itself where its own work begins; the note goes with it."""
        self._git("update-ref", _START, commit, at=path)

    def _start(self, path: str) -> str:
        return self._git("rev-parse", "--verify", "--quiet", _START, at=path, fine=(1,))

    def _commit_of(self, branch: str) -> str:
        ref = f"refs/heads/{branch}"
        return self._git("rev-parse", "--verify", "--quiet", ref, fine=(1,))

    def _registered(self, path: str) -> bool:
        """Tell whether a worktree of this repository is at a path."""
        if not os.path.isdir(path):
            return False
        lines = self._git("worktree", "list", "--porcelain", "-z").split("\0")
        return f"worktree {path}" in lines

    def _changed(self, at: str, *, untracked: bool) -> list[str]:
        out = self._git(
            "status", "--porcelain", "-z", f"--untracked-files={'normal' if untracked else 'no'}",
            "--no-renames", "--ignore-submodules=untracked", at=at,
        )  # fmt: skip
        return [one[3:] for one in out.split("\0") if one]

    @contextmanager
    def _lock(self) -> Generator[None]:
        """Keep others of ours off the same repository: git fails where it meets itself."""
        file = os.open(self._common, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _repository(self, cwd: str) -> str:
        self._top = cwd
        if not os.path.isdir(cwd):
            raise WorktreeFailed(f"{cwd} is no folder", "start the task in a git checkout")
        code, top, err = self._run(("rev-parse", "--show-toplevel"), cwd)
        if code:
            raise WorktreeFailed(
                f"{cwd} is in no git checkout: {err.strip()}",
                "run `git init` and commit there, or leave worktrees out",
            )
        if self._run(("rev-parse", "--verify", "--quiet", "HEAD^{commit}"), cwd)[0]:
            raise WorktreeFailed(
                f"the repository {top.strip()} has no commits to begin from", "make a first commit"
            )
        return os.path.realpath(top.removesuffix("\n"))

    def _git(self, *words: str, at: str | None = None, fine: tuple[int, ...] = ()) -> str:
        """Run git and return what it says; tries again while another git holds a lock."""
        tries = _TRIES
        while True:
            code, out, err = self._run(words, at or self._top)
            if code == 0:
                return out.removesuffix("\n")
            if code in fine:
                return ""
            tries -= 1
            if not tries or not _LOCKED.search(err):
                break
            time.sleep(_PAUSE)
        raise WorktreeFailed(
            f"git {words[0]} failed in {at or self._top}: {err.strip() or out.strip() or code}",
            "nothing was thrown away; correct what it says and try again",
        )

    def _run(self, words: Sequence[str], at: str) -> tuple[int, str, str]:
        try:
            done = subprocess.run(
                ["git", *_QUIET, *words],
                cwd=at,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        except FileNotFoundError:
            if not os.path.isdir(at):
                raise WorktreeFailed(f"the folder {at} is gone") from None
            raise WorktreeFailed(
                "git is not installed, or not on PATH", "install it, or leave worktrees out"
            ) from None
        except OSError as error:
            raise WorktreeFailed(f"git cannot run in {at}: {error.strerror}") from None
        out, err = (part.decode("utf-8", "surrogateescape") for part in (done.stdout, done.stderr))
        return done.returncode, out, err


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which git looks at nothing but where it stands, and asks nobody."""
    # filters and drivers of a repository's own are run by git: an agent may have put them there, and
    # must not come by the keys that its runtime is not given
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("GIT_") and name not in KEY_NAMES
    }
    return kept | {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
