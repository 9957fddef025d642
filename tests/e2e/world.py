"""A user's world for agents: a project under git, real runtimes, and a scripted model for all of them.

Everything is done as a user does it: with the command line, each verb a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from engine_help import (
    await_death,
    end_everything,
    folded,
    keeper_pid,
    main_pid,
    marked_processes,
    tape_events,
)

from tenuto.core.budget import Spend, Tokens
from tenuto.metering.ledger import Ledger
from tenuto.stores.layout import Project, find_project
from tenuto.testing.models import Billed, Model

_THEIRS = (
    "CLAUDE", "ANTHROPIC", "OPENAI", "CODEX", "OPENCODE", "GEMINI", "GOOGLE", "OLLAMA", "TENUTO_",
    "XDG_", "HTTP_PROXY", "HTTPS_PROXY",
)  # fmt: skip
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-api03-real-key-of-the-user",
    "OPENAI_API_KEY": "sk-real-key-of-the-user",
    "GEMINI_API_KEY": "gm-real-key-of-the-user",
}

LONGEST_S = 300
"""More than any task here takes: runtimes of the slow lane start slowly, and try again for minutes."""


class Runtime(msgspec.Struct, frozen=True):
    """A runtime as the tests use it: its model, and how its own tools are called."""

    name: str
    runtime: str
    """Its name for users."""
    model: str
    shell: Callable[[str], Any]
    """Runs a command with a tool of its own."""
    write: Callable[[str, str], Any]
    """Makes a file in the workspace with a tool of its own."""
    asks: Callable[[str, str], Any]
    """Makes a file with a tool that it asks for first."""
    keeps_cut: bool = True
    """Its session keeps what was said before an interrupt."""
    keeps_turn: bool = True
    """Its session keeps a turn that was interrupted; else a new one begins where it was the first."""
    compacts: bool = False
    """It has its model sum up, by itself, what is more than the model takes; and goes on."""
    opens: tuple[Any, ...] = ()
    """What its model has to do before it can call tools of ours."""


class Task:
    """A task that was started, seen from outside."""

    def __init__(self, world: World, execution_id: str) -> None:
        self.world = world
        self.id = execution_id

    @property
    def shown(self) -> dict[str, Any]:
        """What `tenuto show --json` says."""
        return self.world.json("show", self.id)

    @property
    def task(self) -> dict[str, Any]:
        return self.shown["task"]

    @property
    def state(self) -> str:
        return self.shown["state"]

    @property
    def output(self) -> str:
        return self.world("logs", self.id).stdout

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        found = tape_events(self.world.project, self.id)
        return [one for one in found if not kind or one["type"] == kind]

    def said(self, kind: str) -> list[dict[str, Any]]:
        """What agents did, by kind."""
        told = [one["what"] for one in self.events("step_said")]
        return [what for what in told if what["type"] == kind]

    def wait(self, until: str = "") -> dict[str, Any]:
        """Wait for the end, or until it waits for somebody."""
        words = ["--until", until] if until else []
        self.world("wait", self.id, "--up-to", f"{LONGEST_S}s", *words)
        return self.shown

    @property
    def driver(self) -> int:
        return main_pid(self.world.project, self.id)

    @property
    def keeper(self) -> int:
        return keeper_pid(self.world.project, self.id)

    def below(self) -> list[str]:
        """Every execution that was started in it, at any depth."""
        found, ids = [self.id], list(self.world.project.all_ids())
        for here in found:
            for one in ids:
                spec = folded(self.world.project, one).spec
                if spec is not None and spec.parent == here:
                    found.append(one)
        return found[1:]

    def tree(self) -> list[tuple[str, str]]:
        """The kinds of what was started in it, each with its parent's."""
        specs = {one: folded(self.world.project, one).spec for one in [self.id, *self.below()]}
        kinds = {one: spec.kind for one, spec in specs.items() if spec is not None}
        parents = {one: spec.parent or "" for one, spec in specs.items() if spec is not None}
        return [(kinds[one], kinds[parents[one]]) for one in kinds if one != self.id]

    def processes(self) -> list[tuple[int, str]]:
        """What lives of it: driver, runtimes, and all that these started."""
        return marked_processes([self.id, *self.below()])

    def gone_within(self, seconds: float) -> float:
        """Wait until nothing of it lives; return how long that took."""
        began = time.monotonic()
        for pid, command in self.processes():
            left = seconds - (time.monotonic() - began)
            assert await_death(pid, max(left, 0)), f"{command} lives after {seconds} s"
        assert not self.processes()
        return time.monotonic() - began


