"""Tasks that are cut short, by request or by force, and taken up again: no finished step runs twice."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import pytest
from engine_help import await_death, events_of, keeper_pid, main_pid
from task_help import (
    begin,
    blocking,
    finished,
    never_twice,
    outputs,
    plan,
    progress,
    side,
    started,
    statuses,
)

from tenuto import Snapshot
from tenuto.core.budget import Tokens
from tenuto.core.errors import (
    NotFinished,
    NotRunning,
    TenutoError,
    UnknownExecution,
)
from tenuto.core.plan import Plan, Step
from tenuto.core.states import State
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.history import history
from tenuto.metering.ledger import Ledger
from tenuto.stores.layout import Project

PATIENCE = 60
LONG = (pytest.mark.full, pytest.mark.timeout(1200))
CHAIN = plan(
    *(
        Step(f"s{n}", f"[[delay:0.02]] [[say:word {n}]]", (f"s{n - 1}",) if n else ())
        for n in range(4)
    )
)
GRAPH = plan(
    Step("root", "[[delay:0.02]] [[say:word of the root]]"),
    *(Step(f"leaf{n}", f"[[delay:0.03]] [[say:word {n}]]", ("root",)) for n in range(4)),
    Step("join", "[[recall]]", tuple(f"leaf{n}" for n in range(4))),
    concurrency=4,
)
REVIEWED = plan(
    Step("dev", "[[delay:0.02]] [[say:written]]"),
    Step("rev", "[[review]]", ("dev",), reviews="dev", rounds=1),
    Step("ship", "[[delay:0.01]] [[say:shipped]]", ("rev",)),
)
PLANS = {"chain": CHAIN, "graph": GRAPH, "reviewed": REVIEWED}
POINTS = [
    "driver-planning", "driver-planned", "driver-step-started:1", "driver-step-started:3",
    "driver-step-ended:1", "driver-step-ended:3", "driver-step-safe:1", "driver-step-safe:2",
    "driver-done", "writer-before-checkpoint:1", "writer-before-checkpoint:2",
    "writer-before-checkpoint:3", "writer-after-checkpoint:1", "writer-after-checkpoint:2",
    "writer-after-checkpoint:4",
]  # fmt: skip


@pytest.fixture
def engine(agents: object, project: Project) -> Iterator[BlockingEngine]:
    with blocking(project) as made:
        yield made


def run(engine: BlockingEngine, work: Plan) -> Snapshot:
    return ended(engine, begin(engine, plan=work, strategy="parallel", runtime="side"))


def ended(engine: BlockingEngine, execution_id: str) -> Snapshot:
    snapshot = engine.wait(execution_id, PATIENCE)
    assert snapshot.done, snapshot.state
    return snapshot


def resume(engine: BlockingEngine, execution_id: str) -> None:
    _, sock = engine.resume(execution_id, False)
    sock.close()


def same(project: Project, whole: Snapshot, again: Snapshot) -> None:
    """Assert that a task that was cut short came to what the uninterrupted one did."""
    assert again.state == whole.state == "succeeded", (again.reason, again.detail)
    assert outputs(again).keys() == outputs(whole).keys()
    assert statuses(again) == statuses(whole)
    told, said = outputs(whole), outputs(again)
    for one in (told, said):  # which recalls what it was told, and was perhaps told it twice
        recalled = one.pop("join", "")
        assert all(f"word {n}" in recalled for n in range(4 if recalled else 0))
    assert said == told
    never_twice(project, again.id)


# By request


@pytest.mark.promise("D3")
@pytest.mark.parametrize("cycles", [20, pytest.param(100, marks=LONG)])
def test_it_is_interrupted_and_resumed_over_and_over_and_comes_to_the_same(
    engine: BlockingEngine, project: Project, cycles: int
) -> None:
    count = cycles + 2
    work = plan(
        *(Step(f"s{n}", "[[delay:0.1]]", (f"s{n - 1}",) if n else ()) for n in range(count))
    )
    execution_id = begin(engine, plan=work, strategy="parallel", runtime="side")
    for cycle in range(cycles):
        while len(started(project, execution_id)) <= cycle:
            engine.wait(execution_id, 0.02)
        if engine.interrupt(execution_id).state != "interrupted":
            break
        never_twice(project, execution_id)
        resume(engine, execution_id)
    snapshot = ended(engine, execution_id)
    assert snapshot.state == "succeeded"
    assert set(statuses(snapshot).values()) == {"completed"}
    never_twice(project, execution_id)
    ends = [line for line in side() if line.startswith("end ")]
    assert sorted(ends) == sorted(f"end s{n}" for n in range(count)), "each came to its end once"


@pytest.mark.promise("D3")
def test_a_step_that_was_interrupted_goes_on_in_its_session(
    engine: BlockingEngine, project: Project
) -> None:
    execution_id = begin(engine, "[[hang]] [[recall]]", runtime="side")
    while not progress(project, execution_id).steps.get("task") or not side():
        engine.wait(execution_id, 0.02)
    assert engine.interrupt(execution_id).state == "interrupted"
    before = progress(project, execution_id).steps["task"]
    assert before.status == "interrupted" and before.session
    resume(engine, execution_id)
    while side().count("begin task") < 2:
        engine.wait(execution_id, 0.02)
    (first, second) = [one["session"] for one in events_of(project, execution_id, "step_session")]
    assert first == second == before.session
    assert engine.kill(execution_id).state == "killed"


@pytest.mark.promise("D3", "R1")
def test_a_session_that_its_runtime_does_not_have_is_begun_anew(
    engine: BlockingEngine, project: Project
) -> None:
    """It was killed before the runtime had kept it, or it was cleaned away since."""
    work = plan(Step("a", "[[say:first]]"), Step("b", "[[hang]] [[say:second]]", ("a",)))
    execution_id = begin(engine, plan=work, strategy="parallel", runtime="side")
    while side().count("begin b") < 1:
        engine.wait(execution_id, 0.02)
    assert engine.interrupt(execution_id).state == "interrupted"
    gone = progress(project, execution_id).steps["b"].session
    os.unlink(os.path.join(os.environ["TENUTO_ECHO_HOME"], f"{gone}.json"))
    resume(engine, execution_id)
    while side().count("begin b") < 2:
        assert not engine.wait(execution_id, 0.02).done
    again = progress(project, execution_id).steps["b"]
    assert (again.status, again.attempt) == ("running", 3)
    assert again.session != gone
    told = [one["what"] for one in events_of(project, execution_id, "step_said")]
    assert [one["text"] for one in told if one["type"] == "retried"] == [
        f"there is no session {gone} (begin a new one); a new session begins"
    ]
    assert engine.kill(execution_id).state == "killed"
    said = "".join(one.text for one in engine.logs(execution_id))
    assert f"there is no session {gone}" in said and "; a new session begins" in said


@pytest.mark.promise("D3")
@pytest.mark.parametrize(("fate", "ran"), [("retry", 2), ("skip", 1)])
def test_what_becomes_of_a_step_that_was_cut_short_is_its_own_choice(
    engine: BlockingEngine, project: Project, fate: str, ran: int
) -> None:
    work = plan(
        Step("risky", "[[delay:0.3]]", in_flight=fate),  # type: ignore[arg-type]
        Step("after", "x", ("risky",)),
        Step("other", "x"),
    )
    execution_id = begin(engine, plan=work, strategy="parallel", runtime="side")
    while "begin risky" not in side():
        engine.wait(execution_id, 0.01)
    os.kill(main_pid(project, execution_id), signal.SIGKILL)
    crashed = ended(engine, execution_id)
    assert (crashed.state, crashed.reason) == ("lost", "driver")
    with closing(Ledger(project.home)) as ledger:  # as a gateway that outlived the driver counts
        ledger.record(execution_id, "risky", "m", Tokens(70, 5), Decimal("0.25"))
    resume(engine, execution_id)
    snapshot = ended(engine, execution_id)
    assert side().count("begin risky") == ran
    if fate == "retry":
        assert snapshot.state == "succeeded"
    else:
        assert (snapshot.state, snapshot.reason) == ("failed", "partial")
        assert statuses(snapshot)["after"] == "skipped_dependency_failed"
        (record,) = (one for one in history(engine, execution_id).records if one.step == "risky")
        assert (record.tokens, record.cost) == (Tokens(70, 5), Decimal("0.25"))
    assert statuses(snapshot)["other"] == "completed"


@pytest.mark.promise("D3")
def test_a_step_that_asks_is_run_again_only_if_somebody_says_so(
    engine: BlockingEngine, project: Project
) -> None:
    from tenuto.engine.tasks import decide

    work = plan(Step("risky", "[[delay:0.3]]", in_flight="ask"))
    for allow in (True, False):
        execution_id = begin(engine, plan=work, strategy="parallel", runtime="side")
        while not started(project, execution_id):
            engine.wait(execution_id, 0.01)
        os.kill(main_pid(project, execution_id), signal.SIGKILL)
        ended(engine, execution_id)
        resume(engine, execution_id)
        assert engine.wait(execution_id, PATIENCE).waiting_for == "approval"
        assert engine.interrupt(execution_id).state == "interrupted", "it can be left for later"
        resume(engine, execution_id)
        assert engine.wait(execution_id, PATIENCE).waiting_for == "approval"
        decide(engine, execution_id, allow)
        list(engine.follow(execution_id))
        assert ended(engine, execution_id).state == ("succeeded" if allow else "failed")
        assert len(started(project, execution_id)) == (2 if allow else 1)


@pytest.mark.promise("D3", "B2")
def test_a_decision_that_meets_a_dying_task_is_told_that_it_is_lost(
    engine: BlockingEngine, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenuto.dispatch import control
    from tenuto.engine.tasks import decide

    execution_id = begin(engine, "[[ask:Bash]]", permissions="ask")
    assert engine.wait(execution_id, PATIENCE).waiting_for == "approval"
    request = control.request

    def dying(*words: Any, **more: Any) -> Any:
        monkeypatch.setattr(control, "request", request)
        pid = keeper_pid(project, execution_id)
        os.kill(pid, signal.SIGKILL)
        assert await_death(pid)
        return request(*words, **more)

    monkeypatch.setattr(control, "request", dying)
    with pytest.raises(NotRunning, match="lost: it asks nothing any more"):
        decide(engine, execution_id, True)


# Who may


@pytest.mark.promise("D3", "D4")
def test_only_one_of_two_resumes_takes_it_up(engine: BlockingEngine, project: Project) -> None:
    execution_id = begin(engine, "[[delay:0.3]]", runtime="side")
    while not started(project, execution_id):
        engine.wait(execution_id, 0.01)
    engine.interrupt(execution_id)
    results: list[TenutoError | None] = []
    together = threading.Barrier(4)

    def take_up() -> None:
        with blocking(project) as own:
            together.wait(PATIENCE)
            try:
                resume(own, execution_id)
            except TenutoError as error:
                results.append(error)
            else:
                results.append(None)

    threads = [threading.Thread(target=take_up) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(PATIENCE)
    assert len(results) == 4 and results.count(None) == 1, results
    for error in results:
        assert error is None or isinstance(error, (NotRunning, NotFinished))
        assert error is None or str(error)
    assert ended(engine, execution_id).state == "succeeded"
    assert len(events_of(project, execution_id, "resumed")) == 1
    never_twice(project, execution_id)


@pytest.mark.promise("D4")
def test_what_cannot_be_resumed_says_why(engine: BlockingEngine, project: Project) -> None:
    done = run(engine, plan(Step("a", "x")))
    with pytest.raises(NotRunning, match="succeeded: only interrupted and lost ones resume"):
        engine.resume(done.id, False)
    failed = ended(engine, begin(engine, "[[fail:auth]]"))
    with pytest.raises(NotRunning, match="failed: only"):
        engine.resume(failed.id, False)
    running = begin(engine, "[[hang]]")
    while not started(project, running):
        engine.wait(running, 0.01)
    with pytest.raises(NotFinished, match="still running"):
        engine.resume(running, False)
    with pytest.raises(UnknownExecution):
        engine.resume("ffffffff", False)
    assert engine.kill(running).state == "killed"
    assert started(project, done.id) == ["a"]


# By force


@pytest.mark.promise("D3", "D2")
@pytest.mark.parametrize("fault", POINTS)
def test_death_at_any_point_costs_at_most_the_steps_under_way(
    engine: BlockingEngine, project: Project, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ("chain", "graph", "reviewed")[POINTS.index(fault) % 3]
    whole = run(engine, PLANS[shape])
    monkeypatch.setenv("TENUTO_FAULT", fault)
    with blocking(project) as other:
        other_id = begin(other, plan=PLANS[shape], strategy="parallel", runtime="side")
        died = ended(other, other_id)
    monkeypatch.delenv("TENUTO_FAULT")
    assert died.state is State.LOST, (died.state, fault)
    kept = {name for name, status in finished(project, other_id) if status == "completed"}
    before = side().count
    runs = {name: before(f"begin {name}") for name in kept}
    resume(engine, other_id)
    again = ended(engine, other_id)
    same(project, whole, again)
    assert {name: side().count(f"begin {name}") for name in kept} == runs, "finished: never again"


@pytest.mark.promise("D3", "D2")
@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=LONG)])
def test_death_at_any_moment_costs_at_most_the_steps_under_way(
    engine: BlockingEngine, project: Project, rounds: int
) -> None:
    seed = int(os.environ.get("TENUTO_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    rng = random.Random(seed)
    wholes = {name: run(engine, work) for name, work in PLANS.items()}
    for number in range(rounds):
        shape = rng.choice(list(PLANS))
        execution_id = begin(engine, plan=PLANS[shape], strategy="parallel", runtime="side")
        kills = rng.randrange(1, 4)
        told = f"seed {seed}, round {number}, {shape}, {kills} kills"
        for _ in range(kills):
            _kill_somewhere(engine, project, execution_id, rng)
            if ended(engine, execution_id).state is State.SUCCEEDED:
                break
            resume(engine, execution_id)
        again = ended(engine, execution_id)
        try:
            same(project, wholes[shape], again)
        except AssertionError as error:
            raise AssertionError(f"{told}: {error}") from error


def _kill_somewhere(
    engine: BlockingEngine, project: Project, execution_id: str, rng: random.Random
) -> None:
    """Kill the driver or its keeper once a few more events are on the tape."""
    from engine_help import folded, tape_events

    more = len(tape_events(project, execution_id)) + rng.randrange(0, 9)
    while len(tape_events(project, execution_id)) < more:
        if engine.wait(execution_id, 0.005).done:
            return
    begun = folded(project, execution_id).started
    if begun is not None:
        target = begun.pid if rng.random() < 0.5 else begun.keeper_pid
        try:
            os.kill(target, signal.SIGKILL)
        except ProcessLookupError:
            return
