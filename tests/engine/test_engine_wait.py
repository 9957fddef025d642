"""A call is only a wait that may give up: handover, cursors, waits for a text."""

from __future__ import annotations

import itertools
import time

import pytest
from engine_help import PATIENCE, cursor, ended, events_of, joined, word

from tenuto import Chunk, Engine, InvalidInput, Settings, State, WaitingFor
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio

FLOOD = "import sys\nn = 0\nwhile True:\n    sys.stdout.write(f'{n:09}\\n')\n    n += 1"
COUNT = "import sys\nfor n in range(200000):\n    sys.stdout.write(f'{n:09}\\n')"


def assert_whole(chunks: list[Chunk], first: int = 0) -> int:
    """The flood's numbers follow each other without a gap or a repeat; return the next one."""
    lines = joined(chunks).split(b"\n")[:-1]
    assert lines == [b"%09d" % n for n in range(first, first + len(lines))]
    assert all(a.seq < b.seq for a, b in itertools.pairwise(chunks))
    return first + len(lines)


@pytest.mark.promise("X3")
@pytest.mark.parametrize(
    "code",
    ["echo first; sleep 1000", "echo first; while true; do :; done"],
    ids=["sleeping", "busy"],
)
async def test_what_does_not_end_in_time_is_handed_over_with_its_output(
    engine: Engine, project: Project, code: str
) -> None:
    began = time.monotonic()
    snapshot = await engine.run(code, language="bash", wait=1.5)
    assert 1.5 <= time.monotonic() - began < 10
    assert snapshot.handed_over and snapshot.is_async and snapshot.state is State.RUNNING
    assert snapshot.output == "first\n" and snapshot.next_seq > 0
    assert all(chunk.time_ns > 0 for chunk in snapshot.chunks)
    assert not snapshot.done and not snapshot
    (gave_up,) = events_of(project, snapshot.id, "wait_gave_up")
    assert gave_up["after_s"] >= 1.5


@pytest.mark.promise("X3")
async def test_a_wait_that_is_no_time_is_refused_before_anything_runs(engine: Engine) -> None:
    for wait in ("soon", [1], True):
        with pytest.raises(InvalidInput, match="not a duration"):
            await engine.run(command=["true"], wait=wait)  # pyright: ignore
        with pytest.raises(InvalidInput, match="not a duration"):
            await engine.code("1", wait=wait)  # pyright: ignore
    assert await engine.list() == []
    done = await engine.run(command=["true"], wait="10s")  # pyright: ignore
    assert done.state is State.SUCCEEDED
    with pytest.raises(InvalidInput, match="not a duration"):
        await engine.wait(done.id, "soon")  # pyright: ignore


@pytest.mark.promise("X3", "X6")
async def test_a_flood_is_handed_over_and_read_on_with_no_gap_and_no_repeat(engine: Engine) -> None:
    snapshot = await engine.run(FLOOD, language="python", wait=2)
    assert snapshot.handed_over and snapshot.chunks
    await engine.kill(snapshot.id)
    rest = await engine.logs(snapshot.id, after=cursor(snapshot))
    whole = [*snapshot.chunks, *rest]
    assert joined(whole) == joined(await engine.logs(snapshot.id))
    lines = joined(whole).split(b"\n")
    assert lines[:-1] == [b"%09d" % n for n in range(len(lines) - 1)]
    assert all(a.seq < b.seq for a, b in itertools.pairwise(whole))


@pytest.mark.promise("X3", "X6")
async def test_an_answer_that_is_cut_short_says_so_and_the_cursor_goes_on(engine: Engine) -> None:
    snapshot = await engine.run(COUNT, language="python", wait=PATIENCE)
    assert snapshot.state is State.SUCCEEDED and snapshot.truncated
    chunks = list(snapshot.chunks)
    assert len(joined(chunks)) <= engine.settings.output_inline
    chunks += await engine.logs(snapshot.id, after=cursor(snapshot))
    assert len(joined(chunks)) == 2_000_000
    assert assert_whole(chunks) == 200_000


