"""Tasks through the public engine, on agents that need no model: every strategy, end and decision."""

from __future__ import annotations

import os
import re
import subprocess
import time
from decimal import Decimal
from pathlib import Path

import pytest
from engine_help import events_of, require_program
from task_help import end_of, finished, outputs, plan, progress, side, started, statuses, value

from tenuto import Engine, InvalidInput, NothingAsked, NotRunning
from tenuto.core.errors import InvalidPlan, UnknownName
from tenuto.core.plan import Retry, Step
from tenuto.core.states import WaitingFor
from tenuto.engine.tasks import result_document
from tenuto.stores.layout import Project

pytestmark = pytest.mark.asyncio
QUICK = Retry(times=2, pause=0.01)


# Strategies


@pytest.mark.promise("G1", "R2", "P1")
async def test_a_simple_task_is_one_step_of_one_agent(tasks: Engine, project: Project) -> None:
    snapshot = await tasks.task("Fix the typo [[use:100,20]]", files=[], wait=60)
    found = value(snapshot)
    assert snapshot.state == "succeeded" and snapshot.exit_code == 0
    assert (found["status"], found["success"], found["strategy"]) == ("completed", True, "single")
    (step,) = found["steps"]
    assert step["output"] == "# Task Fix the typo" == found["output"]
    assert (step["runtime"], step["attempts"], step["unmetered"]) == ("echo", 1, True)
    assert (found["tokens_in"], found["tokens_out"]) == (100, 20)
    assert snapshot.output == "# Task Fix the typo\n"
    (begun,) = events_of(project, snapshot.id, "step_started")
    assert "preferred" in begun["reason"]


@pytest.mark.promise("G1")
async def test_what_is_complex_is_handed_from_role_to_role(tasks: Engine) -> None:
    text = "Design and build the architecture of a distributed cache across all services"
    snapshot = await tasks.task(text, wait=60)
    found = value(snapshot)
    assert (found["strategy"] == "multi" and "complex" in found["reason"]) or "arch" in found[
        "reason"
    ]
    assert [one["id"] for one in found["steps"]] == ["architect", "developer", "reviewer"]
    assert [one["role"] for one in found["steps"]] == ["architect", "developer", "reviewer"]
    assert set(statuses(snapshot).values()) == {"completed"}


@pytest.mark.promise("G1", "R2")
async def test_each_step_of_a_chain_is_given_the_real_output_of_those_before(
    tasks: Engine,
) -> None:
    work = plan(
        Step("a", "[[say:the word is PELICAN]]"),
        Step("b", "[[recall]] second", ("a",)),
        Step("c", "[[recall]] third", ("b",)),
        Step("d", "[[recall]] alone"),
    )
    snapshot = await tasks.task(plan=work, strategy="parallel", wait=60)
    told = outputs(snapshot)
    assert told["a"] == "the word is PELICAN"
    assert "the word is PELICAN" in told["b"] and "Output of step a" in told["b"]
    assert "Output of step b" in told["c"] and "PELICAN" in told["c"]
    assert "PELICAN" not in told["d"], "what it does not depend on is none of its business"
    joined = value(snapshot)["output"]
    order = [joined.index(f"=== {name} (") for name in ("a", "b", "c")]
    assert order == sorted(order)


@pytest.mark.promise("G1")
async def test_the_steps_of_a_single_agent_go_on_in_one_session(
    tasks: Engine, project: Project
) -> None:
    work = plan(Step("one", "first"), Step("two", "second"), Step("three", "[[recall]]"))
    snapshot = await tasks.task(plan=work, wait=60)
    assert value(snapshot)["strategy"] == "single"
    said = outputs(snapshot)["three"]
    assert said.index("first") < said.index("second")
    assert started(project, snapshot.id) == ["one", "two", "three"]
    assert len({one["session"] for one in value(snapshot)["steps"]}) == 1


