"""Sessions: named processes in which cells share their variables, one cell after the other.

A session is an execution of its own (its *host*), begun by the first cell of its name and ended only
when it is cleared, killed, or breaks. Each cell is an execution too, with its own keeper and tape. The
host is found among what runs; a file of its name is locked while somebody looks or begins one, so that
there is one only, and remembers the last one, so that its end does not go unnoticed.
"""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core.errors import (
    EngineFault,
    InvalidInput,
    KeeperUnreachable,
    NotRunning,
    UnknownExecution,
)
from tenuto.core.execution import Execution
from tenuto.core.ids import is_id, short
from tenuto.core.ports import Connection
from tenuto.core.specs import Spec, check_session_name
from tenuto.dispatch import control
from tenuto.engine import ending, recover
from tenuto.engine.work import (
    Work,
    cell_body,
    session_language,
    session_limits,
    session_work,
)
from tenuto.stores.layout import as_error, make_private
from tenuto.stores.tape import is_kept

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

_TRIES = 3
_ENDS_S = 10.0
_PAUSE_S = 0.002


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session that lives."""

    name: str
    language: str
    state: str
    """starting, idle or busy; unreachable if its keeper does not answer."""
    host: str
    """The id of the execution that is the session."""
    cells: int = 0
    """How many cells have had their turn."""
    current: str | None = None
    """The id of the cell that runs."""
    queued: tuple[str, ...] = ()
    """The ids of those that wait for their turn, in order."""
    created_ns: int = 0
    age_s: float = 0.0
    memory: int = 0
    """Bytes that its process holds in memory; without those of its children."""
    cwd: str = ""
    """Where it was begun."""


# Starting a cell


def start(engine: BlockingEngine, work: Work) -> tuple[str, Connection]:
    """Start a cell in its session, begun if need be; return once it has its place in the queue."""
    execution_id, sock = engine.starter.start(placed(engine, work))
    _await_place(engine, execution_id, sock)
    return execution_id, sock


def placed(engine: BlockingEngine, work: Work) -> Work:
    """Return a cell's work with where its session is."""
    name = work.spec.session or ""
    with _locked(engine, name) as file:
        host, note = _host(engine, work, file)
    spec = host.spec
    assert spec is not None
    limits = msgspec.structs.replace(
        spec.limits, output=work.spec.limits.output, output_policy=work.spec.limits.output_policy
    )
    asked_cwd = (work.cell or {}).get("cwd")
    cell = {
        "folder": engine.project.folder(host.id),
        "name": name,
        "language": spec.language,
        "cwd": asked_cwd,
    }
    own = msgspec.structs.replace(
        work.spec, host=host.id, session_note=note, limits=limits, cwd=asked_cwd or spec.cwd
    )
    work = engine.starter.with_tools(work)
    work = msgspec.structs.replace(work, spec=own, cell=cell, environ={}, vm=None)
    return msgspec.structs.replace(work, body=cell_body(work))


def _host(engine: BlockingEngine, work: Work, file: int) -> tuple[Execution, str]:
    """Return the session that lives, or a new one and what is to be said about the last."""
    name = work.spec.session or ""
    for _ in range(_TRIES):
        host = find(engine, name)
        if host is None:
            break
        try:
            _check(engine, host, work)
        except control.NoKeeper:
            continue  # it has ended since
        return host, ""
    note = _what_became(engine, name, _last(file))
    host_id, sock = engine.starter.start(session_work(work, engine.settings.programs))
    sock.close()
    _remember(file, host_id)
    try:
        control.request(engine.project.folder(host_id), "session")  # its keeper listens
    except control.NoKeeper:
        raise EngineFault(
            f"session {name} ended at once", f"see: tenuto show {short(host_id)}"
        ) from None
    host = recover.load(engine.project, host_id)
    assert host is not None
    return host, note


def _check(engine: BlockingEngine, host: Execution, work: Work) -> None:
    """Refuse what a session that lives cannot give."""
    spec, asked = host.spec, work.spec
    assert spec is not None
    name = asked.session
    anew = f"use another name, or end it first: tenuto sessions clear {name}"
    if spec.language != session_language(asked):
        raise InvalidInput(f"session {name} is in {spec.language}, not in {asked.language}", anew)
    if work.vm is not None and work.vm["level"] == "require":
        missing = host.confined.missing if host.confined is not None else ("everything",)
        if missing:
            raise InvalidInput(f"session {name} is held without {', '.join(missing)}", anew)
    wanted = msgspec.structs.asdict(session_limits(asked.limits))
    given = msgspec.structs.asdict(spec.limits)
    for limit, value in wanted.items():
        if value is not None and given[limit] != value:
            text = f"its {limit} limit is {given[limit] or 'none'}, and cannot become {value}"
            raise InvalidInput(f"session {name} runs already: {text}", anew)
    if asked.sandbox is not None and asked.sandbox != spec.sandbox:
        raise InvalidInput(f"session {name} runs already, in another sandbox or in none", anew)
    env = {variable: work.environ[variable] for variable in asked.env_names}
    status = _settled(engine, host.id, env)
    if status["differs"]:
        text = f"its environment is fixed, and differs in {', '.join(status['differs'])}"
        raise InvalidInput(f"session {name} runs already: {text}", anew)