@pytest.mark.promise("X3", "X6")
async def test_waits_chained_by_their_cursor_see_each_chunk_once(engine: Engine) -> None:
    code = "for n in $(seq 40); do printf '%09d\n' $((n-1)); sleep 0.02; done"
    snapshot = await engine.run(code, language="bash", wait=0)
    chunks = list(snapshot.chunks)
    while not snapshot.done:
        snapshot = await engine.wait(snapshot.id, 0.05, after=cursor(snapshot))
        chunks += snapshot.chunks
    assert assert_whole(chunks) == 40
    assert snapshot.damaged == 0


@pytest.mark.promise("X3")
async def test_a_wait_of_zero_hands_over_at_once(engine: Engine) -> None:
    snapshot = await engine.run(command=["sleep", "1000"], wait=0)
    assert snapshot.handed_over and snapshot.running
    snapshot = await engine.wait(snapshot.id, 0)
    assert snapshot.handed_over and snapshot.running


@pytest.mark.promise("X3")
async def test_a_wait_of_zero_for_what_has_ended_gives_its_end(engine: Engine) -> None:
    first = await engine.run("echo done", language="bash")
    snapshot = await engine.wait(first.id, 0)
    assert snapshot.done and not snapshot.handed_over and snapshot.output == "done\n"


@pytest.mark.promise("X3")
async def test_the_wait_that_is_not_given_comes_from_the_settings(folder: object) -> None:
    async with Engine(settings=Settings(wait=0.2)) as engine:
        snapshot = await engine.run(command=["sleep", "1000"])
        assert snapshot.handed_over
        await engine.kill(snapshot.id)


@pytest.mark.promise("X3")
async def test_the_project_file_sets_the_wait(folder, monkeypatch) -> None:
    (folder / "tenuto.toml").write_text('wait = "150ms"\n[report]\nevery = 7\n')
    async with Engine() as engine:
        assert (engine.settings.wait, engine.settings.report_every) == (0.15, 7.0)
    monkeypatch.setenv("TENUTO_WAIT", "2s")
    async with Engine() as engine:
        assert engine.settings.wait == 2.0


@pytest.mark.promise("X3")
async def test_the_default_wait_is_thirty_seconds(engine: Engine) -> None:
    assert engine.settings.wait == 30.0


