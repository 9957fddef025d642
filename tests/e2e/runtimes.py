"""The runtimes that are tested, and where their pinned packages have the programs."""

from __future__ import annotations

from npm_help import QUICK, SLOW
from world import Runtime

from tenuto.testing.models import Call

PROGRAMS = {
    "claude-code": (QUICK, "@anthropic-ai/claude-code-linux-*/claude"),
    "codex": (QUICK, ".bin/codex-acp"),
    "open-code": (SLOW, "opencode-linux-*/bin/opencode"),
    "gemini": (SLOW, ".bin/gemini"),
}
MAIN = ("claude-code", "codex", "cli-anthropic")
"""Tested on every push, unless a test says otherwise."""
ALL = (*MAIN, "open-code", "gemini")
"""Tested in the slow lane; other kinds of our own loop in its own tests."""


def _patch(path: str, text: str) -> str:
    lines = "\n".join(f"+{line}" for line in text.splitlines())
    return f"*** Begin Patch\n*** Add File: {path}\n{lines}\n*** End Patch\n"


def _echo(path: str, text: str) -> str:
    return f"printf '%s' '{text}' > {path}"


def _loop(name: str, model: str) -> Runtime:
    return Runtime(
        name, "cli", model,
        shell=lambda command: Call("execute", code=command, language="bash"),
        write=lambda path, text: Call("write_file", path=path, content=text),
        asks=lambda path, text: Call("write_file", path=path, content=text),
    )  # fmt: skip


_ALL = (
    Runtime(
        "claude-code", "claude-code", "claude-sonnet-4-5",
        shell=lambda command: Call("Bash", command=command, description="as told"),
        write=lambda path, text: Call("Write", file_path=path, content=text),
        asks=lambda path, text: Call("Bash", command=_echo(path, text), description="as told"),
    ),
    Runtime(
        "codex", "codex", "gpt-5.5",
        shell=lambda command: Call("exec_command", cmd=command),
        write=lambda path, text: Call("apply_patch", input=_patch(path, text)),
        asks=lambda path, text: Call(
            "exec_command", cmd=_echo(path, text), sandbox_permissions="require_escalated",
            justification="as told",
        ),
        keeps_cut=False,
        opens=(Call("tool_search", query="run code or a command to its end", limit=8),),
    ),
    _loop("cli-anthropic", "anthropic:claude-sonnet-4-5"),
    _loop("cli-chat", "openai-chat:gpt-5.5"),
    _loop("cli-google", "google:gemini-2.5-pro"),
    _loop("cli-responses", "openai:gpt-5.5"),
    Runtime(
        "open-code", "open-code", "anthropic/claude-sonnet-4-5",
        shell=lambda command: Call("bash", command=command, description="as told"),
        write=lambda path, text: Call("write", filePath=path, content=text),
        asks=lambda path, text: Call("bash", command=_echo(path, text), description="as told"),
        compacts=True,
    ),
    Runtime(
        "gemini", "gemini", "gemini-2.5-pro",
        shell=lambda command: Call("run_shell_command", command=command),
        write=lambda path, text: Call("write_file", file_path=path, content=text),
        asks=lambda path, text: Call("run_shell_command", command=_echo(path, text)),
        keeps_cut=False, keeps_turn=False,
    ),
)  # fmt: skip
RUNTIMES = {one.name: one for one in _ALL}
