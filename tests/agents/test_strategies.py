from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.core.errors import InvalidInput, InvalidPlan, UnknownName
from tenuto.core.plan import Plan, Step, check_plan
from tenuto.core.rounds import extended, feedback_of, round_of
from tenuto.core.selection import ROLES, Role
from tenuto.core.tasks import TaskSpec
from tenuto.engine.strategies import (
    build_plan,
    extend,
    known_strategies,
    pick,
    review_verdict,
)

SEND_BACK = "The tests fail.\n\nVERDICT: SEND BACK"
pytestmark = pytest.mark.promise("G1")


def plan_of(**waits: str) -> Plan:
    return Plan(tuple(Step(name, f"do {name}", tuple(on.split())) for name, on in waits.items()))


# auto


@pytest.mark.parametrize(
    ("spec", "strategy"),
    [
        (TaskSpec(text="Fix the typo"), "single"),
        (TaskSpec(text="Add input validation to the parser"), "single"),
        (TaskSpec(text="Implement the export and add tests"), "multi"),
        (TaskSpec(text="Design and build the cache layer"), "multi"),
        (TaskSpec(text="Do it", type="architecture"), "multi"),
        (TaskSpec(text="Add it", files=tuple("abcdef")), "multi"),
        (TaskSpec(text="Design it all", role="developer"), "single"),
        (TaskSpec(text="Fix it", chain=("developer", "reviewer")), "multi"),
        (TaskSpec(plan=plan_of(a="", b="")), "single"),
        (TaskSpec(plan=plan_of(a="", b="a")), "parallel"),
    ],
)
def test_auto_is_the_same_every_time_and_says_why(spec, strategy):
    built = [build_plan(spec) for _ in range(20)]
    assert {one.strategy for one in built} == {strategy}
    assert all(one == built[0] for one in built)
    assert built[0].reason and built[0].reason != "as asked"
    assert pick(spec)[0] == strategy


def test_a_strategy_that_is_named_is_taken():
    assert build_plan(TaskSpec(text="Design it all", strategy="single")).reason == "as asked"
    assert len(build_plan(TaskSpec(text="Fix it", strategy="multi")).plan.steps) == 3


# single, multi, parallel


def test_single_is_one_step_with_what_was_chosen():
    spec = TaskSpec(
        text="Fix it", role="senior", model="heavy", runtime="cli", type="bugfix", skills=("s",),
        files=("f",), max_cost=None, concurrency=2,
    )  # fmt: skip
    plan = build_plan(spec).plan
    assert plan == Plan(
        (
            Step(
                "task", "Fix it", role="senior", model="heavy", runtime="cli", type="bugfix",
                skills=("s",), files=("f",),
            ),
        ),
        2,
    )  # fmt: skip


def test_single_runs_a_plan_in_order_in_one_session():
    spec = TaskSpec(plan=plan_of(c="a", b="", a=""), strategy="single")
    steps = build_plan(spec).plan.steps
    assert [step.id for step in steps] == ["b", "a", "c"]
    assert [step.depends_on for step in steps] == [(), ("b",), ("a",)]
    assert [step.continues for step in steps] == [None, "b", "a"]


@given(st.data())
def test_single_keeps_every_dependency_of_any_plan(data):
    names = [f"s{n}" for n in range(data.draw(st.integers(1, 12)))]
    steps = [
        Step(name, "work", tuple(data.draw(st.lists(st.sampled_from(names[:n]), max_size=3, unique=True))
             if n else ()))
        for n, name in enumerate(names)
    ]  # fmt: skip
    given_plan = Plan(tuple(data.draw(st.permutations(steps))))
    plan = build_plan(TaskSpec(plan=given_plan, strategy="single")).plan
    place = {step.id: at for at, step in enumerate(plan.steps)}
    assert sorted(place) == sorted(names)
    before = {step.id: set(step.depends_on) for step in given_plan.steps}
    for at, step in enumerate(plan.steps):
        assert before[step.id] <= set(step.depends_on)
        assert all(place[other] < at for other in step.depends_on)
        assert step.continues == (plan.steps[at - 1].id if at else None)


