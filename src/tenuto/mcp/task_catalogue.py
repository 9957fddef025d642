"""The tools of agent tasks as clients see them. Plain data, so that it loads at once."""

from __future__ import annotations

from typing import Any

from tenuto.mcp.describing import ID, SECONDS, tool

_AMOUNT = {"type": "number", "minimum": 0}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_WAIT = {
    **SECONDS,
    "description": "Seconds to wait for the end before handing over (default 30); 0 = at once.",
}
GROUPS = ("model", "runtime", "day", "change", "workflow", "task", "role", "strategy")
# other names that models and users write, and what they mean here
ALIASES: dict[str, dict[str, str]] = {
    "engine_execute": {
        "path": "workingDirectory",
        "cwd": "workingDirectory",
        "text": "task",
        "prompt": "task",
        "type": "task_type",
        "role": "force_agent",
        "agent": "force_agent",
        "model": "force_model",
        "runtime": "force_runtime",
        "steps": "plan",
    },
    "engine_resume": {
        "from_seq": "from",
        "fromSeq": "from",
        "seq": "from",
        "checkpoint": "from",
        "cwd": "workingDirectory",
        "path": "workingDirectory",
    },
    "engine_history": {"group_by": "by", "groupBy": "by", "n": "limit", "most": "limit"},
    "engine_budget": {
        "daily_limit": "daily",
        "monthly_limit": "monthly",
        "max_cost": "task",
        "task_limit": "task",
    },
}

_EXECUTE = tool(
    "engine_execute",
    "Have AI agents do a task",
    """\
Have one or several AI agents (Claude Code, OpenCode, Codex, ...) do a task in this project, however \
long it takes. Give `task` (what is to be done, complete: the agent sees nothing of this \
conversation), or `plan` (steps that depend on each other).
- Done within `wait` seconds (default 30): status completed, partial or failed, the agents' output, \
tokens, cost, and each step.
- Not done: the answer begins "Execution moved to async mode after N seconds." and gives the \
execution id and a cursor. The work goes on; do not start it again. Go on with \
output(execution_id, cursor, wait_s=50).
- It needs a decision (an agent wants to use a tool, a budget is reached): status waiting, and \
`asks` says what. Answer with approve(execution_id, n) or deny(execution_id, n, why).
engine_interrupt stops it and keeps what is done; engine_resume goes on from there.""",
    {
        "task": {"type": "string", "description": "What is to be done."},
        "plan": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "task": {"type": "string"},
                    "depends_on": {**_TEXTS, "description": "Ids of steps whose output it needs."},
                },
                "required": ["id", "task"],
            },
            "description": "Instead of task: steps that run as soon as those they depend on are done. "
            "A step may also have role, model, runtime, type, files, skills, max_cost, max_tokens.",
        },
        "concurrency": {
            "type": "integer",
            "minimum": 1,
            "description": "How many steps run at the same time.",
        },
        "strategy": {
            "type": "string",
            "description": "auto (default), single (one agent), multi (architect, developer, "
            "reviewer hand over to each other), parallel (a plan).",
        },
        "files": {**_TEXTS, "description": "Paths of files that the agent is shown."},
        "context": {
            "type": "string",
            "description": "Whatever else it should know: text, or JSON.",
        },
        "task_type": {
            "type": "string",
            "description": "feature, bugfix, refactor, test, documentation, architecture, …; "
            "inferred if left out.",
        },
        "force_agent": {
            "type": "string",
            "description": "The role: product, architect, senior, developer, reviewer, ops.",
        },
        "force_model": {
            "type": "string",
            "description": "fast, main, heavy, or a model as the runtime names it.",
        },
        "force_runtime": {
            "type": "string",
            "description": "claude-code, open-code, cli, codex, gemini, …; see engine_status.",
        },
        "chain": {**_TEXTS, "description": "The roles of a handoff, for strategy multi."},
        "skills": {**_TEXTS, "description": "Names of skills to teach it."},
        "max_cost": {**_AMOUNT, "description": "Dollars it may cost."},
        "max_tokens": {"type": "integer", "minimum": 0, "description": "Tokens it may use."},
        "max_turns": {
            "type": "integer",
            "minimum": 1,
            "description": "How often an agent may ask its model for one prompt; then its step fails.",
        },
        "hard": {
            "type": "boolean",
            "description": "Stop at max_cost and max_tokens; else it goes on with a warning.",
        },
        "permissions": {
            "type": "string",
            "enum": ["ask", "edits", "allow", "deny"],
            "description": "What agents may do unasked: ask (reading; the rest is asked for), edits "
            "(editing too), allow (everything), deny (reading; the rest is refused).",
        },
        "worktree": {
            "type": "string",
            "enum": ["keep", "merge", "discard"],
            "description": "Give each step a git worktree, and say what becomes of it.",
        },
        "change": {
            "type": "string",
            "description": "A change that it belongs to, for the history.",
        },
        "task_id": {"type": "string", "description": "Its id in your own planning, likewise."},
        "workflow": {"type": "string", "description": "A workflow that it is part of, likewise."},
        "resume": {
            "type": "string",
            "enum": ["auto"],
            "description": "auto: it goes on by itself after a crash of the machine.",
        },
        "workingDirectory": {
            "type": "string",
            "description": "The folder to work in. Default: the project's.",
        },
        "wait": _WAIT,
        "idempotencyKey": {
            "type": "string",
            "maxLength": 512,
            "description": "Any text of your own: a second call with it does not start the task "
            "again, it waits for the same one.",
        },
    },
    destructive=True,
)

