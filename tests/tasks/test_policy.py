"""What agents may do unasked, by policy."""

from __future__ import annotations

import pytest

from tenuto.core.tasks import PermissionPolicy
from tenuto.engine.driving.asking import by_policy

READ = ["Read", "Grep(pattern)", "read_file", "search", "mcp__tenuto__output", "tenuto_list"]
EDIT = ["Edit", "Write", "write_file"]
OTHER = [
    "Bash", "WebFetch", "mcp__tenuto__execute", "tenuto_execute", "mcp__tenuto__kill", "execute",
    "mcp__tenutoish__output", "read_file_and_run", "mcp__other__list", "",
]  # fmt: skip


@pytest.mark.promise("R2")
@pytest.mark.parametrize(
    ("policy", "read", "edit", "other"),
    [
        ("ask", True, None, None),
        ("edits", True, True, None),
        ("allow", True, True, True),
        ("deny", True, False, False),
    ],
)
def test_each_policy_says_what_goes_unasked(
    policy: PermissionPolicy, read: bool | None, edit: bool | None, other: bool | None
) -> None:
    for tools, expected in ((READ, read), (EDIT, edit), (OTHER, other)):
        for tool in tools:
            decided = by_policy(policy, tool)
            assert (None if decided is None else decided.allow) == expected, (policy, tool)


@pytest.mark.promise("R2")
def test_what_an_acp_agent_says_of_a_tool_counts() -> None:
    """Some agents tell the kind of a tool, and no name that says anything."""
    assert by_policy("ask", "Look at notes.md", "read") is not None
    assert by_policy("ask", "Look at notes.md", "execute") is None
    changed = by_policy("edits", "Change notes.md", "edit")
    assert changed is not None and changed.allow
    refused = by_policy("deny", "curl", "fetch")
    assert refused is not None and not refused.allow
