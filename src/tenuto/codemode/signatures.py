"""What a Python function takes, from its annotations: a JSON schema, and the binding of a call to it.

JavaScript calls by place, `lookup("x", 5)`, or with one object of names, `lookup({key: "x"})`. One
object is taken as names if all its keys are parameters and no required one is missing; any other
object is the first argument itself.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, cast

import msgspec

from tenuto.codemode.wire import NOT_GIVEN
from tenuto.core.errors import InvalidInput

_NATIVE = (bytes, bytearray)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_QUOTED = re.compile(r"`(\w+)( \| null)?`")


class ArgumentFault(Exception):
    """A call that does not fit what the function takes, in one sentence."""


class Parameter:
    """One name that a function takes."""

    def __init__(self, parameter: inspect.Parameter, hint: Any) -> None:
        """Take it as `inspect` has it, with its annotation resolved."""
        self.name = parameter.name
        self.hint = hint
        self.kind = parameter.kind
        self.default = parameter.default
        self.required = parameter.default is inspect.Parameter.empty

    def convert(self, value: Any) -> Any:
        """Return the value as the annotation wants it, or raise ArgumentFault."""
        if value is NOT_GIVEN:
            value = None
        if self.hint is Any:
            return value
        try:
            return msgspec.convert(value, self.hint, builtin_types=_NATIVE)
        except msgspec.ValidationError as error:
            text = _QUOTED.sub(lambda found: _word(found[1], found[2]), str(error))
            raise ArgumentFault(f"{self.name}: {text[:1].lower()}{text[1:]}") from None


def _word(name: str, or_null: str | None) -> str:
    return _WORDS.get(name, name) + (or_null or "")


class Signature:
    """The parameters of one function."""

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        """Read the function's signature, or raise InvalidInput where it cannot be checked."""
        self._places: list[Parameter] = []
        self._named: dict[str, Parameter] = {}
        self._rest: Parameter | None = None
        self._others: Parameter | None = None
        hints = _hints(name, call)
        for one in _signature(name, call).parameters.values():
            parameter = Parameter(one, hints.get(one.name, Any))
            if one.kind is inspect.Parameter.VAR_POSITIONAL:
                self._rest = parameter
            elif one.kind is inspect.Parameter.VAR_KEYWORD:
                self._others = parameter
            else:
                self._named[one.name] = parameter
                if one.kind in _BY_PLACE:
                    self._places.append(parameter)
        self.schema = self._schema(name)

    def _schema(self, name: str) -> dict[str, Any]:
        hints = [parameter.hint for parameter in self._named.values()]
        try:
            found, definitions = msgspec.json.schema_components(hints)
        except (TypeError, ValueError, RecursionError) as error:
            text = str(error).splitlines()[0]
            raise InvalidInput(
                f"{name} takes what cannot be checked: {text}",
                "annotate with types that msgspec knows, or leave the annotation out",
            ) from None
        properties: dict[str, Any] = {}
        for parameter, schema in zip(self._named.values(), found, strict=True):
            properties[parameter.name] = {**schema, **_default(parameter)}
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        required = [one.name for one in self._named.values() if one.required]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = self._others is not None
        if definitions:
            schema["$defs"] = definitions
        return schema

    def bind(self, args: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and named arguments for the call, or raise ArgumentFault."""
        if len(args) != 1 or not isinstance(args[0], dict):
            return self._by_place(args)
        names = cast("dict[str, Any]", args[0])
        if self._fits(names):
            return self._by_name(names)
        try:
            return self._by_place([_whole(names)])
        except ArgumentFault:
            if self._named.keys() & names.keys() or not self._takes_object():
                return self._by_name(names)  # its sentence tells more
            raise

    def _fits(self, names: dict[str, Any]) -> bool:
        known = self._others is not None or names.keys() <= self._named.keys()
        return known and all(one.name in names or not one.required for one in self._named.values())

    def _takes_object(self) -> bool:
        if not self._places:
            return self._rest is not None
        try:
            msgspec.convert({}, self._places[0].hint)
        except msgspec.ValidationError as error:
            return "missing required field" in str(error)
        return True

    def _by_place(self, args: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        if len(args) > len(self._places) and self._rest is None:
            most = len(self._places)
            given = f"{len(args)} were given"
            raise ArgumentFault(f"it takes {most} arguments at the most by place, and {given}")
        names = {one.name: args[at] for at, one in enumerate(self._places[: len(args)])}
        plain, named = self._by_name(names)
        if self._rest is not None:
            rest = args[len(self._places) :]
            plain += [self._rest.convert(one) for one in rest]
        return plain, named

    def _by_name(self, names: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        faults = [f"missing {one.name}" for one in self._named.values() if _missing(one, names)]
        extra = {key: value for key, value in names.items() if key not in self._named}
        if self._others is None:
            faults += [f"unexpected {key[:60]!r}" for key in extra]
        if faults:
            raise ArgumentFault("; ".join(faults))
        plain: list[Any] = []
        named: dict[str, Any] = {}
        for one in self._named.values():
            value = names.get(one.name, NOT_GIVEN)
            own = value is NOT_GIVEN and not one.required
            value = one.default if own else one.convert(value)
            if one.kind in _BY_PLACE:
                plain.append(value)
            else:
                named[one.name] = value
        if self._others is not None:
            named |= {key: self._others.convert(value) for key, value in extra.items()}
        return plain, named


def _missing(parameter: Parameter, names: dict[str, Any]) -> bool:
    return parameter.required and parameter.name not in names


def _whole(names: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value is NOT_GIVEN else value for key, value in names.items()}


def _signature(name: str, call: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(call)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"what {name} takes is not known: it has no signature",
            "wrap it in a function of your own, or give a schema",
        ) from None


def _hints(name: str, call: Callable[..., Any]) -> dict[str, Any]:
    function: Any = call
    while hasattr(function, "func") and not hasattr(function, "__code__"):  # functools.partial
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    if not getattr(function, "__annotations__", None):
        return {}
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # whatever evaluating an annotation can raise
        raise InvalidInput(
            f"the annotations of {name} cannot be resolved: {error}",
            "use types that can be seen where the function is defined",
        ) from None


def _default(parameter: Parameter) -> dict[str, Any]:
    if parameter.required:
        return {}
    try:
        return {"default": msgspec.to_builtins(parameter.default)}
    except (TypeError, ValueError, RecursionError):
        return {}
