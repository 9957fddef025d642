"""Tenuto: an execution engine for AI agents. Work runs to its end and stays in its starter's hands.

The names below are the whole public surface. They load on first use, so that importing the
package (which every keeper does) costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; importing typing would cost every keeper 10 ms
if TYPE_CHECKING:
    from tenuto.codemode.registry import HostFunction
    from tenuto.core.budget import BudgetLimits, Spend, Tokens
    from tenuto.core.errors import (
        AmbiguousId,
        BudgetReached,
        DiskFull,
        EngineFault,
        EnvironmentChanged,
        ExecutionFailed,
        FolderGone,
        InterpreterMissing,
        InvalidInput,
        InvalidPlan,
        KeeperUnreachable,
        NewerState,
        NewerTape,
        NotFinished,
        NothingAsked,
        NotOwned,
        NotRunning,
        RunnerFailed,
        RuntimeGone,
        SandboxUnavailable,
        StateDamaged,
        TenutoError,
        UnknownCheckpoint,
        UnknownExecution,
        UnknownName,
        UnknownTool,
        WorktreeFailed,
    )
    from tenuto.core.execution import Chunk, Snapshot
    from tenuto.core.history import ExecutionRecord, Group, History, Totals
    from tenuto.core.plan import Plan, Retry, Step
    from tenuto.core.progress import Progress, StepProgress
    from tenuto.core.specs import Limits, Sandbox, Spec
    from tenuto.core.state import CheckpointInfo, ExecutionState
    from tenuto.core.states import State, WaitingFor
    from tenuto.core.task_events import Decided
    from tenuto.core.tools import Tool
    from tenuto.engine.budgets import BudgetReport
    from tenuto.engine.engine import Engine
    from tenuto.engine.health import Check
    from tenuto.engine.recovering import Recovered
    from tenuto.engine.reports import Report
    from tenuto.engine.retention import Cleaned
    from tenuto.engine.runtimes import RuntimeInfo
    from tenuto.engine.saved import Checkpoint, SavedState
    from tenuto.engine.sessions import Session
    from tenuto.engine.settings import Settings

__version__ = "0.1.0"

_HOMES = {
    "AmbiguousId": "tenuto.core.errors",
    "BudgetLimits": "tenuto.core.budget",
    "BudgetReached": "tenuto.core.errors",
    "BudgetReport": "tenuto.engine.budgets",
    "Check": "tenuto.engine.health",
    "Checkpoint": "tenuto.engine.saved",
    "CheckpointInfo": "tenuto.core.state",
    "Chunk": "tenuto.core.execution",
    "Cleaned": "tenuto.engine.retention",
    "Decided": "tenuto.core.task_events",
    "DiskFull": "tenuto.core.errors",
    "Engine": "tenuto.engine.engine",
    "EngineFault": "tenuto.core.errors",
    "EnvironmentChanged": "tenuto.core.errors",
    "ExecutionFailed": "tenuto.core.errors",
    "ExecutionRecord": "tenuto.core.history",
    "ExecutionState": "tenuto.core.state",
    "FolderGone": "tenuto.core.errors",
    "Group": "tenuto.core.history",
    "History": "tenuto.core.history",
    "HostFunction": "tenuto.codemode.registry",
    "InterpreterMissing": "tenuto.core.errors",
    "InvalidInput": "tenuto.core.errors",
    "InvalidPlan": "tenuto.core.errors",
    "KeeperUnreachable": "tenuto.core.errors",
    "Limits": "tenuto.core.specs",
    "NewerState": "tenuto.core.errors",
    "NewerTape": "tenuto.core.errors",
    "NotFinished": "tenuto.core.errors",
    "NothingAsked": "tenuto.core.errors",
    "NotOwned": "tenuto.core.errors",
    "NotRunning": "tenuto.core.errors",
    "Plan": "tenuto.core.plan",
    "Progress": "tenuto.core.progress",
    "Recovered": "tenuto.engine.recovering",
    "Report": "tenuto.engine.reports",
    "Retry": "tenuto.core.plan",
    "RunnerFailed": "tenuto.core.errors",
    "RuntimeGone": "tenuto.core.errors",
    "RuntimeInfo": "tenuto.engine.runtimes",
    "Sandbox": "tenuto.core.specs",
    "SandboxUnavailable": "tenuto.core.errors",
    "SavedState": "tenuto.engine.saved",
    "Session": "tenuto.engine.sessions",
    "Settings": "tenuto.engine.settings",
    "Snapshot": "tenuto.core.execution",
    "Spec": "tenuto.core.specs",
    "Spend": "tenuto.core.budget",
    "State": "tenuto.core.states",
    "StateDamaged": "tenuto.core.errors",
    "Step": "tenuto.core.plan",
    "StepProgress": "tenuto.core.progress",
    "TenutoError": "tenuto.core.errors",
    "Tokens": "tenuto.core.budget",
    "Tool": "tenuto.core.tools",
    "Totals": "tenuto.core.history",
    "UnknownCheckpoint": "tenuto.core.errors",
    "UnknownExecution": "tenuto.core.errors",
    "UnknownName": "tenuto.core.errors",
    "UnknownTool": "tenuto.core.errors",
    "WaitingFor": "tenuto.core.states",
    "WorktreeFailed": "tenuto.core.errors",
}

__all__ = [
    "AmbiguousId",
    "BudgetLimits",
    "BudgetReached",
    "BudgetReport",
    "Check",
    "Checkpoint",
    "CheckpointInfo",
    "Chunk",
    "Cleaned",
    "Decided",
    "DiskFull",
    "Engine",
    "EngineFault",
    "EnvironmentChanged",
    "ExecutionFailed",
    "ExecutionRecord",
    "ExecutionState",
    "FolderGone",
    "Group",
    "History",
    "HostFunction",
    "InterpreterMissing",
    "InvalidInput",
    "InvalidPlan",
    "KeeperUnreachable",
    "Limits",
    "NewerState",
    "NewerTape",
    "NotFinished",
    "NotOwned",
    "NotRunning",
    "NothingAsked",
    "Plan",
    "Progress",
    "Recovered",
    "Report",
    "Retry",
    "RunnerFailed",
    "RuntimeGone",
    "RuntimeInfo",
    "Sandbox",
    "SandboxUnavailable",
    "SavedState",
    "Session",
    "Settings",
    "Snapshot",
    "Spec",
    "Spend",
    "State",
    "StateDamaged",
    "Step",
    "StepProgress",
    "TenutoError",
    "Tokens",
    "Tool",
    "Totals",
    "UnknownCheckpoint",
    "UnknownExecution",
    "UnknownName",
    "UnknownTool",
    "WaitingFor",
    "WorktreeFailed",
    "__version__",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tenuto' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
