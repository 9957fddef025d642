"""Runners by name: those we have, ACP agents by their command, and users' own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from tenuto.core.errors import InvalidInput, RunnerFailed, UnknownName
from tenuto.core.ports import Runner
from tenuto.core.runs import Capabilities
from tenuto.runners.instead import Instead

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "tenuto.runners"
"""The group of entry points by which packages bring runners of their own."""
BUILT_IN = ("claude-code", "open-code", "cli", "codex", "gemini")


def _claude(program: str, _home: str) -> Runner:
    return import_module("tenuto.runners.claude").ClaudeRunner(program or "claude")


def _cli(_program: str, _home: str) -> Runner:
    return import_module("tenuto.runners.cli").CliRunner()


def _open_code(program: str, _home: str) -> Runner:
    from tenuto.runners.agents_known import open_code

    one_shot = import_module("tenuto.runners.oneshot").OpenCodeOneShot
    return Instead(open_code(program or "opencode"), one_shot(program or "opencode"))


def _codex(program: str, home: str) -> Runner:
    from tenuto.runners.agents_known import codex

    # without the adapter, or with the plain program named: one process a turn
    return Instead(
        codex(home, program or "codex-acp"),
        import_module("tenuto.runners.oneshot").CodexOneShot(program or "codex"),
    )


def _gemini(program: str, home: str) -> Runner:
    from tenuto.runners.agents_known import gemini

    return gemini(home, program or "gemini")


_MAKERS: dict[str, Callable[[str, str], Runner]] = dict(
    zip(BUILT_IN, (_claude, _open_code, _cli, _codex, _gemini), strict=True)
)


def names(commands: Mapping[str, Sequence[str]] = {}, custom: Mapping[str, str] = {}) -> list[str]:
    """Return all names that `runner` knows: built-in first, then the settings', then packages'."""
    known = [*BUILT_IN, *commands, *custom, *(point.name for point in _points())]
    return list(dict.fromkeys(known))


def runner(
    name: str,
    *,
    commands: Mapping[str, Sequence[str]] = {},
    programs: Mapping[str, str] = {},
    custom: Mapping[str, str] = {},
    home: str,
) -> Runner:
    """Return the runner of a name.

    `custom` ("module:attribute") and `commands` (an ACP agent's command line) are the settings' and go
    before what is built in, so that a user may replace it; entry points come last. `programs` says
    where the built-in ones have their programs. `home` is a folder that lives as long as the task:
    agents that need a configuration of their own keep it, and their sessions, there.
    """
    if name in custom:
        return _loaded(name, custom[name])
    if name in commands:
        from tenuto.runners.agents_known import by_command

        if not commands[name] or isinstance(commands[name], str):
            raise InvalidInput(
                f"the command of the agent {name} is {commands[name]!r}",
                "give its words as a list, the program first",
            )
        return by_command(name, commands[name])
    if name in _MAKERS:
        return _MAKERS[name](programs.get(name, ""), home)
    for point in _points():
        if point.name == name:
            return _loaded(name, point.value)
    raise UnknownName(
        f"there is no runtime {name}; known are {', '.join(names(commands, custom))}",
        "name one of these, or add yours to the settings",
    )


def _points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # slow, and few have any

    return entry_points(group=GROUP)


def _loaded(name: str, where: str) -> Runner:
    """Return the runner at "module:attribute": an object, or a class or function that makes one."""
    module, _, attribute = where.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module that is imported may raise anything
        raise RunnerFailed(
            f"the runner {name} cannot be loaded from {where!r}: {type(error).__name__}: {error}",
            'it is "module:attribute": install its package, or put its folder on PYTHONPATH',
            "missing",
        ) from error
    if callable(found) and (isinstance(found, type) or _lacks(found)):
        try:
            found = found()
        except Exception as error:
            raise RunnerFailed(
                f"the runner {name} could not be made by {where!r}: {error!r}",
                "it is called without arguments",
            ) from error
    wrong = _lacks(found)
    if wrong:
        raise InvalidInput(
            f"{where!r} is no runner: {'; '.join(wrong)}",
            "see tenuto.core.ports.Runner for what one has to be",
        )
    return cast("Runner", found)


def _lacks(found: object) -> list[str]:
    """Return what an object lacks to be a Runner."""
    wrong: list[str] = []
    for name, kind in (("name", str), ("family", str), ("capabilities", Capabilities)):
        value = getattr(found, name, None)
        if not isinstance(value, kind):
            wrong.append(f"its {name} is {type(value).__name__}, not {kind.__name__}")
    wrong += [
        f"it has no method {method}"
        for method in ("probe", "open")
        if not callable(getattr(found, method, None))
    ]
    return wrong
