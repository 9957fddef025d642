"""A command line with a home of its own, and nothing left running when it is closed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE = 60


class CommandLine:
    """Runs `tenuto` as a real process, in a project of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TENUTO_", "PYTHONDONTWRITE", "XDG_", "NO_COLOR"))
        }
        self.env = {**kept, "TENUTO_HOME": str(self.home), "HOME": str(folder), "TERM": "xterm"}
        self.argv = [sys.executable, "-m", "tenuto.cli.main"]
        self.started: list[subprocess.Popen[Any]] = []

    def __call__(
        self, *words: str, input: str | bytes | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; text is decoded with surrogates, so that bytes survive."""
        raw = input.encode() if isinstance(input, str) else input
        source: dict[str, Any] = (
            {"input": raw} if raw is not None else {"stdin": subprocess.DEVNULL}
        )
        done = subprocess.run(
            [*self.argv, *words],
            cwd=self.folder,
            env={**self.env, **(env or {})},
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            **source,
        )
        return subprocess.CompletedProcess(
            done.args,
            done.returncode,
            done.stdout.decode("utf-8", "surrogateescape"),
            done.stderr.decode("utf-8", "surrogateescape"),
        )

    def json(self, *words: str, **more: Any) -> Any:
        """Return the one document that a command prints."""
        return json.loads(self("--json", *words, **more).stdout)

    def lines(self, *words: str) -> list[Any]:
        """Return the documents of a stream."""
        return [json.loads(line) for line in self("--json", *words).stdout.splitlines()]

    def start(self, *words: str) -> str:
        """Start something detached and return its id."""
        done = self("run", "-d", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def popen(self, *words: str, **more: Any) -> Any:
        """Start a command that the test talks to; it is ended with the test."""
        settings: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.folder,
            "env": self.env,
        }
        process = subprocess.Popen([*self.argv, *words], **{**settings, **more})
        self.started.append(process)
        return process

    def wait_for(self, execution_id: str, text: str) -> None:
        """Wait until a text stands in the output."""
        done = self("wait", execution_id, "--until", text, "--up-to", "50s")
        assert done.returncode == 0, (done.stdout, done.stderr)

    def state(self, execution_id: str) -> str:
        """Return the state of an execution."""
        return self.json("show", execution_id)["state"]

    def ids(self) -> set[str]:
        """Return every execution of this home."""
        return {path.name for path in (self.home / "executions").glob("*/*")}

    def close(self) -> None:
        """End what was started and see that nothing of it is left."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        if self.ids():
            done = self("kill", "--all")
            assert done.returncode == 0, done.stderr
        left = strays(self.ids())
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"processes left: {left}"


def strays(ids: set[str]) -> list[int]:
    """Return the processes that carry the mark of one of these executions."""
    marks = {f"TENUTO_EXECUTION={one}".encode() for one in ids}
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if marks.intersection(variables):
            found.append(int(path.name))
    return found
