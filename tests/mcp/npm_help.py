"""Packages of the npm registry that tests run, pinned by a lock file and installed once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
QUICK = _TESTS / "agents" / "node"
"""The agents that are tested on every push."""
SLOW = _TESTS / "clients" / "node"
"""Those that only the slow lane needs."""


def missing(what: str) -> None:
    """Skip a test for want of something; fail where nothing may be missing."""
    if os.environ.get("TENUTO_TEST_REQUIRE_ALL"):
        pytest.fail(f"missing here: {what}")
    pytest.skip(f"missing here: {what}")


def packages(folder: Path) -> Path:
    """Return the installed packages of a folder with package.json and its lock."""
    installed = folder / "installed"
    found = installed / "node_modules"
    wanted = (folder / "package-lock.json").read_text()
    stamp = found / ".installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return found
    npm = shutil.which("npm")
    if npm is None:
        missing("npm, and the packages it would install")
    installed.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(folder / name, installed)
    done = subprocess.run(
        [str(npm), "install", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=installed, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        missing(f"npm packages: {done.stderr[-500:]}")
    stamp.write_text(wanted)
    return found


def program(folder: Path, pattern: str) -> str:
    """Return where the packages of a folder have a program; they are installed if need be."""
    found = sorted(packages(folder).glob(pattern))
    if not found:
        missing(f"{pattern}, a program for this machine")
    return str(found[0])
