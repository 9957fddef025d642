from __future__ import annotations

import time
from decimal import Decimal
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.core.errors import InvalidPlan
from tenuto.core.plan import Plan, Retry, Step, check_plan, read_plan

pytestmark = pytest.mark.promise("G2")


@st.composite
def graphs(draw, least: int = 1) -> list[Step]:
    """Steps of a random graph without a cycle, in a random order."""
    count = draw(st.integers(least, 25))
    names = [f"s{n}" for n in range(count)]
    steps: list[Step] = []
    for n, name in enumerate(names):
        waits = draw(st.lists(st.sampled_from(names[:n]), max_size=4)) if n else []
        steps.append(Step(name, "work", tuple(waits)))
    return draw(st.permutations(steps))


@given(graphs())
def test_every_graph_without_a_cycle_is_taken_and_comes_back_from_json(steps):
    plan = Plan(tuple(steps))
    assert check_plan(plan) == plan
    assert read_plan(msgspec.json.encode(plan)) == plan
    assert read_plan(msgspec.json.encode({"tasks": list(plan.steps)})) == plan


@given(graphs(least=2), st.data())
def test_the_cycle_that_is_named_is_one(steps, data):
    """Close a cycle over a path that is there, and follow the arrows of the message."""
    waits = {step.id: set(step.depends_on) for step in steps}
    chosen = data.draw(st.sampled_from(steps))
    below = {chosen.id}
    todo = [chosen.id]
    while todo:
        for other in waits[todo.pop()] - below:
            below.add(other)
            todo.append(other)
    last = data.draw(st.sampled_from(sorted(below)))
    waits[last].add(chosen.id)
    changed = tuple(Step(step.id, "work", tuple(sorted(waits[step.id]))) for step in steps)
    with pytest.raises(InvalidPlan, match="wait for each other") as caught:
        check_plan(Plan(changed))
    cycle = caught.value.message.partition(": ")[2].split(" → ")
    assert cycle[0] == cycle[-1]
    assert len(cycle) >= 2
    assert len(set(cycle)) == len(cycle) - 1
    for first, then in pairwise(cycle):
        assert first in waits[then], "an arrow leads from a step to one that waits for it"


@given(graphs(), st.data())
def test_an_unknown_id_is_named_with_the_step_that_waits_for_it(steps, data):
    at = data.draw(st.integers(0, len(steps) - 1))
    lost = msgspec.structs.replace(steps[at], depends_on=(*steps[at].depends_on, "ghost"))
    with pytest.raises(InvalidPlan) as caught:
        check_plan(Plan((*steps[:at], lost, *steps[at + 1 :])))
    assert f"step {lost.id!r} depends on 'ghost'" in caught.value.message
    assert steps[0].id in caught.value.hint


@given(graphs(), st.data())
def test_two_steps_with_one_id_are_refused_by_name(steps, data):
    twice = data.draw(st.sampled_from(steps))
    with pytest.raises(InvalidPlan, match=f"two steps have the id '{twice.id}'"):
        check_plan(Plan((*steps, twice)))


def big(edges: int) -> list[Step]:
    """A graph of layers, each waiting for the whole of the one before."""
    width = 500
    names = [[f"l{layer}-{n}" for n in range(width)] for layer in range(edges // width**2 + 1)]
    return [
        Step(name, "work", tuple(names[layer - 1]) if layer else ())
        for layer, row in enumerate(names)
        for name in row
    ]


def test_a_million_edges_are_refused_and_half_as_many_checked_within_seconds():
    begun = time.process_time()
    with pytest.raises(InvalidPlan, match="1000000 dependencies, 500000 are the most"):
        check_plan(Plan(tuple(big(1_000_000))))
    steps = big(500_000)
    assert sum(len(step.depends_on) for step in steps) == 500_000
    check_plan(Plan(tuple(steps)))
    assert time.process_time() - begun < 8
    # and one that closes a cycle through all layers
    steps = big(250_000)
    steps[0] = msgspec.structs.replace(steps[0], depends_on=(steps[-1].id,))
    begun = time.process_time()
    with pytest.raises(InvalidPlan, match="wait for each other"):
        check_plan(Plan(tuple(steps)))
    assert time.process_time() - begun < 5


def test_half_a_million_edges_come_in_as_json_within_seconds():
    steps = big(500_000)
    data = msgspec.json.encode({"steps": steps})
    begun = time.process_time()
    assert len(read_plan(data).steps) == len(steps)
    assert time.process_time() - begun < 8


def test_a_chain_as_deep_as_a_plan_may_be():
    steps = [Step(f"s{n}", "work", (f"s{n - 1}",) if n else ()) for n in range(100_000)]
    check_plan(Plan(tuple(steps)))
    with pytest.raises(InvalidPlan, match="100001 steps"):
        check_plan(Plan((*steps, Step("one-more", "work"))))


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ({"steps": []}, "no steps"),
        ([], "no steps"),
        ("{", "no JSON"),
        ("3", "object with steps"),
        ('"steps"', "object with steps"),
        ({"steps": 3}, "does not fit"),
        ({"steps": [{"id": "a"}]}, "does not fit"),
        ({"steps": [{"id": "a", "task": " "}]}, "has no task"),
        ({"steps": [{"id": "a", "task": "t", "depend_on": ["b"]}]}, "depend_on"),
        ({"steps": [{"id": "../a", "task": "t"}]}, "is no id"),
        ({"steps": [{"id": "", "task": "t"}]}, "is no id"),
        ({"steps": [{"id": "a" * 65, "task": "t"}]}, "is no id"),
        ({"steps": [{"id": "a\n", "task": "t"}]}, "is no id"),
        ({"steps": [{"id": "a", "task": "t", "depends_on": ["a"]}]}, "a → a"),
        ({"steps": [{"id": "a", "task": "t", "continues": "b"}]}, "without depending"),
        ({"steps": [{"id": "a", "task": "t", "reviews": "b"}]}, "without depending"),
        ({"steps": [{"id": "a", "task": "t", "max_cost": "-1"}]}, "max_cost"),
        ({"steps": [{"id": "a", "task": "t", "max_tokens": -1}]}, "max_tokens"),
        ({"steps": [{"id": "a", "task": "t", "retry": {"times": -1}}]}, "retry.times"),
        ({"steps": [{"id": "a", "task": "t"}], "concurrency": 0}, "concurrency"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_what_cannot_run_is_refused_with_what_and_why(plan, text):
    with pytest.raises(InvalidPlan, match=text) as caught:
        read_plan(plan)
    assert caught.value.hint


def test_what_a_step_may_say():
    plan = read_plan(
        '[{"id": "a", "task": "t", "max_cost": "0.50", "retry": {"times": 5}, "files": ["x"]}]'
    )
    assert plan.steps == (
        Step("a", "t", max_cost=Decimal("0.50"), retry=Retry(5), files=("x",)),
    )  # fmt: skip


WORDS = st.sampled_from(["steps", "id", "task", "depends_on", "x"])
JSON = st.recursive(
    st.none() | st.text(max_size=5) | st.integers(),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(WORDS, one, max_size=4),
    max_leaves=8,
)


@settings(max_examples=300)
@given(JSON)
def test_nothing_but_invalid_plan_comes_of_any_json(value):
    try:
        read_plan(msgspec.json.encode(value))
    except InvalidPlan as error:
        assert error.hint
