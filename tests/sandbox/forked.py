"""Run a function in a forked child that may be confined for ever, and tell how that ended."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any


class Died(Exception):
    """The child was ended by a signal."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"signal {signal}")
        self.signal = signal


def forked(function: Callable[[], Any]) -> Any:
    """Return what the function returns in a child, as JSON has it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            try:
                answer = {"value": function()}
            except BaseException:
                answer = {"error": traceback.format_exc()}
            os.write(write, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        data = file.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        raise Died(os.WTERMSIG(status))
    answer = json.loads(data)
    assert "error" not in answer, answer["error"]
    return answer["value"]


def outcome(function: Callable[[], Any]) -> str:
    """Return "ok", or the name of the error that the system gave."""
    import errno

    try:
        function()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "ok"
