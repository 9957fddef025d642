"""What a keeper is told so that its stem becomes a VM: the engine's side, loaded by no VM."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec
from typing import Any

from tenuto.core.errors import InterpreterMissing, InvalidInput

ENGINES = ("auto", "quickjs", "deno")
MODULE = "tenuto.codemode.vm"
SESSION_MODULE = "tenuto.codemode.session"
DENO_MODULE = "tenuto.codemode.denovm"
DEFAULT_MEMORY = 128 * 1024 * 1024
LEAST_MEMORY = 4 * 1024 * 1024
_LEAST_OF_DENO = 16 * 1024 * 1024
_NEEDED = ("_quickjs", "tree_sitter", "tree_sitter_javascript", "tree_sitter_typescript")
_OFF = "TENUTO_TEST_WITHOUT"  # mechanisms that tests take away in turn, separated by commas


def choose_engine(wish: str) -> str:
    """Return the engine that runs the code: `auto` is quickjs, always."""
    if wish not in ENGINES:
        raise InvalidInput(f"there is no engine {wish!r}", f"use one of {', '.join(ENGINES)}")
    return "quickjs" if wish == "auto" else wish


@functools.cache
def locations() -> list[str]:
    """Return the folders that hold what the VM loads; a keeper's own interpreter knows none."""
    found: list[str] = []
    for name in _NEEDED:
        spec = find_spec(name)
        if spec is None or not spec.origin:
            raise InterpreterMissing(
                f"code-mode needs {name}, which is not installed", "install tenuto again, whole"
            )
        folder = os.path.dirname(os.path.abspath(spec.origin))
        if spec.submodule_search_locations:
            folder = os.path.dirname(folder)
        if folder not in found:
            found.append(folder)
    return found


def image_words() -> list[str]:
    """Return what a zygote is told so that it loads the VM ahead; nothing if it cannot be had."""
    try:
        return [MODULE, *locations()]
    except InterpreterMissing:
        return []


def vm_job(
    language: str,
    memory: int,
    inputs: Any = None,
    level: str = "auto",
) -> dict[str, Any]:
    """Return the job's `vm` field."""
    if memory < LEAST_MEMORY:
        least = f"{LEAST_MEMORY >> 20}M"
        raise InvalidInput(f"a VM needs {least} of memory at least", f"ask for more: --mem {least}")
    off = [one for one in os.environ.get(_OFF, "").split(",") if one]
    return {
        "module": MODULE,
        "paths": locations(),
        "language": language,
        "inputs": inputs if inputs is not None else {},
        "memory": memory,
        "level": level,
        "off": off,
    }


def deno_job(
    program: str, language: str, memory: int, inputs: Any = None, level: str = "auto"
) -> dict[str, Any]:
    """Return the job's `vm` field for the deno engine."""
    if memory < _LEAST_OF_DENO:
        least = f"{_LEAST_OF_DENO >> 20}M"
        raise InvalidInput(f"deno needs {least} of memory at least", f"ask for more: --mem {least}")
    return {
        **vm_job(language, memory, inputs, level),
        "module": DENO_MODULE,
        "program": program,
    }


def deno_image(vm: dict[str, Any]) -> list[str]:
    """Return what a zygote is told whose keepers hold deno processes ready for jobs like this one."""
    return [DENO_MODULE, *vm["paths"], "--", vm["program"], str(vm["memory"])]