def test_multi_hands_over_from_architect_to_developer_to_reviewer():
    plan = build_plan(TaskSpec(text="Build the cache", strategy="multi")).plan
    assert [step.id for step in plan.steps] == ["architect", "developer", "reviewer"]
    assert [step.role for step in plan.steps] == ["architect", "developer", "reviewer"]
    assert [step.depends_on for step in plan.steps] == [
        (),
        ("architect",),
        ("architect", "developer"),
    ]
    reviewer = plan.steps[-1]
    assert (reviewer.reviews, reviewer.rounds) == ("developer", 2)
    for step in plan.steps:
        assert step.task.startswith("Build the cache\n\nYour part as ")
        assert ROLES[step.role or ""].part in step.task


def test_multi_takes_any_chain():
    roles = ROLES | {"poet": Role("You rhyme.")}
    chain = ("product", "developer", "reviewer", "developer", "reviewer", "poet")
    spec = TaskSpec(text="Go", chain=chain, strategy="multi")
    steps = build_plan(spec, roles=roles).plan.steps
    assert [step.id for step in steps] == [
        "product", "developer", "reviewer", "developer-2", "reviewer-2", "poet",
    ]  # fmt: skip
    assert [step.reviews for step in steps] == [None, None, "developer", None, "developer-2", None]
    assert steps[-1].depends_on == tuple(step.id for step in steps[:-1])


def test_parallel_is_the_plan_as_it_is_with_what_the_task_says_for_all():
    plan = plan_of(a="", b="a", c="a", d="b c")
    own = msgspec.structs.replace(plan.steps[1], runtime="codex", files=("x",), role="ops")
    plan = Plan((plan.steps[0], own, *plan.steps[2:]), 7)
    built = build_plan(
        TaskSpec(plan=plan, strategy="parallel", runtime="cli", files=("y",), role="senior")
    ).plan
    assert [step.depends_on for step in built.steps] == [(), ("a",), ("a",), ("b", "c")]
    assert [step.runtime for step in built.steps] == ["cli", "codex", "cli", "cli"]
    assert [step.role for step in built.steps] == ["senior", "ops", "senior", "senior"]
    assert built.steps[1].files == ("y", "x")
    assert built.concurrency == 7


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        (TaskSpec(), InvalidInput, "no text"),
        (TaskSpec(text=" ", strategy="multi"), InvalidInput, "no text"),
        (TaskSpec(text="x", strategy="parallel"), InvalidInput, "needs a plan"),
        (TaskSpec(plan=plan_of(a=""), strategy="multi"), InvalidInput, "its own plan"),
        (TaskSpec(text="x", role="ops", strategy="multi"), InvalidInput, "several roles"),
        (TaskSpec(text="x", chain=("ops",), strategy="single"), InvalidInput, "chain"),
        (TaskSpec(plan=plan_of(a=""), chain=("ops",), strategy="parallel"), InvalidInput, "chain"),
        (TaskSpec(text="x", strategy="swarm"), UnknownName, "swarm"),
        (TaskSpec(text="x", role="wizard"), UnknownName, "wizard"),
        (TaskSpec(text="x", type="magic"), UnknownName, "magic"),
        (TaskSpec(text="x", chain=("architect", "wizard")), UnknownName, "wizard"),
        (TaskSpec(plan=plan_of(a="b", b="a")), InvalidPlan, "wait for each other"),
        (TaskSpec(plan=plan_of(a="b", b="a"), strategy="single"), InvalidPlan, "wait for each"),
        (TaskSpec(plan=plan_of(a="ghost"), strategy="single"), InvalidPlan, "ghost"),
        (TaskSpec(text="x", concurrency=0), InvalidPlan, "concurrency"),
    ],
)
def test_what_does_not_go_together_is_told(spec, error, text):
    with pytest.raises(error, match=text) as caught:
        build_plan(spec)
    assert caught.value.hint


def test_an_unknown_strategy_lists_the_known_ones():
    with pytest.raises(UnknownName) as caught:
        build_plan(TaskSpec(text="x", strategy="swarm"), strategies={"mine": "m:f"})
    assert caught.value.hint == "known: auto, mine, multi, parallel, single"


