"""JSON schemas of what functions and tools take: checked themselves, and held against what is given."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, cast

from tenuto.core.errors import InvalidInput

_DEPTH = 60
_SHOWN = 60


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# They need the whole schema's history or another document; the checker inside the VM has neither.
_UNSUPPORTED = _words(
    "$dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor $anchor $id $vocabulary "
    "unevaluatedItems unevaluatedProperties dependencies additionalItems definitions"
)
# Below these stand names or data of the user's, not keywords.
_NAMED = _words("properties patternProperties $defs dependentSchemas")
_DATA = _words("enum const default examples required dependentRequired")


class Checker:
    """A schema of an object, ready to be held against values."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Take a schema that `check_schema` has passed."""
        import jsonschema_rs  # a tenth of a second less for all who use no schemas

        self.schema = schema
        self._validator = jsonschema_rs.Draft202012Validator(dict(schema), offline=True)

    def faults(self, value: Any) -> list[str]:
        """Return what is wrong with a value, a sentence each; nothing if it fits."""
        try:
            return [_sentence(one) for one in self._validator.iter_errors(value)]
        except (ValueError, TypeError, OverflowError):
            return [_sentence(one) for one in self._validator.iter_errors(_plain(value))]


def _sentence(error: Any) -> str:
    where = ".".join(str(part) for part in error.instance_path)
    text = str(error.message)
    options: Any = getattr(error.kind, "options", None)
    if isinstance(options, list) and "other candidates" in text:  # whoever guesses needs them all
        shown = ", ".join(json.dumps(one, ensure_ascii=False) for one in cast("list[Any]", options))
        text = f"{text.partition(' is not one of ')[0]} is not one of {shown}"
    text = text if len(text) <= 300 else text[:299] + "…"
    return f"{where}: {text}" if where else text


def _plain(value: Any) -> Any:
    """Return a value with dates and bytes as the text that a schema can describe."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [_plain(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in cast("dict[str, Any]", value).items()}
    return value


def check_schema(schema: Any, what: str = "the schema", portable: bool = True) -> dict[str, Any]:
    """Return a schema that describes an object, or raise InvalidInput.

    A portable one can be checked inside the VM too, where not every keyword is known.
    """
    if not isinstance(schema, dict):
        raise InvalidInput(f"{what} is not a JSON object", 'such as {"type": "object", …}')
    found = cast("dict[str, Any]", schema)
    if found.get("type", "object") != "object":
        raise InvalidInput(f'{what} must have "type": "object"', "an input is always an object")
    dialect = found.get("$schema", "")
    if portable and dialect and "2020-12" not in str(dialect):
        raise InvalidInput(f"{what} is written for {dialect}", "write it for JSON Schema 2020-12")
    if portable:
        _walk(found, what, 0)
    import jsonschema_rs

    try:
        jsonschema_rs.Draft202012Validator(found, offline=True)
    except Exception as error:  # its own types, and ValueError for what is no JSON
        text = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise InvalidInput(f"{what} is not a valid JSON schema: {text}") from None
    return found


def _walk(schema: Any, what: str, depth: int) -> None:
    if depth > _DEPTH:
        raise InvalidInput(f"{what} is nested deeper than {_DEPTH}", "make it flatter")
    if isinstance(schema, list):
        for one in cast("list[Any]", schema):
            _walk(one, what, depth + 1)
    if not isinstance(schema, dict):
        return
    for key, one in cast("dict[Any, Any]", schema).items():
        if key in _UNSUPPORTED:
            raise InvalidInput(f"{what} uses {key!r}, which is not supported", "write it without")
        if key == "$ref" and not (isinstance(one, str) and one.startswith("#")):
            raise InvalidInput(f"{what} refers to {one!r}, outside itself", "use #/$defs/…")
        if key in _NAMED and isinstance(one, dict):
            for inner in cast("dict[str, Any]", one).values():
                _walk(inner, what, depth + 1)
        elif key not in _DATA:
            _walk(one, what, depth + 1)


def parameters(schema: Mapping[str, Any]) -> str:
    """Return the valid parameters in one line: `name: string, limit?: integer = 10`."""
    properties: Any = schema.get("properties")
    required: Any = schema.get("required") or ()
    if not isinstance(properties, dict) or not properties:
        return "none" if schema.get("additionalProperties") is False else "any"
    parts: list[str] = []
    for name, one in cast("dict[str, Any]", properties).items():
        mark = "" if name in required else "?"
        parts.append(f"{name}{mark}: {_kind(one, schema)}{_default(one)}")
    if schema.get("additionalProperties") not in (None, False):
        parts.append("and others")
    return ", ".join(parts)


def _kind(schema: Any, root: Mapping[str, Any]) -> str:
    if not isinstance(schema, dict):
        return "any" if schema is True else "nothing"
    found = cast("dict[str, Any]", schema)
    if "enum" in found or "const" in found:
        import json

        values: Any = found.get("enum", [found.get("const")])
        return _cut(" | ".join(json.dumps(one, ensure_ascii=False) for one in values))
    if "anyOf" in found or "oneOf" in found:
        return _cut(" | ".join(_alternatives(found, root)))
    reference = found.get("$ref")
    if isinstance(reference, str):
        return reference.rpartition("/")[2] or "object"
    kind: Any = found.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(str(one) for one in cast("list[Any]", kind))
    if kind == "array" and "items" in found:
        return f"array of {_kind(found['items'], root)}"
    return str(kind)


def _alternatives(schema: dict[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    for one in schema.get("anyOf") or schema.get("oneOf") or ():
        yield _kind(one, root)


def _default(schema: Any) -> str:
    if not isinstance(schema, dict) or "default" not in schema:
        return ""
    import json

    return " = " + _cut(json.dumps(schema["default"], ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
