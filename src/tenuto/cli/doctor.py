"""tenuto doctor: is everything in order, which settings are in force, and from where."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from tenuto.cli import exits
from tenuto.cli.console import Console, width
from tenuto.cli.table import table
from tenuto.cli.words import plural

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tenuto.core.errors import InvalidInput
    from tenuto.engine.agent_settings import AgentSettings
    from tenuto.engine.blocking import BlockingEngine
    from tenuto.engine.health import Check
    from tenuto.engine.settings import Source


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `tenuto doctor`."""
    parser.add_argument("--rebuild", action="store_true", help="make the index anew from the tapes")


def doctor(args: argparse.Namespace, console: Console) -> int:
    """Check, and exit with 1 if something is wrong."""
    from tenuto.engine.blocking import BlockingEngine
    from tenuto.engine.health import Check, examine
    from tenuto.engine.history import rebuild

    wrong: list[InvalidInput] = []
    with closing(BlockingEngine.open_here(without_settings=wrong.append)) as engine:
        defaults = bool(wrong)
        rebuilt = rebuild(engine) if args.rebuild else None
        agents = _agents(engine, wrong)
        checks = examine(engine)
        checks[:0] = [Check("settings", False, one.message, one.hint) for one in wrong]
        settings = _settings(engine, agents, defaults)
        runtimes = _runtimes(engine, agents[0])
    ok = all(check.ok for check in checks)
    if console.json:
        import msgspec

        document: dict[str, Any] = {
            "schema": 1,
            "ok": ok,
            "checks": [msgspec.to_builtins(check) for check in checks],
            "runtimes": runtimes,
            "settings": settings,
            "rebuilt": rebuilt,
        }
        console.document(document)
    else:
        if rebuilt is not None:
            console.message(f"The index was rebuilt: {plural(rebuilt, 'execution')}.")
        _tell(checks, runtimes, settings, console)
    return 0 if ok else exits.REFUSED


def _runtimes(engine: BlockingEngine, agents: AgentSettings) -> list[dict[str, Any]]:
    """Return every runtime of agents with what was found when it was looked for."""
    import asyncio

    import msgspec

    from tenuto.engine.runtimes import runtimes

    found = asyncio.run(runtimes(engine.settings, agents, os.environ, engine.project.root))
    return [msgspec.to_builtins(one) for one in found]


def _agents(
    engine: BlockingEngine, wrong: list[InvalidInput]
) -> tuple[AgentSettings, list[Source]]:
    from tenuto.core.errors import InvalidInput
    from tenuto.engine.agent_settings import AgentSettings, load_agent_settings

    try:
        return load_agent_settings(engine.project.root, os.environ)
    except InvalidInput as error:
        if error.message not in [one.message for one in wrong]:
            wrong.append(error)
        return AgentSettings(), []


def _settings(
    engine: BlockingEngine, agents: tuple[AgentSettings, list[Source]], wrong: bool
) -> list[dict[str, Any]]:
    """Return every setting with its value and where that comes from."""
    from tenuto.engine import agent_settings
    from tenuto.engine.settings import describe, load_settings

    sources = [] if wrong else load_settings(engine.project.root, os.environ)[1]
    named = [*describe(engine.settings, sources).items()]
    named += [(one.key, one) for one in agent_settings.describe(*agents)]
    return [
        {"name": name, "key": one.key, "value": one.value, "source": one.source}
        for name, one in named
    ]


def _tell(
    checks: Sequence[Check],
    runtimes: Sequence[dict[str, Any]],
    settings: Sequence[dict[str, Any]],
    console: Console,
) -> None:
    rows = [("ok" if check.ok else "WRONG", check.name, check.detail) for check in checks]
    lines = table(("", "CHECK", "FOUND"), rows, width(), wrap=True)
    console.out(lines[0])
    for check, line in zip(checks, lines[1:], strict=True):
        console.out(console.paint(line, "green" if check.ok else "red") if not check.ok else line)
        if check.hint:
            console.out(f"         {check.hint}")
    console.out("")
    found = [
        (one["name"], "there" if one.get("available") else "not there", _found(one))
        for one in runtimes
    ]
    console.out("\n".join(table(("RUNTIME", "", "FOUND"), found, width(), wrap=True)))
    places = list(dict.fromkeys(one["source"] for one in settings if "/" in one["source"]))
    names = [os.path.basename(place) for place in places]
    marks = {
        place: name if names.count(name) == 1 else f"{name} {number}"
        for number, (place, name) in enumerate(zip(places, names, strict=True), 1)
    }
    values = [
        (one["key"], marks.get(one["source"], one["source"]), _text(one["value"]))
        for one in settings
    ]
    console.out("")
    console.out("\n".join(table(("SETTING", "FROM", "VALUE"), values, width(), wrap=True)))
    for place, mark in marks.items():
        console.out(f"{mark}: {place}")


def _found(runtime: dict[str, Any]) -> str:
    if not runtime.get("available"):
        hint = runtime.get("hint")
        return f"{runtime.get('why', '')}{f': {hint}' if hint else ''}"
    unmetered = runtime.get("unmetered")
    return str(runtime.get("version", "")) + (f", unmetered: {unmetered}" if unmetered else "")


def _text(value: object) -> str:
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, cast("tuple[object, ...]", value)))
    return f"{value:g}" if isinstance(value, float) else str(value)
