"""Whether Claude Code can be used here: found, recent enough, logged in. All of it by running it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
from collections.abc import Mapping, Sequence

from tenuto.core.runs import Probe
from tenuto.runners import oneshot_lines as read
from tenuto.runners.claude_command import quiet

MINIMUM = (2, 0, 0)
"""The first with the control protocol that we speak."""
ANSWER_WITHIN_S = 30.0
"""How long a program may take to tell its version; it is taken for broken after that."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_INSTALL = (
    "install it with `npm install -g @anthropic-ai/claude-code`, or say in the settings where it is: "
    '[programs] claude-code = "PATH"'
)
_LOG_IN = "run `claude` and log in, or set ANTHROPIC_API_KEY"


def find(program: str, environ: Mapping[str, str]) -> str | None:
    """Return the program's path: as named, on the PATH, or as the Python SDK brings it along."""
    found = shutil.which(program, path=environ.get("PATH", os.defpath))
    if found is not None or program != "claude":
        return found
    try:
        sdk = importlib.util.find_spec("claude_agent_sdk")
    except (ImportError, ValueError):
        return None
    for folder in (sdk.submodule_search_locations or []) if sdk else []:
        bundled = os.path.join(folder, "_bundled", "claude")
        if os.access(bundled, os.X_OK):
            return bundled
    return None


async def answer(words: Sequence[str], environ: Mapping[str, str]) -> tuple[int | None, str, str]:
    """Run a program that only tells something; return its code, stdout and stderr."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            env=dict(environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return None, "", str(error)
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            told, errors = await process.communicate()
    except TimeoutError:
        return None, "", f"no answer within {ANSWER_WITHIN_S:.0f} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, told.decode("utf-8", "replace"), errors.decode("utf-8", "replace")


async def versioned(
    name: str, path: str | None, program: str, environ: Mapping[str, str], minimum: tuple[int, ...]
) -> Probe:
    """Return whether a program is there and recent enough, by its `--version`."""
    if path is None:
        why = f"{name} is not installed: there is no {program} on the PATH"
        return Probe(available=False, kind="missing", why=why, hint=f"install {name}")
    code, told, errors = await answer([path, "--version"], environ)
    found = _VERSION.search(told)
    if found is None or code != 0:
        last = (errors or told).strip()[:500] or f"exit code {code}"
        why = f"{path} does not tell its version: {last}"
        return Probe(available=False, kind="crash", why=why, hint=f"install {name} anew")
    version = found[0]
    if tuple(int(part) for part in found.groups()) < minimum:
        least = ".".join(str(part) for part in minimum)
        why = f"{name} {version} is too old: {least} is needed"
        hint = f"update {name}"
        return Probe(available=False, version=version, kind="outdated", why=why, hint=hint)
    return Probe(available=True, version=version)


async def probe(program: str, environ: Mapping[str, str], *, login: bool = True) -> Probe:
    """Look whether it can be used; without `login`, whoever holds the key is not its business."""
    path = find(program, environ)
    environ = {**environ, **quiet()}
    found = await versioned("Claude Code", path, program, environ, MINIMUM)
    if found.kind == "missing":
        return Probe(available=False, kind="missing", why=found.why, hint=_INSTALL)
    if path is None or not found.available or not login:
        return found
    method, provider = await _login(path, environ)
    if not method:
        why = f"Claude Code {found.version} is not logged in"
        return Probe(available=False, version=found.version, kind="auth", why=why, hint=_LOG_IN)
    return Probe(available=True, version=found.version, unmetered=_unmetered(method, provider))


async def _login(path: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return how it is logged in and with whom; nothing if it is not."""
    _, told, _ = await answer([path, "auth", "status"], environ)
    status = read.decoded(told.encode())
    if status is not None and "loggedIn" in status:
        if status["loggedIn"] is not True:
            return "", ""
        return read.text(status, "authMethod") or "login", read.text(status, "apiProvider")
    return _traces(environ), "firstParty"  # too old for that question


def _traces(environ: Mapping[str, str]) -> str:
    """Return how it seems to be logged in, by what it would look at itself."""
    if environ.get("ANTHROPIC_API_KEY"):
        return "api_key"
    for name in ("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"):
        if environ.get(name):
            return "oauth_token"
    home = environ.get("HOME", "")
    folder = environ.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude")
    if os.path.exists(os.path.join(folder, ".credentials.json")):
        return "claude.ai"
    return ""


def _unmetered(method: str, provider: str) -> str:
    """Return why requests cannot go through the gateway under this login, or nothing."""
    if provider not in ("", "firstParty"):
        return f"its requests go to {provider}, with credentials that the gateway does not have"
    if method.startswith("api_key"):
        return ""
    if method == "oauth_token":
        return "it is logged in by a token that is not an API key; only Claude Code can use it"
    return "it is logged in by a subscription; its requests cannot go through the gateway"
