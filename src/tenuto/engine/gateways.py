"""The project's metering gateway: found or started as an execution of its own, and told of decisions."""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tenuto.core.budget import Crossing, Verdict
from tenuto.core.errors import EngineFault, KeeperUnreachable, NotRunning
from tenuto.core.runs import Endpoint
from tenuto.dispatch import control
from tenuto.engine.reports import GATEWAY
from tenuto.engine.work import Options
from tenuto.keeper.procfs import MARK
from tenuto.metering import passes, upstreams
from tenuto.metering.serving import READY, Record, read_record
from tenuto.stores.layout import Project
from tenuto.stores.tape import is_kept

if TYPE_CHECKING:
    from tenuto.engine.blocking import BlockingEngine

TITLE = GATEWAY
KEY_NAMES = upstreams.KEY_NAMES
"""Variables that a runtime must not be given when its requests go through a gateway."""
_MODULE = "tenuto.engine.gateway_main"
_START_PATIENCE_S = 60.0
_ANSWER_PATIENCE_S = 5.0


class GatewayInfo(msgspec.Struct, frozen=True):
    """A gateway that answers."""

    url: str
    execution_id: str
    fingerprint: str
    secret: bytes

    def __repr__(self) -> str:
        return f"GatewayInfo({self.url!r}, {self.execution_id!r})"  # never with the secret


def ensure(
    engine: BlockingEngine, environ: Mapping[str, str] | None = None, idle_s: float | None = None
) -> GatewayInfo:
    """Return the gateway of this project and these keys; start it if none answers.

    Inside a runtime whose own requests go through a gateway of this project, it is that one: what is
    asked there is counted once.
    """
    environ = engine.environ if environ is None else environ
    home = engine.project.home
    secret = passes.secret_of(home)
    around = _around(engine.project, environ, secret)
    if around is not None:
        return around
    mark = upstreams.fingerprint(upstreams.from_environ(environ))
    found = _live(engine.project, mark, secret)  # mostly it is there
    if found is not None:
        return found
    path = os.path.join(home, "gateway", f"{mark}.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of many starts it, the others find it
        found = _live(engine.project, mark, secret)
        return found or _start(engine, environ, mark, secret, idle_s)
    finally:
        os.close(lock)


def endpoint(info: GatewayInfo, execution: str, step: str) -> Endpoint:
    """Return where a step's runtime sends its requests, and the token that says whose they are."""
    return Endpoint(info.url, passes.token(info.secret, execution, step))


def answers(project: Project, info: GatewayInfo) -> bool:
    """Tell whether a gateway is still there."""
    return _live(project, info.fingerprint, info.secret) is not None


def wake(info: GatewayInfo) -> int:
    """Let a gateway look at the ledger again for what it holds; return how much it held."""
    proof = {"x-tenuto-proof": passes.proof(info.secret, "wake")}
    return int(_call(info.url, "POST", "/_tenuto/wake", proof).get("held", 0))


def tell(
    project: Project, kind: Verdict, execution: str, step: str, crossings: Sequence[Crossing]
) -> None:
    """Tell a task's driver that a bound is reached; at `ask` a request is held until it has decided."""
    message = {
        "type": "budget_asked" if kind == "ask" else "budget_warned",
        "step": step,
        "text": "; ".join(str(one) for one in crossings),
        "crossings": msgspec.to_builtins(crossings),
    }
    _tell(project, execution, message)


def tell_of_trouble(project: Project, execution: str, step: str, text: str) -> None:
    """Tell a task's driver that a model's server failed a request; without a text, that it answers."""
    message = {"type": "model_failed" if text else "model_answered", "step": step, "text": text}
    _tell(project, execution, message)


def _tell(project: Project, execution: str, message: dict[str, Any]) -> None:
    try:
        control.request(project.folder(execution), "tell", message=message)
    except control.NoKeeper:
        raise NotRunning("the task has ended", "start it again") from None


def _around(project: Project, environ: Mapping[str, str], secret: bytes) -> GatewayInfo | None:
    """Return the gateway that an environment already points at, if it is one of this project's."""
    for provider, names in upstreams.URLS.items():
        url = next((environ[name] for name in names if environ.get(name)), "")
        base, slash, _ = url.partition(f"/{provider}")
        if not slash:
            continue
        for name in _marks(project.home):
            record = read_record(project.home, name)
            if record is not None and record.url == base:
                found = _answering(project, record, secret)
                if found is None:
                    raise EngineFault(
                        f"the metering gateway at {base}, which all this goes through, is gone",
                        "start the task anew",
                    )
                return found
    return None


def _marks(home: str) -> list[str]:
    try:
        names = os.listdir(os.path.join(home, "gateway"))
    except FileNotFoundError:
        return []
    return [name.removesuffix(".json") for name in names if name.endswith(".json")]


def _live(project: Project, mark: str, secret: bytes) -> GatewayInfo | None:
    record = read_record(project.home, mark)
    return None if record is None else _answering(project, record, secret)


def _answering(project: Project, record: Record, secret: bytes) -> GatewayInfo | None:
    """Return the gateway of a record if it lives, and if it is ours that answers there."""
    if not is_kept(project.folder(record.execution)):
        return None
    nonce = secrets.token_hex(8)
    try:
        told = _call(record.url, "GET", f"/_tenuto/health?{nonce}", {})
    except KeeperUnreachable:
        return None
    if not passes.proves(secret, f"health:{nonce}", str(told.get("proof", ""))):
        return None
    return GatewayInfo(record.url, record.execution, record.fingerprint, secret)


def _start(
    engine: BlockingEngine,
    environ: Mapping[str, str],
    mark: str,
    secret: bytes,
    idle_s: float | None,
) -> GatewayInfo:
    project = engine.project
    words = [sys.executable, "-P", "-m", _MODULE, project.root, project.home]
    if idle_s is not None:
        words.append(str(idle_s))
    # it belongs to nobody: what started it may end, and it serves the next
    outside = {name: value for name, value in environ.items() if name != MARK}
    options = Options(cwd=project.home, title=TITLE, detached=True, sandbox="none")
    from tenuto.engine.work import command_work

    work = command_work(words, options, outside)
    execution_id, sock = engine.start(work)
    engine.wait(execution_id, _START_PATIENCE_S, until=READY, sock=sock)
    found = _live(project, mark, secret)
    if found is None or found.execution_id != execution_id:
        words_left = b"".join(chunk.data for chunk in engine.logs(execution_id, tail=5))
        raise EngineFault(
            f"the metering gateway did not start: {words_left.decode('utf-8', 'replace')[-500:]}",
            f"see: tenuto logs {execution_id[:18]}",
        )
    return found


def _call(url: str, method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Ask a gateway something of ours; directly, whatever proxies are set."""
    import http.client

    host = url.removeprefix("http://")
    line = http.client.HTTPConnection(host, timeout=_ANSWER_PATIENCE_S)
    try:
        line.request(method, path, headers=dict(headers))
        answer = line.getresponse()
        body = answer.read(1 << 20)
        if answer.status != 200:
            raise KeeperUnreachable(
                f"the gateway at {url} answered {answer.status}", "see: tenuto ps -a"
            )
        return msgspec.json.decode(body, type=dict[str, Any])
    except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
        raise KeeperUnreachable(
            f"the gateway at {url} does not answer: {error}", "see: tenuto ps -a"
        ) from error
    finally:
        line.close()
