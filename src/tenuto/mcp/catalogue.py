"""The tools as clients see them: names, words and schemas. Plain data, so that it loads at once.

The words are written for models: what a tool is for, what comes back, which call comes next.
"""

from __future__ import annotations

from typing import Any

from tenuto.mcp.describing import CURSOR, ID, SECONDS, tool
from tenuto.mcp.task_catalogue import ALL as TASK_TOOLS

LEAST_OUTPUT = 1024  # less would hold no answer
TASKS = "io.modelcontextprotocol/tasks"
ACTIONS = (
    "kill", "get_async_log", "list_async_executions", "clear_history", "get_progress", "send_stdin",
)  # fmt: skip
REPORT = "exec://report"
RESOURCES = [  # executions are many: they are found by template and by the list tool
    {
        "uri": REPORT,
        "name": "report",
        "title": "What runs now",
        "description": "The execution report; updated while anything runs.",
        "mimeType": "text/plain",
    }
]
LANGUAGES = ("js", "ts", "python", "node", "deno", "bash")

INSTRUCTIONS = """\
Tenuto runs code and commands to their end. Nothing times out: a call that takes longer than its \
`wait` (30 s by default) is handed over with an execution id while the work goes on.
- Run something: execute(code=…, language="python"|"bash"|"js"|…) or execute(command=["make", "test"]).
- Handed over? output(execution_id=…, cursor=…, wait_s=50) gives what is new, or the end; repeat it.
- It asks for something? send_input(execution_id=…, text=…).
- End it: kill(execution_id=…). Ids work in every later session, also after a restart.
- Have another AI agent do something: engine_execute(task="…", files=[…]), or plan=[…] for steps that \
depend on each other. It is handed over in the same way. It asks? approve(execution_id=…) or deny(…).
- Stop a task: engine_interrupt. Stopped or lost? engine_resume goes on; engine_status() names them.
Code without a language is JavaScript in a sandboxed VM: no files, network or modules there; use \
language="node", "python" or "bash" for those."""

_LIMITS = {
    "type": "object",
    "description": "Bounds to enforce. Nothing is limited unless it is named here "
    "(the VM has 128 MB of memory).",
    "additionalProperties": False,
    "properties": {
        "memory": {"type": "string", "description": "Such as 512M."},
        "cpu": {"type": "number", "description": "Seconds of processor time."},
        "pids": {"type": "integer", "description": "Processes at once."},
        "file_size": {"type": "string", "description": "The largest file, such as 1G."},
        "open_files": {"type": "integer", "description": "Descriptors for each process."},
        "output": {"type": "string", "description": "Output that is kept, such as 100M."},
        "output_policy": {
            "type": "string",
            "enum": ["hold", "fail"],
            "description": "At the output limit: hold the writer back, or fail.",
        },
    },
}
_EXECUTE = tool(
    "execute",
    "Run code or a command",
    """\
Run code or a command to its end, however long it takes. Give `code` (and `language`), or `command`.
- Done within `wait` seconds (default 30): the answer has the output, the value of the last \
expression and the exit code.
- Not done: the answer begins "Execution moved to async mode after N seconds." and gives the \
execution id, the output so far and a cursor. The work goes on; it is not an error, do not run it \
again. Go on with output(execution_id, cursor, wait_s=50).
- wait=0 starts it in the background at once. A wait ends early when the program asks for input.
- Nothing is killed by a timeout: yours, the client's or ours. Set `deadline` or `idle` if you \
want one.
Languages: js and ts (the default; a sandboxed VM with top-level await, console, timers and \
readStdin(), without files, network or require), python, node, deno, bash (full access).
With `action` instead of code it manages executions: get_async_log (all output with timestamps), \
get_progress (what is new since a time or cursor), send_stdin, kill (without executionId: all of \
this project), list_async_executions, clear_history.
Long output is cut at {limit} or 1500 lines; the cursor goes on where it was cut, nothing is lost.""",
    {
        "code": {"type": "string", "description": "The program's text."},
        "language": {
            "type": "string",
            "enum": list(LANGUAGES),
            "description": "The language of `code`; js (the sandboxed VM) if left out.",
        },
        "command": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "description": 'A program and its arguments, instead of code: ["npm", "test"]. '
            'No shell; for one use language="bash".',
        },
        "workingDirectory": {
            "type": "string",
            "description": "The folder to run in. Default: the project's.",
        },
        "wait": {
            **SECONDS,
            "description": "Seconds to wait for the end before handing over; 0 = at once. "
            "Keep it below your client's own timeout (often 60).",
        },
        "session": {
            "type": "string",
            "description": "Name of a session whose variables persist between calls "
            '(js, ts, python); "" for none where the settings name one.',
        },
        "engine": {
            "type": "string",
            "enum": ["auto", "quickjs", "deno"],
            "description": "For js and ts: auto (quickjs, starts fastest), or deno, which compiles, "
            "for heavy computation and for all of TypeScript.",
        },
        "env": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Environment variables to add.",
        },
        "limits": _LIMITS,
        "sandbox": {
            "type": "string",
            "enum": ["none", "auto", "require"],
            "description": "Confine a full language or command: auto as well as the machine can, "
            "require or fail.",
        },
        "deadline": {**SECONDS, "description": "End it after so many seconds. Default: never."},
        "idle": {
            **SECONDS,
            "description": "End it after so many seconds without output. Default: never.",
        },
        "idempotencyKey": {
            "type": "string",
            "maxLength": 512,
            "description": "Any text of your own: a second call with it does not start the work "
            "again, it waits for the same execution.",
        },
        "action": {
            "type": "string",
            "enum": list(ACTIONS),
            "description": "Manage executions instead of running code.",
        },
        "executionId": {**ID, "description": ID["description"] + " For actions."},
        "stdinData": {"type": "string", "description": "send_stdin: the text; a newline is added."},
        "eof": {"type": "boolean", "description": "send_stdin: close stdin afterwards."},
        "since": {
            "type": "string",
            "description": "get_progress: only output later than this ISO time (or an age: 10m).",
        },
        "cursor": {**CURSOR, "description": "get_progress, get_async_log: only output after it."},
        "clearHistory": {
            "type": "boolean",
            "default": True,
            "description": "clear_history: false only looks, true drops the output.",
        },
        "signal": {
            "type": "string",
            "description": "kill: a signal's name to send, such as INT. Default: KILL.",
        },
    },
    destructive=True,
)