@pytest.mark.promise("G1")
@pytest.mark.parametrize(
    ("word", "rounds", "status"),
    [("[[say:Verdict: approve]]", 0, "completed"), ("[[review]]", 1, "completed"),
     ("[[say:Verdict: send back]]", 2, "partial")],
)  # fmt: skip
async def test_a_reviewer_sends_back_but_no_more_often_than_it_may(
    tasks: Engine, word: str, rounds: int, status: str
) -> None:
    work = plan(
        Step("dev", "write it", runtime="side"),
        Step("rev", word, ("dev",), reviews="dev", rounds=2, runtime="side"),
        Step("ship", "[[recall]] ship it", ("rev",)),
    )
    snapshot = await tasks.task(plan=work, strategy="parallel", wait=60)
    ids = [one["id"] for one in value(snapshot)["steps"]]
    devs = [one for one in ids if one.startswith("dev")]
    assert devs == ["dev", "dev.2", "dev.3"][: rounds + 1]
    assert len(ids) == 2 * (rounds + 1) + 1
    assert ids[-1] == "ship", "what waits for the review waits for the last one"
    assert value(snapshot)["status"] == status
    assert bool(value(snapshot)["warnings"]) == (status == "partial")


@pytest.mark.promise("G1")
async def test_a_reviewer_that_sends_back_once_sees_the_new_work(
    tasks: Engine, project: Project
) -> None:
    work = plan(Step("dev", "write it"), Step("rev", "[[review]]", ("dev",), reviews="dev"))
    snapshot = await tasks.task(plan=work, strategy="parallel", runtime="side", wait=60)
    ids = [one["id"] for one in value(snapshot)["steps"]]
    assert ids == ["dev", "rev", "dev.2", "rev.2"]
    (more,) = events_of(project, snapshot.id, "plan_extended")
    assert more["because"] == "rev sent it back"
    by_id = {one["id"]: one for one in value(snapshot)["steps"]}
    assert by_id["dev"]["session"] == by_id["dev.2"]["session"], "it goes on where it was"


@pytest.mark.promise("G2")
async def test_independent_steps_run_at_the_same_time_up_to_the_limit(
    tasks: Engine, project: Project
) -> None:
    steps = [Step(f"s{n}", "[[delay:0.4]]") for n in range(6)]
    snapshot = await tasks.task(plan=plan(*steps, concurrency=6), strategy="parallel", wait=60)
    frames = [(one["type"], one["step"]) for one in _of_steps(project, snapshot.id)]
    assert [kind for kind, _ in frames] == ["step_started"] * 6 + ["step_finished"] * 6
    two = await tasks.task(plan=plan(*steps[:4], concurrency=2), strategy="parallel", wait=60)
    running = most = 0
    for event in _of_steps(project, two.id):
        running += 1 if event["type"] == "step_started" else -1
        most = max(most, running)
    assert most == 2


def _of_steps(project: Project, execution_id: str) -> list[dict[str, str]]:
    from engine_help import tape_events

    kinds = ("step_started", "step_finished")
    return [one for one in tape_events(project, execution_id) if one["type"] in kinds]


@pytest.mark.promise("G1", "R1")
async def test_a_strategy_of_ones_own_by_its_name(tasks: Engine) -> None:
    snapshot = await tasks.task("walk", strategy="pair", wait=60)
    assert value(snapshot)["strategy"] == "pair"
    assert "walk left" in outputs(snapshot)["right"]
    with pytest.raises(InvalidPlan, match=r"broken.*no plan for walk"):
        await tasks.task("walk", strategy="broken")