def _settled(engine: BlockingEngine, host_id: str, env: dict[str, str]) -> dict[str, Any]:
    """Return how a session stands; one that is about to end is waited for, and then has no keeper."""
    limit = time.monotonic() + _ENDS_S
    while True:
        status = control.request(engine.project.folder(host_id), "session", env=env)
        current = status["current"]
        # the death of a cell's keeper ends the session, as soon as its own keeper notices
        orphaned = current is not None and not is_kept(engine.project.folder(current))
        if not (status["ending"] or orphaned) or time.monotonic() > limit:
            return status
        time.sleep(_PAUSE_S)


def _await_place(engine: BlockingEngine, execution_id: str, sock: Connection) -> None:
    """Wait until the cell is queued: what is started after this comes after it."""
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLIN)
    sock.setblocking(False)
    while True:
        execution = recover.load(engine.project, execution_id)
        if execution is None or execution.started is not None or not execution.live:
            return
        poller.poll()
        try:
            if not sock.recv(65536):
                return
        except BlockingIOError:
            continue
        except OSError:
            return


# Finding


def find(engine: BlockingEngine, name: str) -> Execution | None:
    """Return the session of that name that lives."""
    for row in reversed(engine.index.live()):
        if row.title == f"session {name}":
            host = recover.settle(engine.project, row.id)
            if host is not None and host.live and is_host(host.spec, name):
                return host
    return None


def is_host(spec: Spec | None, name: str = "") -> bool:
    """Tell whether this is a session's own execution."""
    return spec is not None and spec.session_host and spec.session == (name or spec.session)


def sessions(engine: BlockingEngine) -> list[Session]:
    """Return the sessions that live, the oldest first."""
    found: list[Session] = []
    for row in engine.index.live():
        if not row.title.startswith("session "):
            continue
        host = recover.settle(engine.project, row.id)
        if host is not None and host.live and is_host(host.spec):
            with suppress(control.NoKeeper):
                found.append(_described(engine, host))
    return found


def _described(engine: BlockingEngine, host: Execution) -> Session:
    spec = host.spec
    assert spec is not None
    age = max(0, time.time_ns() - host.created_ns) / 1e9
    described = Session(
        name=spec.session or "", language=spec.language or "", state="unreachable", host=host.id,
        created_ns=host.created_ns, age_s=age, cwd=spec.cwd,
    )  # fmt: skip
    try:
        status = control.request(engine.project.folder(host.id), "session")
    except KeeperUnreachable:
        return described
    current, queued = status["current"], tuple(status["queued"])
    state = "busy" if current or queued else "idle" if status["ready"] else "starting"
    return msgspec.structs.replace(
        described, state=state, cells=status["cells"], current=current, queued=queued,
        memory=_resident(status["pid"]),
    )  # fmt: skip


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


# Clearing


def clear(engine: BlockingEngine, name: str) -> Session:
    """End a session with all its processes, verified; return it as it was."""
    check_session_name(name)
    with _locked(engine, name) as file:
        os.ftruncate(file, 0)  # whoever asks for it to be gone need not be told that it is
        host = find(engine, name)
        try:
            if host is None:
                raise control.NoKeeper(name)
            session = _described(engine, host)
            ending.kill(engine.project, engine.index, host.id)
        except (control.NoKeeper, NotRunning):
            names = ", ".join(one.name for one in sessions(engine))
            raise UnknownExecution(
                f"there is no session {name}",
                f"there are: {names}" if names else "there is none at all",
            ) from None
    for cell in (session.current, *session.queued):
        if cell is not None:
            _await_end(engine, cell)
    engine.show(host.id)  # tells the index
    return session


def _await_end(engine: BlockingEngine, cell: str) -> None:
    limit = time.monotonic() + _ENDS_S
    with suppress(FileNotFoundError, UnknownExecution), engine.watch(cell) as watch:
        watch.only_events = True
        watch.look()
        while watch.execution.live and time.monotonic() < limit:
            select.select([watch] if watch.fileno() >= 0 else [], [], [], 0.02)
            watch.look()


# The file of a name


@contextmanager
def _locked(engine: BlockingEngine, name: str) -> Generator[int]:
    """Hold the lock on a session's name; it goes with the process that holds it."""
    folder = engine.project.sessions
    try:
        with suppress(FileExistsError):
            make_private(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(os.path.join(folder, name), flags, 0o600)
    except OSError as error:
        raise as_error(error, f"session {name} cannot be recorded") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _last(file: int) -> str:
    text = os.pread(file, 100, 0).decode("ascii", "replace")
    return text if is_id(text) else ""


def _remember(file: int, host_id: str) -> None:
    with suppress(OSError):  # a full disk: only the note about its end would be missed
        os.pwrite(file, host_id.encode(), 0)
        os.ftruncate(file, len(host_id))


def _what_became(engine: BlockingEngine, name: str, last: str) -> str:
    """Return the note that a session of this name ended and is begun anew."""
    if not last:
        return ""
    host = recover.settle(engine.project, last)
    if host is None or host.live:
        return f"session {name} is new: there was one before, its state is gone"
    why = str(host.state)
    if host.lost is not None:
        why = f"lost: {host.lost.reason}"
    elif host.ended is not None:
        detail = host.ended.detail or host.ended.reason
        why = f"{why}: {detail}" if detail else why
    return f"session {name} is new: the one before has ended ({why}), its state is gone"
