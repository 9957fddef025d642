"""Starting: the id is recorded, then the folder and the tape exist, then a keeper takes over."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from tenuto import __version__
from tenuto.core import events as ev
from tenuto.core.errors import DiskFull, EngineFault, NotFinished
from tenuto.core.ids import new_id, short
from tenuto.core.listing import Row
from tenuto.core.ports import Connection, Dispatcher, Store
from tenuto.core.specs import Limits
from tenuto.core.states import RESUMABLE, State
from tenuto.dispatch.control import encode
from tenuto.engine import scratch
from tenuto.engine.holding import held
from tenuto.engine.recover import fold, load, output_of, settle, starter_mark
from tenuto.engine.settings import Settings
from tenuto.engine.work import Work
from tenuto.keeper.faults import point
from tenuto.stores.layout import Project, as_error, check_room, make_link
from tenuto.stores.pen import Pen
from tenuto.stores.tape import TapeReader

_START_PATIENCE_S = 60.0
_TRIES = 3
_LEAVE_PATIENCE_S = 5.0
_PAUSE_S = 0.002


class Starter:
    """Turns work into a kept execution."""

    def __init__(
        self, project: Project, settings: Settings, index: Store, launcher: Dispatcher
    ) -> None:
        """Take what starting needs."""
        self._project = project
        self._settings = settings
        self._index = index
        self._launcher = launcher
        self.ready: Callable[[Work], Dispatcher | None] = lambda _: None
        """Who holds processes ready for a piece of work, if anybody does."""
        self._mark = (0, "")
        self._linked = False

    def start(self, work: Work) -> tuple[str, Connection]:
        """Return the id and a connection that watches, once a keeper has taken the work over."""
        execution_id = work.execution_id or new_id()
        if not self._linked:
            make_link(self._project)
            self._linked = True
        work = held(work, execution_id, self._project)
        work = self.with_tools(work)
        spec = msgspec.structs.replace(work.spec, limits=self._with_quota(work.spec.limits))
        row = Row(
            id=execution_id,
            kind=spec.kind,
            state=State.QUEUED,
            title=spec.label(),
            parent=spec.parent,
            is_async=spec.detached,
            created_ns=time.time_ns(),
            starter=self._own_mark(),
        )
        check_room(self._project)
        text = spec.code or " ".join(spec.argv)
        place = _inode(self._project.index)
        self._index.add(row, text)
        point("start-indexed")
        try:
            created = ev.Created(id=execution_id, spec=spec, version=__version__)
            pen = Pen.create(self._project.folder(execution_id), created, *work.events)
        except OSError as error:
            with suppress(DiskFull):
                self._index.forget([execution_id])
            raise as_error(error, "the execution cannot be recorded") from error
        if _inode(self._project.index) != place:  # made anew, perhaps just before our folder
            if self._index.get(execution_id) is None:
                self._index.add(row, text)
            else:
                self._index.settle(row)
        point("start-recorded")
        work = msgspec.structs.replace(work, spec=spec)
        return execution_id, self._hand_over(pen, execution_id, work)

    def resume(
        self, execution_id: str, work: Work, by: str = "", forced: bool = False
    ) -> Connection:
        """Run an interrupted or lost execution again, on the same tape."""
        settle(self._project, execution_id)
        work = held(work, execution_id, self._project)
        folder = self._project.folder(execution_id)
        pen = self._take_up(execution_id)
        if pen is None:
            raise EngineFault("its tape cannot be read", "run the work anew")
        try:
            with TapeReader(folder) as reader:
                execution = fold(reader, execution_id)
            if execution.state not in RESUMABLE:
                raise NotFinished(
                    f"it is {execution.state}: only an interrupted or lost one can be resumed",
                    "run the work anew",
                )
            moved = ""
            if execution.spec is not None:  # whoever serves them serves them again
                moved = work.spec.cwd if work.spec.cwd != execution.spec.cwd else ""
                kept = execution.spec.functions
                spec = msgspec.structs.replace(work.spec, functions=kept)
                work = self.with_tools(msgspec.structs.replace(work, spec=spec))
            pen.append(ev.Resumed(argv=work.spec.argv, by=by, forced=forced, cwd=moved))
            for event in work.events:
                pen.append(event)
            counted = output_of(folder)
        except BaseException:
            pen.put_down()
            raise
        return self._hand_over(pen, execution_id, work, *counted)

    def _take_up(self, execution_id: str) -> Pen | None:
        """Take up the pen; a keeper that has written its last word holds it a moment longer."""
        limit = time.monotonic() + _LEAVE_PATIENCE_S
        while True:
            try:
                return Pen.take_up(self._project.folder(execution_id))
            except NotFinished:
                found = load(self._project, execution_id)
                if found is not None and found.live:
                    raise NotFinished(
                        f"{short(execution_id)} is {found.state}: somebody else has resumed it",
                        f"follow it: tenuto logs -f {short(execution_id)}",
                    ) from None
                if time.monotonic() > limit:
                    name = short(execution_id)
                    raise NotFinished(
                        f"{name} has ended, but its keeper is still there: its disk is full, or "
                        "processes that it left behind run on",
                        f"make room (tenuto doctor), or end them: tenuto kill {name}",
                    ) from None
            time.sleep(_PAUSE_S)

    def _hand_over(
        self, pen: Pen, execution_id: str, work: Work, size: int = 0, lines: int = 0
    ) -> Connection:
        """Give the tape to a keeper; our own lock on it stays until one has taken the job."""
        job = _job(pen, execution_id, work, size, lines)
        launcher = self.ready(work) or self._launcher
        try:
            if work.confinement is not None:
                folder = self._project.folder(execution_id)
                scratch.prepare(folder, execution_id, work.confinement.confine)
            for _ in range(_TRIES):
                sock = launcher.launch(job, pen.fd, pen.dir_fd)
                point("start-handed-over")
                if _taken(sock):
                    return sock
                sock.close()  # nobody took it, so that trying again cannot run it twice
            raise EngineFault("its process died before it took the job", "see: tenuto doctor")
        except (OSError, EngineFault) as error:
            text = error.message if isinstance(error, EngineFault) else str(error)
            pen.append(ev.Ended(state=State.FAILED, reason="keeper", detail=text))
            raise EngineFault(
                f"no keeper could be started: {text}", "see: tenuto doctor"
            ) from error
        finally:
            pen.put_down()

    def with_tools(self, work: Work) -> Work:
        """Take along the composed tools as they are now, if the code looks as if it called any."""
        if work.vm is None or "tools" not in (work.spec.code or ""):
            return work
        from tenuto.engine.composed import with_tools  # hardly any code does

        return with_tools(self._project, work)

    def _with_quota(self, limits: Limits) -> Limits:
        if limits.output is not None or self._settings.output_quota is None:
            return limits
        return msgspec.structs.replace(
            limits,
            output=self._settings.output_quota,
            output_policy=self._settings.output_policy,
        )

    def _own_mark(self) -> str:
        if self._mark[0] != os.getpid():
            self._mark = (os.getpid(), starter_mark(os.getpid()))
        return self._mark[1]


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


def _taken(sock: Connection) -> bool:
    """Tell whether a keeper took the job; after False none can, however late it comes to it."""
    sock.settimeout(_START_PATIENCE_S)
    try:
        return bool(sock.recv(1))
    except TimeoutError:
        sock.shutdown(socket.SHUT_RD)  # a keeper that says from now on that it takes the job fails
        return bool(sock.recv(1))


def _job(pen: Pen, execution_id: str, work: Work, size: int = 0, lines: int = 0) -> bytes:
    spec = work.spec
    job: dict[str, Any] = {
        "v": 1,
        "id": execution_id,
        "magic": pen.magic.hex(),
        "next_seq": pen.next_seq,
        "last_ns": pen.last_ns,
        "argv": spec.argv,
        "cwd": spec.cwd,
        "env": work.environ,
        "code": (work.body or spec.code) if work.channel else None,
        "pty": spec.pty,
        "echo": spec.echo,
        "limits": spec.limits,
        "deadline": spec.deadline,
        "idle": spec.idle,
        "session": work.session,
        "cell": work.cell,
        "size": size,  # of the output that is there already
        "lines": lines,
        "functions": spec.functions,
        "served": work.served,
        "tools": work.tools,
        "usage": work.usage,
    }
    if work.confinement is not None:
        job |= msgspec.to_builtins(work.confinement)
        job["env"] = job.pop("environ")
    if work.vm is not None:
        job["vm"] = work.vm
    if work.tells:
        job["tells"] = work.tells
    if work.tether is not None:
        job["tether"] = work.tether
    return encode(job)
