"""Which names a function or a tool may have: those that JavaScript can say and does not use itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tenuto.core.errors import InvalidInput

_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)
_TOOL = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_LONGEST = 64
_PARTS = 4


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_KEYWORDS = _words(
    "arguments async await break case catch class const continue debugger default delete do else enum "
    "eval export extends false finally for function get if implements import in instanceof interface "
    "let new null of package private protected public return set static super switch this throw true "
    "try typeof undefined var void while with yield"
)
# What every piece of code finds in the VM: a function of that name would take it away.
_OURS = _words(
    "console inputs readStdin tools setTimeout clearTimeout setInterval clearInterval setImmediate "
    "clearImmediate queueMicrotask structuredClone globalThis print tenuto"
)
_LANGUAGE = _words(
    "AggregateError Array ArrayBuffer AsyncFunction Atomics BigInt BigInt64Array BigUint64Array Boolean "
    "DataView Date Error EvalError FinalizationRegistry Float16Array Float32Array Float64Array Function "
    "Infinity Int16Array Int32Array Int8Array Iterator JSON Map Math NaN Number Object Promise Proxy "
    "RangeError ReferenceError Reflect RegExp Set SharedArrayBuffer String Symbol SyntaxError TypeError "
    "URIError Uint16Array Uint32Array Uint8Array Uint8ClampedArray WeakMap WeakRef WeakSet decodeURI "
    "decodeURIComponent encodeURI encodeURIComponent escape isFinite isNaN parseFloat parseInt "
    "unescape performance TextEncoder TextDecoder"
)
# `then` would make `await` call it; the others are how JavaScript finds its own way about an object.
_NEVER = _words(
    "__proto__ constructor prototype then toJSON toString valueOf hasOwnProperty "
    "__defineGetter__ __defineSetter__ __lookupGetter__ __lookupSetter__"
)


def check_function_names(names: Iterable[str]) -> None:
    """Raise InvalidInput unless all can stand together in one VM."""
    taken: dict[str, str] = {}
    for name in names:
        for part in _parts(name)[:-1]:
            taken.setdefault(part, name)
    for name in names:
        if name in taken:
            raise InvalidInput(
                f"{name!r} is a function, and {taken[name]!r} needs it to be a namespace",
                "rename one of them",
            )


def _parts(name: object) -> list[str]:
    """Check one name and return it and the namespaces before it, the shortest first."""
    if not isinstance(name, str) or not name:
        raise InvalidInput(
            f"{name!r} is not a function's name", "name it as in lookup or github.search"
        )
    words = name.split(".")
    for word in words:
        if not _WORD.fullmatch(word) or len(word) > _LONGEST:
            raise InvalidInput(
                f"{name!r} is not a name that JavaScript code can call",
                f"use letters, digits, _ and $ (at most {_LONGEST}), with dots between",
            )
        if word in _NEVER:
            raise InvalidInput(
                f"{name!r}: {word} has a meaning of its own in JavaScript", "rename it"
            )
    if len(words) > _PARTS:
        raise InvalidInput(f"{name!r} has more than {_PARTS} parts", "use fewer dots")
    first = words[0]
    if first in _KEYWORDS or first in _OURS or first in _LANGUAGE:
        raise InvalidInput(
            f"{name!r}: {first} is taken by JavaScript or the VM itself", "rename it"
        )
    return [".".join(words[: count + 1]) for count in range(len(words))]


def check_tool_name(name: object) -> str:
    """Return a composed tool's name, or raise InvalidInput."""
    if not isinstance(name, str) or not _TOOL.fullmatch(name) or len(name) > _LONGEST:
        raise InvalidInput(
            f"{str(name)[:80]!r} is not a tool's name",
            f"use a letter, then letters, digits and _, at most {_LONGEST} in all",
        )
    if name in _NEVER or name in _KEYWORDS:
        raise InvalidInput(
            f"{name!r} has a meaning of its own in JavaScript", "choose another name"
        )
    return name
