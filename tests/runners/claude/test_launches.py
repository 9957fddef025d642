"""How the runtimes are started: what is on their command lines and in their environment."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tenuto.core.runs import Endpoint, McpServer, RunRequest
from tenuto.runners.claude_command import KEYS, Launch, launch
from tenuto.runners.oneshot_codex import codex_launch
from tenuto.runners.oneshot_opencode import opencode_launch

SECRET, TOKEN = "a secret of a server", "the token of this task"
FULL: dict[str, Any] = {
    "endpoint": Endpoint("http://127.0.0.1:1", TOKEN),
    "mcp": (McpServer("mine", ("serve", "--all"), {"SECRET": SECRET}),),
}


def request(**fields: Any) -> RunRequest:
    return RunRequest(cwd="/project", **fields)


def all_ways(**fields: Any) -> dict[str, Launch]:
    asked = request(**fields)
    return {
        "control": launch("claude", asked, control=True),
        "claude": launch("claude", asked, control=False),
        "codex": codex_launch("codex", asked, ""),
        "opencode": opencode_launch("opencode", asked, ""),
    }


def test_no_secret_is_on_a_command_line():
    for name, how in all_ways(**FULL).items():
        line = "\0".join(how.argv)
        assert SECRET not in line and TOKEN not in line, name
        shown = "\0".join(how.env.values())
        assert SECRET in shown and TOKEN in shown, name


@pytest.mark.promise("B3")
def test_with_an_endpoint_no_real_key_is_left():
    theirs = dict.fromkeys(KEYS, "a real key")
    for name, how in all_ways(**FULL, env=theirs).items():
        assert "a real key" not in how.env.values(), name
        assert all(key in how.unset or how.env[key] == TOKEN for key in KEYS), name
        assert not set(how.env) & set(how.unset), name
        assert "127.0.0.1" in how.env["NO_PROXY"], name


def test_without_an_endpoint_the_users_own_login_stays():
    for name, how in all_ways().items():
        assert not set(how.unset) & set(KEYS) and not set(how.env) & set(KEYS), name


BYPASS = {
    "control": "bypassPermissions",
    "claude": "bypassPermissions",
    "codex": "--dangerously-bypass-approvals-and-sandbox",
    "opencode": "--auto",
}


@pytest.mark.parametrize("root", [True, False])
def test_permissions_are_bypassed_on_request_only(root: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    for name, how in all_ways().items():
        assert BYPASS[name] not in how.argv, name
    for name, how in all_ways(bypass=True).items():
        # as root Claude Code asks, and is answered: it is never told that it is in a sandbox
        assert (BYPASS[name] in how.argv) == (name != "control" or not root), name
        assert "IS_SANDBOX" not in how.env, name


def test_claude_is_started_as_asked():
    asked = request(
        model="m", system="Be brief.", new_session="new", max_turns=3, env={"MINE": "1"}
    )
    how = launch("claude", asked, control=True)
    pairs = dict(zip(how.argv, how.argv[1:], strict=False))
    assert pairs["--model"] == "m" and pairs["--append-system-prompt"] == "Be brief."
    assert pairs["--session-id"] == "new" and pairs["--max-turns"] == "3"
    assert pairs["--permission-prompt-tool"] == "stdio" and "--strict-mcp-config" in how.argv
    assert {"CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT"} <= set(how.unset) and how.env["MINE"] == "1"
    assert how.env["CLAUDE_CODE_MAX_RETRIES"] == "3" and how.env["DISABLE_AUTOUPDATER"] == "1"
    taken_up = launch("claude", request(session="old", new_session="new"), control=True)
    assert "--resume" in taken_up.argv and "--session-id" not in taken_up.argv


def test_two_servers_of_codex_may_want_the_same_variable():
    servers = (McpServer("a b", ("x",), {"N": "1"}), McpServer("c", ("y",), {"N": "2"}))
    how = codex_launch("codex", request(mcp=servers), "thread")
    line = "\n".join(how.argv)
    assert how.env["N"] == "1" and 'mcp_servers.a_b={"command"="x"' in line
    assert '"env"={"N"="2"}' in line and how.argv[-2:] == ["thread", "-"]


def test_what_the_user_set_for_opencode_stays():
    env = {"OPENCODE_CONFIG_CONTENT": '{"theme":"x","provider":{"anthropic":{"name":"A"}}}'}
    how = opencode_launch("opencode", request(env=env, **FULL), "")
    config = how.env["OPENCODE_CONFIG_CONTENT"]
    assert '"theme":"x"' in config and '"name":"A"' in config and TOKEN in config
    assert how.env["PWD"] == "/project"
