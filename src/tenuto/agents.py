"""For runners and strategies of one's own: the port that a runner fulfils, and all it speaks in.

A runner is named in the settings as `[runners] NAME = "module:attribute"`, or by an entry point of
the group `tenuto.runners`; a strategy is a function from TaskSpec to Plan, likewise. See
docs/runners.md, and tenuto.testing.agents for a small one.
"""

from tenuto.core.plan import Plan, Retry, Step, check_plan, read_plan
from tenuto.core.ports import AgentSession, Child, Nursery, Runner
from tenuto.core.runs import (
    Capabilities,
    ChildEnd,
    Endpoint,
    ErrorKind,
    Finished,
    McpServer,
    PermissionAsked,
    Probe,
    Retried,
    RunEvent,
    RunRequest,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.core.tasks import TaskSpec

__all__ = [
    "AgentSession",
    "Capabilities",
    "Child",
    "ChildEnd",
    "Endpoint",
    "ErrorKind",
    "Finished",
    "McpServer",
    "Nursery",
    "PermissionAsked",
    "Plan",
    "Probe",
    "Retried",
    "Retry",
    "RunEvent",
    "RunRequest",
    "Runner",
    "Said",
    "SessionOpened",
    "Step",
    "TaskSpec",
    "ToolBegan",
    "ToolEnded",
    "Used",
    "check_plan",
    "read_plan",
]
