"""Which provider a name means, and what is found when the runner is looked for."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys

import pytest
from fake_api import Api

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import RunRequest
from tenuto.runners.cli import CliRunner
from tenuto.runners.loop.naming import choose
from tenuto.testing.nursery import PlainNursery


def test_names_mean_providers() -> None:
    keys = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "GEMINI_API_KEY": "g"}
    keys |= {"OLLAMA_BASE_URL": "http://h/v1"}
    found = {
        name: (one.api, one.model, one.key)
        for name in (
            *("anthropic:claude-x", "claude-x", "opus", "openai:gpt-9", "o3-mini", "gpt-9"),
            *("openai-chat:ft:gpt-9", "google:gemini-9", "gemini-9", "ollama:qwen3:8b"),
        )
        for one in [choose(name, keys)]
    }
    assert found["anthropic:claude-x"] == found["claude-x"] == ("anthropic", "claude-x", "a")
    assert found["opus"][1].startswith("claude-opus-")
    assert found["openai:gpt-9"] == found["gpt-9"] == ("openai", "gpt-9", "o")
    assert found["o3-mini"][0] == "openai"
    assert found["openai-chat:ft:gpt-9"] == ("openai-chat", "ft:gpt-9", "o")
    assert found["google:gemini-9"] == found["gemini-9"] == ("google", "gemini-9", "g")
    assert found["ollama:qwen3:8b"] == ("compatible", "qwen3:8b", "")
    assert choose("", keys).api == "anthropic"
    assert choose("", {"TENUTO_LOOP_MODEL": "gpt-9", "OPENAI_API_KEY": "o"}).model == "gpt-9"


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("llama-3", "bad_request", "anthropic:, openai:"),
        ("mistral:large", "bad_request", "ollama:"),
        ("claude-x", "auth", "ANTHROPIC_API_KEY"),
        ("gpt-9", "auth", "OPENAI_API_KEY"),
        ("gemini-9", "auth", "GOOGLE_API_KEY or GEMINI_API_KEY"),
        ("ollama:x", "auth", "OLLAMA_BASE_URL"),
        ("", "auth", "no model was named"),
    ],
)
def test_a_name_that_means_nothing_here_says_what_would(name: str, kind: str, why: str) -> None:
    with pytest.raises(RunnerFailed, match=why) as raised:
        choose(name, {})
    assert raised.value.kind == kind


@pytest.mark.asyncio
@pytest.mark.promise("R3")
@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"])
async def test_a_key_makes_it_available(name: str) -> None:
    found = await CliRunner().probe({name: "k"})
    assert found.available
    assert found.version.startswith("2.")


@pytest.mark.asyncio
@pytest.mark.promise("R3")
async def test_without_a_key_it_says_which_would_do() -> None:
    found = await CliRunner().probe({})
    assert not found.available
    assert found.kind == "auth"
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OLLAMA_BASE_URL"):
        assert name in found.hint


@pytest.mark.asyncio
@pytest.mark.promise("R3")
async def test_a_server_of_ones_own_must_answer(api: Api) -> None:
    assert (await CliRunner().probe({"OLLAMA_BASE_URL": f"{api.url}/v1"})).available
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        found = await CliRunner().probe({"OLLAMA_BASE_URL": url})
    assert not found.available
    assert url in found.why
    assert not (await CliRunner().probe({"OLLAMA_BASE_URL": "nonsense:port"})).available


@pytest.mark.asyncio
@pytest.mark.promise("R3")
async def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> object:
        return None if name == "pydantic_ai" else known(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    found = await CliRunner().probe({"OPENAI_API_KEY": "k"})
    assert found.kind == "missing"
    assert found.hint == "pip install 'tenuto[agents]'"
    with pytest.raises(RunnerFailed, match="pip install") as raised:
        await CliRunner().open(RunRequest(cwd="/"), PlainNursery())
    assert raised.value.kind == "missing"


def test_the_driver_loads_none_of_the_libraries() -> None:
    code = """
import asyncio, sys
from tenuto.core.runs import RunRequest
from tenuto.runners.cli import CliRunner
asyncio.run(CliRunner().probe({"OPENAI_API_KEY": "k"}))
heavy = {"pydantic_ai", "pydantic", "anthropic", "openai", "mcp", "httpx2"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
