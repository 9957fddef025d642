"""Looking for agents, and finding runners by their names."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from acp_help import COMMAND, gone

from tenuto.core.errors import InvalidInput, RunnerFailed, UnknownName
from tenuto.core.ports import Runner
from tenuto.core.runs import Capabilities, Endpoint, Probe, RunRequest
from tenuto.runners.acp_probe import said
from tenuto.runners.agents_known import by_command, codex, gemini, open_code, open_code_config
from tenuto.runners.registry import BUILT_IN, names, runner
from tenuto.testing.nursery import PlainNursery

pytestmark = pytest.mark.asyncio(loop_scope="module")


def program(folder: Path, body: str) -> str:
    """Make a program of a line of shell."""
    path = folder / "agent"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), **more}


@pytest.mark.promise("R2")
@pytest.mark.parametrize("make", [open_code, lambda at: codex("", at), lambda at: gemini("", at)])
async def test_what_is_missing_broken_or_too_old_is_told(make, tmp_path: Path) -> None:
    async def look(body: str) -> Probe:
        return await make(program(tmp_path, body)).probe(environ(tmp_path))

    missing = await make("/nowhere/agent").probe(environ(tmp_path))
    assert (missing.available, missing.kind) == (False, "missing")
    assert missing.hint.startswith("npm install")
    broken = await look("echo no such module; exit 1")
    assert (broken.available, broken.kind) == (False, "crash")
    assert "no such module" in broken.why
    old = await look("echo agent 0.0.9")
    assert (old.available, old.kind, old.version) == (False, "outdated", "0.0.9")


async def test_without_the_library_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> object:
        return None if name == "acp" else known(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    agent = gemini("", program(tmp_path, "echo 99.0.0"))
    found = await agent.probe(environ(tmp_path, GEMINI_API_KEY="x"))
    assert (found.available, found.kind) == (False, "missing")
    assert found.hint == "pip install 'tenuto[agents]'"
    with pytest.raises(RunnerFailed, match="agent-client-protocol is not installed") as raised:
        await agent.open(RunRequest(cwd="/"), PlainNursery())
    assert raised.value.kind == "missing"


async def test_codex_without_a_login_with_a_key_and_with_a_subscription(tmp_path: Path) -> None:
    look = codex(str(tmp_path), program(tmp_path, "echo codex-acp 2.6.0")).probe
    found = await look(environ(tmp_path))
    assert (found.available, found.kind, found.version) == (False, "auth", "2.6.0")
    assert "codex login" in found.hint
    assert await look(environ(tmp_path, OPENAI_API_KEY="x")) == Probe(True, "2.6.0")
    (tmp_path / ".codex").mkdir()
    login = tmp_path / ".codex" / "auth.json"
    login.write_text("broken")
    assert (await look(environ(tmp_path))).kind == "auth"
    login.write_text(json.dumps({"OPENAI_API_KEY": None, "tokens": {"id_token": "x"}}))
    found = await look(environ(tmp_path))
    assert found.available
    assert "subscription" in found.unmetered
    login.write_text(json.dumps({"OPENAI_API_KEY": "x"}))
    assert await look(environ(tmp_path)) == Probe(True, "2.6.0")


async def test_gemini_without_a_login_with_a_key_and_with_an_account(tmp_path: Path) -> None:
    look = gemini(str(tmp_path), program(tmp_path, "echo 0.61.0")).probe
    found = await look(environ(tmp_path))
    assert (found.available, found.kind) == (False, "auth")
    assert await look(environ(tmp_path, GEMINI_API_KEY="x")) == Probe(True, "0.61.0")
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini" / "oauth_creds.json").write_text("{}")
    found = await look(environ(tmp_path))
    assert found.available
    assert "account" in found.unmetered


async def test_an_agent_by_command_is_greeted(tmp_path: Path) -> None:
    env = environ(tmp_path, SCRIPTED_HOME=str(tmp_path))
    found = await by_command("mine", COMMAND).probe(env)
    assert (found.available, found.version) == (True, "1.2.3")
    assert "gateway" in found.unmetered
    mute = await by_command("mute", ["sh", "-c", "echo hello"]).probe(env)
    assert (mute.available, mute.kind) == (False, "protocol")
    none = await by_command("none", ["/nowhere/agent"]).probe(env)
    assert (none.available, none.kind) == (False, "missing")


async def test_who_gives_up_looking_leaves_nothing(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    os.mkfifo(pid)
    looking = asyncio.create_task(
        said(["sh", "-c", f"echo $$ > {pid}; exec sleep 600"], environ(tmp_path))
    )
    number = int(await asyncio.to_thread(pid.read_text))
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert gone(number)


@pytest.mark.parametrize(
    ("model", "package", "base", "name"),
    [
        ("anthropic/claude-x", "@ai-sdk/anthropic", "/anthropic/v1", "claude-x"),
        ("claude-x", "@ai-sdk/anthropic", "/anthropic/v1", "claude-x"),
        ("google/gemini-x", "@ai-sdk/google", "/google/v1beta", "gemini-x"),
        ("openai/gpt-x", "@ai-sdk/openai-compatible", "/openai/v1", "gpt-x"),
        ("org/model-x", "@ai-sdk/openai-compatible", "/openai/v1", "org/model-x"),
    ],
)
async def test_open_code_knows_no_provider_but_the_gateway(
    model: str, package: str, base: str, name: str
) -> None:
    endpoint = Endpoint("http://127.0.0.1:1", "token")
    config = open_code_config(RunRequest(cwd="/", model=model, endpoint=endpoint))
    assert config["enabled_providers"] == ["tenuto"]
    assert config["model"] == config["small_model"] == f"tenuto/{name}"
    provider = config["provider"]["tenuto"]
    assert provider["npm"] == package
    assert provider["options"] == {"baseURL": f"http://127.0.0.1:1{base}", "apiKey": "token"}
    assert list(provider["models"]) == [name]
    assert config["permission"]["bash"] == "ask"


async def test_open_code_through_the_gateway_needs_a_model() -> None:
    endpoint = Endpoint("http://127.0.0.1:1", "token")
    with pytest.raises(RunnerFailed, match="needs the name of a model"):
        open_code_config(RunRequest(cwd="/", endpoint=endpoint))


class Mine:
    """A runner of a user's own."""

    name = "mine"
    family = "mine"
    capabilities = Capabilities()

    async def probe(self, environ):
        return Probe(True)

    async def open(self, request, nursery):
        raise NotImplementedError


