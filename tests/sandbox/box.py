"""A project of its own and a command line in it, as root or as nobody, with or without mechanisms."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tenuto.keeper import landlock, seccomp

NOBODY = 65534
SOURCE = Path(__file__).parents[2] / "src"
PATIENCE = 100


@cache
def interpreter(user: int | None) -> list[str]:
    """Return the Python that this user can run Tenuto with, or nothing."""
    packages = next((path for path in sys.path if path.endswith("site-packages")), "")
    for program in (sys.executable, "/usr/bin/python3"):
        command = [program, "-c", "import apsw, msgspec"]
        if user is None:
            return [program]
        try:
            done = subprocess.run(
                command,
                env={"PYTHONPATH": packages},
                user=user,
                group=user,
                extra_groups=[],
                capture_output=True,
                cwd="/",
                check=False,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return [program]
    return []


def need(rung: str, user: int | None = None) -> None:
    """Skip, or fail where everything must be tested, what this machine cannot do."""
    reason = ""
    if user is not None and os.geteuid() != 0:
        reason = "only root can be somebody else"
    elif user is not None and not interpreter(user):
        reason = "there is no Python that an ordinary user can run Tenuto with"
    elif rung == "bwrap" and shutil.which("bwrap") is None:
        reason = "bubblewrap is not installed"
    elif rung == "landlock" and landlock.abi() < 6:
        reason = "Landlock ABI 6 (Linux 6.12) is needed"
    elif not seccomp.available():
        reason = "no seccomp filters here"
    if reason and os.environ.get("TENUTO_TEST_REQUIRE_ALL") and rung != "landlock":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


class Box:
    """A folder with `work` (the project), `home`, `outside` and the state; removed at the end."""

    def __init__(self, rung: str, user: int | None = None, without: str = "") -> None:
        self.rung, self.user = rung, user
        self.root = Path(tempfile.mkdtemp(prefix="tenuto-box-", dir="/var/tmp"))
        self.root.chmod(0o755)
        self.work, self.home, self.outside = (self.root / n for n in ("work", "home", "outside"))
        for folder in (self.work, self.home, self.outside):
            folder.mkdir()
            self.own(folder)
        missing = {"bwrap": "", "landlock": "bwrap", "limits": "bwrap,landlock"}[rung]
        packages = next((path for path in sys.path if path.endswith("site-packages")), "")
        self.env = {
            "PATH": os.environ["PATH"] if user is None else os.defpath,
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{SOURCE}:{packages}",
            "TENUTO_SANDBOX_WITHOUT": ",".join(filter(None, [missing, without])),
            "TENUTO_TEST_SECRET": "secret",
        }
        self.program = [*interpreter(user), "-m", "tenuto.cli.main"]

    def own(self, path: Path) -> Path:
        """Give a file to whoever uses the box."""
        if self.user is not None:
            os.chown(path, self.user, self.user)
        return path

    @property
    def state(self) -> Path:
        """The project's state folder; it is there once something has run."""
        return Path(os.readlink(self.work / ".tenuto"))

    def call(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        as_user: dict[str, Any] = {}
        if self.user is not None:
            as_user = {"user": self.user, "group": self.user, "extra_groups": []}
        return subprocess.run(
            [*self.program, *words],
            cwd=self.work,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            **as_user,
        )

    def popen(self, *words: str) -> Any:
        """Start a Python program of the same user; the caller ends it."""
        as_user: dict[str, Any] = {}
        if self.user is not None:
            as_user = {"user": self.user, "group": self.user, "extra_groups": []}
        return subprocess.Popen(
            [*interpreter(self.user), *words], cwd="/", stdout=subprocess.PIPE, text=True, **as_user
        )

    def json(self, *words: str, **env: str) -> dict[str, Any]:
        """Return the document that a command prints."""
        done = self.call(words[0], "--json", *words[1:], **env)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def run(self, *words: str, level: str = "auto", **env: str) -> dict[str, Any]:
        """Run something in a sandbox and return what became of it."""
        return self.json("run", "--sandbox", level, *words, **env)

    def python(self, code: str, *words: str, level: str = "auto", **env: str) -> dict[str, Any]:
        """Run Python code in a sandbox."""
        return self.run("--lang", "python", *words, "--", code, level=level, **env)

    def close(self) -> None:
        """End everything and remove the folder."""
        if (self.work / ".tenuto").is_symlink():
            self.call("kill", "--all")
        shutil.rmtree(self.root, ignore_errors=True)
