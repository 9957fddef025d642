"""What can be set about agents: models per tier, prices, roles, commands, and users' own parts.

Read from the same files as all settings, but only where agents are to work: the command line
starts without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, cast

import msgspec

from tenuto.core.errors import InvalidInput
from tenuto.core.layouts import lay_out
from tenuto.core.selection import ROLES, TABLES, TIERS, Choice, Role, Tables, Tier
from tenuto.engine.settings import (
    AGENT_TABLES,
    Source,
    check_name,
    parse_dollars,
    read_file,
    settings_files,
)

PROVIDERS = ("anthropic", "openai", "google", "ollama")


class Models(msgspec.Struct, frozen=True, omit_defaults=True):
    """The model of each tier, as a runtime names it; empty for the runtime's own default."""

    fast: str = ""
    main: str = ""
    heavy: str = ""


_MODELS = {
    "claude-code": Models("haiku", "sonnet", "opus"),
    "open-code": Models(
        "anthropic/claude-haiku-4-5", "anthropic/claude-sonnet-4-5", "anthropic/claude-opus-4-5"
    ),
    "cli": Models(
        "anthropic:claude-haiku-4-5", "anthropic:claude-sonnet-4-5", "anthropic:claude-opus-4-5"
    ),
    "codex": Models(),
    "gemini": Models(),
}
_PRICES = {
    "opus": (Decimal(15), Decimal(75)),
    "sonnet": (Decimal(3), Decimal(15)),
    "haiku": (Decimal("0.25"), Decimal("1.25")),
}
# the names that every user of these models knows, where a runtime does not know them itself
_ALIASES: dict[str, Tier] = {"haiku": "fast", "sonnet": "main", "opus": "heavy"}


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be set about agents, with its defaults."""

    tiers: dict[str, Models] = msgspec.field(default_factory=_MODELS.copy)
    """The models of each runtime."""
    prices: dict[str, tuple[Decimal, Decimal]] = msgspec.field(default_factory=_PRICES.copy)
    """Dollars per million tokens in and out, of models by their bare names."""
    roles: dict[str, Role] = msgspec.field(default_factory=ROLES.copy)
    """Who agents can be."""
    selection: Tables = TABLES
    """The figures by which type, complexity and role are found."""
    agents: dict[str, tuple[str, ...]] = {}
    """Commands of agents that speak ACP, by the name that users call them."""
    runners: dict[str, str] = {}
    """Users' own runners, as module:attribute."""
    strategies: dict[str, str] = {}
    """Users' own strategies, as module:function."""
    skill_paths: tuple[str, ...] = ()
    """Folders with skills, before the usual ones."""
    providers: dict[str, str] = {}
    """Addresses of model APIs, where they are not the provider's own."""

    def model(self, runtime: str, choice: Choice) -> str:
        """Return the model for a choice as this runtime names it; empty for its own default."""
        models = self.tiers.get(runtime, Models())
        if not choice.model:
            return cast("str", getattr(models, choice.tier))
        alias = _ALIASES.get(choice.model)
        # what the runtime would take for its own default must not replace what was asked for
        known = getattr(models, alias, "") if alias else ""
        return known if known and runtime != "claude-code" else choice.model


def load_agent_settings(
    root: str, environ: Mapping[str, str]
) -> tuple[AgentSettings, list[Source]]:
    """Return the settings of agents and where each that is not a default came from."""
    fields: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for path in settings_files(root, environ):
        tree = read_file(path)
        for table in AGENT_TABLES:
            if table not in tree:
                continue
            for name, value in _table(table, tree[table], path).items():
                key = f"{table}.{name}"
                try:
                    shown = _TABLES[table](fields, name, value, os.path.dirname(path))
                except (InvalidInput, msgspec.ValidationError) as error:
                    text = error.message if isinstance(error, InvalidInput) else str(error)
                    raise InvalidInput(
                        f"{key} in {path}: {text}", "correct it or remove it"
                    ) from None
                sources[key] = Source(key, shown, path)
    settings = AgentSettings(**fields)
    _check(settings, sources)
    return settings, list(sources.values())


def describe(settings: AgentSettings, sources: list[Source]) -> list[Source]:
    """Return what `doctor` shows: what was set, and the defaults that people look for."""
    found = {source.key: source for source in sources}
    for runtime, models in settings.tiers.items():
        text = ", ".join(f"{tier} {getattr(models, tier) or 'its own'}" for tier in TIERS)
        _tell(found, f"tiers.{runtime}", text)
    for model, (coming, going) in settings.prices.items():
        _tell(found, f"prices.{model}", f"{coming}, {going}")
    for role, who in settings.roles.items():
        _tell(found, f"roles.{role}", f"tier {who.tier}{f' or {who.easy}' if who.easy else ''}")
    return sorted(found.values(), key=lambda source: source.key)


def _tell(found: dict[str, Source], key: str, text: str) -> None:
    found[key] = Source(key, text, found[key].source if key in found else "default")