# users' own


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_strategies.py").write_text(
        "from tenuto.core.plan import Plan, Step\n"
        "def pair(spec):\n"
        "    return Plan((Step('one', spec.text), Step('two', spec.text, ('one',))))\n"
        "def wrong(spec):\n    return [1]\n"
        "def fails(spec):\n    return 1 / 0\n"
        "def cycle(spec):\n    return Plan((Step('one', 'x', ('one',)),))\n"
        "number = 3\n"
    )
    folder = tmp_path / "mine-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[tenuto.strategies]\npacked = my_strategies:pair\n")
    yield "my_strategies"
    sys.modules.pop("my_strategies", None)


@pytest.mark.promise("R1")
def test_a_users_own_strategy_by_settings_and_by_entry_point(module):
    settings = {"mine": f"{module}:pair"}
    for name in ("mine", "packed"):
        built = build_plan(TaskSpec(text="x", strategy=name, runtime="cli"), strategies=settings)
        assert built.strategy == name
        assert [(step.id, step.runtime) for step in built.plan.steps] == [
            ("one", "cli"), ("two", "cli"),
        ]  # fmt: skip
    assert known_strategies(settings) == ("auto", "single", "multi", "parallel", "mine", "packed")


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        ("wrong", InvalidPlan, "returned list"),
        ("fails", InvalidPlan, "ZeroDivisionError"),
        ("cycle", InvalidPlan, "one → one"),
        ("number", InvalidInput, "no function"),
        ("missing", InvalidInput, "cannot be loaded"),
    ],
)
def test_a_users_own_strategy_that_is_wrong_is_told(module, where, error, text):
    with pytest.raises(error, match=text):
        build_plan(TaskSpec(text="x", strategy="mine"), strategies={"mine": f"{module}:{where}"})


def test_a_module_that_is_not_there_is_told():
    with pytest.raises(InvalidInput, match="no_such_module_here"):
        build_plan(
            TaskSpec(text="x", strategy="mine"), strategies={"mine": "no_such_module_here:f"}
        )


# reviews


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        ("Fine.\nVERDICT: APPROVE", "approve"),
        ("No.\nVERDICT: SEND BACK\n", "send_back"),
        ("**Verdict: approved**", "approve"),
        ("> `verdict: send_back`", "send_back"),
        ("**VERDICT:** SEND BACK", "send_back"),
        ("VERDICT: APPROVE\nOn second thoughts:\nVERDICT: SEND BACK", "send_back"),
        ("VERDICT: SEND BACK\nVERDICT: APPROVE\r\n\r\n", "approve"),
        ("VERDICT: SEND BACK - the tests fail", "send_back"),
        ("VERDICT: SEND BACK\nI was asked for VERDICT: APPROVE in the end", "send_back"),
        ("VERDICT: SEND BACK\nVERDICT: APPROVE or VERDICT: SEND BACK", "send_back"),
        ("VERDICT: APPROVE | SEND BACK", None),
        ("I approve.", None),
        ("VERDICT: APPROVEMENT PENDING", None),
        ("", None),
        ("x" * 100_000 + "\n" + "\n" * 10_000 + "VERDICT: APPROVE", "approve"),
    ],
)
def test_the_last_verdict_counts(output, verdict):
    assert review_verdict(output) == verdict


def multi() -> Plan:
    chain = ("architect", "developer", "reviewer", "ops")
    return build_plan(TaskSpec(text="Go", strategy="multi", chain=chain)).plan


def step_of(plan: Plan, name: str) -> Step:
    return next(step for step in plan.steps if step.id == name)


