"""How an execution ended: the exit status and whatever was asked of it, as an exit record."""

from __future__ import annotations

import errno
import os
import resource
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tenuto.keeper.keeper import Keeper


class Outcome:
    """An end that somebody asked for, which outweighs the exit status."""

    def __init__(self, state: str, reason: str, detail: str = "") -> None:
        """Take the state to end in and why."""
        self.state = state
        self.reason = reason
        self.detail = detail


def killed(number: int) -> Outcome:
    """Return the end of an execution that was killed on request."""
    return Outcome("killed", "killed", f"{_name(number)} on request")


def interrupted(reason: str) -> Outcome:
    """Return the end of an execution that was asked to stop."""
    return Outcome("interrupted", "interrupted", reason)


def deadline(seconds: float) -> Outcome:
    """Return the end at a deadline."""
    return Outcome("failed", "deadline", f"it ran for {seconds:g} s, the deadline asked for")


def idle(seconds: float) -> Outcome:
    """Return the end after a silence."""
    return Outcome("failed", "idle", f"no output for {seconds:g} s, the idle deadline asked for")


def limit(resource_name: str, bound: object) -> Outcome:
    """Return the end at a limit, naming resource and limit."""
    return Outcome("failed", "limit", f"{resource_name} limit {bound}")


def orphaned() -> Outcome:
    """Return the end of an execution whose driver is gone."""
    return Outcome("killed", "orphaned", "the driver that it worked for has ended")


def protocol(how: str) -> Outcome:
    """Return the end of an execution whose child broke the rules of its line to us."""
    return Outcome("failed", "protocol", how)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def record(keeper: Keeper, status: int, usage: resource.struct_rusage | None) -> dict[str, Any]:
    """Return the exit record's fields but for what was left behind."""
    code = os.waitstatus_to_exitcode(status)
    fields: dict[str, Any] = {"exit_code": code if code >= 0 else None}
    fields["size"], fields["lines"] = keeper.size, keeper.lines
    if code < 0:
        fields["signal"] = _name(-code)
    if usage is not None:
        fields["usage"] = {
            "user_s": round(usage.ru_utime, 6),
            "system_s": round(usage.ru_stime, 6),
            "max_rss": usage.ru_maxrss * 1024,
        }
        if keeper.held is not None:
            fields["usage"] = keeper.held.usage(fields["usage"])
    if keeper.cell is not None and keeper.cell.usage is not None:
        fields["usage"] = keeper.cell.usage
    if keeper.channel.exec_error is not None:
        number, text = keeper.channel.exec_error
        outcome = Outcome("failed", "exec", text)
        fields["exit_code"] = 127 if number == errno.ENOENT else 126
    elif keeper.cell is not None and keeper.cell.gone is not None:
        outcome = keeper.outcome or Outcome("failed", *keeper.cell.why_gone())
    elif keeper.outcome is None and keeper.driven is not None:
        outcome = keeper.driven.outcome or _of_driver(keeper, code)
    else:
        outcome = keeper.outcome or _of_sandbox(keeper, code) or _from_status(keeper, code, usage)
    return {**fields, "state": outcome.state, "reason": outcome.reason, "detail": outcome.detail}


def _of_driver(keeper: Keeper, code: int) -> Outcome:
    """Return the end of a driver without a last word: what it did is on the tape, and no success."""
    asked = keeper.signal_asked
    if asked and code in (-asked, 128 + asked):
        return killed(asked)
    how = _name(-code) if code < 0 else f"exit code {code}"
    return Outcome("lost", "driver", f"its driver died: {how}")


def _of_sandbox(keeper: Keeper, code: int) -> Outcome | None:
    """Return the end that the sandbox made, rather than the program in it."""
    if keeper.held is None:
        return None
    if not keeper.channel.confined and code > 0:  # only bubblewrap may fail so late
        return Outcome("failed", "exec", "the sandbox could not be set up: see the output")
    found = keeper.held.breach()
    return keeper.held.complained() if found is None and code != 0 else found


def _from_status(keeper: Keeper, code: int, usage: resource.struct_rusage | None) -> Outcome:
    asked = keeper.signal_asked
    if asked and code in (-asked, 128 + asked):
        return killed(asked)
    if code == 0:
        return Outcome("succeeded", "")
    return _from_limits(keeper, code, usage) or (
        Outcome("failed", "signal", _name(-code))
        if code < 0
        else Outcome("failed", "exit", f"exit code {code}")
    )


def _from_limits(keeper: Keeper, code: int, usage: resource.struct_rusage | None) -> Outcome | None:
    """Return the end at a limit, if it was that."""
    limits = keeper.limits
    if keeper.channel.limit is not None:
        return limit(*keeper.channel.limit)
    spent = usage.ru_utime + usage.ru_stime if usage is not None else 0.0
    cpu = limits.get("cpu")
    if cpu and (_by(code, signal.SIGXCPU) or (_by(code, signal.SIGKILL) and spent >= float(cpu))):
        return limit("cpu", f"{float(cpu):g} s")
    if limits.get("file_size") and (_by(code, signal.SIGXFSZ) or _raised(keeper, errno.EFBIG)):
        return limit("file_size", f"{limits['file_size']} bytes")
    if limits.get("open_files") and _raised(keeper, errno.EMFILE):
        return limit("open_files", limits["open_files"])
    if limits.get("memory") and _out_of_memory(keeper, code, usage):
        return limit("memory", f"{limits['memory']} bytes")
    return None


def _by(code: int, number: int) -> bool:
    """Tell whether a signal ended the program, or a child whose end a shell passed on."""
    return code in (-number, 128 + number)


def _raised(keeper: Keeper, number: int) -> bool:
    """Tell whether the program's own last word was this error; Python and Node spell it so."""
    text = keeper.channel.raised_text
    return f"[Errno {number}]" in text or f"{errno.errorcode[number]}:" in text


def _out_of_memory(keeper: Keeper, code: int, usage: resource.struct_rusage | None) -> bool:
    """Judge from what is known: the program's own word, or a crash close to the limit."""
    if keeper.channel.raised == "MemoryError":
        return True
    close = usage is not None and usage.ru_maxrss * 1024 >= 0.8 * int(keeper.limits["memory"])
    if keeper.held is not None:
        return close  # whatever it made of it
    return close and code in (
        -signal.SIGABRT,
        -signal.SIGSEGV,
        -signal.SIGKILL,
        -signal.SIGTRAP,
        134,
    )
