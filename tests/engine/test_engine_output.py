"""Output: every byte, apart by stream, in order, readable again and again."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from engine_help import PATIENCE, cursor, ended, events_of, folded, joined, output, word

from tenuto import Engine, Limits, State, WaitingFor
from tenuto.core.quantities import iso
from tenuto.engine.watch import Watch
from tenuto.keeper.frames import Frame
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio


@pytest.mark.promise("X5")
async def test_the_streams_are_kept_apart_and_in_order(engine: Engine) -> None:
    code = """
import os, time
for n in range(20):
    os.write(1 + n % 2, b"%d\\n" % n)
    time.sleep(0.005)
"""
    snapshot = await engine.run(code, language="python")
    assert snapshot.stdout == b"".join(b"%d\n" % n for n in range(0, 20, 2))
    assert snapshot.stderr == b"".join(b"%d\n" % n for n in range(1, 20, 2))
    chunks = snapshot.chunks
    assert {chunk.stream for chunk in chunks} == {"out", "err"}
    assert all(a.seq < b.seq for a, b in itertools.pairwise(chunks))
    assert all(a.time_ns <= b.time_ns for a, b in itertools.pairwise(chunks))


@pytest.mark.promise("X5")
async def test_chunks_carry_the_time_at_which_they_were_written(engine: Engine) -> None:
    before = time.time_ns()
    snapshot = await engine.run("echo a; sleep 0.3; echo b", language="bash")
    first, second = snapshot.chunks
    assert before <= first.time_ns <= second.time_ns - 250_000_000
    assert second.time_ns <= time.time_ns()


@pytest.mark.promise("X5")
async def test_bytes_are_kept_whatever_they_are(engine: Engine) -> None:
    data = bytes(range(256)) * 3 + b"\xff\xfe\x80 no utf-8 \xc3"
    code = f"import os; os.write(1, bytes.fromhex('{data.hex()}')); None"
    snapshot = await engine.run(code, language="python")
    assert snapshot.stdout == data
    assert "\ufffd" in snapshot.output  # as text it is readable all the same


@pytest.mark.promise("X5")
async def test_a_program_that_prints_frames_forges_nothing(
    engine: Engine, project: Project
) -> None:
    """The program copies its own tape to its output: real frames with the real magic."""
    running = await engine.start("echo before; read path; cat $path; echo after", language="bash")
    await engine.wait(running, PATIENCE)
    tape = Path(project.folder(running)) / "tape"
    size = tape.stat().st_size
    await engine.send(running, str(tape))
    snapshot = await ended(engine, running)
    assert snapshot.state is State.SUCCEEDED and snapshot.damaged == 0
    assert len(events_of(project, running, "created")) == 1
    assert len(snapshot.stdout) >= size + len(b"before\nafter\n")


@pytest.mark.promise("X5", "X6")
async def test_a_line_of_twenty_megabytes_is_kept_whole(engine: Engine) -> None:
    size = 20 * 1024 * 1024
    code = f"import sys; sys.stdout.buffer.write(b'x' * {size}); None"
    snapshot = await engine.run(code, language="python", wait=PATIENCE)
    assert snapshot.state is State.SUCCEEDED and snapshot.truncated
    assert snapshot.output_bytes == size and snapshot.output_lines == 0
    chunks = await engine.logs(snapshot.id)
    assert joined(chunks) == b"x" * size
    assert joined(await engine.logs(snapshot.id, tail=1)) == b"x" * size


@pytest.mark.promise("X5", "X8")
async def test_what_is_in_the_pipe_at_the_exit_is_kept(engine: Engine) -> None:
    code = "import os; os.set_blocking(1, True); os.write(1, b'y' * 1_000_000); os._exit(3)"
    argv = ["python3", "-S", "-c", code]
    for _ in range(20):
        snapshot = await engine.run(command=argv, wait=PATIENCE)
        assert snapshot.exit_code == 3
        assert snapshot.output_bytes == 1_000_000
        assert len(await output(engine, snapshot.id)) == 1_000_000


@pytest.mark.promise("X5")
async def test_a_program_may_close_its_output_and_go_on(engine: Engine, folder: Path) -> None:
    code = """