_DECISION = {
    "execution_id": ID,
    "n": {
        "type": "integer",
        "minimum": 1,
        "description": "The question's number. Default: all that it asks.",
    },
    "why": {"type": "string", "description": "What the agent is told."},
    "wait": _WAIT,
}

_APPROVE = tool(
    "approve",
    "Say yes to what a task asks",
    """\
Say yes to what a waiting task asks: that an agent uses a tool, or that it goes on past a budget. \
Then it waits as engine_execute does, and answers with the end, the next question, or a handover.""",
    _DECISION,
    ("execution_id",),
    destructive=True,
)

_DENY = tool(
    "deny",
    "Say no to what a task asks",
    """\
Say no to what a waiting task asks, and why; the agent hears it and goes on without. Then it waits \
as engine_execute does.""",
    _DECISION,
    ("execution_id",),
)

_RESUME = tool(
    "engine_resume",
    "Go on with an interrupted task",
    """\
Go on with a task that was interrupted or lost (engine_interrupt, a crash, a restart), where it \
stopped: steps that are done stay done. With `from` a new task begins at an earlier checkpoint, and \
the first stays as it is; that works for ended tasks too. Then it waits as engine_execute does. What \
is in the way (folder gone, other commit, other version, ...) is an error that names the next call.""",
    {
        "execution_id": ID,
        "from": {
            "type": "integer",
            "minimum": 0,
            "description": "The number of a checkpoint; engine_checkpoint(action=list) has them.",
        },
        "workingDirectory": {
            "type": "string",
            "description": "The folder to go on in, if its own is gone. Default: its own.",
        },
        "force": {
            "type": "boolean",
            "description": "Go on although something has changed, or its driver does not answer. "
            "Code and commands need it: they run again from their beginning.",
        },
        "wait": _WAIT,
        "idempotencyKey": {
            "type": "string",
            "maxLength": 512,
            "description": "With from, any text of your own: a second call with it begins no other "
            "task, it waits for the same one.",
        },
    },
    ("execution_id",),
    destructive=True,
)

_CHECKPOINT = tool(
    "engine_checkpoint",
    "Checkpoints of a task",
    """\
Have a task's state saved now, as one more checkpoint, or only list those it has (action=list); the \
end of each step is one by itself. Answers with the checkpoints by number, and with what is saved: \
steps done and left, sessions, folder. engine_resume(execution_id, from=number) begins a new task \
there.""",
    {
        "execution_id": ID,
        "action": {
            "type": "string",
            "enum": ["save", "list"],
            "description": "Default: save.",
        },
    },
    ("execution_id",),
)

_HISTORY = tool(
    "engine_history",
    "What agents' steps came to",
    """\
Steps of tasks that have ended, newest first (status, tokens, cost, duration), and totals of all that \
fit: counts, success rate, tokens, cost, durations. With `by`, totals for each group instead. With \
execution_id, of that task, which may still run.""",
    {
        "execution_id": ID,
        "since": {"type": "string", "description": "An age such as 7d, or an ISO time."},
        "until": {"type": "string", "description": "Likewise: only before that."},
        "by": {"type": "string", "enum": list(GROUPS)},
        "change": {"type": "string", "description": "Only of this change id."},
        "task_id": {"type": "string", "description": "Only of tasks with this id of yours."},
        "failed": {"type": "boolean", "description": "Only those without success."},
        "limit": {"type": "integer", "minimum": 1, "maximum": 200, "description": "Default 20."},
        "cursor": {"type": "string", "description": "Of the last answer, for the next page."},
    },
    read_only=True,
)

_BUDGET = tool(
    "engine_budget",
    "Spending and its limits",
    """\
Without arguments: tokens and dollars spent today and this month (UTC), the limits, and what each \
recent execution cost. With daily, monthly, task or hard it sets those limits of the project, remove \
drops some; with reset a window counts from zero again.""",
    {
        "daily": {**_AMOUNT, "description": "Dollars a day."},
        "monthly": {**_AMOUNT, "description": "Dollars a month."},
        "task": {**_AMOUNT, "description": "Dollars for each task that has no max_cost."},
        "hard": {
            "type": "boolean",
            "description": "true: nothing is admitted at a limit. false: a warning, or a question.",
        },
        "remove": {
            "type": "array",
            "items": {"type": "string", "enum": ["daily", "monthly", "task"]},
            "description": "Limits to drop.",
        },
        "reset": {
            "type": "string",
            "enum": ["day", "month"],
            "description": "The window that counts from zero again.",
        },
    },
    destructive=True,
)

ALL: tuple[dict[str, Any], ...] = (
    _EXECUTE, _APPROVE, _DENY, _RESUME, _CHECKPOINT, _HISTORY, _BUDGET,
)  # fmt: skip