def _table(table: str, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{table} in {path} is no table", f"write it as [{table}]")
    return cast("dict[str, Any]", value)


def _fields(value: Any, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{value!r:.80} is no table; it has {', '.join(known)}")
    given = cast("dict[str, Any]", value)
    for key in given:
        if key not in known:
            raise InvalidInput(f"{key!r} is unknown; known: {', '.join(known)}")
    return given


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidInput(f"{value!r:.80} is no text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidInput(f"{value!r:.80} is no list of texts")
    return tuple(_text(one) for one in cast("list[Any]", value))


def _into(fields: dict[str, Any], field: str, name: str, value: Any) -> None:
    """Put one more entry over the defaults of a field."""
    if field not in fields:
        fields[field] = dict(getattr(AgentSettings(), field))
    fields[field][name] = value


def _tiers(fields: dict[str, Any], name: str, value: Any, _: str) -> Any:
    check_name(name)
    given = {tier: _text(model) for tier, model in _fields(value, TIERS).items()}
    before: Models = fields.get("tiers", _MODELS).get(name, Models())
    _into(fields, "tiers", name, msgspec.structs.replace(before, **given))
    return given


def _prices(fields: dict[str, Any], name: str, value: Any, _: str) -> Any:
    pair = cast("list[Any]", value)
    if not isinstance(value, list) or len(pair) != 2:
        raise InvalidInput(
            f"{value!r:.80} is no price: [in, out] in dollars per million tokens, such as [3, 15]"
        )
    _into(fields, "prices", name, (parse_dollars(pair[0]), parse_dollars(pair[1])))
    return fields["prices"][name]


def _roles(fields: dict[str, Any], name: str, value: Any, _: str) -> Any:
    check_name(name)
    given = dict(_fields(value, Role.__struct_fields__))
    before: Role = fields.get("roles", ROLES).get(name, Role(f"You are a {name} agent."))
    if "tier" in given:
        given.setdefault("easy", None)  # a tier that the user sets holds for all work
    whole = {key: getattr(before, key) for key in Role.__struct_fields__} | given
    _into(fields, "roles", name, msgspec.convert(whole, Role))
    return given


def _selection(fields: dict[str, Any], name: str, value: Any, _: str) -> Any:
    if name not in Tables.__struct_fields__:
        known = ", ".join(Tables.__struct_fields__)
        raise InvalidInput(f"{name!r} is unknown; known: {known}")
    whole: dict[str, Any] = msgspec.to_builtins(fields.get("selection", TABLES))
    if isinstance(whole[name], dict):
        if not isinstance(value, dict):
            raise InvalidInput(f"{value!r:.80} is no table")
        before = {str(key): one for key, one in whole[name].items()}
        whole[name] = before | cast("dict[str, Any]", value)
    else:
        whole[name] = value
    # keys of `files` are numbers, which TOML writes as texts
    whole["files"] = {_number(key): one for key, one in whole["files"].items()}
    fields["selection"] = msgspec.convert(whole, Tables)
    return cast("Any", value)


def _number(key: Any) -> int:
    if not str(key).isdecimal() or len(str(key)) > 6:
        raise InvalidInput(f"{key!r:.80} is no number of files")
    return int(key)


def _agents(fields: dict[str, Any], name: str, value: Any, folder: str) -> Any:
    check_name(name)
    command = _texts(value)
    if not command or not command[0]:
        raise InvalidInput('a command is a list of words, such as ["codex-acp"]')
    if "/" in command[0]:  # a path is meant from where the file is, a bare name is on PATH
        place = os.path.join(folder, os.path.expanduser(command[0]))
        command = (os.path.normpath(place), *command[1:])
    _into(fields, "agents", name, command)
    return command


def _named(field: str) -> Callable[[dict[str, Any], str, Any, str], Any]:
    def take(fields: dict[str, Any], name: str, value: Any, _: str) -> Any:
        check_name(name)
        module, _, attribute = _text(value).partition(":")
        parts = [*module.split("."), *attribute.split(".")]
        if not all(part.isidentifier() for part in parts):
            raise InvalidInput(f"{value!r:.80} is not of the form module:name")
        _into(fields, field, name, value)
        return value

    return take


def _skills(fields: dict[str, Any], name: str, value: Any, folder: str) -> Any:
    if name != "paths":
        raise InvalidInput(f"{name!r} is unknown; known: paths")
    found = tuple(
        os.path.normpath(os.path.join(folder, os.path.expanduser(one))) for one in _texts(value)
    )
    # the project's file is read last, and its folders are looked in first
    fields["skill_paths"] = tuple(dict.fromkeys(found + fields.get("skill_paths", ())))
    return fields["skill_paths"]


def _providers(fields: dict[str, Any], name: str, value: Any, _: str) -> Any:
    if name not in PROVIDERS:
        raise InvalidInput(f"{name!r} is no provider; known: {', '.join(PROVIDERS)}")
    url = _text(_fields(value, ("base_url",)).get("base_url", ""))
    if not url.startswith(("http://", "https://")) or not url.partition("://")[2]:
        raise InvalidInput(f"{url!r:.80} is no address: base_url begins with http:// or https://")
    _into(fields, "providers", name, url.rstrip("/"))
    return url


_TABLES: dict[str, Callable[[dict[str, Any], str, Any, str], Any]] = {
    "agents": _agents,
    "prices": _prices,
    "providers": _providers,
    "roles": _roles,
    "runners": _named("runners"),
    "selection": _selection,
    "skills": _skills,
    "strategies": _named("strategies"),
    "tiers": _tiers,
}


def _check(settings: AgentSettings, sources: Mapping[str, Source]) -> None:
    """Raise InvalidInput where tables speak of names that other tables do not have."""
    tables = settings.selection
    pairs = [
        *(("selection.roles", role, settings.roles) for role in tables.roles.values()),
        *(("selection.signs", kind, tables.types) for kind in tables.signs),
        *(("selection.verbs", kind, tables.types) for kind in tables.verbs.values()),
    ]
    for key, name, known in pairs:
        if name not in known:
            where = f" in {sources[key].source}" if key in sources else ""
            raise InvalidInput(
                f"{key}{where} speaks of {name!r:.80}, which is unknown",
                f"known: {', '.join(sorted(known))}",
            )


lay_out(Role, Tables)