@pytest.mark.promise("R1", "G1")
async def test_runners_and_strategies_of_an_installed_package(
    agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entry points, as an installed package has them."""
    site = tmp_path / "site"
    info = site / "guests-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guests\nVersion: 1.0\n")
    points = "[tenuto.runners]\nguest = guests:make\n[tenuto.strategies]\ntwice = guests:twice\n"
    (info / "entry_points.txt").write_text(points)
    (site / "guests.py").write_text(
        "from tenuto.core.plan import Plan, Step\n"
        "from tenuto.testing.agents import EchoRunner\n"
        "def make(): return EchoRunner('guest', 'guest', answer='guest {text}')\n"
        "def twice(spec): return Plan((Step('a', spec.text), Step('b', spec.text)))\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{site}")
    monkeypatch.syspath_prepend(str(site))
    async with Engine(str(agents)) as engine:
        snapshot = await engine.task("hello", strategy="twice", runtime="guest", wait=60)
    assert outputs(snapshot) == {"a": "guest # Task hello", "b": "guest # Task hello"}
    assert {one["runtime"] for one in value(snapshot)["steps"]} == {"guest"}


# Failures


@pytest.mark.promise("G2")
async def test_a_failure_skips_what_depends_on_it_and_nothing_else(tasks: Engine) -> None:
    work = plan(
        Step("good", "fine"),
        Step("bad", "[[fail:failed]]"),
        Step("child", "x", ("bad",)),
        Step("grandchild", "x", ("child", "good")),
        Step("other", "x", ("good",)),
    )
    snapshot = await tasks.task(plan=work, strategy="parallel", wait=60)
    assert (snapshot.state, snapshot.reason, snapshot.exit_code) == ("failed", "partial", 1)
    assert not snapshot and not value(snapshot)["success"]
    assert value(snapshot)["status"] == "partial"
    assert statuses(snapshot) == {
        "good": "completed", "bad": "failed", "other": "completed",
        "child": "skipped_dependency_failed", "grandchild": "skipped_dependency_failed",
    }  # fmt: skip
    assert outputs(snapshot)["good"] == "# Task fine", "results are kept"
    assert "bad: it was told to fail" in snapshot.detail


@pytest.mark.promise("R3", "X12")
@pytest.mark.parametrize("kind", ["auth", "bad_request", "context", "crash", "protocol", "turns"])
async def test_a_failure_is_called_by_its_kind(tasks: Engine, project: Project, kind: str) -> None:
    snapshot = await tasks.task(f"[[use:10,5]] [[fail:{kind}]]", wait=60)
    assert (snapshot.state, snapshot.reason) == ("failed", kind)
    (step,) = value(snapshot)["steps"]
    assert step["status"] == "failed" and kind in step["error"]
    assert (step["tokens_in"], step["tokens_out"]) == (10, 5), "failed spend counts"
    assert step["attempts"] == 1, "trying again would not help"


@pytest.mark.promise("G2")
async def test_what_may_pass_is_tried_again_after_a_pause_that_doubles(
    tasks: Engine, project: Project
) -> None:
    retry = Retry(times=2, pause=0.05)
    work = plan(Step("a", "[[fail:overloaded]]", retry=retry))
    began = time.monotonic()
    snapshot = await tasks.task(plan=work, wait=60)
    assert time.monotonic() - began >= 0.15
    assert (snapshot.reason, value(snapshot)["steps"][0]["attempts"]) == ("overloaded", 3)
    said = [one["what"]["text"] for one in events_of(project, snapshot.id, "step_said")]
    assert [text.partition(":")[0] for text in said] == ["try 2 in 0.05 s", "try 3 in 0.1 s"]


@pytest.mark.promise("R2", "U1")
async def test_what_a_runtime_tries_again_is_shown_until_it_goes_on(
    tasks: Engine, project: Project
) -> None:
    snapshot = await tasks.task("[[retry:529]] [[hang]]", wait=0)
    await tasks.wait(snapshot.id, until="echo tries again: again", up_to=60)
    shown = progress(project, snapshot.id)
    assert (shown.steps["task"].status, shown.steps["task"].trouble) == ("running", "again")
    assert result_document(shown)["steps"][0]["trouble"] == "again"
    await tasks.interrupt(snapshot.id)
    assert not progress(project, snapshot.id).steps["task"].trouble


@pytest.mark.promise("G2")
async def test_any_failure_is_tried_again_where_that_was_asked_for(tasks: Engine) -> None:
    again = Retry(times=1, pause=0.01, on_any=True)
    work = plan(
        Step("any", "[[fail:failed]]", retry=again),
        Step("login", "[[fail:auth]]", retry=again),
        Step("never", "[[fail:network]]", retry=Retry(times=0)),
    )
    snapshot = await tasks.task(plan=work, strategy="parallel", wait=60)
    tried = {one["id"]: one["attempts"] for one in value(snapshot)["steps"]}
    assert tried == {"any": 2, "login": 1, "never": 1}


async def test_an_agent_that_was_stopped_by_somebody_else_has_failed(tasks: Engine) -> None:
    """Nobody asked the task to stop: it must neither run that step for ever nor call it a success."""
    snapshot = await tasks.task("x", runtime="tired", wait=60)
    assert snapshot.state == "failed"
    assert "somebody else stopped it" in snapshot.detail
    assert side() == ["begin tired"]


async def test_an_answer_of_any_size_comes_back(tasks: Engine) -> None:
    """Many long answers together are more than one message may hold; none of the steps fails for it."""
    steps = [Step(f"s{n}", "shout") for n in range(24)]
    snapshot = await tasks.task(plan=plan(*steps), strategy="parallel", runtime="loud", wait=110)
    assert snapshot.state == "succeeded", (snapshot.reason, snapshot.detail)
    progress = await tasks.progress(snapshot.id)
    assert {len(one.output) for one in progress.steps.values()} == {1_000_000}
    assert value(snapshot)["cut"] and len(value(snapshot)["steps"]) == 24
    assert "complete" in (progress.finished.output[-80:] if progress.finished else "")


# Fallback


@pytest.mark.promise("R3")
async def test_another_of_the_family_takes_over_for_one_that_is_missing(
    agents: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENUTO_TEST_FIRST", "missing")
    async with Engine(str(agents)) as engine:
        snapshot = await engine.task("hello", runtime="first", wait=60)
    assert outputs(snapshot)["task"] == "second says # Task hello"
    (fell,) = events_of(project, snapshot.id, "fell_back")
    assert (fell["of"], fell["to"]) == ("first", "second") and "missing" in fell["why"]
    assert "second takes over" in snapshot.output
    assert value(snapshot)["fallbacks"]


@pytest.mark.promise("R3")
async def test_a_crash_falls_back_inside_the_family_only_before_a_tool_ran(
    tasks: Engine, project: Project
) -> None:
    crashed = await tasks.task("[[crash]]", runtime="first", wait=60)
    (fell,) = events_of(project, crashed.id, "fell_back")
    assert (fell["of"], fell["to"]) == ("first", "second")
    assert value(crashed)["steps"][0]["attempts"] == 2 and crashed.reason == "crash"
    touched = await tasks.task("[[tool:Bash]] [[crash]]", runtime="first", wait=60)
    assert not events_of(project, touched.id, "fell_back"), "something may be done already"
    alone = await tasks.task("[[crash]]", runtime="echo", wait=60)
    assert not events_of(project, alone.id, "fell_back"), "its family has nobody else"


@pytest.mark.promise("R3")
@pytest.mark.parametrize("kind", ["auth", "permission"])
async def test_nobody_stands_in_for_one_whose_user_must_do_something(
    tasks: Engine, agents: Path, project: Project, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    snapshot = await tasks.task(f"[[fail:{kind}]]", runtime="first", wait=60)
    assert snapshot.reason == kind and not events_of(project, snapshot.id, "fell_back")
    monkeypatch.setenv("TENUTO_TEST_FIRST", kind)
    async with Engine(str(agents)) as engine:
        snapshot = await engine.task("hello", runtime="first", wait=60)
    assert (snapshot.state, snapshot.reason) == ("failed", kind)
    assert "mend it" in snapshot.detail, "the next step is named"


@pytest.mark.promise("R3")
async def test_without_any_runtime_each_one_says_what_it_lacks(
    agents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENUTO_ECHO_MISSING", "nobody installed it")
    monkeypatch.setenv("TENUTO_TEST_FIRST", "outdated")
    monkeypatch.setenv("TENUTO_TEST_SECOND", "auth")
    async with Engine(str(agents)) as engine:
        snapshot = await engine.task("hello", wait=60)
    assert (snapshot.state, snapshot.reason) == ("failed", "missing")
    for part in ("echo: nobody installed it", "first: it is outdated", "second: it is auth"):
        assert part in snapshot.detail


@pytest.mark.promise("B2", "R2")
async def test_an_approval_is_for_what_was_asked_when_it_was_given(
    tasks: Engine, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = plan(Step("a", "[[ask:Bash]]"), Step("b", "[[ask:Bash]]"))
    waiting = await tasks.task(plan=work, strategy="parallel", permissions="ask", wait=60)
    while len(events_of(project, waiting.id, "asked")) < 2:
        await tasks.wait(waiting.id, 0.01)
    seen = progress(project, waiting.id)
    later = seen.asked.pop(2)
    with monkeypatch.context() as patch:  # as if the second came right after somebody had looked
        patch.setattr("tenuto.engine.tasks.progress_of", lambda _: seen)
        (decided,) = await tasks.approve(waiting.id)
    assert decided.n == 1
    still = await tasks.progress(waiting.id)
    assert still.asked == {2: later}
    assert (await tasks.wait(waiting.id, 60)).waiting_for is WaitingFor.APPROVAL
    await tasks.deny(waiting.id)
    await end_of(tasks, waiting.id)


# Budgets


@pytest.mark.promise("B2")
async def test_a_task_past_its_bound_waits_until_somebody_decides(
    tasks: Engine, project: Project
) -> None:
    work = plan(Step("a", "[[use:900,200]]"), Step("b", "more", ("a",)))
    waiting = await tasks.task(plan=work, strategy="parallel", max_tokens=1000, wait=60)
    assert waiting.waiting_for is WaitingFor.BUDGET and "1000 tokens" in waiting.detail
    assert statuses_of(await tasks.progress(waiting.id)) == {"a": "completed", "b": "pending"}
    (decided,) = await tasks.approve(waiting.id, why="it is worth it")
    assert decided.allow
    snapshot = await end_of(tasks, waiting.id)
    assert snapshot.state == "succeeded"
    (asked,) = events_of(project, waiting.id, "asked")
    assert asked["about"] == "budget"
    with pytest.raises(NotRunning, match="asks nothing any more"):
        await tasks.approve(waiting.id)


@pytest.mark.promise("B2")
async def test_a_yes_past_a_bound_goes_as_far_as_it_says_and_then_it_is_asked_again(
    tasks: Engine, project: Project
) -> None:
    work = plan(
        Step("a", "[[use:1000,100]]"),
        Step("b", "[[use:500,0]]", ("a",)),
        Step("c", "[[use:600,0]]", ("b",)),
        Step("d", "the last", ("c",)),
    )
    waiting = await tasks.task(plan=work, strategy="parallel", max_tokens=1000, wait=60)
    assert "go on, until this task has used 2100 tokens?" in waiting.detail
    await tasks.approve(waiting.id)
    again = await tasks.wait(waiting.id, 60)
    assert again.waiting_for is WaitingFor.BUDGET, "2200 are used"
    assert statuses_of(await tasks.progress(waiting.id))["c"] == "completed"
    assert "until this task has used 3200 tokens?" in again.detail
    await tasks.interrupt(waiting.id)
    resumed = await tasks.resume(waiting.id, wait=60)
    assert resumed.waiting_for is WaitingFor.BUDGET, "what was not answered is asked again"
    await tasks.approve(waiting.id)
    assert (await end_of(tasks, waiting.id)).state == "succeeded"
    assert len(events_of(project, waiting.id, "asked")) == 3


@pytest.mark.promise("B2")
async def test_a_yes_past_a_bound_of_nothing_holds_to_the_end(tasks: Engine) -> None:
    work = plan(Step("a", "[[use:10,1]]"), Step("b", "[[use:10,1]]", ("a",)))
    waiting = await tasks.task(plan=work, strategy="parallel", max_tokens=0, wait=60)
    assert "go on, to the task's end?" in waiting.detail
    await tasks.approve(waiting.id)
    assert (await end_of(tasks, waiting.id)).state == "succeeded"


def statuses_of(progress: object) -> dict[str, str]:
    return statuses(progress)  # type: ignore[arg-type]


@pytest.mark.promise("B2")
async def test_a_task_that_is_denied_to_go_on_ends_with_what_it_has(tasks: Engine) -> None:
    work = plan(Step("a", "[[use:900,200]]"), Step("b", "more", ("a",)))
    waiting = await tasks.task(plan=work, strategy="parallel", max_tokens=1000, wait=60)
    await tasks.deny(waiting.id)
    snapshot = await end_of(tasks, waiting.id)
    assert (snapshot.state, snapshot.reason) == ("failed", "partial")
    assert statuses(snapshot) == {"a": "completed", "b": "failed"}
    assert "denied" in snapshot.detail


@pytest.mark.promise("B2")
async def test_with_a_warning_it_goes_on_and_a_hard_bound_stops_it(
    tasks: Engine, project: Project
) -> None:
    work = plan(Step("a", "[[use:900,200]]"), Step("b", "more", ("a",)))
    warned = await tasks.task(
        plan=work, strategy="parallel", max_tokens=1000, budget_mode="warn", wait=60
    )
    assert warned.state == "succeeded"
    assert any("1000 tokens" in one for one in value(warned)["warnings"])
    assert "warning: " in warned.output
    hard = await tasks.task(plan=work, strategy="parallel", max_tokens=1000, hard=True, wait=60)
    assert (hard.state, hard.reason) == ("failed", "partial")
    assert "1000 tokens" in hard.detail
    assert started(project, hard.id) == ["a"], "nothing begins past a hard bound"


@pytest.mark.promise("B1")
async def test_a_metered_step_without_a_request_cost_nothing_and_another_is_not_known(
    tasks: Engine,
) -> None:
    work = plan(Step("a", "x", runtime="frugal"), Step("b", "x", runtime="echo"))
    done = await tasks.task(plan=work, strategy="parallel", wait=60)
    assert [one["cost"] for one in value(done)["steps"]] == [0, None]


@pytest.mark.promise("B2")
async def test_a_soft_bound_that_the_last_step_passed_is_told_once(tasks: Engine) -> None:
    first = Step("a", "[[use:10,0]]")
    for bound, told in ((1000, 1), (5000, 0)):
        work = plan(first, Step("b", "[[use:900,200]]", ("a",)))
        done = await tasks.task(plan=work, strategy="parallel", max_tokens=bound, wait=60)
        assert done.state == "succeeded", "nobody is asked when nothing more is to be spent"
        warnings = value(done)["warnings"]
        assert [one for one in warnings if "limit of 1000 tokens is reached" in one] == warnings
        assert len(warnings) == told


@pytest.mark.promise("B2", "B3")
async def test_an_agent_that_is_not_metered_is_stopped_in_the_middle_of_a_step(
    tasks: Engine,
) -> None:
    work = plan(Step("a", "[[use:600,0]] [[use:600,0]] [[hang]]"), Step("b", "x", ("a",)))
    snapshot = await tasks.task(plan=work, strategy="parallel", max_tokens=1000, hard=True, wait=60)
    assert (snapshot.state, snapshot.reason) == ("failed", "budget")
    assert value(snapshot)["tokens_in"] == 1200, "what was under way counts"


@pytest.mark.promise("G2", "B2")
async def test_a_bound_of_one_step_is_that_steps_own(tasks: Engine) -> None:
    work = plan(
        Step("small", "[[use:80,0]] [[use:80,0]] [[hang]]", max_tokens=100),
        Step("large", "[[use:5000,0]]"),
    )
    snapshot = await tasks.task(plan=work, strategy="parallel", hard=True, wait=60)
    assert statuses(snapshot) == {"small": "failed", "large": "completed"}
    assert "step limit of 100 tokens" in snapshot.detail


@pytest.mark.promise("B1")
async def test_what_it_cost_is_known_by_the_price_of_its_model(tasks: Engine) -> None:
    work = plan(Step("a", "[[use:1000000,0]]", model="sonnet"), Step("b", "[[use:10,10]]"))
    snapshot = await tasks.task(plan=work, strategy="parallel", wait=60)
    costs = {one["id"]: one["cost"] for one in value(snapshot)["steps"]}
    assert Decimal(str(costs["a"])) == Decimal(3)
    assert costs["b"] is None, "no price is guessed"


@pytest.mark.promise("B1")
async def test_a_limit_in_dollars_says_when_it_cannot_count(tasks: Engine) -> None:
    work = plan(Step("a", "[[use:1000000,0]]"), Step("b", "[[use:10,10]]", ("a",)))
    unbound = await tasks.task(plan=work, strategy="parallel", wait=60)
    assert value(unbound)["warnings"] == []
    bound = await tasks.task(plan=work, strategy="parallel", wait=60, max_cost="0.01", hard=True)
    (warning,) = value(bound)["warnings"]
    assert warning.startswith("the price of what the model used is not known: limits in dollars")


async def test_settings_that_break_while_a_task_runs_do_not_end_it(
    tasks: Engine, agents: Path
) -> None:
    work = plan(Step("a", "[[ask:Bash]] [[use:10,5]]"), Step("b", "[[use:10,5]]", ("a",)))
    waiting = await tasks.task(
        plan=work, strategy="parallel", wait=60, permissions="ask", max_tokens=1000
    )
    assert waiting.waiting_for == "approval"
    settings = agents / "tenuto.toml"
    settings.write_text(settings.read_text() + "wait = \n")
    await tasks.approve(waiting.id)
    snapshot = await tasks.wait(waiting.id, 60)
    assert statuses(snapshot) == {"a": "completed", "b": "completed"}, snapshot.detail


# Permissions


@pytest.mark.promise("R2")
@pytest.mark.parametrize(
    ("policy", "tool", "allowed"),
    [("allow", "Bash", True), ("deny", "Bash", False), ("deny", "Read", True),
     ("edits", "Edit", True), ("ask", "Read", True)],
)  # fmt: skip
async def test_a_policy_answers_for_its_user(
    tasks: Engine, project: Project, policy: str, tool: str, allowed: bool
) -> None:
    snapshot = await tasks.task(f"[[ask:{tool}]]", permissions=policy, wait=60)
    assert snapshot.state == "succeeded"
    said = [one["what"] for one in events_of(project, snapshot.id, "step_said")]
    kinds = [one["type"] for one in said]
    assert ("permission_given" if allowed else "permission_refused") in kinds
    (ended,) = [one for one in said if one["type"] == "tool_ended"]
    assert ended.get("ok") is allowed
    assert not events_of(project, snapshot.id, "asked")


@pytest.mark.promise("R2", "B2")
async def test_several_agents_ask_and_each_is_answered_by_its_number(
    tasks: Engine, project: Project
) -> None:
    work = plan(Step("a", "[[ask:Bash]]"), Step("b", "[[ask:Bash]]"))
    execution_id = await tasks.start_task(plan=work, strategy="parallel", permissions="ask")
    while len(asked := (await tasks.progress(execution_id)).asked) < 2:
        await tasks.wait(execution_id, 0.05)
    with pytest.raises(NothingAsked, match="no question 9"):
        await tasks.approve(execution_id, n=9)
    yes = next(n for n, one in asked.items() if one.step == "a")
    no = next(n for n, one in asked.items() if one.step == "b")
    await tasks.approve(execution_id, n=yes, by="ann")
    still = await tasks.wait(execution_id, 0)
    assert still.waiting_for is WaitingFor.APPROVAL, "the other one still waits"
    await tasks.deny(execution_id, n=no, why="too dangerous", by="ben")
    snapshot = await end_of(tasks, execution_id)
    assert snapshot.state == "succeeded"
    ended = {
        one["step"]: one["what"] for one in events_of(project, snapshot.id, "step_said")
        if one["what"]["type"] == "tool_ended"
    }  # fmt: skip
    assert ended["a"]["ok"] and not ended["b"].get("ok")
    assert "too dangerous" in ended["b"]["output"]
    by = {one["n"]: one["by"] for one in events_of(project, snapshot.id, "decided")}
    assert by == {yes: "ann", no: "ben"}


# Refused before anything is recorded


@pytest.mark.promise("R4", "G2")
async def test_unknown_names_are_errors_that_list_the_known_ones(
    tasks: Engine, project: Project
) -> None:
    for options, known in (
        ({"strategy": "sideways"}, "parallel"),
        ({"runtime": "nobody"}, "claude-code"),
        ({"role": "wizard"}, "developer"),
        ({"type": "magic"}, "bugfix"),
    ):
        with pytest.raises(UnknownName) as caught:
            await tasks.task("x", **options)  # type: ignore[arg-type]
        assert known in str(caught.value), options
    with pytest.raises(InvalidInput, match="no option 'colour'"):
        await tasks.task("x", colour="red")
    assert list(project.all_ids()) == [], "nothing was recorded"


@pytest.mark.promise("R4", "R2")
@pytest.mark.parametrize(
    ("options", "text"),
    [({"skills": ["flying"]}, "flying"), ({"files": ["missing.txt"]}, "missing.txt")],
)
async def test_a_skill_or_file_that_is_not_there_is_named_before_anything_runs(
    tasks: Engine, options: dict[str, list[str]], text: str
) -> None:
    with pytest.raises((UnknownName, InvalidInput), match=re.escape(text)):
        await tasks.task("x", wait=60, **options)
    assert not await tasks.list()


@pytest.mark.promise("R2", "R4")
async def test_a_skill_is_given_where_the_task_calls_for_it_or_somebody_named_it(
    tasks: Engine, agents: Path, project: Project
) -> None:
    (agents / "tenuto" / "skills").mkdir(parents=True)
    for name, more in (
        ("db", "triggers: [migration, schema]\n"),
        ("style", ""),
        ("ui", "triggers: button\n"),
    ):
        text = f"---\nname: {name}\n{more}---\nThe rules of {name}.\n"
        (agents / "tenuto" / "skills" / f"{name}.md").write_text(text)
    snapshot = await tasks.task(
        "Write the Migration of users", runtime="briefed", skills=["style"], wait=60
    )
    told = value(snapshot)["output"]
    assert "The rules of db." in told and "The rules of style." in told
    assert "The rules of ui." not in told
    (begun,) = events_of(project, snapshot.id, "step_started")
    assert "skills by their triggers: db" in begun["reason"]
    snapshot = await tasks.task("Press migrations", runtime="briefed", wait=60)
    assert "The rules" not in value(snapshot)["output"]


# Worktrees


def repository(folder: Path) -> None:
    require_program("git")

    def run(*words: str) -> None:
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)

    run("init", "-q", "-b", "main")
    run("config", "user.email", "t@example.invalid")
    run("config", "user.name", "t")
    (folder / ".gitignore").write_text(".tenuto\n")
    run("add", ".")
    run("commit", "-qm", "begin")


@pytest.mark.promise("G3")
@pytest.mark.parametrize("mode", ["keep", "merge", "discard"])
async def test_steps_in_worktrees_of_their_own(tasks: Engine, agents: Path, mode: str) -> None:
    repository(agents)
    work = plan(Step("a", "[[write:a.txt]]"), Step("b", "[[write:b.txt]]", ("a",)))
    snapshot = await tasks.task(
        plan=work, strategy="parallel", runtime="writer", worktree=mode, wait=60
    )
    assert snapshot.state == "succeeded", (snapshot.detail, snapshot.output)
    seen = {name for name in ("a.txt", "b.txt") if (agents / name).exists()}
    assert seen == ({"a.txt", "b.txt"} if mode == "merge" else set())
    listed = subprocess.run(
        ["git", "branch", "--list", "--format=%(refname:short)"],
        cwd=agents, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    branches = {one["branch"] for one in value(snapshot)["steps"]}
    assert len(branches) == 2
    assert branches.issubset(listed) == (mode == "keep")
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=agents, capture_output=True, text=True, check=True
    )
    assert status.stdout == ""


async def test_a_cleaned_task_leaves_its_branches_and_no_checkouts(
    tasks: Engine, agents: Path
) -> None:
    repository(agents)
    work = plan(Step("a", "[[write:a.txt]]"), Step("b", "[[write:b.txt]]"))
    snapshot = await tasks.task(
        plan=work, strategy="parallel", runtime="writer", worktree="keep", wait=60
    )
    kept = Path(tasks.home, "worktrees", snapshot.id)
    (kept / "b" / "more.txt").write_text("not committed")
    assert (await tasks.clean(older_s=0)).removed
    assert [one.name for one in kept.iterdir() if one.is_dir()] == ["b"]
    assert (kept / "b" / "more.txt").exists()
    for step in ("a", "b"):
        branch = f"tenuto/{snapshot.id[:18]}/{step}:{step}.txt"
        subprocess.run(["git", "show", branch], cwd=agents, check=True, capture_output=True)


# From another process


@pytest.mark.promise("X11", "X3")
async def test_a_task_is_handed_over_and_found_by_another_engine(
    tasks: Engine, agents: Path
) -> None:
    snapshot = await tasks.task("[[say:hello]] [[delay:0.5]]", wait=0)
    assert snapshot.handed_over and snapshot.running
    async with Engine(str(agents)) as other:
        (listed,) = await other.list(running=True, kind="task")
        assert listed.id == snapshot.id
        chunks = [chunk async for chunk in other.follow(snapshot.id)]
        assert b"".join(chunk.data for chunk in chunks) == b"hello\n"
        assert outputs(await other.wait(snapshot.id, 60)) == {"task": "hello"}


async def test_an_interrupt_ends_a_task_that_waits_for_a_decision(
    tasks: Engine, project: Project
) -> None:
    work = plan(Step("a", "[[use:900,200]]"), Step("b", "more", ("a",)))
    asks = plan(Step("b", "[[ask:Bash]]"))
    for waiting in (
        await tasks.task(plan=work, strategy="parallel", wait=60, max_tokens=1000),
        await tasks.task(plan=asks, strategy="parallel", wait=60, permissions="ask"),
    ):
        assert waiting.waiting_for is not None
        began = time.monotonic()
        snapshot = await tasks.interrupt(waiting.id)
        assert snapshot.state == "interrupted"
        assert snapshot.signal is None, "it ended by itself, without force"
        assert time.monotonic() - began < 10
        assert not (await tasks.progress(waiting.id)).asked
        assert ("b", "failed") not in finished(project, waiting.id)
