"""Composed tools: saved, listed, shown, deleted, turned into work; the project's before the user's."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from tenuto.codemode.schemas import Checker, check_schema, parameters
from tenuto.core.errors import InvalidInput, UnknownTool
from tenuto.core.names import check_tool_name
from tenuto.core.specs import check_text
from tenuto.core.tools import Problem, Scope, Tool
from tenuto.stores.composed import FOLDER, BrokenToolError, ComposedTools, global_folder
from tenuto.stores.layout import Project, as_error, make_link

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine
    from tenuto.engine.work import Options, Work

_CODE_MOST = 1024 * 1024
_WORDS_MOST = 10_000
_ALL_MOST = 8 * 1024 * 1024  # of code that one VM is given
_FAULTS = 5
_NEAR = 40
_ANYTHING: dict[str, Any] = {"type": "object"}


class Tools:
    """The composed tools that a project sees."""

    def __init__(self, engine: BlockingEngine) -> None:
        """Look in the project's state folder and in the user's data folder."""
        self._engine = engine
        self._stores = _stores(engine.project, engine.environ)

    def save(
        self,
        name: str,
        code: str,
        *,
        schema: Mapping[str, Any] | None = None,
        description: str = "",
        language: Literal["js", "ts"] = "js",
        scope: Scope = "project",
    ) -> Tool:
        """Save code under a name, as its next version, and return the tool."""
        check_tool_name(name)
        check_text("the code", code)
        check_text("the description", description)
        if not code.strip():
            raise InvalidInput(
                "the tool has no code", "give some: its last expression is its value"
            )
        if len(code.encode()) > _CODE_MOST or len(description) > _WORDS_MOST:
            raise InvalidInput(
                "the tool is too large", f"at most {_CODE_MOST >> 20} MiB of code and a short text"
            )
        if language not in ("js", "ts"):
            raise InvalidInput(f"a tool is written in js or ts, not {language!r}")
        _check_code(code, language)
        given: Any = dict(schema) if isinstance(schema, Mapping) else schema
        tool = Tool(
            name=name,
            description=description,
            input_schema=check_schema(_ANYTHING if given is None else given),
            code=code,
            language=language,
        )
        if scope == "project":
            make_link(self._engine.project)
        with _told("the tool cannot be saved"):
            return self._store(scope).save(tool)

    def list(self) -> tuple[list[Tool], list[Problem]]:
        """Return all tools by name, the project's before a global one of the same name; and problems."""
        tools: list[Tool] = []
        problems: list[Problem] = []
        for store in self._stores.values():
            with _told("the tools cannot be read"):
                found, broken = store.all()
            tools += found
            problems += broken
        return sorted(tools, key=lambda tool: tool.name), problems

    def show(self, name: str, *, version: int | None = None, scope: Scope | None = None) -> Tool:
        """Return a tool, or one of its versions."""
        for store in self._looked_in(scope):
            with _told("the tool cannot be read"):
                try:
                    found = store.get(name, version)
                except BrokenToolError as error:
                    raise InvalidInput(
                        f"{store.folder}/{name}.json is broken: {error}",
                        "correct it, or save it anew",
                    ) from None
            if found is not None:
                return found
        raise self._unknown(name, version, scope)

    def versions(self, name: str, scope: Scope) -> list[int]:
        """Return the versions that were replaced or deleted."""
        return self._store(scope).versions(name)

    def delete(self, name: str, *, scope: Scope | None = None, purge: bool = False) -> Scope:
        """Delete a tool, and tell from where; its versions stay readable unless purged too."""
        for store in self._looked_in(scope):
            with _told("the tool cannot be deleted"):
                if store.delete(name, purge):
                    return store.scope
        raise self._unknown(name, None, scope)

    def work(self, name: str, given: Mapping[str, Any] | None, options: Options) -> Work:
        """Return the work for one run of a tool, its input held against its schema."""
        import msgspec

        tool = self.show(name)
        inputs = dict(given or {})
        check_schema(tool.input_schema, f"the schema of {name}")  # the file may have been edited
        faults = Checker(tool.input_schema).faults(inputs)
        if faults:
            raise InvalidInput(
                f"{name}: {'; '.join(faults[:_FAULTS])}",
                f"valid parameters: {parameters(tool.input_schema)}",
            )
        chosen = msgspec.structs.replace(
            options, title=options.title or f"tool {name}", inputs=inputs
        )
        return self._engine.code(tool.code, tool.language, chosen)

    def used(self, name: str) -> None:
        """Count a use of a tool."""
        store = self._stores[self.show(name).scope]
        with _told("the use cannot be counted"):
            store.used(name)

    def _store(self, scope: Scope) -> ComposedTools:
        if scope not in self._stores:
            raise InvalidInput(f"there is no scope {scope!r}", "use project or global")
        return self._stores[scope]

    def _looked_in(self, scope: Scope | None) -> Iterator[ComposedTools]:
        yield from [self._store(scope)] if scope else self._stores.values()

    def _unknown(self, name: str, version: int | None, scope: Scope | None) -> UnknownTool:
        names = {tool.name for tool in self.list()[0]}
        if version is not None and name in names:
            of = self.show(name, scope=scope)
            there = [*self.versions(name, of.scope), of.version]
            return UnknownTool(f"{name} has no version {version}", f"it has {there}")
        near = get_close_matches(name, names, 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else "list them with: tenuto tools list"
        where = f" in the scope {scope}" if scope else ""
        return UnknownTool(f"there is no composed tool {name}{where}", hint)


def _check_code(code: str, language: str) -> None:
    """Raise InvalidInput where the code can never run."""
    from tenuto.codemode import source
    from tenuto.codemode.grammar import BadSourceError, UnreadableError

    try:
        source.check(code, language)
    except UnreadableError as error:
        raise InvalidInput(
            f"the code cannot be parsed from line {error.line}, column {error.column} on: "
            f"{_near(code, error.line, error.column)}",
            f"correct it there; it was read as {language}",
        ) from None
    except BadSourceError as error:
        raise InvalidInput(f"line {error.line}, column {error.column}: {error}") from None


def _near(code: str, line: int, column: int) -> str:
    """Return the end of a line from a place on, for a message."""
    rest = code.removeprefix("\ufeff").split("\n")[line - 1][column - 1 :].strip()
    return repr(rest[:_NEAR]) if rest else "something is missing there"


def with_tools(project: Project, work: Work) -> Work:
    """Return work for a VM with all composed tools, the project's before global ones of a name."""
    import msgspec

    found: dict[str, dict[str, Any]] = {}
    usage: dict[str, str] = {}
    versions: dict[str, int] = {}
    size = 0
    for store in _stores(project, os.environ).values():
        with _told("the tools cannot be read"):
            tools = store.all()[0]
            counted = store.usage_folder() if tools else ""
        for tool in tools:
            size += len(tool.code)
            if tool.name in found or size > _ALL_MOST:
                continue
            found[tool.name] = {
                "name": tool.name,
                "schema": tool.input_schema,
                "parameters": parameters(tool.input_schema),
                "language": tool.language,
                "code": tool.code,
            }
            usage[tool.name] = os.path.join(counted, tool.name)
            versions[tool.name] = tool.version
    spec = msgspec.structs.replace(work.spec, tools=versions)
    return msgspec.structs.replace(work, spec=spec, tools=tuple(found.values()), usage=usage)


def _stores(project: Project, environ: Mapping[str, str]) -> dict[Scope, ComposedTools]:
    return {
        "project": ComposedTools(os.path.join(project.home, FOLDER), "project"),
        "global": ComposedTools(global_folder(environ), "global"),
    }


@contextmanager
def _told(what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise as_error(error, what) from error