made = Mine()


def make() -> Mine:
    return Mine()


HERE = Path(__file__).stem


@pytest.mark.promise("R1")
@pytest.mark.parametrize("where", ["Mine", "made", "make"])
async def test_a_runner_of_ones_own_goes_by_its_name(where: str, tmp_path: Path) -> None:
    custom = {"own": f"{HERE}:{where}"}
    found: Runner = runner("own", custom=custom, home=str(tmp_path))
    assert type(found).__name__ == "Mine"
    assert names(custom=custom) == [*BUILT_IN, "own"]


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        ("no_such_module:x", RunnerFailed, "cannot be loaded"),
        (f"{HERE}:nothing", RunnerFailed, "cannot be loaded"),
        ("json", RunnerFailed, "cannot be loaded"),
        ("broken_runner:x", RunnerFailed, "cannot be loaded.*SyntaxError"),
        ("raising_runner:x", RunnerFailed, "cannot be loaded.*RuntimeError: no luck.*PYTHONPATH"),
        (f"{HERE}:program", RunnerFailed, "could not be made"),
        ("builtins:object", InvalidInput, "is no runner.*its name.*no method open"),
    ],
)
async def test_what_is_no_runner_is_refused(
    where: str, error, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_runner.py").write_text("def (\n")
    (tmp_path / "raising_runner.py").write_text("raise RuntimeError('no luck')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error, match=said):
        runner("own", custom={"own": where}, home=str(tmp_path))


async def test_names_that_nobody_knows_list_those_that_are(tmp_path: Path) -> None:
    commands = {"goose": ["goose", "acp"]}
    with pytest.raises(UnknownName, match=r"no runtime gose; known are claude-code, .*goose"):
        runner("gose", commands=commands, home=str(tmp_path))
    found = runner("goose", commands=commands, home=str(tmp_path))
    assert (found.name, found.family, found.capabilities.metered) == ("goose", "goose", False)
    with pytest.raises(InvalidInput, match="as a list"):
        runner("goose", commands={"goose": "goose acp"}, home=str(tmp_path))


@pytest.mark.promise("R1")
@pytest.mark.parametrize("name", ["open-code", "codex", "gemini"])
async def test_the_built_in_agents_use_the_program_of_the_settings(
    name: str, tmp_path: Path
) -> None:
    programs = {name: program(tmp_path, "echo 99.1.2")}
    found = runner(name, programs=programs, home=str(tmp_path))
    assert found.name == name
    looked = await found.probe(environ(tmp_path, OPENAI_API_KEY="x", GEMINI_API_KEY="x"))
    assert looked == Probe(True, "99.1.2")


@pytest.mark.parametrize(
    ("name", "module"), [("claude-code", "tenuto.runners.claude"), ("cli", "tenuto.runners.cli")]
)
async def test_the_other_built_in_runners_go_by_their_names(
    name: str, module: str, tmp_path: Path
) -> None:
    pytest.importorskip(module)
    assert runner(name, home=str(tmp_path)).name == name


async def test_packages_bring_runners_by_entry_points(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "brought-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: brought\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[tenuto.runners]\nbrought = {HERE}:Mine\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert names()[-1] == "brought"
    assert runner("brought", home=str(tmp_path)).name == "mine"