import os, sys
print("last words", flush=True)
os.close(1); os.close(2)
sys.stdin.readline()
open("went-on", "w").write("yes")
os._exit(4)
"""
    running = await engine.start(code, language="python")
    assert (await engine.wait(running, PATIENCE)).needs_input
    await engine.send(running, "go")
    snapshot = await ended(engine, running)
    assert snapshot.exit_code == 4 and snapshot.output == "last words\n"
    assert (folder / "went-on").read_text() == "yes"


@pytest.mark.promise("X5")
async def test_output_without_a_newline_is_seen_at_once(engine: Engine) -> None:
    running = await engine.start("printf 'no newline'; sleep 1000", language="bash")
    snapshot = await engine.wait(running, PATIENCE, until="no newline")
    assert snapshot.matched and snapshot.running and snapshot.output == "no newline"


@pytest.mark.promise("X5")
async def test_output_of_every_process_of_the_tree_is_kept(engine: Engine) -> None:
    code = "(echo child; (echo grandchild >&2)); seq 3 | sed s/^/n/; wait"
    snapshot = await engine.run(code, language="bash")
    assert snapshot.stdout == b"child\nn1\nn2\nn3\n" and snapshot.stderr == b"grandchild\n"


# History


@pytest.mark.promise("X6")
async def test_reading_never_consumes(engine: Engine) -> None:
    snapshot = await engine.run("for n in 1 2 3; do echo $n; sleep 0.02; done", language="bash")
    first = await engine.logs(snapshot.id)
    assert first == await engine.logs(snapshot.id) == list(snapshot.chunks)
    assert (await engine.wait(snapshot.id, 0)).chunks == snapshot.chunks


@pytest.mark.promise("X6")
async def test_logs_go_on_after_any_cursor(engine: Engine) -> None:
    snapshot = await engine.run(
        "for n in 1 2 3 4 5 6; do echo $n; sleep 0.02; done", language="bash"
    )
    chunks = await engine.logs(snapshot.id)
    for cut, chunk in enumerate(chunks):
        assert await engine.logs(snapshot.id, after=chunk.seq) == chunks[cut + 1 :]
    assert await engine.logs(snapshot.id, after=cursor(snapshot)) == []


@pytest.mark.promise("X6")
async def test_logs_since_a_time(engine: Engine) -> None:
    snapshot = await engine.run("for n in 1 2 3 4; do echo $n; sleep 0.03; done", language="bash")
    chunks = await engine.logs(snapshot.id)
    assert len(chunks) == 4
    middle = iso(chunks[1].time_ns + 1_000_000)  # ISO times have microseconds
    assert await engine.logs(snapshot.id, since=middle) == chunks[2:]
    assert await engine.logs(snapshot.id, since="1h") == chunks
    assert await engine.logs(snapshot.id, since="2035-01-01T00:00:00Z") == []


@pytest.mark.promise("X6")
async def test_logs_give_the_last_lines(engine: Engine) -> None:
    code = "seq 1 50000; printf 'half a line'"
    snapshot = await engine.run(code, language="bash", wait=PATIENCE)
    assert joined(await engine.logs(snapshot.id, tail=1)) == b"half a line"
    assert joined(await engine.logs(snapshot.id, tail=3)) == b"49999\n50000\nhalf a line"
    assert joined(await engine.logs(snapshot.id, tail=50001)) == await output(engine, snapshot.id)
    assert await engine.logs(snapshot.id, tail=0) == []


@pytest.mark.promise("X6")
async def test_clear_drops_output_keeps_sequence_numbers_and_says_so(
    engine: Engine, project: Project
) -> None:
    running = await engine.start("echo secret $((6 * 7)); read x; echo later", language="bash")
    before = await engine.wait(running, PATIENCE)
    assert before.output == "secret 42\n"
    await engine.clear(running)
    assert await engine.logs(running) == []
    tape = Path(project.folder(running)) / "tape"
    assert b"secret 42" not in tape.read_bytes()
    (cleared,) = events_of(project, running, "cleared")
    assert cleared["size"] == len("secret 42\n") and cleared["upto"] == before.chunks[-1].seq
    await engine.send(running, "x")
    snapshot = await ended(engine, running)
    (chunk,) = await engine.logs(running)
    assert chunk.data == b"later\n" and chunk.seq > before.next_seq
    assert await engine.logs(running, after=cursor(before)) == [chunk]
    assert snapshot.damaged == 0 and snapshot.state is State.SUCCEEDED


@pytest.mark.promise("X6")
async def test_clear_works_on_what_has_ended(engine: Engine, project: Project) -> None:
    snapshot = await engine.run("1 + 1\nprint('gone soon')\n41 + 1", language="python")
    shown = await engine.clear(snapshot.id)
    assert shown.value == 42 and shown.state is State.SUCCEEDED
    assert await engine.logs(snapshot.id) == []
    assert len(events_of(project, snapshot.id, "cleared")) == 1


@pytest.mark.promise("X6")
async def test_a_follower_goes_on_over_a_clear(engine: Engine) -> None:
    code = "while read x; do echo $x; done"
    running = await engine.start(code, language="bash")
    await engine.send(running, "one")
    await word(engine, running, "one")
    seen: list[bytes] = []
    async for chunk in engine.follow(running):
        seen.append(chunk.data)
        if len(seen) == 1:
            await engine.clear(running)
            await engine.send(running, "two")
        elif len(seen) == 2:
            await engine.send(running, "", eof=True)
    assert seen == [b"one\n", b"two\n"]


@pytest.mark.promise("X6")
async def test_a_watch_over_a_clear_finds_no_damage(engine: Engine) -> None:
    running = await engine.start("echo one; read x; echo two; read x", language="bash")
    await word(engine, running, "one")
    waiting = asyncio.create_task(engine.wait(running, PATIENCE, until="two"))
    await asyncio.sleep(0)
    await engine.clear(running)
    await engine.send(running, "x")
    snapshot = await waiting
    if snapshot.matched is None:  # it was waiting for input just before
        snapshot = await engine.wait(running, PATIENCE, until="two", after=cursor(snapshot))
    assert snapshot.damaged == 0
    await engine.send(running, "x")
    assert (await ended(engine, running)).damaged == 0


# Quotas

WRITER = """
import os
for n in range(56):
    os.write(1, b"%07d\\n" % n * 4096)  # 32 KiB each, 1.75 MiB in all
