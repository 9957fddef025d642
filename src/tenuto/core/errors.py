"""Every error Tenuto raises on purpose, as one tree.

TenutoError
├── InvalidInput            bad_input            a value that can never work
│   └── InterpreterMissing  interpreter_missing  the language's program is not installed
├── UnknownExecution        unknown_id           no such execution in this project
│   ├── AmbiguousId         ambiguous_id         a prefix that fits several
│   └── NotOwned            not_owned            it exists, in another project
├── UnknownTool             unknown_tool         no such composed tool
├── NotRunning              not_running          it has ended: nothing left to send to, kill or resume
├── NotFinished             not_finished         it is live: that must wait for its end
├── NothingAsked            nothing_asked        a task asks nothing now, or nothing of that number
├── KeeperUnreachable       keeper_unreachable   the keeper lives but does not answer
├── ExecutionFailed         execution_failed     what raise_for_state() raises for any end but success
├── UnknownName             unknown_name         no such runtime, strategy, role, model tier or skill
├── InvalidPlan             invalid_plan         a plan that can never run: a cycle, an unknown id
├── RunnerFailed            runner_failed        an agent's runtime cannot be used, or could not start
├── WorktreeFailed          worktree_failed      git cannot give a step its worktree, or take it back
├── BudgetReached           budget_reached       a hard cap admits no more
├── SandboxUnavailable      sandbox_unavailable  what must hold it is not to be had here: not started
├── DiskFull                disk_full            no room to record the work, so it was not started
├── NewerTape               newer_tape           written by a newer Tenuto, in a format this one lacks
├── NewerState              newer_state          its saved state is of a newer Tenuto than this one
├── StateDamaged            state_damaged        what was saved of it cannot be read, or not all of it
├── UnknownCheckpoint       unknown_checkpoint   a task has no checkpoint of that number
├── EnvironmentChanged      environment_changed  what it worked with is not as it was: commit, version
│   ├── FolderGone          folder_gone          its working directory does not exist any more
│   └── RuntimeGone         runtime_gone         the runtime of a step that is to go on cannot be used
└── EngineFault             engine_fault         a defect or a broken installation: report it

Each carries `code` (stable, for programs), the message (what and why) and `hint` (the next step).
"""

from __future__ import annotations


class TenutoError(Exception):
    """Superclass of all; never raised itself."""

    code = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        """Take what went wrong and why, and the next step to take."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidInput(TenutoError):
    """A value that can never work, whoever asks and whenever."""

    code = "bad_input"


class InterpreterMissing(InvalidInput):
    """The program that runs this language is not installed."""

    code = "interpreter_missing"


class UnknownExecution(TenutoError):
    """No execution of this project has that id."""

    code = "unknown_id"


class AmbiguousId(UnknownExecution):
    """A prefix that fits more than one execution."""

    code = "ambiguous_id"


class NotOwned(UnknownExecution):
    """The execution exists, but another project owns it."""

    code = "not_owned"


class UnknownTool(TenutoError):
    """No composed tool has that name, or none has that version."""

    code = "unknown_tool"


class NotRunning(TenutoError):
    """The execution has ended: there is nothing left to send to, to kill or to go on with."""

    code = "not_running"


class NotFinished(TenutoError):
    """The execution is live; what was asked needs its end first."""

    code = "not_finished"


class NothingAsked(TenutoError):
    """A task asks nothing at this moment, or nothing of that number."""

    code = "nothing_asked"


class KeeperUnreachable(TenutoError):
    """The keeper is alive but does not answer."""

    code = "keeper_unreachable"


class ExecutionFailed(TenutoError):
    """An execution ended in another state than succeeded."""

    code = "execution_failed"


class UnknownName(TenutoError):
    """Nothing of that name is known; the message lists what is."""

    code = "unknown_name"


class InvalidPlan(TenutoError):
    """A plan that can never run."""

    code = "invalid_plan"


class RunnerFailed(TenutoError):
    """An agent's runtime cannot be used here, or could not start."""

    code = "runner_failed"

    def __init__(self, message: str, hint: str = "", kind: str = "failed") -> None:
        """Take what went wrong, the next step, and the kind of it as core.runs has them."""
        super().__init__(message, hint)
        self.kind = kind


class WorktreeFailed(TenutoError):
    """Git cannot give a step a worktree of its own, or take its work back."""

    code = "worktree_failed"


class BudgetReached(TenutoError):
    """A hard cap admits no more."""

    code = "budget_reached"
    kind = "budget"
    """As core.runs has it: the same, whether the gateway refuses or the driver."""


class SandboxUnavailable(TenutoError):
    """What is required to hold an execution cannot be had here, so it was not started."""

    code = "sandbox_unavailable"


class DiskFull(TenutoError):
    """There is no room to record the work, so it was not started."""

    code = "disk_full"


class NewerTape(TenutoError):
    """The tape was written by a newer Tenuto, in a format that this one does not know."""

    code = "newer_tape"


class NewerState(TenutoError):
    """The saved state was written by a newer Tenuto, in a schema that this one does not know."""

    code = "newer_state"


class StateDamaged(TenutoError):
    """What was saved of an execution cannot be read, or not all of it."""

    code = "state_damaged"


class UnknownCheckpoint(TenutoError):
    """A task has no checkpoint of that number; the message lists those it has."""

    code = "unknown_checkpoint"


class EnvironmentChanged(TenutoError):
    """What a task worked with is not as it was when it stopped."""

    code = "environment_changed"


class FolderGone(EnvironmentChanged):
    """A task's working directory does not exist any more."""

    code = "folder_gone"


class RuntimeGone(EnvironmentChanged):
    """The runtime of a step that is to go on cannot be used here any more."""

    code = "runtime_gone"


class EngineFault(TenutoError):
    """A defect of ours or a broken installation."""

    code = "engine_fault"
