"""What agents keep in their homes, and what they must not do to each other there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from acp_help import COMMAND

from tenuto.core.errors import RunnerFailed
from tenuto.core.ports import Child
from tenuto.core.runs import Capabilities, Endpoint, Probe, RunRequest
from tenuto.runners.acp import AcpRunner, Launch
from tenuto.runners.agents_known import gemini, open_code, open_code_config
from tenuto.testing.nursery import PlainNursery

pytestmark = pytest.mark.asyncio(loop_scope="module")
SESSION = "0123abcd-0000-4000-8000-000000000000"


async def test_geminis_history_is_moved_out_of_its_way_and_never_lost(
    tmp_path: Path, nursery: PlainNursery
) -> None:
    program = tmp_path / "gemini"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    chats = tmp_path / "gemini-home" / "gemini" / ".gemini" / "tmp" / "project" / "chats"
    chats.mkdir(parents=True)
    runner = gemini(str(tmp_path / "gemini-home"), str(program))
    endpoint = Endpoint("http://127.0.0.1:1", "token")
    request = RunRequest(cwd=str(tmp_path), session=SESSION, endpoint=endpoint)
    for text in ("the first life", "the second life"):
        (chats / "session-2026-11-16T10-15-0123abcd.jsonl").write_text(text)
        with pytest.raises(RunnerFailed):
            await runner.open(request, nursery)
    found = sorted(path.read_text() for path in chats.glob("session-*.jsonl"))
    assert found == ["the first life", "the second life"]
    # what ends like a new file of the session is deleted with it, when Gemini cleans up
    assert not list(chats.glob("*-0123abcd.jsonl"))
    settings = json.loads((chats.parents[2] / "settings.json").read_text())
    assert settings["general"]["sessionRetention"] == {"enabled": False}
    assert settings["general"]["maxAttempts"] <= 4


async def test_an_agent_that_makes_its_home_is_started_once_first(tmp_path: Path) -> None:
    opened: list[object] = []
    before: list[int] = []

    class Noting(PlainNursery):
        async def spawn(self, *words: Any, **given: Any) -> Child:
            before.append(len(opened))
            return await super().spawn(*words, **given)

    async def look(environ: object) -> Probe:
        return Probe(True)

    async def one() -> None:
        session = await runner.open(RunRequest(cwd=str(tmp_path)), nursery)
        opened.append(session)

    runner = AcpRunner(
        "scripted", family="scripted", look=look, capabilities=Capabilities(),
        launch=lambda _: Launch(argv=COMMAND, env={"SCRIPTED_HOME": str(tmp_path)}),
        fresh=lambda _: not opened,
    )  # fmt: skip
    nursery = Noting()
    try:
        await asyncio.gather(*(one() for _ in range(3)))
        assert before[0] == 0 and all(before[1:]), before
    finally:
        await nursery.close()


async def test_open_code_is_new_where_it_has_no_database(tmp_path: Path) -> None:
    fresh = open_code()._fresh
    assert fresh({"HOME": str(tmp_path)})
    (tmp_path / ".local/share/opencode").mkdir(parents=True)
    (tmp_path / ".local/share/opencode/opencode.db").touch()
    assert not fresh({"HOME": str(tmp_path)})
    assert fresh({"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)})


async def test_open_code_tells_its_model_of_a_refusal() -> None:
    config = open_code_config(RunRequest(cwd="/"))
    assert config["experimental"] == {"continue_loop_on_deny": True}