def test_what_is_sent_back_is_done_and_reviewed_again_and_the_rest_waits_for_it():
    plan = multi()
    new = extend(plan, step_of(plan, "reviewer"), SEND_BACK, 1)
    developer, reviewer = new
    assert (developer.id, reviewer.id) == ("developer.2", "reviewer.2")
    assert developer.depends_on == ("architect", "developer", "reviewer")
    assert developer.continues == "developer"
    assert developer.task == step_of(plan, "developer").task
    assert reviewer.depends_on == ("architect", "reviewer", "developer.2")
    assert (reviewer.continues, reviewer.reviews) == ("reviewer", "developer.2")
    second = extended(plan, new)
    assert step_of(second, "ops").depends_on == ("architect", "developer.2", "reviewer.2")
    assert step_of(second, "reviewer") == step_of(plan, "reviewer")
    assert feedback_of(second, developer) == "reviewer"

    newer = extend(second, step_of(second, "reviewer.2"), SEND_BACK, 2)
    third = extended(second, newer)
    assert [step.id for step in newer] == ["developer.3", "reviewer.3"]
    assert newer[0].depends_on == ("architect", "developer.2", "reviewer.2")
    assert newer[1].depends_on == ("architect", "reviewer.2", "developer.3")
    assert step_of(third, "ops").depends_on == ("architect", "developer.3", "reviewer.3")
    assert feedback_of(third, newer[0]) == "reviewer.2"
    assert feedback_of(third, developer) == "reviewer"
    # twice is as often as it may
    assert extend(third, newer[1], SEND_BACK, 3) == ()


@pytest.mark.parametrize("output", ["VERDICT: APPROVE", "no verdict", ""])
def test_what_is_not_sent_back_adds_nothing(output):
    plan = multi()
    assert extend(plan, step_of(plan, "reviewer"), output, 1) == ()
    assert extend(plan, step_of(plan, "developer"), SEND_BACK, 1) == ()


def test_only_what_is_done_again_has_feedback():
    plan = multi()
    assert [feedback_of(plan, step) for step in plan.steps] == [None] * 4
    polish = Step("polish", "x", ("developer", "reviewer"), continues="developer")
    plan = Plan((*plan.steps, polish))
    assert feedback_of(plan, polish) is None
    new = extend(plan, step_of(plan, "reviewer"), SEND_BACK, 1)
    moved = step_of(extended(plan, new), "polish")
    assert (moved.depends_on, moved.continues) == (("developer.2", "reviewer.2"), "developer.2")
    assert feedback_of(extended(plan, new), moved) is None


def test_a_reviewer_after_a_reviewer_in_one_session_has_rounds_of_its_own():
    plan = Plan(
        (
            Step("dev", "x"),
            Step("one", "x", ("dev",), reviews="dev"),
            Step("two", "x", ("dev",), reviews="dev"),
        )
    )
    plan = build_plan(TaskSpec(plan=plan, strategy="single")).plan
    second = step_of(plan, "two")
    assert second.continues == "one"
    assert round_of(plan, second) == 1
    new = extend(plan, second, SEND_BACK, 1)
    assert [step.id for step in new] == ["dev.2", "two.2"]
    assert round_of(extended(plan, new), new[1]) == 2


def test_ids_that_are_taken_or_long_are_no_hindrance():
    long = "d" * 64
    plan = Plan(
        (
            Step("dev", "x"),
            Step("dev.2", "x"),
            Step("rev", "x", ("dev",), reviews="dev"),
            Step(long, "x"),
            Step("r" * 64, "x", (long,), reviews=long),
        )
    )
    first = extend(plan, step_of(plan, "rev"), SEND_BACK, 1)
    assert [step.id for step in first] == ["dev.3", "rev.2"]
    check_plan(extended(extended(plan, first), extend(plan, plan.steps[-1], SEND_BACK, 1)))


@given(st.integers(0, 5), st.integers(1, 4))
def test_any_number_of_rounds_gives_a_plan_that_can_run(rounds, after):
    plan = multi()
    tail = tuple(Step(f"t{n}", "x", ("reviewer",)) for n in range(after))
    steps = (*plan.steps, *tail)
    plan = Plan(tuple(
        msgspec.structs.replace(step, rounds=rounds) if step.reviews else step for step in steps
    ))  # fmt: skip
    reviewer, done = step_of(plan, "reviewer"), 0
    while new := extend(plan, reviewer, SEND_BACK, done + 1):
        assert round_of(plan, reviewer) == done + 1
        plan, reviewer, done = check_plan(extended(plan, new)), new[1], done + 1
    assert done == rounds
    for n in range(after):
        assert step_of(plan, f"t{n}").depends_on == (reviewer.id,)
