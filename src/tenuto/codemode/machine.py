"""One JavaScript context with its surface: what user code finds there, and the few calls between us.

Made once in the image that keepers are forked from; every VM is a fork of it that nobody has used.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable

import _quickjs as _untyped  # the wrapper around it would load threads

TYPE_CHECKING = False  # typing would cost the image 10 ms and its pages
if TYPE_CHECKING:
    from typing import Any

_quickjs: Any = _untyped

_SURFACE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "surface")
_PARTS = ("kit", "wire", "errors", "inspect", "console", "clone", "run", "schema", "tools")
_CALLS = (
    "run",
    "fire",
    "item",
    "answer",
    "settle",
    "renew",
    "fail",
    "equip",
    "tools",
    "declare",
    "seal",
)
_KIT, _HOST, _PART = "tenuto kit", "tenuto host", "tenuto part"  # as globals, for a moment
_LAYOUT = (80, 16)  # of a Context: its size, and where the runtime and the context stand in it
_STACK = 6 * 1024 * 1024  # a call of JavaScript takes 1.7 KB of it; its own 1 MB would be 600 calls
_OBJECT, _BOOL, _UNDEFINED = -1, 1, 3


class _Value(ctypes.Structure):
    """A JSValue, which QuickJS passes by value."""

    _fields_ = (("u", ctypes.c_uint64), ("tag", ctypes.c_int64))


_library = ctypes.PyDLL(_quickjs.__file__)
_Stopper = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Tracker = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, _Value, _Value, ctypes.c_bool, ctypes.c_void_p)
for _name, _result, _arguments in (
    ("JS_GetRuntime", ctypes.c_void_p, (ctypes.c_void_p,)),
    ("JS_GetGlobalObject", _Value, (ctypes.c_void_p,)),
    ("JS_GetPropertyStr", _Value, (ctypes.c_void_p, _Value, ctypes.c_char_p)),
    ("JS_SetPropertyStr", ctypes.c_int, (ctypes.c_void_p, _Value, ctypes.c_char_p, _Value)),
    ("JS_GetException", _Value, (ctypes.c_void_p,)),
    ("JS_Call", _Value, (ctypes.c_void_p, _Value, _Value, ctypes.c_int, ctypes.POINTER(_Value))),
    (
        "JS_Eval",
        _Value,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int),
    ),
    ("JS_SetInterruptHandler", None, (ctypes.c_void_p, _Stopper, ctypes.c_void_p)),
    ("JS_SetHostPromiseRejectionTracker", None, (ctypes.c_void_p, _Tracker, ctypes.c_void_p)),
):
    _function = getattr(_library, _name)
    _function.restype, _function.argtypes = _result, _arguments


_libc = ctypes.PyDLL(None)
_libc.sbrk.restype, _libc.sbrk.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t,)
_M_TRIM_THRESHOLD, _NEVER = -1, 2**31 - 1


def keep_heap() -> int:
    """Have the heap keep its size from here on, so that its end tells how large it once was."""
    _libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    return heap_end()


def heap_end() -> int:
    """Return where the heap ends now."""
    return int(_libc.sbrk(0) or 0)


class Machine:
    """A context, its surface, and the surface's calls (`run`, `fire`, …) as attributes."""

    def __init__(self, host: dict[str, Callable[..., object]]) -> None:
        """Make a context that may call the functions of `host`; they must never raise."""
        self.context: Any = _quickjs.Context()
        self.context.set_max_stack_size(_stack())
        self.rejected = False
        self._runtime, self._pointer = _pointers(self.context)
        self._global: Any = _library.JS_GetGlobalObject(self._pointer)
        self._load(host)
        self._track()
        for name in _CALLS:
            setattr(self, name, self._global_call(name))
        for name in (_KIT, _HOST, _PART):
            self.context.eval(f"delete globalThis['{name}']")

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def _load(self, host: dict[str, Callable[..., object]]) -> None:
        evaluate = self.context.eval
        evaluate(f"globalThis['{_KIT}'] = {{__proto__: null}}")
        evaluate(f"globalThis['{_HOST}'] = {{__proto__: null}}")
        for name, call in host.items():
            self.context.add_callable(_PART, call)
            evaluate(f"globalThis['{_HOST}'].{name} = globalThis['{_PART}']")
        for part in _PARTS:
            self._evaluate(part)
            evaluate(f"globalThis['{_PART}'](globalThis['{_KIT}'], globalThis['{_HOST}'])")

    def _evaluate(self, part: str) -> None:
        """Have a file of the surface as a function, under a name that stack traces show."""
        with open(os.path.join(_SURFACE, f"{part}.js"), "rb") as file:
            text = file.read()
        name = f"tenuto:{part}".encode()
        value = _library.JS_Eval(self._pointer, text, len(text), name, 0)
        if value.tag != _OBJECT:
            raise RuntimeError(f"the surface's {part}.js does not load")
        _library.JS_SetPropertyStr(self._pointer, self._global, _PART.encode(), value)

    def make(self, text: str, name: str) -> None:
        """Evaluate a text under a name for stack traces: it is kit.made, or kit.flawed is the reason."""
        data = text.encode("utf-8", "replace")
        value = _library.JS_Eval(self._pointer, data, len(data), name.encode(), 0)
        made = value.tag == _OBJECT
        if not made:
            value = _library.JS_GetException(self._pointer)
        property_name = b"made" if made else b"flawed"
        _library.JS_SetPropertyStr(self._pointer, self._kit, property_name, value)

    def _global_call(self, name: str) -> Any:
        return self.context.eval(f"globalThis['{_KIT}'].{name}")

    def interruptible(self, stop: Callable[[], bool]) -> None:
        """Have code that runs ask now and then whether to stop; it cannot catch that."""

        def asked(_runtime: int, _: int) -> int:
            return int(stop())

        self._stopper = _Stopper(asked)
        _library.JS_SetInterruptHandler(self._runtime, self._stopper, None)

    def _track(self) -> None:
        """Hear of promises that are rejected with nobody to take it: only the C interface tells."""
        kit = self._kit = _library.JS_GetPropertyStr(self._pointer, self._global, _KIT.encode())
        told = _library.JS_GetPropertyStr(self._pointer, kit, b"rejected")
        undefined = _Value(0, _UNDEFINED)
        pointer = self._pointer

        def track(_context: int, promise: _Value, reason: _Value, taken: bool, _: int) -> None:
            self.rejected = True
            arguments = (_Value * 3)(promise, reason, _Value(int(taken), _BOOL))
            if _library.JS_Call(pointer, told, undefined, 3, arguments).tag != _UNDEFINED:
                _library.JS_GetException(pointer)

        self._tracker = _Tracker(track)
        _library.JS_SetHostPromiseRejectionTracker(self._runtime, self._tracker, None)


def _stack() -> int:
    """Return how much of the process's stack JavaScript may use; Python needs the rest."""
    bound, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _STACK if bound == resource.RLIM_INFINITY else min(_STACK, bound * 3 // 4)


def _pointers(context: Any) -> tuple[int, int]:
    """Return the runtime and the context behind a Context; its layout is checked before it is read."""
    size, place = _LAYOUT
    if type(context).__basicsize__ != size:
        raise RuntimeError("this release of quickjs-ng is laid out differently: install 0.17")
    runtime, pointer = (ctypes.c_void_p * 2).from_address(id(context) + place)
    if not runtime or not pointer or _library.JS_GetRuntime(pointer) != runtime:
        raise RuntimeError("this release of quickjs-ng is laid out differently: install 0.17")
    return runtime, pointer
