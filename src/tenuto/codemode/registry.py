"""The functions that code may call: only those named here exist, everything else is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from tenuto.codemode import wire
from tenuto.codemode.schemas import Checker, check_schema, parameters
from tenuto.codemode.signatures import ArgumentFault, Signature
from tenuto.core.errors import InvalidInput
from tenuto.core.names import check_function_names
from tenuto.core.specs import FunctionSpec

_MOST = 2000
_FAULTS = 5


class HostFunction:
    """A function with a schema of its own: it is called with the input's names as keywords."""

    def __init__(
        self,
        call: Callable[..., Any],
        schema: Mapping[str, Any] | None = None,
        description: str = "",
    ) -> None:
        """Take what to call, a JSON schema of an object (default: from the annotations), and words."""
        self.call = call
        self.schema = schema
        self.description = description


Functions = Mapping[str, Callable[..., Any] | HostFunction]


class _Binder(Protocol):
    schema: dict[str, Any]

    def bind(self, args: list[Any]) -> tuple[list[Any], dict[str, Any]]: ...


class Refused(Exception):
    """A call that was not made; what JavaScript is told, as an exception of its own."""

    def __init__(self, name: str, message: str, detail: Any = None) -> None:
        """Take the exception's name and message, and more that code can look at."""
        super().__init__(message)
        self.error: dict[str, Any] = {"name": name, "message": message}
        if detail is not None:
            self.error["detail"] = detail


class Registered:
    """One function that may be called."""

    def __init__(self, name: str, given: Callable[..., Any] | HostFunction) -> None:
        """Check the function and read what it takes."""
        function = given if isinstance(given, HostFunction) else HostFunction(given)
        if not callable(function.call):
            raise InvalidInput(f"{name} is not a function, but {given!r}"[:200], "pass a function")
        self.name = name
        self.call = function.call
        self.description = function.description or _first_paragraph(function.call)
        self.is_async = _is_async(function.call)
        self._binder: _Binder = (
            Signature(name, function.call)
            if function.schema is None
            else _SchemaBinder(name, function.schema)
        )

    @property
    def spec(self) -> FunctionSpec:
        """What is recorded of it, and told to the VM."""
        return FunctionSpec(self.name, self._binder.schema, self.description)

    def bind(self, args: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for the call, or raise Refused with the valid parameters."""
        try:
            return self._binder.bind(wire.load_arguments(args))
        except (ArgumentFault, wire.WireError) as fault:
            schema = self._binder.schema
            text = f"{self.name}: {fault}. Valid parameters: {parameters(schema)}"
            detail = {"parameters": schema}
            raise Refused("ToolArgumentError", text, detail) from None


class _SchemaBinder:
    """Holds calls against a given JSON schema."""

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        given = dict(schema) if isinstance(schema, Mapping) else schema  # pyright: ignore
        self.schema = check_schema(given, f"the schema of {name}", portable=False)
        self._checker = Checker(self.schema)

    def bind(self, args: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        values = self._named(args)
        values = {key: one for key, one in values.items() if one is not wire.NOT_GIVEN}
        faults = self._checker.faults(values)
        if faults:
            raise ArgumentFault("; ".join(faults[:_FAULTS]))
        return [], values

    def _named(self, args: list[Any]) -> dict[str, Any]:
        if len(args) == 1 and isinstance(args[0], dict):
            return cast("dict[str, Any]", args[0])
        names: list[str] = list(self.schema.get("properties") or ())
        if len(args) > len(names):
            raise ArgumentFault(f"it takes one object, and {len(args)} arguments were given")
        return dict(zip(names, args, strict=False))


class Registry:
    """All functions of one execution, by the name that code calls them by."""

    def __init__(self, functions: Functions) -> None:
        """Check names and functions, or raise InvalidInput."""
        if not isinstance(functions, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("functions are given by name", 'such as {"lookup": lookup}')
        if len(functions) > _MOST:
            raise InvalidInput(f"{len(functions)} functions: at most {_MOST}", "give fewer")
        check_function_names(functions)
        self._functions = {name: Registered(name, one) for name, one in functions.items()}

    @property
    def specs(self) -> tuple[FunctionSpec, ...]:
        """What is recorded of them, and told to the VM."""
        return tuple(one.spec for one in self._functions.values())

    def get(self, name: str) -> Registered:
        """Return a function by its name, or raise Refused."""
        found = self._functions.get(name)
        if found is None:
            names = ", ".join(self._functions) or "none"
            raise Refused(
                "ReferenceError", f"there is no function {name}; served are: {names}"[:2000]
            )
        return found

    def missing(self, names: set[str]) -> list[str]:
        """Return which of these names no function has."""
        return sorted(names - self._functions.keys())


def _is_async(call: Any) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004  an object that is called like a function
    )


def _first_paragraph(call: Any) -> str:
    text = inspect.getdoc(call) or "" if inspect.isroutine(call) else ""
    return " ".join(text.partition("\n\n")[0].split())[:1000]