class World:
    """A project of its own with all that belongs to it; nothing is left when it is closed."""

    def __init__(self, base: Path, model: Model) -> None:
        self.base = base
        self.model = model
        self.folder = base / "project"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(_THEIRS) or name.startswith("TENUTO_TEST_")
        }
        beside = os.path.dirname(sys.executable)
        self.env = {
            **kept, **KEYS,
            "HOME": str(base / "user"), "TMPDIR": str(base / "tmp"), "TERM": "xterm",
            "PATH": beside + os.pathsep + kept.get("PATH", os.defpath),
            "TENUTO_KEEPER_LOG": str(base / "keeper.log"),
            "GIT_CONFIG_GLOBAL": os.devnull,
        }  # fmt: skip
        for name in ("project", "user", "tmp"):
            (base / name).mkdir()
        self.programs: dict[str, str] = {}
        self._billed = 0
        self.settings()
        (self.folder / "notes.txt").write_text("one\n")
        self._git("init", "-q", "-b", "main")
        self._git("add", "-A")
        self._git("commit", "-q", "-m", "begin")
        self.project: Project = find_project(str(self.folder), self.env)

    def _git(self, *words: str) -> None:
        name = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *name, *words], cwd=self.folder, env=self.env, check=True)

    def settings(self, more: str = "") -> None:
        """Write tenuto.toml: programs, where models are, and whatever else."""
        programs = self.programs
        lines = [more, "[programs]"]
        lines += [f"{json.dumps(name)} = {json.dumps(path)}" for name, path in programs.items()]
        for name, below in (("anthropic", ""), ("openai", "/v1"), ("google", "")):
            lines += [f"[providers.{name}]", f'base_url = "{self.model.url}{below}"']
        (self.folder / "tenuto.toml").write_text("\n".join(lines) + "\n")

    # the command line

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tenuto.cli.main", *words], cwd=self.folder, env=self.env,
            capture_output=True, text=True, timeout=LONGEST_S + 10, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def json(self, *words: str) -> Any:
        done = self("--json", *words)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def start(self, runtime: Runtime, text: str = "Do it.", *words: str) -> Task:
        """Start a task detached."""
        name = ["--runtime", runtime.runtime]
        model = ["--model", runtime.model] if runtime.model else []
        done = self("task", "-d", *name, *model, *words, text)
        assert done.returncode == 0, done.stderr
        return Task(self, done.stdout.strip())

    def run(self, runtime: Runtime, text: str = "Do it.", *words: str) -> Task:
        """Start a task and wait for its end, or until it waits for somebody."""
        task = self.start(runtime, text, *words)
        task.wait()
        return task

    # the books

    def begin(self) -> None:
        """Begin a test: what the model bills from here on is its own."""
        self.model.play()
        self._billed = len(self.model.bill)

    @property
    def bill(self) -> list[Billed]:
        """What the server billed since this test began."""
        return self.model.bill[self._billed :]

    def spend(self, task: Task | None = None) -> Spend:
        """What the ledger has of a task, or of all."""
        ledger = Ledger(self.project.home)
        try:
            found = [ledger.spend(task.id)] if task is not None else ledger.executions().values()
            return sum(found, Spend())
        finally:
            ledger.close()

    def is_closed(self, task: Task) -> bool:
        """Whether whoever still has a token of a task is refused."""
        ledger = Ledger(self.project.home)
        try:
            grant = ledger.granted(task.id)
            return grant is not None and grant.closed
        finally:
            ledger.close()

    def balanced(self, *tasks: Task) -> None:
        """See that ledger, server and `show` tell the same of these tasks, by kind of token."""
        billed = sum((one.tokens for one in self.bill), Tokens())
        spends = [self.spend(one) for one in tasks]
        told = sum(spends, Spend())
        assert not told.unsettled, told
        assert told.tokens == billed, f"ledger {told}, server {billed}: {self.bill}"
        assert self.spend().tokens == self.model.billed()
        shown = [one.task for one in tasks]
        assert sum(one["tokens_in"] for one in shown) == billed.total - billed.output
        assert sum(one["tokens_out"] for one in shown) == billed.output
        for one, spend in zip(shown, spends, strict=True):
            assert one["cost"] is None or Decimal(str(one["cost"])) == spend.cost, (one, spend)

    # end

    def close(self) -> None:
        end_everything(self.project)
        mark = f"HOME={self.base / 'user'}".encode()
        left: list[str] = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark not in (path / "environ").read_bytes().split(b"\0"):
                    continue
                pid = int(path.name)
                if not await_death(pid):
                    left.append((path / "cmdline").read_bytes().decode())
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # gone meanwhile
        assert not left, f"left running: {left}"
        log = self.base / "keeper.log"
        assert not log.exists(), log.read_text()
