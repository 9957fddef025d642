"""The agents we know how to start: OpenCode, Codex, Gemini; and any other, by its command.

Without an endpoint an agent runs as its user has it: own login, own settings, own sessions. With one
it is pointed at the gateway. Codex and Gemini then get a configuration home of their own, below the
`home` that the runner was made with: `<home>/codex/…`, one for each session, and `<home>/gemini`. It
holds their sessions too, so a session can be taken up only by a runner with the same `home`: give it
a folder that lives as long as the task. OpenCode takes its configuration from the environment, and
keeps its sessions where it always does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import Capabilities, Probe, RunRequest
from tenuto.runners.acp import HELLO, AcpRunner, Launch
from tenuto.runners.acp_probe import greeted, version_of
from tenuto.runners.claude_command import KEYS

_TALKS = Capabilities(
    interrupt=True, resume=True, permissions=True, mcp=True, metered=True, usage="turn"
)
_TOKEN = "TENUTO_MODEL_TOKEN"
_TRIES = 4
"""How often Gemini may ask for the same, first time included; its own default goes on for minutes."""
_WINDOW = {"context": 200_000, "output": 32_000}


def open_code(program: str = "opencode") -> AcpRunner:
    """Return OpenCode, which speaks ACP itself."""
    install = "npm install -g opencode-ai"

    def launch(request: RunRequest) -> Launch:
        env = {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_CONFIG_CONTENT": json.dumps(open_code_config(request)),
            "PWD": request.cwd,  # it believes this rather than its directory
        }
        if request.endpoint is None:
            return Launch(argv=(program, "acp"), env=env)
        env["OPENCODE_DISABLE_MODELS_FETCH"] = "1"
        return Launch(argv=(program, "acp"), env=env, unset=KEYS)

    async def look(environ: Mapping[str, str]) -> Probe:
        return await version_of("OpenCode", program, environ, "1.0", install)

    hint = "log in with `opencode auth login`, or set the key of a provider"
    return AcpRunner(
        "open-code", family="mcp", launch=launch, look=look, capabilities=_TALKS, hint=hint,
        data=open_code_data, fresh=without_database,
    )  # fmt: skip


def open_code_data(environ: Mapping[str, str]) -> str:
    """Return the folder in which OpenCode keeps its sessions."""
    data = environ.get("XDG_DATA_HOME") or os.path.join(environ.get("HOME", ""), ".local", "share")
    return os.path.join(data, "opencode")


def without_database(environ: Mapping[str, str]) -> bool:
    """Tell whether OpenCode would make its database: two that do so at once fail each other."""
    return not os.path.exists(os.path.join(open_code_data(environ), "opencode.db"))


def open_code_config(request: RunRequest) -> dict[str, Any]:
    """Return what OpenCode is configured with, on top of what its user has.

    By itself it asks for nothing; so it is told to, unless the request lets it do everything. It would
    end its turn, without a word, where a tool is refused; so it is told to let its model know instead.
    How often it tries again is not for us to set: five times, in about a minute.
    """
    verdict = "allow" if request.bypass else "ask"
    config: dict[str, Any] = {
        "autoupdate": False,
        "share": "disabled",
        "permission": {"edit": verdict, "bash": verdict, "webfetch": verdict},
        "experimental": {"continue_loop_on_deny": True},
    }
    for server in request.mcp:  # it would use these unasked too
        config["permission"][f"{server.name}_*"] = verdict
    if request.bypass:
        config["permission"]["external_directory"] = "allow"
    if request.endpoint is None:
        if request.model:
            config["model"] = request.model
        return config
    if not request.model:
        raise RunnerFailed(
            "open-code needs the name of a model to go through the gateway",
            "name one, such as anthropic/claude-sonnet-4-5",
            "bad_request",
        )
    package, base, name = _provider(request.model)
    base = f"{request.endpoint.url}{base}"
    model = {"name": name, "tool_call": True, "limit": _WINDOW}
    config |= {
        "model": f"tenuto/{name}",
        "small_model": f"tenuto/{name}",
        "enabled_providers": ["tenuto"],  # every other would go around the gateway
        "provider": {
            "tenuto": {
                "npm": package,
                "options": {"baseURL": base, "apiKey": request.endpoint.token},
                "models": {name: model},
            }
        },
    }
    return config


def _provider(model: str) -> tuple[str, str, str]:
    """Return which package speaks with a model, below which path of the gateway, and its name there."""
    provider, slash, name = model.partition("/")
    if provider == "anthropic" or (not slash and model.startswith("claude")):
        return "@ai-sdk/anthropic", "/anthropic/v1", name if slash else model
    if provider == "google" or (not slash and model.startswith("gemini")):
        return "@ai-sdk/google", "/google/v1beta", name if slash else model
    return "@ai-sdk/openai-compatible", "/openai/v1", model.removeprefix("openai/")


_CODEX_CONFIG = """\
# Made by Tenuto for one task: requests go through its gateway. Sessions of the task are here too.
{model}model_provider = "tenuto"
check_for_update_on_startup = false
[analytics]
enabled = false
# else it leaves an empty .git and its like in /tmp, which others take for a repository
[sandbox_workspace_write]
exclude_slash_tmp = true
[model_providers.tenuto]
name = "tenuto"
base_url = {base}
env_key = "{token}"
wire_api = "responses"
supports_websockets = false
"""


_UNDERSTOOD = {
    # without this, codex-acp tells a failed turn as a text of the agent, and a good end
    "jetbrains": {"air": {"version": 1, "capabilities": ["sessionFailure"]}},
    "terminal_output_delta": True,
}


def codex(home: str, program: str = "codex-acp") -> AcpRunner:
    """Return Codex, through its ACP adapter."""
    install = "npm install -g @agentclientprotocol/codex-acp"

    def launch(request: RunRequest) -> Launch:
        # its own default has a model decide what is allowed: that is for our user to say
        mode = "agent-full-access" if request.bypass else "workspace-write"
        # and it asks a model what its user may say next, after every turn: we have nobody who types
        quiet = {"NO_BROWSER": "1", "CODEX_ACP_PROMPT_SUGGESTIONS": "false"}
        env = {**quiet, "INITIAL_AGENT_MODE": mode}
        if request.endpoint is None:
            return Launch(argv=(program,), env=env, model=request.model, meta=_UNDERSTOOD)
        own = _codex_home(Path(home) / "codex", request.session)
        # its sandbox breaks if its home is below its folder for temporary files
        scratch = Path(home) / "codex-tmp"
        for folder in (own, scratch):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        model = f"model = {json.dumps(request.model)}\n" if request.model else ""
        base = json.dumps(f"{request.endpoint.url}/openai/v1")
        config = _CODEX_CONFIG.format(model=model, base=base, token=_TOKEN)
        _written(own / "config.toml", config)
        env |= {"CODEX_HOME": str(own), "TMPDIR": str(scratch), _TOKEN: request.endpoint.token}
        unset = (*KEYS, "CODEX_API_KEY")
        return Launch(argv=(program,), env=env, unset=unset, meta=_UNDERSTOOD)

    async def look(environ: Mapping[str, str]) -> Probe:
        found = await version_of("codex-acp", program, environ, "2.0", install)
        return _codex_login(found, environ) if found.available else found

    able = msgspec.structs.replace(_TALKS, system=True)
    hint = "run `codex login`, or set OPENAI_API_KEY"
    return AcpRunner(
        "codex", family="codex", launch=launch, look=look, capabilities=able, hint=hint
    )


def _codex_home(homes: Path, session: str | None) -> Path:
    """Return where a session is, or a new home for a new one.

    Each has its own: two that begin at once in a new home trip over each other's databases, and the
    model of a session is in its home's configuration.
    """
    if session is not None:
        for found in homes.glob(f"*/sessions/**/*{escape(session)}*"):
            return homes / found.relative_to(homes).parts[0]
    return homes / uuid4().hex[:12]


def _written(path: Path, text: str) -> None:
    """Write a file at once and only if it changes: others of the same task may be reading it."""
    with suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8") == text:
            return
    new = path.with_name(f"{path.name}.{uuid4().hex}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _codex_login(found: Probe, environ: Mapping[str, str]) -> Probe:
    if any(environ.get(name) for name in ("CODEX_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL")):
        return found
    home = environ.get("CODEX_HOME") or os.path.join(environ.get("HOME", ""), ".codex")
    try:
        login: Any = json.loads((Path(home) / "auth.json").read_bytes())
        key, tokens = login.get("OPENAI_API_KEY"), login.get("tokens")
    except (OSError, ValueError, AttributeError):
        key = tokens = None
    if key:
        return found
    if tokens:
        why = "it is logged in with a subscription, whose requests pass no gateway"
        return msgspec.structs.replace(found, unmetered=why)
    why = "it is not logged in"
    return Probe(False, found.version, "auth", why, "run `codex login`, or set OPENAI_API_KEY")


def gemini(home: str, program: str = "gemini") -> AcpRunner:
    """Return Gemini, which speaks ACP itself."""
    install = "npm install -g @google/gemini-cli"

    def launch(request: RunRequest) -> Launch:
        argv = [program, "--acp", "--skip-trust"]
        if request.model:
            argv += ["-m", request.model.removeprefix("google/")]
        if request.bypass:
            argv += ["--approval-mode", "yolo"]
        # without this it starts itself a second time, and the first one ignores interrupts
        env = {"GEMINI_CLI_NO_RELAUNCH": "true"}
        if request.endpoint is None:
            _keep_history(_gemini_home({**os.environ, **request.env}), request.session)
            return Launch(argv=tuple(argv), env=env)
        own = Path(home) / "gemini"
        _keep_history(own, request.session)
        folder = own / ".gemini"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = json.dumps(_gemini_settings(request), indent=1)
        _written(folder / "settings.json", settings)
        env |= {
            "GEMINI_CLI_HOME": str(own),
            "GOOGLE_GEMINI_BASE_URL": f"{request.endpoint.url}/google",
            "GEMINI_API_KEY": request.endpoint.token,
        }
        unset = ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA")
        unset += tuple(name for name in KEYS if name not in env)
        return Launch(argv=tuple(argv), env=env, unset=unset)

    async def look(environ: Mapping[str, str]) -> Probe:
        found = await version_of("gemini", program, environ, "0.40", install)
        return _gemini_login(found, environ) if found.available else found

    hint = "run `gemini` once and log in, or set GEMINI_API_KEY"
    able = msgspec.structs.replace(_TALKS, turns=True)
    return AcpRunner(
        "gemini", family="gemini", launch=launch, look=look, capabilities=able, hint=hint
    )


def _gemini_settings(request: RunRequest) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "telemetry": {"enabled": False},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {
            "enableAutoUpdate": False, "enableAutoUpdateNotification": False,
            "maxAttempts": _TRIES,
            "sessionRetention": {"enabled": False},  # they are ours to keep
        },
    }  # fmt: skip
    if request.max_turns is not None:
        settings["model"] = {"maxSessionTurns": request.max_turns}
    return settings


def _gemini_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("GEMINI_CLI_HOME") or environ.get("HOME", ""))


def _keep_history(home: Path, session: str | None) -> None:
    """Move a session's file out of Gemini's way before it is loaded.

    The file's name has the minute and the session. If that is still the minute in which the session
    began, loading it begins the very file anew, and the history is gone before it is read. And when it
    cleans up, as it does at every start, it takes that new file for an empty one, and deletes all that
    end in the same. The file is found by what is in it, so it may have any name that begins the same;
    of several, the last that has anything is taken.
    """
    if session is None:
        return
    for path in home.glob(f".gemini/tmp/*/chats/session-2*-{session[:8]}.jsonl"):
        name = path.stem.replace("session-", "session-kept-", 1)
        path.rename(path.with_name(f"{name}-{uuid4().hex[:8]}.jsonl"))


def _gemini_login(found: Probe, environ: Mapping[str, str]) -> Probe:
    keys = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL")
    if any(environ.get(name) for name in keys):
        return found
    if (_gemini_home(environ) / ".gemini" / "oauth_creds.json").exists():
        why = "it is logged in with an account, whose requests pass no gateway"
        return msgspec.structs.replace(found, unmetered=why)
    hint = "run `gemini` once and log in, or set GEMINI_API_KEY"
    return Probe(False, found.version, "auth", "it is not logged in", hint)


def by_command(name: str, command: Sequence[str]) -> AcpRunner:
    """Return an agent that we know nothing of but the command that starts it."""
    argv = tuple(command)

    def launch(request: RunRequest) -> Launch:
        return Launch(argv=argv, model=request.model)

    async def look(environ: Mapping[str, str]) -> Probe:
        return await greeted(name, argv, HELLO, environ)

    able = msgspec.structs.replace(_TALKS, metered=False)
    hint = f"log in to {name} as its own documentation says"
    return AcpRunner(name, family=name, launch=launch, look=look, capabilities=able, hint=hint)
