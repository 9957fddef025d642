"""Real agents, pinned and offline: the scripted model stands behind what stands for the gateway."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from acp_help import gone
from front_help import Front

from tenuto.core.runs import RunRequest
from tenuto.runners.acp import AcpRunner
from tenuto.runners.acp_session import AcpSession
from tenuto.runners.agents_known import codex, gemini, open_code
from tenuto.testing.models import Call
from tenuto.testing.nursery import PlainNursery


class Real:
    """One agent, with a home of its own."""

    def __init__(
        self, name: str, runner: AcpRunner, model: str, shell: Callable[[str], Call], asks: bool
    ) -> None:
        self.name = name
        self.runner = runner
        self.model = model
        self.shell = shell
        self.asks = asks
        """It asks before it runs a command in the workspace."""
        self.front: Front
        self.nursery: PlainNursery
        self.base: Path

    def at(self, base: Path, front: Front, nursery: PlainNursery) -> Real:
        self.base, self.front, self.nursery = base, front, nursery
        self.work = base / "work"
        for folder in (self.work, base / "tmp"):
            folder.mkdir()
        return self

    async def open(self, **given: Any) -> AcpSession:
        env = {"HOME": str(self.base), "TMPDIR": str(self.base / "tmp")}
        for kind in ("DATA", "CONFIG", "CACHE", "STATE"):
            env[f"XDG_{kind}_HOME"] = str(self.base / "xdg" / kind.lower())
        request = {
            "cwd": str(self.work),
            "model": self.model,
            "env": env,
            "endpoint": self.front.endpoint,
        }
        return await self.runner.open(RunRequest(**{**request, **given}), self.nursery)

    def gone(self) -> None:
        """See that nothing runs any more that was started under this home."""
        mark = f"HOME={self.base}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark not in (path / "environ").read_bytes().split(b"\0"):
                    continue
            except OSError:
                continue  # gone meanwhile
            pid = int(path.name)
            if not gone(pid):
                name = (path / "cmdline").read_bytes()
                os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"left running: {name!r}")


def real_codex(packages: Path, home: Path) -> Real:
    runner = codex(str(home), str(packages / ".bin" / "codex-acp"))
    return Real("codex", runner, "gpt-5.5", lambda text: Call("exec_command", cmd=text), False)


def real_gemini(packages: Path, home: Path) -> Real:
    runner = gemini(str(home), str(packages / ".bin" / "gemini"))
    shell = "run_shell_command"
    return Real("gemini", runner, "gemini-2.5-pro", lambda text: Call(shell, command=text), True)


def real_open_code(packages: Path, model: str = "some-model") -> Real:
    (program,) = packages.glob("opencode-linux-x64/bin/opencode")

    def shell(text: str) -> Call:
        return Call("bash", command=text, description="as told")

    return Real("open-code", open_code(str(program)), model, shell, True)
