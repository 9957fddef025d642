"""Finding programs: on PATH as execvp does, and where a language's interpreter lives."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tenuto.core.errors import InterpreterMissing, InvalidInput
from tenuto.core.specs import check_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMES = {
    "python": ("python3", "python"),
    "node": ("node", "nodejs"),
    "deno": ("deno",),
    "bash": ("bash",),
}

_ADVICE = {
    "python": "install Python 3.8 or later",
    "node": "install Node.js 20 or later",
    "deno": "install deno, for example with `pip install 'tenuto[deno]'`",
    "bash": "install bash",
}


def interpreter(language: str, environ: Mapping[str, str], programs: Mapping[str, str]) -> str:
    """Return the path of the program that runs this language, or raise InterpreterMissing."""
    chosen = programs.get(language)
    if chosen:
        try:
            return resolve_program(chosen, environ, os.path.sep)
        except InvalidInput as error:
            raise InterpreterMissing(
                f"{language} cannot run: the settings name {chosen!r}, and {error.message}",
                f"correct the setting, or remove it to use the {language} on PATH",
            ) from None
    for name in _NAMES[language]:
        for path in _on_path(name, environ, None):
            if _is_program(path):
                return path
    if language == "python" and sys.executable:
        return sys.executable
    beside = os.path.join(os.path.dirname(sys.executable), language)
    if language == "deno" and _is_program(beside):
        return beside
    names = " or ".join(_NAMES[language])
    raise InterpreterMissing(
        f"{language} cannot run: there is no {names} on PATH",
        f"{_ADVICE[language]}, or name the program in the settings",
    )


def resolve_program(name: str, environ: Mapping[str, str], cwd: str) -> str:
    """Return the absolute path that execvp would run for this name in this directory."""
    check_text("the command", name)
    if not name:
        raise InvalidInput("the command is empty", "name a program after --")
    if "/" in name:
        path = os.path.join(cwd, name)
        if not os.path.exists(path):
            raise InvalidInput(
                f"{name} does not exist in {cwd}", "check the path and the working directory"
            )
        return _usable(path, name)
    refused = None
    for path in _on_path(name, environ, cwd):
        if _is_program(path):
            return path
        if refused is None and os.path.isfile(path):
            refused = path
    if refused is not None:
        return _usable(refused, name)
    if os.path.exists(os.path.join(cwd, name)):
        raise InvalidInput(f"{name} is not on PATH", f"to run the file in {cwd}, write ./{name}")
    raise InvalidInput(f"{name} is not on PATH", "install it, or give its path")


def _usable(path: str, name: str) -> str:
    if os.path.isdir(path):
        raise InvalidInput(f"{name} is a directory", "name a program")
    if not _is_program(path):
        raise InvalidInput(
            f"{path} is not executable",
            "make it so with chmod +x, or name its interpreter before it",
        )
    return path


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _on_path(name: str, environ: Mapping[str, str], cwd: str | None) -> Iterator[str]:
    """Yield where the name may be; without a directory, relative entries do not count."""
    for entry in environ.get("PATH", os.defpath).split(os.pathsep):
        if os.path.isabs(entry):
            yield os.path.join(entry, name)
        elif cwd is not None:
            yield os.path.join(cwd, entry, name)
