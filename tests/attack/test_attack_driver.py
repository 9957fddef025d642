"""Drivers under attack: agents that say too much, say it badly, ask without end, or print for ever."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from engine_help import events_of, project_of
from rogue import ESCAPE

from tenuto import Engine
from tenuto.core.errors import EngineFault, InvalidInput, InvalidPlan
from tenuto.core.plan import Plan, Step, read_plan
from tenuto.dispatch.fresh import FreshLauncher
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.driving.nursery import ExecutionNursery
from tenuto.engine.driving.teller import Teller
from tenuto.engine.settings import Settings
from tenuto.engine.tasks import TELLS, task_spec
from tenuto.engine.work import Options
from tenuto.stores.layout import Project

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest_asyncio.fixture
async def rogues(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "tenuto.toml").write_text('[runners]\nrogue = "rogue:Rogue"\n')
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:strict")
    async with Engine(str(folder)) as engine:
        yield engine


@pytest.mark.asyncio
@pytest.mark.promise("G2")
async def test_outputs_that_are_too_much_for_one_message_still_end_well(
    rogues: Engine, project: Project
) -> None:
    steps = [{"id": f"s{n}", "task": "LOUD"} for n in range(4)]
    snapshot = await rogues.task(plan={"steps": steps}, runtime="rogue", wait=100)
    assert (snapshot.state, snapshot.reason) == ("succeeded", ""), snapshot
    assert snapshot.value["status"] == "completed" and len(snapshot.value["steps"]) == 4
    ended = events_of(project, snapshot.id, "step_finished")
    assert [len(one["output"]) for one in ended] == [2 * 1024 * 1024] * 4
    assert len(snapshot.value["warnings"]) == 4, "what is cut is said to be"
    assert "2097152 of 2100000 characters" in snapshot.value["warnings"][0]


@pytest.mark.asyncio
@pytest.mark.promise("R2")
async def test_a_session_that_cannot_be_closed_takes_nothing_back(rogues: Engine) -> None:
    snapshot = await rogues.task("BAD END", runtime="rogue", wait=60)
    assert snapshot.state == "succeeded" and snapshot.value["output"] == "done", snapshot
    assert "it cannot be closed" in snapshot.value["warnings"][0]


@pytest.mark.asyncio
@pytest.mark.promise("R2")
async def test_an_agent_that_cannot_be_answered_waits_for_nobody(rogues: Engine) -> None:
    snapshot = await rogues.task("DEAF", runtime="rogue", permissions="allow", wait=60)
    assert snapshot.state == "failed" and snapshot.reason == "crash", snapshot
    assert "use Bash could not be answered: OSError: it hears nothing" in (snapshot.detail or "")


@pytest.mark.asyncio
async def test_words_that_steer_a_terminal_are_on_no_line_of_ours(
    rogues: Engine, project: Project
) -> None:
    snapshot = await rogues.task("STEERS", runtime="rogue", wait=60)
    assert snapshot.state == "failed" and snapshot.reason == "failed", snapshot
    assert "half a character: \ufffd" in snapshot.output, "it is said all the same"
    assert "\x1b" not in snapshot.detail and len(snapshot.detail) <= 4096
    (ended,) = events_of(project, snapshot.id, "step_finished")
    assert len(ended["error"]) <= 16 * 1024


@pytest.mark.asyncio
@pytest.mark.promise("G2", "R2")
async def test_half_characters_are_kept_as_what_they_are_not_and_end_no_task(
    rogues: Engine, project: Project
) -> None:
    """No tape can hold them: they are replaced, in tools, questions and what the next step is told."""
    steps = [
        {"id": "a", "task": "HALVES"},
        {"id": "b", "task": "what was BEFORE", "depends_on": ["a"]},
    ]
    snapshot = await rogues.task(plan={"steps": steps}, runtime="rogue", wait=60)
    assert snapshot.waiting_for == "approval", snapshot
    await rogues.approve(snapshot.id)
    snapshot = await rogues.wait(snapshot.id, 60)
    assert snapshot.state == "succeeded", snapshot
    first, second = events_of(project, snapshot.id, "step_finished")
    assert first["output"] == "half of \ufffd" and "half of \ufffd" in second["output"]
    (asked,) = events_of(project, snapshot.id, "asked")
    assert asked["detail"] == {"tool": "Bash\ufffd", "input": {"command": "\ufffd"}}


@pytest.mark.asyncio
@pytest.mark.promise("R2")
async def test_a_question_with_a_huge_detail_is_asked_in_part(
    rogues: Engine, project: Project
) -> None:
    snapshot = await rogues.task("HUGE", runtime="rogue", wait=60)
    assert (str(snapshot.state), str(snapshot.waiting_for)) == ("waiting", "approval"), snapshot
    (asked,) = (await rogues.progress(snapshot.id)).asked.values()
    assert ESCAPE not in asked.text and "\x1b" not in snapshot.detail
    assert len(asked.text) <= 2000 and len(msgspec.json.encode(asked.detail)) < 200_000
    await rogues.approve(snapshot.id)
    assert (await rogues.wait(snapshot.id, 60)).state == "succeeded"


@pytest.mark.asyncio
@pytest.mark.promise("R2")
async def test_a_flood_of_questions_is_refused_past_a_hundred(rogues: Engine) -> None:
    snapshot = await rogues.task("FLOODS", runtime="rogue", wait=60)
    while not snapshot.done:  # it shows as waiting while the first hundred are open
        snapshot = await rogues.wait(snapshot.id, 60)
    assert snapshot.state == "succeeded" and snapshot.value["output"] == "refused 200", snapshot


@pytest.fixture
def blocking(folder: Path):
    made = BlockingEngine(project_of(folder), Settings(), FreshLauncher())
    yield made
    made.close()


LINE = """
import json, os, socket, struct, sys
line = socket.socket(fileno=int(os.environ["TENUTO_CHANNEL"]))
size, = struct.unpack("<I", line.recv(4, socket.MSG_WAITALL))
line.recv(size, socket.MSG_WAITALL)
edges = [str(n) for n in range(1_000_000)]
event = {"type": "warned", "text": "t", "detail": edges}
line.sendall(json.dumps({"type": "tell", "events": [event], "n": 1}).encode() + b"\\n")
print(json.loads(line.makefile("rb").readline()))
"""


@pytest.mark.promise("G2")
def test_a_plan_of_a_million_edges_is_taken_and_acknowledged(blocking: BlockingEngine) -> None:
    work = blocking.command([sys.executable, "-c", LINE], Options())
    work = msgspec.structs.replace(work, channel=True, body="{}", tells=TELLS)
    execution_id, sock = blocking.start(work)
    sock.close()
    snapshot = blocking.wait(execution_id, 60)
    assert snapshot.output == "{'type': 'told', 'n': 1}\n", snapshot


def test_what_the_keeper_would_hang_up_on_is_an_error_first() -> None:
    from tenuto.core.progress import Progress
    from tenuto.core.task_events import Warned

    teller = Teller(None, Progress())  # pyright: ignore[reportArgumentType]
    teller._transport = object()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    with pytest.raises(EngineFault, match="are the most"):
        teller.tell(Warned(text="x" * (20 * 1024 * 1024)))
    assert not teller.progress.warnings, "what is not on the tape did not happen"


@pytest.mark.asyncio
@pytest.mark.promise("X6")
@pytest.mark.parametrize("code", ["'x' * 65535 + chr(10)", "'x' * 65536"], ids=["lines", "a line"])
async def test_a_runtime_that_prints_for_ever_takes_no_memory_of_the_driver(
    blocking: BlockingEngine, folder: Path, code: str
) -> None:
    nursery = ExecutionNursery(blocking, lambda _: None)
    program = f"import sys\nfor n in range(2500): sys.stdout.write({code})\nprint('END')"
    child = await nursery.spawn([sys.executable, "-c", program], cwd=str(folder))
    try:
        sizes: list[int] = []
        async for line in child.lines():
            sizes.append(len(line))
            assert child._kept < 64 << 20  # pyright: ignore[reportPrivateUsage]
            assert len(line) < 68 << 20
        assert sum(sizes) + len(sizes) >= 2500 * 65535
        assert (await child.wait()).state == "succeeded"
    finally:
        await nursery.close()


@pytest.mark.parametrize("amount", ['"NaN"', '"sNaN"', '"Infinity"', "1e400", "-1", '"1e999999"'])
def test_a_plan_with_absurd_amounts_is_refused_in_words(amount: str) -> None:
    with pytest.raises(InvalidPlan):
        read_plan(f'{{"steps":[{{"id":"a","task":"x","max_cost":{amount}}}]}}')


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": -5}, {"max_tokens": 10**30}, {"concurrency": 0}, {"concurrency": -1},
        {"max_cost": "1e999999"}, {"max_cost": "NaN"}, {"max_cost": -1}, {"context": "\udc80"},
        {"change": "\ud800"}, {"model": "\ud800"}, {"model": "a\0b"}, {"strategy": 5},
    ],
)  # fmt: skip
def test_a_task_with_absurd_options_is_refused_in_words(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        task_spec("do it", **options)


@pytest.mark.promise("G2")
@pytest.mark.parametrize(
    "step",
    [
        {"task": "\ud800"}, {"task": "a\0b"}, {"task": None}, {"id": None}, {"id": "a\n"},
        {"model": "\ud800"}, {"files": ("a\0b",)}, {"files": ("\ud800",)}, {"retry": None},
        {"depends_on": "a"}, {"depends_on": 5}, {"max_tokens": "many"}, {"in_flight": "perhaps"},
    ],
)  # fmt: skip
def test_a_step_made_of_anything_is_refused_in_words(step: dict[str, Any]) -> None:
    """As it would be as JSON: in Python nothing but ourselves looks at what is put into one."""
    made: Any = {"id": "a", "task": "x", **step}
    for plan in (Plan((Step(**made),)), {"steps": [made]}):
        with pytest.raises(InvalidPlan):
            task_spec(plan=plan)


@pytest.mark.promise("G2")
def test_a_plan_with_steps_under_two_names_loses_none_of_them() -> None:
    one, two = {"id": "a", "task": "x"}, {"id": "b", "task": "y"}
    with pytest.raises(InvalidPlan, match="both"):
        read_plan({"steps": [one], "tasks": [two]})
    assert read_plan({"tasks": [two]}).steps[0].id == "b"
