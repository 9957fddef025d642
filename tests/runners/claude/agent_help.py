"""A folder, a nursery and a listener for tests of runners."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tenuto.core.ports import AgentSession
from tenuto.core.runs import Finished, RunEvent, Said, Used
from tenuto.testing.models import Model
from tenuto.testing.nursery import PlainNursery

THEIRS = ("CLAUDE", "ANTHROPIC", "OPENAI", "CODEX", "OPENCODE", "IS_SANDBOX")
React = Callable[[RunEvent], Awaitable[None]]


class Place:
    """A home and a project of their own; nothing of the machine's own settings is seen."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = folder
        self.project = folder / "project"
        self.home = folder / "home"
        self.nursery = PlainNursery()
        for name in ("project", "home", "tmp"):
            (folder / name).mkdir()
        for name in [one for one in os.environ if one.upper().startswith(THEIRS)]:
            monkeypatch.delenv(name)
        self.set = monkeypatch.setenv
        for name, value in {
            "HOME": str(self.home),
            "TMPDIR": str(folder / "tmp"),
            "CLAUDE_CONFIG_DIR": str(self.home / "claude"),
            "CODEX_HOME": str(self.home / "codex"),
            "XDG_DATA_HOME": str(self.home / "data"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "XDG_STATE_HOME": str(self.home / "state"),
        }.items():
            monkeypatch.setenv(name, value)
        (self.home / "codex").mkdir()

    def strays(self) -> list[str]:
        """Return what still runs under this home."""
        mark = f"HOME={self.home}".encode()
        found: list[str] = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


async def heard(session: AgentSession, text: str, react: React | None = None) -> list[RunEvent]:
    """Prompt, and return all that came of it; the last is the only Finished."""
    events: list[RunEvent] = []
    async for event in session.prompt(text):
        events.append(event)
        if react is not None:
            await react(event)
    assert [isinstance(one, Finished) for one in events].count(True) == 1
    assert isinstance(events[-1], Finished)
    return events


def last(events: list[RunEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def said(events: list[RunEvent]) -> str:
    return "".join(one.text for one in events if isinstance(one, Said) and not one.thought)


def used(events: list[RunEvent]) -> list[tuple[int, int]]:
    """Return what was taken in, from a cache or not, and put out with each request."""
    return [(one.input + one.cache_read, one.output) for one in events if isinstance(one, Used)]


def bills(model: Model) -> list[tuple[int, int]]:
    """Return what the model's server counted itself, request by request."""
    return [(one.tokens.input + one.tokens.cache_read, one.tokens.output) for one in model.bill]


def only(events: list[RunEvent], kind: type[Any]) -> list[Any]:
    return [one for one in events if isinstance(one, kind)]