@pytest.mark.promise("X3", "X7")
async def test_a_wait_ends_early_when_input_is_waited_for(engine: Engine) -> None:
    began = time.monotonic()
    snapshot = await engine.run("name = input('Name? ')", language="python", wait=PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    assert snapshot.state is State.WAITING and snapshot.waiting_for is WaitingFor.INPUT
    assert snapshot.needs_input and snapshot.output == "Name? "
    assert "tenuto send" in snapshot.hint


@pytest.mark.promise("X3")
async def test_an_execution_is_async_once_it_was_handed_over_or_detached(engine: Engine) -> None:
    waited = await engine.run(command=["true"])
    assert not waited.is_async and not (await engine.show(waited.id)).is_async
    started = await engine.start(command=["true"])
    assert (await ended(engine, started)).is_async
    given_up = await engine.run(command=["sleep", "1000"], wait=0)
    assert given_up.is_async and (await engine.show(given_up.id)).is_async
    assert {one.id for one in await engine.list(only_async=True)} == {started, given_up.id}


@pytest.mark.promise("X3")
async def test_many_waits_at_once_are_all_answered(engine: Engine) -> None:
    import asyncio

    running = await engine.start("read line; echo got $line; exit 7", language="bash")
    await engine.wait(running, PATIENCE)
    waits = [asyncio.create_task(engine.wait(running, PATIENCE, until="got")) for _ in range(10)]
    ends = [asyncio.create_task(ended(engine, running)) for _ in range(10)]
    await engine.send(running, "it")
    assert {one.exit_code for one in await asyncio.gather(*ends)} == {7}
    answers = await asyncio.gather(*waits)
    for one in answers:  # some saw it wait for input before the answer came
        assert one.matched == "got" or one.needs_input or one.done


@pytest.mark.promise("X3")
async def test_a_cancelled_wait_leaves_the_execution_alone(engine: Engine) -> None:
    import asyncio

    running = await engine.start("echo on; read x; echo off", language="bash")
    await word(engine, running, "on")
    task = asyncio.create_task(engine.wait(running, PATIENCE, until="never"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.send(running, "x")
    assert (await ended(engine, running)).output == "on\noff\n"


# Until


@pytest.mark.promise("X6")
async def test_a_wait_for_a_text_finds_it_across_chunks(engine: Engine) -> None:
    code = """
import sys, time
for part in ("rea", "dy to ", "serve", " on 80", "80\\n"):
    sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.05)
time.sleep(1000)
"""
    running = await engine.start(code, language="python")
    found = await engine.wait(running, PATIENCE, until="ready to serve")
    assert found.matched == "ready to serve" and not found.handed_over and found.running
    found = await engine.wait(running, PATIENCE, until=r"/on (\d+)\n/")
    assert found.matched == "on 8080\n"
    assert len(found.chunks) > 1


@pytest.mark.promise("X6")
async def test_a_wait_for_a_text_does_not_mix_the_streams(engine: Engine) -> None:
    code = "printf he; printf X >&2; printf llo; sleep 1000"
    running = await engine.start(code, language="bash")
    assert (await engine.wait(running, PATIENCE, until="hello")).matched == "hello"


@pytest.mark.promise("X6")
async def test_a_text_that_never_comes_ends_with_the_execution(engine: Engine) -> None:
    running = await engine.start("echo other", language="bash")
    snapshot = await engine.wait(running, PATIENCE, until="wanted")
    assert snapshot.matched is None and snapshot.done


@pytest.mark.promise("X6")
async def test_a_text_is_waited_for_after_the_cursor_only(engine: Engine) -> None:
    running = await engine.start("while read x; do echo pong $x; done", language="bash")
    await engine.wait(running, PATIENCE)
    await engine.send(running, "1")
    first = await engine.wait(running, PATIENCE, until="/pong .\n/")
    while first.matched is None:
        first = await engine.wait(running, PATIENCE, until="/pong .\n/")
    await engine.send(running, "2")
    second = first
    while second.matched is None or second is first:
        second = await engine.wait(running, PATIENCE, until="/pong .\n/", after=cursor(first))
    assert (first.matched, second.matched) == ("pong 1\n", "pong 2\n")
    assert second.damaged == 0


@pytest.mark.promise("X6")
async def test_a_bad_regular_expression_is_refused(engine: Engine) -> None:
    running = await engine.start(command=["sleep", "1000"])
    with pytest.raises(InvalidInput, match="not a regular expression"):
        await engine.wait(running, 1, until="/(/")
    with pytest.raises(InvalidInput, match="no text"):
        await engine.wait(running, 1, until="")


@pytest.mark.promise("X5", "X6")
async def test_a_follower_sees_output_as_it_is_written(engine: Engine) -> None:
    """The program goes on only once its last line was seen, so a late one would never end."""
    running = await engine.start(
        "for n in 1 2 3 4 5; do echo line $n; read x; done", language="bash"
    )
    seen: list[bytes] = []
    async for chunk in engine.follow(running):
        seen.append(chunk.data)
        await engine.send(running, "go on")
    assert b"".join(seen) == b"line 1\nline 2\nline 3\nline 4\nline 5\n"
    assert (await engine.show(running)).state is State.SUCCEEDED


@pytest.mark.promise("X5")
async def test_output_reaches_a_follower_within_fifty_milliseconds(engine: Engine) -> None:
    """Both clocks are this machine's. The best of many counts: others use the processors too."""
    code = """
import sys, time
for n in range(20):
    sys.stdout.write(f"{time.time_ns()}\\n"); sys.stdout.flush(); time.sleep(0.02)
"""
    running = await engine.start(code, language="python")
    delays: list[float] = []
    async for chunk in engine.follow(running):
        now = time.time_ns()
        delays += [(now - int(line)) / 1e6 for line in chunk.data.split()]
    assert len(delays) == 20
    assert sorted(delays)[10] < 50, delays
