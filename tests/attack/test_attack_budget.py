"""Budgets under attack: tasks inside tasks, clocks that are put back, keys that others would find."""

from __future__ import annotations

import subprocess
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from engine_help import project_of

from tenuto import Engine
from tenuto.core.budget import BudgetLimits, Estimate, Grant, Tokens
from tenuto.core.errors import InvalidInput
from tenuto.core.ids import new_id
from tenuto.core.listing import Row
from tenuto.core.states import State
from tenuto.engine.budgets import approve
from tenuto.engine.tasks import task_around
from tenuto.engine.worktrees import Worktrees
from tenuto.keeper.procfs import MARK
from tenuto.metering.ledger import Ledger

ONE = Estimate(Tokens(1, 1), Decimal(1))
ECHO = '[runners]\necho = "tenuto.testing.agents:EchoRunner"\n'


def spent(ledger: Ledger, execution: str, cost: str = "1") -> str:
    """Ask for a request and settle it; return what was said."""
    admission = ledger.admit(execution, "s", "m", ONE)
    if admission.admitted:
        assert ledger.settle(admission.reservation, Tokens(1, 1), Decimal(cost))
    return admission.verdict


@pytest.mark.promise("B2")
@pytest.mark.parametrize("hard", [True, False])
def test_what_a_task_inside_spends_is_bounded_by_the_one_around(tmp_path: Path, hard: bool) -> None:
    outer, inner, innermost = new_id(), new_id(), new_id()
    ledger = Ledger(str(tmp_path))
    ledger.grant(Grant(outer, max_cost=Decimal(3), mode="ask", hard=hard))
    ledger.grant(Grant(inner, max_cost=Decimal(100), within=outer))
    ledger.grant(Grant(innermost, within=inner))
    assert [spent(ledger, one) for one in (outer, inner, innermost)] == ["go"] * 3
    for one in (inner, innermost):
        refused = ledger.admit(one, "s", "m", ONE)
        assert refused.verdict == "stop" and refused.crossings[0].limit == 3, refused
    assert ledger.spend(outer).cost == 3 and ledger.spend(inner).cost == 2
    assert ledger.window("daily").cost == 3, "each is counted once"
    again = Ledger(str(tmp_path))
    assert again.admit(innermost, "s", "m", ONE).verdict == "stop"
    approve(ledger, outer)
    assert again.admit(innermost, "s", "m", ONE).verdict == ("stop" if hard else "go")
    again.close()
    ledger.close()


def test_what_is_reserved_inside_counts_outside_until_it_is_given_back(tmp_path: Path) -> None:
    outer, inner = new_id(), new_id()
    ledger = Ledger(str(tmp_path))
    ledger.grant(Grant(outer, max_cost=Decimal(1), hard=True))
    ledger.grant(Grant(inner, within=outer))
    admission = ledger.admit(inner, "s", "m", ONE)
    assert ledger.admit(outer, "s", "m", ONE).verdict == "stop"
    ledger.release(admission.reservation)
    assert ledger.spend(outer).reserved == 0
    assert ledger.admit(outer, "s", "m", ONE).verdict == "go"
    ledger.close()


def test_tasks_that_say_they_are_inside_each_other_do_no_harm(tmp_path: Path) -> None:
    one, other = new_id(), new_id()
    ledger = Ledger(str(tmp_path))
    ledger.grant(Grant(one, within=other))
    ledger.grant(Grant(other, within=one))
    assert spent(ledger, one) == "go" and spent(ledger, other) == "go"
    ledger.close()


@pytest.mark.promise("B1")
def test_a_clock_that_is_put_back_gives_no_money_back(tmp_path: Path) -> None:
    now = [int(datetime(2031, 6, 15, tzinfo=UTC).timestamp() * 1e9)]
    ledger = Ledger(str(tmp_path), clock=lambda: now[0])
    task = new_id()
    ledger.grant(Grant(task, max_cost=Decimal(1), hard=True))
    assert spent(ledger, task) == "go" and spent(ledger, task) == "stop"
    for moment in (datetime(2031, 5, 31, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)):
        now[0] = int(moment.timestamp() * 1e9)
        assert spent(ledger, task) == "stop", moment
        assert Ledger(str(tmp_path), clock=lambda: now[0]).spend(task).cost == 1
    ledger.close()


@pytest.mark.asyncio
@pytest.mark.promise("B2")
async def test_tasks_inside_tasks_come_to_an_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tenuto.toml").write_text(ECHO)
    outside = ""
    async with Engine(str(folder)) as engine:
        index = engine._engine.index  # pyright: ignore[reportPrivateUsage]
        for _ in range(3):
            task, step = new_id(), new_id()
            index.add(Row(task, "task", State.SUCCEEDED, parent=outside or None))
            index.add(Row(step, "step", State.SUCCEEDED, parent=task))
            outside = step
    monkeypatch.setenv(MARK, outside)
    async with Engine(str(folder)) as engine:
        fourth = await engine.task("still allowed", runtime="echo", wait=60)
        assert fourth.state == "succeeded"
        assert task_around(engine._engine, fourth.id) == task  # pyright: ignore[reportPrivateUsage]
    with closing(Ledger(project_of(folder).home)) as ledger:
        granted = ledger.granted(fourth.id)
        assert granted is not None and granted.within == task
    monkeypatch.setenv(MARK, fourth.id)
    async with Engine(str(folder)) as engine:
        with pytest.raises(InvalidInput, match="inside of each other"):
            await engine.task("too deep", runtime="echo", wait=60)


@pytest.mark.promise("G3", "B3")
def test_what_a_repository_makes_git_run_sees_no_key(tmp_path: Path) -> None:
    top = tmp_path / "repo"
    top.mkdir()

    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=top, check=True
        )

    git("init", "-q", "-b", "main")
    (top / "a").write_text("a\n")
    git("add", "a")
    git("commit", "-q", "-m", "first")
    seen = tmp_path / "seen"
    environ = {
        "PATH": "/usr/bin:/bin", "ANTHROPIC_API_KEY": "sk-secret", "OPENAI_API_KEY": "sk-too",
        "HOME": str(tmp_path),
    }  # fmt: skip
    trees = Worktrees(str(top), str(tmp_path / "trees"), new_id(), environ)
    tree = trees.add("one")
    git("config", "filter.evil.clean", f"env > {seen}; touch {tmp_path}/ran; cat")
    hook = top / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!/bin/sh\nenv > {tmp_path}/hooked\n")
    hook.chmod(0o755)
    (Path(tree.path) / ".gitattributes").write_text("* filter=evil\n")
    (Path(tree.path) / "b").write_text("b\n")
    assert trees.commit(tree, "work of an agent")
    assert not (tmp_path / "hooked").exists(), "no hook is run"
    assert (tmp_path / "ran").exists() and "sk-" not in seen.read_text()


def test_limits_for_each_task_hold_for_the_one_around(tmp_path: Path) -> None:
    outer, inner = new_id(), new_id()
    ledger = Ledger(str(tmp_path))
    ledger.grant(Grant(outer, mode="ask"))
    ledger.grant(Grant(inner, max_cost=Decimal(50), within=outer))
    limits = BudgetLimits(task=Decimal(2))
    ledger.record(inner, "s", "m", Tokens(1, 1), Decimal(2))
    assert ledger.admit(inner, "s", "m", ONE, limits).verdict == "stop"
    ledger.close()
