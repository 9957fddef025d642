"""Real tasks, by agents that need no model: exactly the right records, in Python and outside."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from history_help import with_echo

from tenuto import Engine, Snapshot, UnknownExecution
from tenuto.cli.main import main
from tenuto.core.history import ExecutionRecord

pytestmark = pytest.mark.promise("D6")


def plan(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"steps": list(steps)}


def brief(records: tuple[ExecutionRecord, ...]) -> list[tuple[str, str, str, int]]:
    return sorted((one.step, one.status, one.kind, one.attempt) for one in records)


def told(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capfd.readouterr()
    assert main(["history", *words]) == code
    return capfd.readouterr().out


@pytest.mark.asyncio
async def test_retries_failures_and_skips(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with_echo(folder)
    steps = plan(
        {"id": "good", "task": "[[use:100,7]] hello"},
        {
            "id": "bad",
            "task": "[[use:3,1]] [[fail:server]]",
            "depends_on": ["good"],
            "retry": {"times": 1, "pause": 0},
        },
        {"id": "never", "task": "x", "depends_on": ["bad"]},
    )
    async with Engine(str(folder)) as engine:
        ended = await engine.task(
            plan=steps, runtime="echo", change="CH-1", task_id="T-9", workflow="w", wait=60
        )
        found = await engine.history(ended.id)
        assert brief(found.records) == [
            ("bad", "failed", "server", 2),
            ("good", "completed", "", 1),
            ("never", "skipped_dependency_failed", "", 0),
        ]
        good = next(one for one in found.records if one.success)
        assert (good.change, good.task_id, good.workflow) == ("CH-1", "T-9", "w")
        assert (good.runtime, good.unmetered) == ("echo", True)
        assert (good.tokens.input, good.tokens.output) == (100, 7)
        assert found.totals.tokens.total == 100 + 7 + 2 * (3 + 1)
        assert await engine.history() == found, "the index has what the tape says"
        by = await engine.history(by="runtime", since="1h")
        assert [(one.key, one.totals.count) for one in by.groups] == [("echo", 2), ("", 1)]
        assert (await engine.history(until="1h")).totals.count == 0
        assert (await engine.history(failed=True, task_id="T-9", change="CH-1")).totals.count == 2
        assert (await engine.history(change="other")).records == ()
        assert (await engine.clean(keep=0)).removed == 1
        assert await engine.history(ended.id) == found
        with pytest.raises(UnknownExecution):
            await engine.history("ffffffff-ffff-7fff-8fff-ffffffffffff")
    await asyncio.to_thread(_the_command_line, ended.id, capfd)


def _the_command_line(execution: str, capfd: pytest.CaptureFixture[str]) -> None:
    document = json.loads(told(capfd, "--steps", "--json"))
    assert document["totals"]["count"] == len(document["steps"]) == 3
    assert json.loads(told(capfd, execution, "--json"))["steps"] == document["steps"]
    rows = list(csv.DictReader(io.StringIO(told(capfd, "--steps", "--csv"))))
    assert [row["step"] for row in rows] == [one["step"] for one in document["steps"]]
    assert {row["success"] for row in rows} == {"true", "false"}
    groups = list(csv.DictReader(io.StringIO(told(capfd, "--by", "role", "--csv"))))
    assert sum(int(one["count"]) for one in groups) == 3
    shown = told(capfd, "--steps", "--since", "7d")
    (skipped,) = (line.split() for line in shown.splitlines() if "never" in line)
    assert skipped[2] == "skipped" and "-" in skipped and "unknown" not in skipped
    assert "50% completed" in told(capfd, "--by", "day")
    assert told(capfd, "--failed", "-q").split() == [execution]
    assert told(capfd, "--change", "none") == ""
    told(capfd, "--by", "colour", code=2)
    told(capfd, "--steps", "--since", "1h", "--until", "2h", code=2)


@pytest.mark.asyncio
@pytest.mark.promise("B1")
async def test_steps_in_one_session_are_each_counted(folder: Path) -> None:
    with_echo(folder)
    steps = plan(*({"id": f"s{n}", "task": f"[[use:{n},1]] x"} for n in (1, 20, 300)))
    async with Engine(str(folder)) as engine:
        ended = await engine.task(plan=steps, strategy="single", wait=60)
        assert [one["session"] for one in ended.value["steps"]].count(
            ended.value["steps"][0]["session"]
        ) == 3, "they speak in one session"
        assert (ended.value["tokens_in"], ended.value["tokens_out"]) == (321, 3)
        assert [one["unmetered"] for one in ended.value["steps"]] == [True] * 3
        assert (await engine.history()).totals.tokens.total == 324
        assert (await engine.budget()).day.tokens.total == 324, "and by the budget"


@pytest.mark.asyncio
async def test_the_history_is_read_page_by_page_and_a_fork_counts_its_own_steps_only(
    folder: Path,
) -> None:
    with_echo(folder)
    steps = plan(
        {"id": "a", "task": "[[use:100,1]] x"},
        {"id": "b", "task": "[[use:20,1]] x", "depends_on": ["a"]},
    )
    async with Engine(str(folder)) as engine:
        ended = await engine.task(plan=steps, wait=60)
        (place,) = [one for one in await engine.checkpoints(ended.id) if one.what == "a completed"]
        forked = await engine.resume(ended.id, from_seq=place.seq, wait=60)
        assert [one["role"] for one in forked.value["steps"]] == ["developer"] * 2
        everything = await engine.history()
        assert everything.totals.count == 3
        assert everything.totals.tokens.total == 101 + 21 + 21
        assert [one.step for one in (await engine.history(forked.id)).records] == ["b"]
        first = await engine.history(most=2)
        second = await engine.history(most=2, before=first.records[-1].place)
        assert first.records + second.records == everything.records
        assert first.totals == second.totals == everything.totals
        of_one = await engine.history(ended.id, most=1)
        assert (await engine.history(ended.id, before=of_one.records[0].place)).totals.count == 2


@pytest.mark.asyncio
@pytest.mark.promise("B1", "D3")
async def test_a_fork_tells_what_it_inherited_and_nothing_counts_it_twice(folder: Path) -> None:
    with_echo(folder)
    steps = plan(
        {"id": "a", "task": "[[use:100,1]] x"},
        {"id": "b", "task": "[[use:20,2]] x", "depends_on": ["a"]},
    )
    async with Engine(str(folder)) as engine:
        ended = await engine.task(plan=steps, wait=60, max_tokens=130)
        assert ended.value["inherited"] is None
        assert [one["inherited"] for one in ended.value["steps"]] == [False, False]
        forks = [await _forked(engine, ended.id)]
        forks.append(await _forked(engine, forks[0].id))  # and a fork of a fork
        for fork in forks:
            value = fork.value
            assert (value["tokens_in"], value["tokens_out"]) == (120, 3)
            assert value["inherited"] == {
                "steps": 1, "tokens_in": 100, "tokens_out": 1, "cost": value["steps"][0]["cost"],
            }  # fmt: skip
            assert [one["inherited"] for one in value["steps"]] == [True, False]
            records = (await engine.history(fork.id)).records
            assert [(one.step, one.tokens.total) for one in records] == [("b", 22)]
        totals = (await engine.history()).totals
        assert (totals.count, totals.tokens.total) == (4, 101 + 3 * 22)
        report = await engine.budget()
        assert report.day.tokens.total == report.month.tokens.total == 101 + 3 * 22
        spent = {one.id: one.spend.tokens.total for one in report.executions}
        assert spent == {ended.id: 123, forks[0].id: 22, forks[1].id: 22}
        assert (await engine.clean(keep=0)).removed >= 3
        assert (await engine.history()).totals == totals, "nor when they are cleaned away"


async def _forked(engine: Engine, execution_id: str) -> Snapshot:
    places = await engine.checkpoints(execution_id)
    (seq,) = [one.seq for one in places if one.what == "a completed"]
    forked = await engine.resume(execution_id, from_seq=seq, wait=60)
    assert forked
    return forked


@pytest.mark.asyncio
async def test_interrupted_and_resumed_has_both(
    folder: Path,
) -> None:
    with_echo(folder)
    steps = plan(
        {"id": "a", "task": "[[use:10,1]] one"},
        {"id": "b", "task": "[[use:20,2]] [[ask:Bash]]", "depends_on": ["a"]},
    )
    async with Engine(str(folder)) as engine:
        one = await engine.start_task(plan=steps, runtime="echo", permissions="ask")
        waiting = await engine.wait(one, up_to=60)
        assert waiting.waiting_for is not None, "it asks before it uses the tool"
        live = await engine.history(one)
        assert brief(live.records) == [("a", "completed", "", 1)], "of one that runs"
        await engine.interrupt(one)
        assert brief((await engine.history()).records) == [
            ("a", "completed", "", 1),
            ("b", "interrupted", "", 1),
        ]
        again = await engine.resume(one)
        assert again.waiting_for is not None, "it asks again"
        await engine.approve(one)
        ended = await engine.wait(one, up_to=60)
        assert ended.done
        found = await engine.history()
        assert brief(found.records) == [
            ("a", "completed", "", 1),
            ("b", "completed", "", 2),
            ("b", "interrupted", "", 1),
        ]
        assert found.totals.tokens.output == 1 + 2 + 2, "each life once"
        assert await engine.history(one) == found


SECOND = """
from tenuto.testing.agents import EchoRunner