os.write(1, b"the end\\n")
os._exit(5)
"""


@pytest.mark.promise("X6", "X15")
async def test_at_the_quota_the_writer_is_held_back_and_clear_lets_it_go_on(
    engine: Engine, project: Project
) -> None:
    limits = Limits(output=1024 * 1024, output_policy="hold")
    snapshot = await engine.run(WRITER, language="python", limits=limits, wait=PATIENCE)
    assert snapshot.state is State.WAITING and snapshot.waiting_for is WaitingFor.DISK
    assert "tenuto clear" in snapshot.hint
    (waited,) = events_of(project, snapshot.id, "waited")
    assert waited["on"] == "disk" and "1048576" in waited["detail"]
    held = await output(engine, snapshot.id)
    assert 1024 * 1024 <= len(held) < 1.75 * 1024 * 1024
    await engine.clear(snapshot.id)
    final = await ended(engine, snapshot.id)
    assert final.exit_code == 5
    rest = await output(engine, snapshot.id)
    expected = b"".join(b"%07d\n" % n * 4096 for n in range(56)) + b"the end\n"
    assert held + rest == expected
    assert final.output_bytes == len(expected)


@pytest.mark.promise("X6", "X15")
async def test_at_the_quota_it_fails_if_that_was_asked_for(engine: Engine) -> None:
    limits = Limits(output=256 * 1024, output_policy="fail")
    snapshot = await engine.run(WRITER, language="python", limits=limits, wait=PATIENCE)
    assert (snapshot.state, snapshot.reason) == (State.FAILED, "limit")
    assert snapshot.detail == "output limit 262144"
    kept = await output(engine, snapshot.id)
    assert len(kept) >= 256 * 1024 and len(kept) == snapshot.output_bytes
    expected = b"".join(b"%07d\n" % n * 4096 for n in range(56))
    assert expected.startswith(kept)


@pytest.mark.promise("X6", "X8")
async def test_what_is_held_back_at_the_quota_can_be_killed(engine: Engine) -> None:
    limits = Limits(output=64 * 1024)
    snapshot = await engine.run(WRITER, language="python", limits=limits, wait=PATIENCE)
    assert snapshot.waiting_for is WaitingFor.DISK
    assert (await engine.kill(snapshot.id)).state is State.KILLED


@pytest.mark.promise("X6", "X15")
async def test_the_quota_of_the_settings_applies_and_there_is_none_by_default(
    folder: Path, project: Project
) -> None:
    from tenuto import Settings

    settings = Settings(output_quota=100_000, output_policy="fail")
    async with Engine(settings=settings) as engine:
        snapshot = await engine.run(WRITER, language="python", wait=PATIENCE)
        assert snapshot.reason == "limit"
        spec = folded(project, snapshot.id).spec
        assert spec is not None and spec.limits.output == 100_000
    async with Engine() as engine:
        snapshot = await engine.run(WRITER, language="python", wait=PATIENCE)
        assert snapshot.exit_code == 5


@pytest.mark.promise("X6")
async def test_the_keeper_stays_small_under_a_flood(engine: Engine, project: Project) -> None:
    """300 MB through it while nobody reads: its memory does not follow."""
    code = """
