"""Tenuto: an execution engine for AI agents. Work runs to its end and stays in its starter's hands.

The names below are the whole public surface. They load on first use, so that importing the
package (which every keeper does) costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; importing typing would cost every keeper 10 ms
if TYPE_CHECKING:
    from tenuto.codemode.registry import HostFunction
    from tenuto.core.budget import BudgetLimits, Spend
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
    from tenuto.core.plan import Plan, Retry, Step
    from tenuto.core.progress import Progress
    from tenuto.core.specs import Limits, Sandbox, Spec
    from tenuto.core.state import ExecutionState
    from tenuto.core.states import State, WaitingFor
    from tenuto.core.tools import Tool
    from tenuto.engine.engine import Engine
    from tenuto.engine.saved import Checkpoint
    from tenuto.engine.sessions import Session
    from tenuto.engine.settings import Settings

__version__ = "0.1.0"

_HOMES = {
    "AmbiguousId": "tenuto.core.errors",
    "BudgetLimits": "tenuto.core.budget",
    "BudgetReached": "tenuto.core.errors",
    "Checkpoint": "tenuto.engine.saved",
    "Chunk": "tenuto.core.execution",
    "DiskFull": "tenuto.core.errors",
    "Engine": "tenuto.engine.engine",
    "EngineFault": "tenuto.core.errors",
    "EnvironmentChanged": "tenuto.core.errors",
    "ExecutionFailed": "tenuto.core.errors",
    "ExecutionState": "tenuto.core.state",
    "FolderGone": "tenuto.core.errors",
    "HostFunction": "tenuto.codemode.registry",
    "InterpreterMissing": "tenuto.core.errors",
    "InvalidInput": "tenuto.core.errors",
    "InvalidPlan": "tenuto.core.errors",
    "KeeperUnreachable": "tenuto.core.errors",
    "Limits": "tenuto.core.specs",
    "NewerState": "tenuto.core.errors",
    "NewerTape": "tenuto.core.errors",
    "NotFinished": "tenuto.core.errors",
    "NotOwned": "tenuto.core.errors",
    "NotRunning": "tenuto.core.errors",
    "Plan": "tenuto.core.plan",
    "Progress": "tenuto.core.progress",
    "Retry": "tenuto.core.plan",
    "RunnerFailed": "tenuto.core.errors",
    "RuntimeGone": "tenuto.core.errors",
    "Sandbox": "tenuto.core.specs",
    "SandboxUnavailable": "tenuto.core.errors",
    "Session": "tenuto.engine.sessions",
    "Settings": "tenuto.engine.settings",
    "Snapshot": "tenuto.core.execution",
    "Spec": "tenuto.core.specs",
    "Spend": "tenuto.core.budget",
    "State": "tenuto.core.states",
    "StateDamaged": "tenuto.core.errors",
    "Step": "tenuto.core.plan",
    "TenutoError": "tenuto.core.errors",
    "Tool": "tenuto.core.tools",
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
    "Checkpoint",
    "Chunk",
    "DiskFull",
    "Engine",
    "EngineFault",
    "EnvironmentChanged",
    "ExecutionFailed",
    "ExecutionState",
    "FolderGone",
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
    "Plan",
    "Progress",
    "Retry",
    "RunnerFailed",
    "RuntimeGone",
    "Sandbox",
    "SandboxUnavailable",
    "Session",
    "Settings",
    "Snapshot",
    "Spec",
    "Spend",
    "State",
    "StateDamaged",
    "Step",
    "TenutoError",
    "Tool",
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
