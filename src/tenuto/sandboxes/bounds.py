"""Which limits are left to plain resource limits when a sandbox holds an execution."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from tenuto.core.confinement import Subject

# V8 sets aside this much, for its code and its cage, before it runs anything.
_V8 = ("node", "nodejs", "deno", "bun")
_V8_BASE = 544 * 1024 * 1024


def plain_limits(subject: Subject) -> tuple[dict[str, Any], int]:
    """Return the resource limits to set, and what the memory limit has on top for the runtime.

    A control group counts what is really used, by all processes together. Where there is none, each
    process is bound by what it asks the kernel for, which for V8 is more than it uses.
    """
    bounds: dict[str, Any] = msgspec.to_builtins(subject.limits)
    base = 0
    if subject.limits.memory and "memory" in subject.groups:
        del bounds["memory"]
    elif subject.limits.memory:
        name = os.path.basename(os.path.realpath(subject.argv[0])).rstrip("0123456789.")
        base = _V8_BASE if name in _V8 else 0
        bounds["memory"] = subject.limits.memory + base
    return bounds | {"core": 0}, base


def notes(subject: Subject) -> list[str]:
    """Return what is held another way than one may think, though it is held."""
    if not subject.limits.memory or "memory" in subject.groups:
        return []
    _, base = plain_limits(subject)
    extra = f", plus {base >> 20} MB that its runtime sets aside" if base else ""
    return [
        f"memory: no control group can be written, so each process is bound{extra}, "
        "and all together are looked at ten times a second"
    ]
