"""Which command runs a piece of code, and the small runner programs that do."""

from __future__ import annotations

from tenuto.interpreters.commands import (
    LANGUAGES,
    Command,
    command_for,
    language_of,
    session_command,
)
from tenuto.interpreters.programs import interpreter, resolve_program

__all__ = [
    "LANGUAGES",
    "Command",
    "command_for",
    "interpreter",
    "language_of",
    "resolve_program",
    "session_command",
]
