"""Whether each interpreter is really there: found, and run once to ask its version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import InterpreterMissing
from tenuto.interpreters.commands import LANGUAGES
from tenuto.interpreters.programs import interpreter

if TYPE_CHECKING:
    from collections.abc import Mapping

_ANSWER_WITHIN = 5.0
_OLDEST = {"python": (3, 8), "node": (20,), "deno": (2,), "bash": (3,)}


class InterpreterStatus(msgspec.Struct, frozen=True):
    """One language's interpreter, as it was found."""

    language: str
    program: str | None
    version: str | None
    problem: str = ""
    """What keeps it from working, or nothing."""


def probe(
    environ: Mapping[str, str], programs: Mapping[str, str] | None = None
) -> list[InterpreterStatus]:
    """Ask every interpreter for its version. Takes a few seconds at most."""
    from concurrent.futures import ThreadPoolExecutor

    def look(language: str) -> InterpreterStatus:
        try:
            program = interpreter(language, environ, programs or {})
        except InterpreterMissing as error:
            return InterpreterStatus(language, None, None, str(error))
        return _ask(language, program, environ)

    with ThreadPoolExecutor(len(LANGUAGES)) as pool:
        return list(pool.map(look, LANGUAGES))


def _ask(language: str, program: str, environ: Mapping[str, str]) -> InterpreterStatus:
    import re
    import subprocess

    def failed(why: str) -> InterpreterStatus:
        return InterpreterStatus(language, program, None, f"{program} --version {why}")

    try:
        answer = subprocess.run(
            [program, "--version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER_WITHIN,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return failed(f"did not answer within {_ANSWER_WITHIN:g} s")
    except OSError as error:
        return failed(f"did not start: {error.strerror}")
    text = answer.stdout.decode("utf-8", "replace")
    found = re.search(r"\d+(?:\.\d+)+", text)
    if answer.returncode != 0 or found is None:
        return failed(f"ended with {answer.returncode}: {' '.join(text.split())[:200]}")
    version = found.group()
    oldest = _OLDEST[language]
    if tuple(int(part) for part in version.split(".")) < oldest:
        needed = ".".join(map(str, oldest))
        return InterpreterStatus(
            language, program, version, f"{language} {needed} or later is needed"
        )
    return InterpreterStatus(language, program, version)
