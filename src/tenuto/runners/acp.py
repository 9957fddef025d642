"""Any agent that speaks the Agent Client Protocol on its stdin and stdout.

The protocol carries prompts, text, tool calls, permissions, soft interrupts, MCP servers and sessions
that can be taken up. It has no system prompt, no bound on turns or money and no usage to rely on: the
first opens the first prompt, the others are the gateway's work.

We offer the agent neither our files nor our terminals: it has its own tools, inside its own process
tree, where they are recorded and end with it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from importlib import util
from typing import Any

import msgspec

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import Nursery
from tenuto.core.runs import Capabilities, McpServer, Probe, RunRequest
from tenuto.runners.acp_session import AcpSession
from tenuto.runners.acp_wire import inner, objects
from tenuto.runners.first import in_turn

PROTOCOL = 1
_MARK = "TENUTO_EXECUTION"
"""The variable that tells a process which execution it belongs to."""
_NOT_FOUND = ("failed", "bad_request", "protocol")
"""Kinds of a refused session that are about nothing else: agents have no common word for it."""
HELLO: dict[str, Any] = {
    "protocolVersion": PROTOCOL,
    "clientCapabilities": {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
    },
    "clientInfo": {"name": "tenuto", "title": "Tenuto", "version": "1"},
}


_NO_LIBRARY = "agent-client-protocol is not installed"
_INSTALL = "pip install 'tenuto[agents]'"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent's process is started for one request."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    """Variables it must not see: keys that would lead it around the gateway."""
    mode: str = ""
    """The agent's own mode to switch to once the session is open."""
    model: str = ""
    """The model to choose over the protocol; empty where the command line did it."""
    meta: dict[str, Any] = {}
    """What we tell the agent, beside the protocol, that we understand."""


