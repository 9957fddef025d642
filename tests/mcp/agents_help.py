"""A project whose tasks are done by an agent without a model."""

from __future__ import annotations

import textwrap
from typing import Any

from mcp_help import Place, Wire, text

ECHO = """
    [runtime]
    preferred = "echo"
    order = ["echo", "second"]
    [runners]
    echo = "tenuto.testing.agents:EchoRunner"
    second = "seconds:second"
"""
SECOND = """
    from tenuto.testing.agents import EchoRunner

    def second():
        return EchoRunner("second", "echo", "second: {text}")
"""


def with_agents(place: Place, more: str = "") -> Place:
    """Let a project's tasks be done by `echo`, and by `second` of the same family."""
    settings = textwrap.dedent(more) + textwrap.dedent(ECHO)
    (place.folder / "tenuto.toml").write_text(settings)
    modules = place.folder.parent / "modules"
    modules.mkdir()
    (modules / "seconds.py").write_text(textwrap.dedent(SECOND))
    place.env["PYTHONPATH"] = str(modules)
    return place


def done(wire: Wire, **arguments: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Have a task done; return the answer's text, its data, and the whole."""
    result = wire.call("engine_execute", **arguments)
    return text(result), result["structuredContent"], result
