"""Looking for an agent: its program is really run, and what it says is read."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tenuto.core.runs import Probe
from tenuto.runners.acp_wire import inner

_VERSION = re.compile(r"\d+(?:\.\d+)+")


async def said(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str]:
    """Run a command and return its exit code and all that it printed.

    Nothing limits how long it takes but whoever waits: given up, its whole group is killed.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=dict(environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        await _end(process)
    return process.returncode or 0, output.decode("utf-8", "replace").strip()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a process and what it left in its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def parts(version: str) -> tuple[int, ...]:
    """Return a version's numbers, to compare."""
    return tuple(int(part) for part in version.split("."))


async def version_of(
    name: str, program: str, environ: Mapping[str, str], least: str, install: str
) -> Probe:
    """Run `program --version` and hold it against the oldest version that will do."""
    try:
        code, output = await said((program, "--version"), environ)
    except (FileNotFoundError, NotADirectoryError):
        why = f"there is no program {program}"
        return Probe(False, kind="missing", why=why, hint=install)
    except OSError as error:
        return Probe(False, kind="missing", why=f"{program} cannot be run: {error}", hint=install)
    found = _VERSION.search(output)
    if code or found is None:
        why = f"`{program} --version` ended with {code} and said: {output[-300:] or 'nothing'}"
        return Probe(False, kind="crash", why=why, hint=f"install {name} again: {install}")
    version = found.group()
    if parts(version) < parts(least):
        why = f"{name} {version} is too old: {least} is the oldest that will do"
        return Probe(False, version, "outdated", why, install)
    return Probe(True, version)


async def greeted(
    name: str, argv: Sequence[str], hello: Mapping[str, Any], environ: Mapping[str, str]
) -> Probe:
    """Start an agent of which only the command is known, say hello in ACP, and end it."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(environ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            limit=16 * 1024 * 1024,
        )
    except OSError as error:
        why = f"{argv[0]} cannot be run: {error.strerror or error}"
        return Probe(False, kind="missing", why=why, hint=f"install {name}, or correct its command")
    try:
        answer = await _hello(process, hello)
    finally:
        await _end(process)
    if answer is None:
        why = f"`{' '.join(argv)}` does not speak the Agent Client Protocol"
        return Probe(False, kind="protocol", why=why, hint="correct its command in the settings")
    version = inner(answer, "agentInfo").get("version")
    why = f"we do not know how {name} is pointed at the gateway"
    return Probe(True, str(version or ""), unmetered=why)


async def _hello(
    process: asyncio.subprocess.Process, hello: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return what an agent answers to `initialize`, None if it ends without an answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    request = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
    async for line in process.stdout:
        try:
            answer: Any = json.loads(line)
        except ValueError:
            continue  # a warning of its runtime
        message = inner(answer)
        if message.get("id") == 0 and "method" not in message:
            return inner(message, "result") or None
    return None
