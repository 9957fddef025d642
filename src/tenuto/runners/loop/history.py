"""The conversation as it is kept: one file for each session, replaced at once after every step.

The file has two lines: a head with a checksum, and the messages. The one before it is kept beside it
and stands in when the newest is damaged.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic_ai import messages as m

from tenuto.core.errors import RunnerFailed

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = 1
_NO_RESULT = "Interrupted: there is no result. Whether it took effect is not known."


class _Head(msgspec.Struct, frozen=True):
    v: int
    sha256: str


def home(environ: Mapping[str, str]) -> str:
    """Return the folder of all sessions."""
    if own := environ.get("TENUTO_LOOP_HOME"):
        return own
    state = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "tenuto", "loop")


class History:
    """The messages of one session, held by one process at a time."""

    def __init__(self, folder: str, session: str, note: str = "") -> None:
        """Take a session that `take` made sure of."""
        self.session = session
        self.note = note
        self.messages: list[m.ModelMessage] = []
        self._path = os.path.join(folder, f"{session}.json")
        self._lock = -1

    @classmethod
    def take(cls, folder: str, session: str, known: bool) -> History:
        """Open a session for this process alone; `known` if it must exist."""
        if not _ID.fullmatch(session):
            raise RunnerFailed(f"{session!r} is no session id", kind="bad_request")
        history = cls(folder, session)
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            history._hold(session)
            if known:
                history._load(session)
            elif os.path.exists(history._path):
                raise RunnerFailed(
                    f"the session {session} exists already", "take it up, or choose another id"
                )
            history.repair()
            history.save()
        except OSError as error:
            history.close()
            raise RunnerFailed(
                f"the session {session} cannot be kept in {folder}: {error.strerror or error}",
                "set TENUTO_LOOP_HOME to a folder that can be written",
            ) from None
        except BaseException:
            history.close()
            raise
        return history

    def _hold(self, session: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock = os.open(f"{self._path[:-5]}.lock", flags, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunnerFailed(
                f"the session {session} is open in another process", "end that one first"
            ) from None

    def _load(self, session: str) -> None:
        problems: list[str] = []
        for path in (self._path, f"{self._path}.previous"):
            try:
                self.messages = _read(path)
            except FileNotFoundError:
                problems.append("not there")
            except (ValueError, msgspec.DecodeError) as error:
                problems.append(f"damaged ({str(error)[:200]})")
            else:
                if problems and problems[0] != "not there":
                    self.note = (
                        f"the newest state of {session} is {problems[0]}; the one before it is used"
                    )
                return
        if problems == ["not there", "not there"]:
            raise RunnerFailed(f"there is no session {session}", "begin a new one", "session")
        raise RunnerFailed(
            f"the session {session} cannot be taken up: its file {self._path} is {problems[0]}",
            "begin a new session",
            "session",
        )

    def save(self) -> None:
        """Put the messages into the file at once; it is whole at any time."""
        body = m.ModelMessagesTypeAdapter.dump_json(self.messages)
        head = msgspec.json.encode(_Head(_VERSION, hashlib.sha256(body).hexdigest()))
        fresh = f"{self._path}.new"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(head + b"\n" + body + b"\n")
        try:
            os.replace(self._path, f"{self._path}.previous")
        except FileNotFoundError:
            pass  # the first time
        os.replace(fresh, self._path)

    def asked(self, text: str) -> None:
        """Add a prompt; a request that was not sent yet takes it up."""
        self.repair()
        self._extend(m.UserPromptPart(text))

    def returned(self, call: m.ToolCallPart, text: str, outcome: Any = "success") -> None:
        """Add the result of a tool."""
        self._extend(m.ToolReturnPart(call.tool_name, text, call.tool_call_id, outcome=outcome))

    def _extend(self, part: m.ModelRequestPart) -> None:
        last = self.messages[-1] if self.messages else None
        if isinstance(last, m.ModelRequest):
            last.parts = [*last.parts, part]
        else:
            self.messages.append(m.ModelRequest([part]))

    def cut(self, partial: m.ModelResponse) -> None:
        """Add what of an answer had come when it was cut: its text, no calls that are not whole."""
        parts = [one for one in partial.parts if isinstance(one, m.TextPart) and one.content]
        if parts:
            partial.parts = parts
            self.messages.append(partial)

    def repair(self) -> None:
        """Give every call of a tool that has no result one that says so, and drop results of none."""
        repaired: list[m.ModelMessage] = []
        calls: dict[str, m.ToolCallPart] = {}
        for message in self.messages:
            if isinstance(message, m.ModelResponse):
                _close(repaired, calls)
                if not message.parts:
                    continue
                calls = {one.tool_call_id: one for one in message.tool_calls}
            else:
                order = list(calls)
                kept = [one for one in message.parts if _belongs(one, calls)]
                missing = [_unanswered(one) for one in calls.values()]
                message.parts = sorted([*kept, *missing], key=lambda one: _place(one, order))
                calls = {}
            repaired.append(message)
        _close(repaired, calls)
        self.messages = repaired

    def close(self) -> None:
        """Let another process have the session."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _place(part: m.ModelRequestPart, order: list[str]) -> int:
    """Return where a part stands: results as they were called for, then everything else."""
    return order.index(part.tool_call_id) if isinstance(part, m.ToolReturnPart) else len(order)


def _belongs(part: m.ModelRequestPart, calls: dict[str, m.ToolCallPart]) -> bool:
    """Tell whether a part may stay; the call that it answers is settled."""
    if isinstance(part, m.ToolReturnPart):
        return calls.pop(part.tool_call_id, None) is not None
    return True


def _unanswered(call: m.ToolCallPart) -> m.ModelRequestPart:
    return m.ToolReturnPart(call.tool_name, _NO_RESULT, call.tool_call_id, outcome="interrupted")


def _close(repaired: list[m.ModelMessage], calls: dict[str, m.ToolCallPart]) -> None:
    if calls:
        repaired.append(m.ModelRequest([_unanswered(one) for one in calls.values()]))
        calls.clear()


def _read(path: str) -> list[m.ModelMessage]:
    with open(path, "rb") as file:
        first, _, body = file.read().partition(b"\n")
    head = msgspec.json.decode(first, type=_Head)
    if head.v != _VERSION:
        raise ValueError(f"of version {head.v}, which this Tenuto does not know")
    body = body.rstrip(b"\n")
    if hashlib.sha256(body).hexdigest() != head.sha256:
        raise ValueError("its checksum does not fit")
    return m.ModelMessagesTypeAdapter.validate_json(body)
