"""Trying a rung for real, once per process: a confined `true` must end well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

from tenuto.core.confinement import Confinement, Subject, View

_ANSWER_WITHIN_S = 10.0
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# What a stem does, in a fresh interpreter: this process may have threads, and must not fork.
_STEM = (
    "import json,os,sys\n"
    "sys.path.insert(0,sys.argv[1])\n"
    "from tenuto.keeper import confine\n"
    "job=json.loads(sys.argv[2])\n"
    "os.dup2(os.open('/dev/null',os.O_RDWR),3)\n"
    "confine.enter(job['confine'],3)\n"
    "argv=confine.argv(job,4)\n"
    "os.execve(argv[0],argv,job['env'])"
)


def without() -> frozenset[str]:
    """Return the mechanisms that TENUTO_SANDBOX_WITHOUT says to do without, for tests."""
    return frozenset(filter(None, os.environ.get("TENUTO_SANDBOX_WITHOUT", "").split(",")))


def limits_level(subject: Subject) -> str:
    """Return how the limits that were asked for are held, as part of a level's name."""
    limits = subject.limits
    grouped = [
        name for name in ("memory", "pids") if getattr(limits, name) and name in subject.groups
    ]
    plain = limits.cpu or limits.file_size or limits.open_files
    plain = plain or any(getattr(limits, n) and n not in grouped for n in ("memory", "pids"))
    return ("+cgroup" if grouped else "") + ("+rlimits" if plain else "")


def subject() -> Subject:
    """Return what is tried: a program that does nothing, with the system to read and little else."""
    paths = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")
    view = View(tuple(path for path in paths if os.path.exists(path)), (), ())
    true = next((p for p in ("/usr/bin/true", "/bin/true") if os.path.exists(p)), "/bin/true")
    return Subject(id="probe", argv=(true,), cwd="/", environ={"PATH": os.defpath}, view=view)


def tried(confinement: Confinement) -> str:
    """Start it as a keeper would and return what went wrong, or nothing."""
    job: dict[str, Any] = {
        "argv": confinement.argv,
        "env": confinement.environ,
        "confine": {**confinement.confine, "scratch": "", "groups": {}},
    }
    command = [sys.executable, "-I", "-S", "-c", _STEM, _PACKAGES, json.dumps(job)]
    return _run(command)


@cache
def runs(*command: str) -> bool:
    """Tell whether a command can be run and ends well."""
    return not _run(list(command))


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_ANSWER_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"it cannot be tried: {error}"
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it failed"]
    return f"{lines[-1][:300]} (exit code {done.returncode})"
