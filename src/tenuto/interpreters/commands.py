"""For a language and code: the argv that runs it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from tenuto.core.errors import InvalidInput
from tenuto.core.specs import check_text
from tenuto.interpreters.programs import interpreter

if TYPE_CHECKING:
    from collections.abc import Mapping

LANGUAGES: tuple[str, ...] = ("python", "node", "deno", "bash")

_RUNNERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runners")

_RUNNER_ARGUMENTS = {
    "python": ("-u", os.path.join(_RUNNERS, "python_runner.py")),
    # The runner parses with the acorn that node carries inside.
    "node": ("--expose-internals", os.path.join(_RUNNERS, "node_runner.cjs")),
    "deno": ("run", "-A", os.path.join(_RUNNERS, "deno_runner.ts")),
}

_SESSION_ARGUMENTS = {"python": ("-u", os.path.join(_RUNNERS, "python_session.py"))}

_RUNNER_ENVIRONMENT = {"deno": {"DENO_NO_UPDATE_CHECK": "1"}}

_EXTENSIONS = {
    ".py": "python",
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
    ".ts": "deno",
    ".sh": "bash",
}

# Linux takes 128 KiB in one argument; the rest is kept for the environment's sake.
_ARGUMENT_MAX = 120 * 1024


def _no_env() -> dict[str, str]:
    return {}


class Command(msgspec.Struct, frozen=True):
    """What to start, and whether the code follows over the channel."""

    argv: tuple[str, ...]
    """The absolute path of the program, then its arguments."""
    channel: bool = False
    """The runner is given the code over the channel that TENUTO_CHANNEL names."""
    env: dict[str, str] = msgspec.field(default_factory=_no_env)
    """Variables that the runner needs besides those of the execution."""


def command_for(
    language: str, code: str, environ: Mapping[str, str], programs: Mapping[str, str] | None = None
) -> Command:
    """Return the command that runs this code, its interpreter found on the execution's PATH."""
    if language not in LANGUAGES:
        raise InvalidInput(
            f"there is no language {language!r}", f"use one of js, ts, {', '.join(LANGUAGES)}"
        )
    check_text("the code", code)
    program = interpreter(language, environ, programs or {})
    if language == "bash":
        size = len(code.encode("utf-8", "surrogateescape"))
        if size > _ARGUMENT_MAX:
            raise InvalidInput(
                f"the bash code is {size} bytes long, and one argument holds {_ARGUMENT_MAX}",
                "save it to a file and run `-- bash FILE`",
            )
        # Code that begins with a dash is no option.
        return Command(argv=(program, "-c", "--", code))
    try:
        code.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput("the code is not valid text", "pass valid UTF-8") from None
    return Command(
        argv=(program, *_RUNNER_ARGUMENTS[language]),
        channel=True,
        env=dict(_RUNNER_ENVIRONMENT.get(language, {})),
    )


def session_command(
    language: str, environ: Mapping[str, str], programs: Mapping[str, str] | None = None
) -> Command:
    """Return the command that runs one cell of a session after the other."""
    if language not in _SESSION_ARGUMENTS:
        raise InvalidInput(
            f"there are no sessions in {language}",
            f"use one of {', '.join((*_SESSION_ARGUMENTS, 'js', 'ts'))}",
        )
    program = interpreter(language, environ, programs or {})
    return Command(argv=(program, *_SESSION_ARGUMENTS[language]), channel=True)


def language_of(filename: str) -> str | None:
    """Return the language that a file's extension tells, or None."""
    return _EXTENSIONS.get(os.path.splitext(filename)[1].lower())
