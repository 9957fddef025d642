"""What the agent can do by itself: look at the files of its workspace, and change them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import jsonschema_rs

from tenuto.runners.loop import seeking
from tenuto.runners.loop.files import LINES_MOST, ToolError, Workspace

Run = Callable[[dict[str, Any]], Awaitable[str]]
NAME_MOST = 64
_LISTED_MOST = 1000
_FOUND_MOST = 200
_SEARCH_S = 30.0
"""How long a search may take. The model is told, and can narrow it."""


@dataclass(frozen=True)
class Tool:
    """A tool as the model is offered it."""

    name: str
    description: str
    schema: dict[str, Any] = field(repr=False)
    run: Run = field(repr=False)
    asks: bool = False
    """Whether the user is asked before it is used."""
    checked: bool = True
    """Whether its arguments are checked here; else whoever runs it does."""


def check(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that fit the tool's schema; raises ToolError for the model to try again."""
    if tool.checked:
        try:
            jsonschema_rs.validator_for(tool.schema).validate(arguments)
        except jsonschema_rs.ValidationError as error:
            raise ToolError(f"these arguments do not fit: {error.message}") from None
    return arguments


def distinct(tools: Iterable[Tool]) -> list[Tool]:
    """Return tools under names that no two share; providers refuse a request with such."""
    taken: dict[str, Tool] = {}
    for tool in tools:
        name, number = tool.name, 1
        while name in taken:
            number += 1
            name = f"{tool.name[: NAME_MOST - 4]}_{number}"
        taken[name] = replace(tool, name=name)
    return list(taken.values())


def own_tools(workspace: Workspace) -> list[Tool]:
    """Return the tools that work on files."""

    async def read_file(given: dict[str, Any]) -> str:
        return await asyncio.to_thread(workspace.read, **given)

    async def edit_file(given: dict[str, Any]) -> str:
        return await asyncio.to_thread(workspace.edit, **given)

    async def write_file(given: dict[str, Any]) -> str:
        return await asyncio.to_thread(workspace.write, **given)

    async def list_files(given: dict[str, Any]) -> str:
        asked = {"glob": given.get("glob", ""), "most": _LISTED_MOST}
        found = await _seek(workspace, given.get("path", "."), asked)
        return found or "there are no files, or all of them are ignored"

    async def search(given: dict[str, Any]) -> str:
        asked = {"pattern": given["pattern"], "glob": given.get("glob", ""), "most": _FOUND_MOST}
        return await _seek(workspace, given.get("path", "."), asked) or "nothing matches"

    path = _text("Path in the workspace.")
    where = _text("Folder or file to look in; the whole workspace if left out.")
    glob = _text("Only files whose path fits, such as *.py or src/**/*.ts.")
    return [
        Tool(
            "read_file",
            "Read a text file of the workspace. Its lines come numbered, with a tab after the number.",
            _object(
                ["path"],
                path=path,
                start=_number("First line, from 1."),
                lines=_number(f"How many lines, at most {LINES_MOST}."),
            ),
            read_file,
        ),
        Tool(
            "list_files",
            "List the files of the workspace, without those that .gitignore names.",
            _object([], path=where, glob=glob),
            list_files,
        ),
        Tool(
            "search",
            "Search the files of the workspace with a regular expression, line by line.",
            _object(["pattern"], pattern=_text("Python syntax."), path=where, glob=glob),
            search,
        ),
        Tool(
            "edit_file",
            "Replace text in a file. The old text must occur exactly once, whitespace included.",
            _object(
                ["path", "old", "new"],
                path=path,
                old=_text("Text to replace, without line numbers."),
                new=_text("Text to put there."),
            ),
            edit_file,
            asks=True,
        ),
        Tool(
            "write_file",
            "Write a whole file, new or in place of the old one. Folders are made as needed.",
            _object(["path", "content"], path=path, content=_text("The whole content.")),
            write_file,
            asks=True,
        ),
    ]


def _text(about: str) -> dict[str, Any]:
    return {"type": "string", "description": about}


def _number(about: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "description": about}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


async def _seek(workspace: Workspace, path: str, asked: dict[str, Any]) -> str:
    """Let a process of its own look; it ends with us, whatever it is doing."""
    parts = await asyncio.to_thread(workspace.place, path)
    job = json.dumps({**asked, "root": workspace.root, "parts": parts}).encode()
    program = os.path.abspath(seeking.__file__)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", program),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        found, problem = await asyncio.wait_for(process.communicate(job), _SEARCH_S)
    except TimeoutError:
        raise ToolError(f"it took longer than {_SEARCH_S:.0f} s and was ended; narrow it") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        why = problem.decode("utf-8", "replace").strip()[-500:]
        raise ToolError(why or f"the search ended with {process.returncode}")
    return found.decode("utf-8", "replace").rstrip("\n")
