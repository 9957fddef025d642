"""Permissions under attack: words that a model writes must not pass for a tool that only reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenuto.core.tasks import PermissionPolicy
from tenuto.engine.driving.asking import by_policy
from tenuto.runners.acp_events import Listener, Update

CAREFUL: list[PermissionPolicy] = ["ask", "edits"]


@pytest.mark.promise("R2")
@pytest.mark.parametrize("policy", CAREFUL)
@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ("rm -rf ~ # tenuto", ""),
        ("Bash(tenuto)", ""),
        ("mcp__tenuto__execute", ""),
        ("mcp__tenuto__engine_execute", ""),
        ("tenuto_execute", "other"),
        ("mcp__tenuto-evil__output", ""),
        ("mcp__evil__tenuto_output", ""),
        ("ls()\n{\nrm\t-rf\t~\n}\nls", "execute"),
        ("read", "execute"),
        ("tenuto_output", "execute"),
        ("read", "other"),
        ("WebFetch", ""),
        ("curl", "fetch"),
    ],
)
def test_what_only_looks_like_reading_is_asked_for(
    policy: PermissionPolicy, tool: str, kind: str
) -> None:
    assert by_policy(policy, tool, kind) is None
    refused = by_policy("deny", tool, kind)
    assert refused is not None and not refused.allow


@pytest.mark.parametrize("tool", ["mcp__tenuto__output", "tenuto_list", "tenuto_engine_status"])
def test_looking_at_executions_is_reading(tool: str) -> None:
    decided = by_policy("ask", tool)
    assert decided is not None and decided.allow


@pytest.mark.promise("R2")
def test_edits_are_allowed_in_the_steps_folder_and_not_where_they_would_decide_or_run(
    tmp_path: Path,
) -> None:
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    (work / "way_out").symlink_to(tmp_path)

    def edits(path: str, key: str = "file_path") -> bool:
        decided = by_policy("edits", "Write", "", {key: path}, str(work))
        assert decided is None or decided.allow
        return decided is not None

    assert edits("src/a.py") and edits(str(work / "new.py")) and edits("a.py", "path")
    for path in (
        "/etc/passwd", "../outside", "~/.bashrc", "way_out/x", "tenuto.toml", "src/../tenuto.toml",
        ".git/hooks/pre-commit", ".tenuto/budget.json", ".claude/settings.json", ".mcp.json", "a\0b",
    ):  # fmt: skip
        assert not edits(path), path


@pytest.mark.parametrize("policy", CAREFUL)
def test_reading_outside_of_the_folder_is_asked_for(
    policy: PermissionPolicy, tmp_path: Path
) -> None:
    def reads(given: Any) -> bool:
        return by_policy(policy, "Read", "", given, str(tmp_path)) is not None

    assert reads({"file_path": "a.py"}) and reads(None) and reads({"file_path": 7}) and reads([])
    assert not reads({"file_path": "/root/.ssh/id_rsa"})
    assert not reads({"file_path": "../.env"})


def test_an_acp_agents_kind_is_remembered_from_the_call_to_the_question() -> None:
    listener = Listener(new=True)
    first = Update("tool_call", tool_call_id="1", title="read", kind="execute", status="pending")
    assert list(listener.hear(first)) == []
    tool, _ = listener.asked(Update("tool_call_update", tool_call_id="1", title="read"))
    assert (tool.name, tool.kind) == ("read", "execute")
