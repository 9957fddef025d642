"""A VM that has been taken over: hardened like any other, it then runs Python from the code's text.

Named as the job's module in place of the real one. What the attacks use is loaded before hardening.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import sys
import time
from typing import Any

from tenuto.codemode import vm
from tenuto.codemode.vm import harden, rest, warm

__all__ = ["harden", "rest", "run", "warm"]
_MODULES = (ctypes, errno, fcntl, os, resource, signal, socket, struct, sys, time)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.argtypes = [ctypes.c_long] * 7


def syscall(number: int, *words: int) -> int:
    padded = (*words, 0, 0, 0, 0, 0, 0)[:6]
    result = _libc.syscall(number, *padded)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _attack(machine: vm.Vm, code: str, language: str = "js", session: bool = False) -> int:
    def say(text: object) -> None:
        machine.tell({"type": "log", "level": "log", "text": str(text)})

    names: dict[str, Any] = {module.__name__: module for module in _MODULES}
    names |= {"say": say, "syscall": syscall, "machine": machine, "libc": _libc}
    try:
        exec(code, names)
    except OSError as error:
        say(f"REFUSED {errno.errorcode.get(error.errno or 0, error.errno)}")
        return 0
    except (MemoryError, ValueError):  # ValueError: a limit cannot be raised
        say("REFUSED memory")
        return 0
    say("DONE")
    return 0


def run(words: dict[str, Any]) -> None:
    vm.Vm.run_cell = _attack  # type: ignore[method-assign]
    vm.run(words)