import os
block = b"z" * 65536
for _ in range(4800):
    os.write(1, block)
os.write(1, b"\\nall\\n")
os.read(0, 1)
"""
    running = await engine.start(code, language="python")
    snapshot = await engine.wait(running, PATIENCE)
    assert snapshot.needs_input and snapshot.output_bytes == 4800 * 65536 + 5
    from engine_help import keeper_of

    status = Path(f"/proc/{keeper_of(project, running)}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    assert peak < 100 * 1024 * 1024, peak
    assert joined(await engine.logs(running, tail=1)) == b"all\n"
    assert os.stat(os.path.join(project.folder(running), "tape.idx")).st_size > 0
    await engine.send(running, "x")
    await ended(engine, running)


@pytest.mark.promise("X5")
async def test_whoever_follows_lets_a_flood_gather_and_misses_none_of_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at each of a thousand lines as it comes would hold up who writes them."""
    looks = 0
    news = Watch.news

    def counted(watch: Watch) -> list[Frame]:
        nonlocal looks
        looks += 1
        return news(watch)

    monkeypatch.setattr(Watch, "news", counted)
    code = """
import os, time
for n in range(1500):
    os.write(1, b"%d\\n" % n)
    end = time.monotonic() + 0.0003
    while time.monotonic() < end: pass
"""
    began = time.monotonic()
    snapshot = await engine.run(code, language="python")
    took = time.monotonic() - began
    assert snapshot.stdout == b"".join(b"%d\n" % n for n in range(1500))
    assert looks < 40 + took / 0.002


@pytest.mark.promise("X5")
async def test_news_that_come_now_and_then_are_looked_at_at_once(
    engine: Engine, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("tenuto.engine.watch.time", SimpleNamespace(monotonic=lambda: now))
    execution_id = await engine.start("cat", language="bash")
    with Watch(project, execution_id) as watch:
        for _ in range(200):
            now += 0.002
            watch.look()
            assert watch.rest == 0
        for _ in range(16):
            watch.look()
        assert watch.rest > 0, "a flood"
        now += 0.01
        watch.look()
        assert watch.rest == 0, "it is over"
    await engine.kill(execution_id)