def second():
    return EchoRunner("second", "echo", "second: {text}")
"""


@pytest.mark.asyncio
async def test_a_fallback_is_one_record_of_who_took_over(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_echo(folder)
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "history_seconds.py").write_text(SECOND)
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setenv("PYTHONPATH", str(modules))
    settings = (folder / "tenuto.toml").read_text().replace('["echo"]', '["echo", "second"]')
    (folder / "tenuto.toml").write_text(settings + 'second = "history_seconds:second"\n')
    async with Engine(str(folder)) as engine:
        await engine.task("[[fail:network]]", wait=60)
        (record,) = (await engine.history()).records
    assert (record.runtime, record.status, record.kind) == ("second", "failed", "network")
    assert record.attempt > 1


@pytest.mark.asyncio
async def test_killed_in_the_middle_of_a_step(folder: Path) -> None:
    with_echo(folder)
    async with Engine(str(folder)) as engine:
        one = await engine.start_task("[[use:5,5]] [[ask:Bash]]", runtime="echo", permissions="ask")
        await engine.wait(one, up_to=60)
        await engine.kill(one)
        (record,) = (await engine.history()).records
        assert (record.status, record.kind, record.runtime) == ("interrupted", "killed", "echo")
        assert record.tokens.total == 10
        assert record.duration_s > 0