class AcpRunner:
    """One agent: how it is started is a function of the request, the rest is the protocol."""

    def __init__(
        self,
        name: str,
        *,
        family: str,
        launch: Callable[[RunRequest], Launch],
        look: Callable[[Mapping[str, str]], Awaitable[Probe]],
        capabilities: Capabilities,
        hint: str = "",
        data: Callable[[Mapping[str, str]], str] = lambda _: "",
        fresh: Callable[[Mapping[str, str]], bool] = lambda _: False,
    ) -> None:
        """Take what users call it, how it is started and how it is looked for; `hint` is for logins.

        `fresh` says of an environment that the agent was never started there, and makes its home, the
        folder `data`, then: until it has, it is started once and not many times at once.
        """
        self.name = name
        self.family = family
        self.capabilities = capabilities
        self._launch = launch
        self._look = look
        self._hint = hint
        self._data = data
        self._fresh = fresh

    async def probe(self, environ: Mapping[str, str]) -> Probe:
        """Look, by running it, whether it can be used here."""
        if not _library():
            return Probe(available=False, kind="missing", why=_NO_LIBRARY, hint=_INSTALL)
        return await self._look(environ)

    async def open(self, request: RunRequest, nursery: Nursery) -> AcpSession:
        """Start the agent and open a session with it, or take one up."""
        launch = self._launch(request)
        environ = {**os.environ, **request.env, **launch.env}
        async with in_turn(self._data(environ), lambda: self._fresh(environ)):
            return await self._open(request, launch, environ, nursery)

    async def _open(
        self, request: RunRequest, launch: Launch, environ: Mapping[str, str], nursery: Nursery
    ) -> AcpSession:
        if not _library():
            raise RunnerFailed(_NO_LIBRARY, _INSTALL, "missing")
        program = launch.argv[0]
        if shutil.which(program, path=environ.get("PATH")) is None:
            raise RunnerFailed(
                f"{self.name} is not installed: there is no program {program}",
                "install it, or name its program in the settings",
                "missing",
            )
        child = await nursery.spawn(
            launch.argv,
            cwd=request.cwd,
            env={**request.env, **launch.env, "PWD": request.cwd},
            unset=launch.unset,
            title=request.title or self.name,
        )
        metered = "check the key of the provider that the gateway has"
        hint = self._hint if request.endpoint is None else metered
        session = AcpSession(self.name, child, request, hint)
        try:
            await self._greet(session, request, launch, child.id)
        except BaseException:
            await session.close()
            raise
        return session

    async def _greet(
        self, session: AcpSession, request: RunRequest, launch: Launch, execution: str
    ) -> None:
        able = {**HELLO["clientCapabilities"], **({"_meta": launch.meta} if launch.meta else {})}
        hello = await session.call("initialize", {**HELLO, "clientCapabilities": able})
        if hello.get("protocolVersion") != PROTOCOL:
            raise RunnerFailed(
                f"{self.name} speaks version {hello.get('protocolVersion')} of the Agent Client"
                f" Protocol, not {PROTOCOL}",
                "install a version of it that does",
                "outdated",
            )
        able = inner(hello, "agentCapabilities")
        lifecycle = inner(able, "sessionCapabilities")
        place: dict[str, Any] = {
            "cwd": request.cwd,
            "mcpServers": [_server(one, execution) for one in request.mcp],
        }
        system = bool(request.system) and lifecycle.get("systemPrompt") is not None
        if request.session is None:
            if system:
                text = [{"type": "text", "text": request.system}]
                place["systemPrompt"] = {"mode": "append", "content": text}
            opened = await session.call("session/new", place)
            known: Any = opened.get("sessionId")
            if not isinstance(known, str) or not known:
                raise RunnerFailed(f"{self.name} opened a session without an id", "", "protocol")
        else:
            known = request.session
            method = self._again(able, lifecycle)
            opened = await self._taken_up(session, method, {**place, "sessionId": known})
            if method == "session/load":
                await session.replayed()
        version = inner(hello, "agentInfo").get("version")
        session.opened(
            known,
            version if isinstance(version, str) else "",
            request.model or _current_model(opened),
            closes=lifecycle.get("close") is not None,
            system=system,
        )
        if launch.mode:
            await session.call("session/set_mode", {"sessionId": known, "modeId": launch.mode})
        if launch.model:
            await self._choose(session, opened, launch.model)

    async def _taken_up(
        self, session: AcpSession, method: str, place: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            return await session.call(method, place)
        except RunnerFailed as error:
            if error.kind not in _NOT_FOUND:
                raise
            what = f"{self.name} cannot take up its session {place['sessionId']}"
            raise RunnerFailed(f"{what}: {error.message}", error.hint, "session") from None

    def _again(self, able: dict[str, Any], lifecycle: dict[str, Any]) -> str:
        """Return the method that takes a session up; the one without a replay, where there is one."""
        if lifecycle.get("resume") is not None:
            return "session/resume"
        if able.get("loadSession"):
            return "session/load"
        raise RunnerFailed(
            f"{self.name} cannot take up a session again", "begin a new one", "bad_request"
        )

    async def _choose(self, session: AcpSession, opened: dict[str, Any], model: str) -> None:
        """Choose a model over the protocol; an unknown one is an error that lists the known."""
        option = _model_option(opened)
        models = objects(inner(opened, "models").get("availableModels"))
        at = {"sessionId": session.session}
        if option is not None:
            known = _values(option)
            if model in known:
                chosen = {"configId": option["id"], "value": model, **at}
                await session.call("session/set_config_option", chosen)
                return
        else:
            known = [str(one.get("modelId")) for one in models]
            if model in known:
                await session.call("session/set_model", {"modelId": model, **at})
                return
        offered = f"it offers {', '.join(known)}" if known else "it lets nobody choose"
        raise RunnerFailed(
            f"{self.name} has no model {model}: {offered}",
            "leave the model out, or name one of these",
            "bad_request",
        )


def _server(server: McpServer, execution: str) -> dict[str, Any]:
    command, *arguments = server.command
    # an agent may start servers with an empty environment: they must know where they belong
    env = {**server.env, _MARK: execution}
    return {
        "name": server.name,
        "command": command,
        "args": arguments,
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }


def _model_option(opened: dict[str, Any]) -> dict[str, Any] | None:
    options = objects(opened.get("configOptions"))
    return next((one for one in options if one.get("category") == "model"), None)


def _values(option: dict[str, Any]) -> list[str]:
    """Return what can be chosen; options may come in groups."""
    found: list[str] = []
    for one in objects(option.get("options")):
        found += _values(one) if "options" in one else [str(one.get("value"))]
    return found


def _current_model(opened: dict[str, Any]) -> str:
    option = _model_option(opened)
    current = option.get("currentValue") if option else None
    if current is None:
        current = inner(opened, "models").get("currentModelId")
    return current if isinstance(current, str) else ""


def _library() -> bool:
    """Tell whether the library that speaks the protocol is there: it comes with an extra."""
    return util.find_spec("acp") is not None
