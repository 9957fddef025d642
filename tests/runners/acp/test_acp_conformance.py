"""An agent over ACP passes the suite that every runner passes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from acp_help import COMMAND, Agents

from tenuto.core.runs import RunRequest
from tenuto.runners.agents_known import by_command
from tenuto.testing.runner_conformance import RUNNER_SUITE, Stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.promise("R1")]


@pytest.mark.parametrize("check", RUNNER_SUITE)
async def test_the_scripted_agent_conforms(check, agents: Agents, tmp_path: Path) -> None:
    begun = agents.home / "begun"
    os.mkfifo(begun)

    async def has_begun() -> None:
        await asyncio.to_thread(begun.read_text)

    await check(
        Stage(
            make=lambda: by_command("scripted", COMMAND),
            nursery=agents.nursery,
            request=RunRequest(cwd=str(tmp_path), env={"SCRIPTED_HOME": str(agents.home)}),
            environ={**os.environ, "SCRIPTED_HOME": str(agents.home)},
            plain="say hello",
            failing="-32603 overloaded fail",
            endless="now wait",
            asking="please ask",
            begun=has_begun,
            left=lambda: [
                one.id for one in agents.nursery.children if one.process.returncode is None
            ],
        )
    )
