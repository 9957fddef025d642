"""Whether Claude Code is found, recent enough and logged in: by running it."""

from __future__ import annotations

import json
import os
import stat

import pytest
from agent_help import Place

from tenuto.runners.claude import ClaudeRunner
from tenuto.runners.oneshot import ClaudeOneShot, CodexOneShot, OpenCodeOneShot

pytestmark = pytest.mark.asyncio


def script(place: Place, text: str) -> str:
    path = place.base / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(stat.S_IRWXU)
    return str(path)


@pytest.fixture
def syspath(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(place.base / "packages"))


@pytest.mark.promise("R3")
async def test_a_key_is_a_login_that_can_be_counted(claude: str, place: Place):
    place.set("ANTHROPIC_API_KEY", "sk-ant-none")
    found = await ClaudeRunner(claude).probe(os.environ)
    assert found.available and found.version == "2.1.325" and not found.unmetered


@pytest.mark.promise("R3")
async def test_without_a_login_it_is_not_available(claude: str, place: Place):
    found = await ClaudeRunner(claude).probe(os.environ)
    assert (found.available, found.kind, found.version) == (False, "auth", "2.1.325")
    assert "log in" in found.hint and "ANTHROPIC_API_KEY" in found.hint
    assert (await ClaudeRunner(claude, login=False).probe(os.environ)).available


@pytest.mark.promise("R3", "B3")
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("CLAUDE_CODE_OAUTH_TOKEN", "none", "not an API key"),
        ("CLAUDE_CODE_USE_BEDROCK", "1", "bedrock"),
    ],
)
async def test_other_logins_are_told_as_unmetered(
    claude: str, place: Place, name: str, value: str, why: str
):
    place.set(name, value)
    found = await ClaudeRunner(claude).probe(os.environ)
    assert found.available and why in found.unmetered


@pytest.mark.promise("R3", "B3")
async def test_a_subscription_is_told_as_unmetered(claude: str, place: Place):
    folder = place.home / "claude"
    folder.mkdir()
    login = {
        "accessToken": "none", "refreshToken": "none", "expiresAt": 4102444800000,
        "scopes": ["user:inference", "user:profile"], "subscriptionType": "max",
    }  # fmt: skip
    (folder / ".credentials.json").write_text(json.dumps({"claudeAiOauth": login}))
    found = await ClaudeRunner(claude).probe(os.environ)
    assert found.available and "subscription" in found.unmetered


@pytest.mark.promise("R3")
async def test_a_program_that_is_not_installed_is_missing(place: Place):
    place.set("PATH", str(place.base))
    for runner in (ClaudeRunner(), ClaudeOneShot(), CodexOneShot(), OpenCodeOneShot()):
        found = await runner.probe(os.environ)
        assert (found.available, found.kind) == (False, "missing")
        assert runner.program in found.why and "install" in found.hint


@pytest.mark.promise("R3")
async def test_a_program_that_is_too_old_is_told_with_the_version_that_is_needed(place: Place):
    found = await ClaudeRunner(script(place, "echo '1.0.128 (Claude Code)'")).probe(os.environ)
    assert (found.available, found.kind, found.version) == (False, "outdated", "1.0.128")
    assert "2.0.0" in found.why and "update" in found.hint


@pytest.mark.promise("R3")
async def test_a_program_that_is_broken_says_so_in_its_own_words(place: Place):
    text = "echo 'native binary not installed' >&2; exit 1"
    found = await ClaudeRunner(script(place, text)).probe(os.environ)
    assert not found.available and "native binary not installed" in found.why


async def test_the_one_that_the_python_sdk_brings_is_found(place: Place, syspath: None):
    folder = place.base / "packages" / "claude_agent_sdk" / "_bundled"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    os.rename(script(place, "echo 2.0.9"), folder / "claude")
    place.set("PATH", str(place.base))
    found = await ClaudeRunner(login=False).probe(os.environ)
    assert found.available and found.version == "2.0.9"


async def test_an_older_one_is_logged_in_by_what_it_would_look_at(place: Place):
    path = script(place, 'case "$1" in --version) echo 2.0.1;; *) echo "unknown command";; esac')
    assert (await ClaudeRunner(path).probe(os.environ)).kind == "auth"
    place.set("CLAUDE_CODE_OAUTH_TOKEN", "none")
    found = await ClaudeRunner(path).probe(os.environ)
    assert found.available and found.version == "2.0.1" and found.unmetered
    place.set("ANTHROPIC_API_KEY", "none")
    found = await ClaudeRunner(path).probe(os.environ)
    assert found.available and not found.unmetered


@pytest.mark.promise("R3")
async def test_codex_tells_its_version(codex: str, place: Place):
    assert (await CodexOneShot(codex).probe(os.environ)).version == "0.166.0"


@pytest.mark.full
@pytest.mark.promise("R3")
async def test_opencode_tells_its_version(opencode: str, place: Place):
    assert (await OpenCodeOneShot(opencode).probe(os.environ)).version == "1.18.33"
