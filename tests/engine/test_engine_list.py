"""Finding executions: lists, prefixes, reports, cleaning; one's own only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

import pytest
from engine_help import PATIENCE, ended, project_of, word

from tenuto import (
    AmbiguousId,
    Engine,
    InvalidInput,
    NotOwned,
    NotRunning,
    Settings,
    State,
    UnknownExecution,
    WaitingFor,
)
from tenuto.core.quantities import iso
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio


def ids(snapshots: list) -> list[str]:
    return [one.id for one in snapshots]


@pytest.mark.promise("X9")
async def test_lists_are_newest_first_and_filtered(engine: Engine) -> None:
    good = await engine.run("print('alpha')", language="python", title="the alpha run")
    bad = await engine.run("exit 3", language="bash")
    live = await engine.start(command=["sleep", "1000"], title="a long sleep")
    assert ids(await engine.list()) == [live, bad.id, good.id]
    assert ids(await engine.list(running=True)) == [live]
    assert ids(await engine.list(states=[State.FAILED])) == [bad.id]
    assert ids(await engine.list(states=[State.FAILED, State.SUCCEEDED])) == [bad.id, good.id]
    assert ids(await engine.list(kind="command")) == [live]
    assert ids(await engine.list(kind="code")) == [bad.id, good.id]
    assert ids(await engine.list(text="alpha")) == [good.id]
    assert ids(await engine.list(text="nowhere")) == []
    assert ids(await engine.list(only_async=True)) == [live]
    assert ids(await engine.list(most=1)) == [live]
    assert ids(await engine.list(since="1h")) == [live, bad.id, good.id]
    assert ids(await engine.list(since=iso(bad.created_ns + 1000))) == [live]


@pytest.mark.promise("X9")
async def test_the_list_shows_live_state_and_final_state(engine: Engine) -> None:
    running = await engine.start("seq 5; read x; exit 4", language="bash")
    await engine.wait(running, PATIENCE)
    (one,) = await engine.list()
    assert one.waiting_for is WaitingFor.INPUT and one.output_lines == 5
    await engine.send(running, "x")
    await ended(engine, running)
    (one,) = await engine.list()
    assert (one.state, one.reason, one.exit_code) == (State.FAILED, "exit", 4)
    assert one.duration_s > 0 and one.ended_ns is not None


@pytest.mark.promise("X9")
async def test_show_tells_everything_but_the_output(engine: Engine) -> None:
    done = await engine.run("print('x' * 10)\n{'a': [1, None]}", language="python")
    shown = await engine.show(done.id)
    assert shown.value == {"a": [1, None]} and shown.has_value
    assert (shown.output_bytes, shown.output_lines) == (11, 1)
    assert shown.chunks == () and shown.exit_code == 0
    assert shown.created_ns <= (shown.started_ns or 0) <= (shown.ended_ns or 0)
    assert shown.usage.user_s > 0 and shown.usage.max_rss > 1_000_000


@pytest.mark.promise("X9", "X1")
async def test_any_unique_prefix_is_accepted(engine: Engine) -> None:
    done = await engine.run(command=["true"])
    for prefix in (done.id[:18], done.id[:30], done.id.upper(), done.id.replace("-", "")):
        assert (await engine.show(prefix)).id == done.id
        assert (await engine.wait(prefix, 0)).id == done.id
    assert await engine.logs(done.id[:20]) == []


@pytest.mark.promise("X9")
async def test_an_ambiguous_prefix_names_the_candidates(engine: Engine) -> None:
    one, two = await engine.run(command=["true"]), await engine.run(command=["true"])
    common = os.path.commonprefix([one.id, two.id])
    with pytest.raises(AmbiguousId) as caught:
        await engine.show(common)
    assert one.id[:18] in str(caught.value) and two.id[:18] in str(caught.value)


@pytest.mark.promise("X9")
@pytest.mark.parametrize("verb", ["show", "wait", "logs", "kill", "interrupt", "clear", "send"])
async def test_an_unknown_id_is_refused_and_the_nearest_is_named(engine: Engine, verb: str) -> None:
    done = await engine.run(command=["true"], title="the only one")
    wrong = done.id[:-1] + ("0" if done.id[-1] != "0" else "1")
    arguments = ["text"] if verb == "send" else []
    with pytest.raises(UnknownExecution) as caught:
        await getattr(engine, verb)(wrong, *arguments)
    assert not isinstance(caught.value, AmbiguousId | NotOwned)
    assert done.id[:18] in caught.value.hint and "the only one" in caught.value.hint


@pytest.mark.promise("X9")
async def test_what_is_no_id_at_all_is_refused(engine: Engine) -> None:
    for text in ("", "xyz", "../../etc", "0" * 40):
        with pytest.raises(InvalidInput, match="not an execution id"):
            await engine.show(text)
    with pytest.raises(UnknownExecution):
        await engine.show("01")


@pytest.mark.promise("X16", "X9")
@pytest.mark.parametrize("verb", ["show", "wait", "logs", "kill", "interrupt", "clear", "send"])
async def test_another_projects_execution_is_refused(
    engine: Engine, tmp_path: Path, verb: str
) -> None:
    running = await engine.start(command=["sleep", "1000"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    arguments = ["text"] if verb == "send" else []
    async with Engine(str(elsewhere)) as other:
        with pytest.raises(NotOwned, match="another project"):
            await getattr(other, verb)(running, *arguments)
        assert await other.list() == []
        assert await other.kill_all() == []
    assert (await engine.show(running)).running


# Reports


@pytest.mark.promise("X10")
async def test_the_report_tells_what_runs(engine: Engine) -> None:
    assert (await engine.report()).running == ()
    assert "Nothing" in (await engine.report()).text()
    await engine.run(command=["true"])
    first = await engine.start("seq 7; sleep 1000", language="bash", title="counts")
    second = await engine.run(command=["cat"], wait=PATIENCE)
    await word(engine, first, "7\n")
    report = await engine.report()
    assert [one.id for one in report.running] == [first, second.id]
    counting, asking = report.running
    assert (counting.title, counting.state, counting.output_lines) == ("counts", "running", 7)
    assert counting.is_async and not counting.done and counting.duration_s > 0
    assert counting.started_at.endswith("Z")
    assert asking.state == "waiting: input"
    assert report.counts["succeeded"] == 1
    assert "counts" in report.text() and "7 lines" in report.text()


@pytest.mark.promise("X10")
async def test_reports_come_while_anything_runs(folder: Path) -> None:
    async with Engine(settings=Settings(report_every=0.1)) as engine:
        running = await engine.start(command=["sleep", "1000"])
        began = time.monotonic()
        async with contextlib.aclosing(engine.reports()) as reports:  # type: ignore[type-var]
            seen = [await anext(reports) for _ in range(3)]
        assert time.monotonic() - began >= 0.3
        assert all([one.id for one in report.running] == [running] for report in seen)
        assert seen[0].at < seen[1].at < seen[2].at
        await engine.kill(running)


@pytest.mark.promise("X10")
async def test_no_report_comes_while_nothing_runs(folder: Path) -> None:
    async with Engine(settings=Settings(report_every=0.05)) as engine:
        next_report = asyncio.ensure_future(anext(engine.reports()))
        await engine.run(command=["sleep", "0.01"])
        done, _ = await asyncio.wait([next_report], timeout=0.3)
        assert not done or next_report.result().running
        next_report.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await next_report


@pytest.mark.promise("X10")
async def test_reports_are_every_minute_by_default_and_can_be_off(folder: Path) -> None:
    assert Settings().report_every == 60.0
    async with Engine(settings=Settings(report_every=0)) as engine:
        assert [report async for report in engine.reports()] == []


# Cleaning


@pytest.mark.promise("X15")
async def test_clean_by_count_keeps_the_newest(engine: Engine, project: Project) -> None:
    done = [(await engine.run(command=["echo", str(n)])).id for n in range(5)]
    cleaned = await engine.clean(keep=2)
    assert cleaned.removed == 3 and cleaned.size > 0
    assert ids(await engine.list()) == [done[4], done[3]]
    assert sorted(project.all_ids()) == sorted(done[3:])
    with pytest.raises(UnknownExecution):
        await engine.show(done[0])


@pytest.mark.promise("X15")
async def test_clean_by_age(engine: Engine) -> None:
    old = await engine.run(command=["true"])
    cut = await engine.run(command=["sleep", "0.3"])
    age = (time.time_ns() - (cut.ended_ns or 0)) / 1e9 + 0.1
    cleaned = await engine.clean(older_s=age)
    assert cleaned.removed == 1
    assert ids(await engine.list()) == [cut.id]
    with pytest.raises(UnknownExecution):
        await engine.show(old.id)
    assert (await engine.clean(older_s=3600)).removed == 0
    assert (await engine.clean()).removed == 0


@pytest.mark.promise("X15")
async def test_clean_by_size_keeps_what_fits_newest_first(engine: Engine) -> None:
    done = [
        (await engine.run(f"head -c 200000 /dev/zero; echo {n}", language="bash")).id
        for n in range(4)
    ]
    cleaned = await engine.clean(max_size=500_000)
    assert cleaned.removed == 2 and cleaned.size > 400_000
    assert ids(await engine.list()) == [done[3], done[2]]


@pytest.mark.promise("X15")
async def test_clean_never_takes_what_lives(engine: Engine) -> None:
    running = await engine.start("echo on; read x; echo off", language="bash")
    await word(engine, running, "on")
    left = await engine.run("sleep 1000 & disown; echo left", language="bash")
    assert left.left_behind
    assert (await engine.clean(keep=0, older_s=0, max_size=0)).removed == 0
    await engine.send(running, "x")
    assert (await ended(engine, running)).output == "on\noff\n"
    await engine.kill(left.id)
    async with asyncio.timeout(PATIENCE):
        removed = 0  # a keeper holds its tape a moment longer than its execution lives
        while removed < 2:
            removed += (await engine.clean(keep=0)).removed


@pytest.mark.promise("X15")
async def test_the_retention_settings_apply_when_an_engine_opens(
    folder: Path, project: Project
) -> None:
    async with Engine() as engine:
        done = [(await engine.run(command=["true"])).id for _ in range(4)]
    from engine_help import assert_nothing_left

    assert_nothing_left(project)
    async with Engine(settings=Settings(retention_count=1)) as engine:
        assert ids(await engine.list()) == [done[3]]


@pytest.mark.promise("X11", "X9")
async def test_the_index_is_made_again_from_the_tapes(folder: Path, project: Project) -> None:
    async with Engine() as engine:
        done = await engine.run("print(1)\n5", language="python")
        live = await engine.start(command=["sleep", "1000"])
    for path in Path(project.home).glob("index.db*"):
        path.unlink()
    async with Engine() as engine:
        assert ids(await engine.list()) == [live, done.id]
        assert (await engine.list())[1].state is State.SUCCEEDED
        assert (await engine.show(done.id)).value == 5
        assert (await engine.kill(live)).state is State.KILLED
    assert project_of(folder).home == project.home


@pytest.mark.promise("X9")
async def test_an_ended_execution_takes_no_signal(engine: Engine) -> None:
    done = await engine.run(command=["true"])
    with pytest.raises(NotRunning) as caught:
        await engine.kill(done.id, signal="TERM")
    assert "succeeded" in str(caught.value) or "ended" in str(caught.value)