_OUTPUT = tool(
    "output",
    "Read an execution's output, or wait for it",
    """\
Give the output of an execution after a cursor, with timestamps, and its state. With wait_s it \
waits for the end (or for `until`, or for the program asking for input) and answers at the latest \
after wait_s seconds with what came. Reading never consumes. Works for running and ended ones, in \
any session. Cut at {limit} or 1500 lines; call again with the new cursor.""",
    {
        "execution_id": ID,
        "cursor": CURSOR,
        "wait_s": {
            **SECONDS,
            "description": "Seconds to wait for the end; 0 (default) answers at once. "
            "50 suits clients that give up after 60.",
        },
        "until": {
            "type": "string",
            "description": "Answer as soon as this text, or /regex/, is in the new output.",
        },
        "tail": {
            "type": "integer",
            "minimum": 1,
            "maximum": 10000,
            "description": "Only the last so many lines.",
        },
    },
    ("execution_id",),
    read_only=True,
)

_SEND = tool(
    "send_input",
    "Write to an execution's stdin",
    """\
Write a line to a running program, before or after it asks; lines queue in order. The answer says \
delivered (it was waiting), queued, or closed, and what the program said to it within a moment.""",
    {
        "execution_id": ID,
        "text": {"type": "string", "description": "What to write; a newline is added unless raw."},
        "raw": {"type": "boolean", "description": "Add no newline."},
        "eof": {"type": "boolean", "description": "Close stdin afterwards."},
        "wait_s": {**SECONDS, "description": "Seconds to wait for its reaction (default 2)."},
    },
    ("execution_id",),
)

_LIST = tool(
    "list",
    "List executions",
    "List executions of this project, newest first: what runs, what waits for you, what ended.",
    {
        "which": {
            "type": "string",
            "enum": ["running", "async", "all"],
            "description": "running (default), async (handed over), or all, with ended ones.",
        },
        "text": {
            "type": "string",
            "description": "Only those whose code or title has these words.",
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": 500, "description": "Default 50."},
    },
    read_only=True,
)

_KILL = tool(
    "kill",
    "End an execution",
    """\
End an execution with its whole process tree; answers once everything is verified dead. Its output \
is kept. For a polite stop use engine_interrupt.""",
    {
        "execution_id": ID,
        "signal": {"type": "string", "description": "Send this signal instead, such as TERM."},
    },
    ("execution_id",),
    destructive=True,
)

_STATUS = tool(
    "engine_status",
    "Status of the engine or of one execution",
    """\
Without an id: what runs and what it waits for, tasks that were interrupted or lost and can go on, the \
runtimes of agents (which work here, and what the others lack), strategies, spending and limits, and \
the health of the engine. With execution_id: everything about that one (a task with its steps, \
questions and newest checkpoint), without its output.""",
    {"execution_id": ID},
    read_only=True,
)

_INTERRUPT = tool(
    "engine_interrupt",
    "Interrupt an execution",
    """\
Ask an execution to stop (as Ctrl-C does), insist after a few seconds, and answer once it has. Its \
output is kept. A task keeps the steps that are done, and the answer says which: engine_resume goes on \
from there, in any later session.""",
    {"execution_id": ID},
    ("execution_id",),
    destructive=True,
)

_COMPOSED = tool(
    "composed_tools",
    "Saved pieces of code that run as tools",
    """\
Save a piece of JavaScript under a name and run it in any later session. action=list shows them, \
run runs one (`name`, `inputs`), save keeps one (`name`, `description`, `code`, `input_schema`; in \
the code, `inputs` holds the arguments), show gives one with its code, delete removes it.""",
    {
        "action": {"type": "string", "enum": ["list", "run", "save", "show", "delete"]},
        "name": {"type": "string"},
        "inputs": {"type": "object", "description": "run: the arguments."},
        "wait": {**SECONDS, "description": "run: seconds to wait before handing over."},
        "description": {"type": "string", "description": "save: what it does."},
        "code": {"type": "string", "description": "save: the JavaScript."},
        "input_schema": {"type": "object", "description": "save: JSON schema of the inputs."},
        "scope": {"type": "string", "enum": ["project", "global"], "description": "save, delete."},
    },
    ("action",),
    destructive=True,
)

_ALL = (_EXECUTE, _OUTPUT, _SEND, _LIST, _KILL, *TASK_TOOLS, _STATUS, _INTERRUPT, _COMPOSED)


def tools(limit: str) -> list[dict[str, Any]]:
    """Return the tools in a fixed order; `limit` is the size at which output is cut."""
    return [{**one, "description": one["description"].replace("{limit}", limit)} for one in _ALL]
