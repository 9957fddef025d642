"""The gateway as an execution of its project, and budgets as users have them."""

import http.client
import json
import os
import signal
import tempfile
import threading
from decimal import Decimal
from pathlib import Path

import pytest
from engine_help import await_death, main_pid, tape_events
from metering_help import ANTHROPIC, KEY, environ_for

from tenuto.core.budget import BudgetLimits, Estimate, Grant, Tokens
from tenuto.core.errors import EngineFault, InvalidInput, NotRunning
from tenuto.core.ids import new_id
from tenuto.core.states import State
from tenuto.dispatch.launch import FreshLauncher
from tenuto.engine import budgets, gateways
from tenuto.engine.blocking import BlockingEngine
from tenuto.engine.retention import clean
from tenuto.engine.settings import Settings
from tenuto.engine.work import Options
from tenuto.metering.ledger import Ledger
from tenuto.stores.tape import is_kept
from tenuto.testing.models.gates import Gate
from tenuto.testing.models.steps import Say, Slow


@pytest.fixture
def engine(project, model):
    environ = {**os.environ, **environ_for(model)}
    made = BlockingEngine(project, Settings(), FreshLauncher(), environ)
    yield made
    made.close()


def ask(endpoint, **more):
    """Send a request as a runtime would; return the status and the answer."""
    request = ANTHROPIC.request(endpoint.token, stream=False, **more)
    line = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=60)
    try:
        line.request("POST", request["url"], request["content"], request["headers"])
        answer = line.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        line.close()


def living(engine):
    """Return an execution that lives for as long as the test does: tokens of others are refused."""
    execution_id, sock = engine.start(engine.command(["sleep", "1000"], Options(detached=True)))
    sock.close()
    return execution_id


@pytest.mark.promise("B3")
def test_the_gateway_is_an_execution_that_is_found_again(engine, model):
    info = gateways.ensure(engine)
    assert gateways.ensure(engine) == info
    (listed,) = engine.list(running=True)
    assert (listed.id, listed.title, listed.kind) == (info.execution_id, gateways.TITLE, "command")
    assert listed.parent is None
    model.play(Say("yes", usage=Tokens(3, 4)), by="request")
    task = living(engine)
    status, answer = ask(gateways.endpoint(info, task, "one"))
    assert status == 200, answer
    with budgets.opened(engine.project) as ledger:
        assert ledger.spend(task, "one").tokens == Tokens(3, 4) == model.billed()


@pytest.mark.promise("B3")
def test_many_who_need_it_at_once_start_one(engine, project):
    found, faults = [], []

    def need():
        one = BlockingEngine(project, Settings(), FreshLauncher(), engine.environ)
        try:
            found.append(gateways.ensure(one))
        except Exception as error:
            faults.append(error)
        finally:
            one.close()

    threads = [threading.Thread(target=need) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len({one.execution_id for one in found}) == 1
    assert len(engine.list()) == 1


@pytest.mark.promise("B3", "X16")
def test_the_real_key_is_in_no_file_and_in_nothing_a_runtime_gets(engine, model):
    info = gateways.ensure(engine)
    endpoint = gateways.endpoint(info, living(engine), "one")
    model.play("yes", by="request")
    assert ask(endpoint)[0] == 200
    assert KEY not in repr(endpoint)
    assert KEY not in repr(info)
    for root, _, names in os.walk(engine.project.home):
        for name in names:
            path = Path(root, name)
            if path.is_file():
                assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in json.dumps(tape_events(engine.project, info.execution_id))
    assert (Path(engine.project.home) / "gateway" / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.promise("B3", "X16")
@pytest.mark.parametrize("how", ["said", "killed", "never"])
def test_a_token_is_refused_once_its_task_has_ended(engine, model, how):
    info = gateways.ensure(engine)
    model.play("yes", by="request")
    task = living(engine) if how != "never" else new_id()
    endpoint = gateways.endpoint(info, task, "one")
    if how != "never":
        assert ask(endpoint)[0] == 200
    if how == "killed":
        engine.kill(task)
    elif how == "said":
        with budgets.opened(engine.project) as ledger:
            budgets.close(ledger, task)
    status, answer = ask(endpoint)
    assert status == 401 and "has ended" in answer["error"]["message"], answer
    line = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=60)
    line.request("GET", "/anthropic/v1/models", headers={"x-api-key": endpoint.token})
    assert line.getresponse().status == 401, "nothing that is free, either"
    line.close()
    assert len(model.seen) == (how != "never")
    if how == "said":  # it is taken up again
        with budgets.opened(engine.project) as ledger:
            ledger.grant(Grant(task))
        assert ask(endpoint)[0] == 200


@pytest.mark.promise("B3")
def test_a_killed_gateway_counts_what_was_under_way_and_the_next_has_the_same_port(engine, model):
    info = gateways.ensure(engine)
    gate = Gate()
    model.play(Slow(gate, "first"), "second", by="request")
    task = living(engine)
    endpoint = gateways.endpoint(info, task, "one")
    failed = []

    def broken():
        try:
            ask(endpoint)
        except (OSError, http.client.HTTPException) as error:
            failed.append(error)

    asking = threading.Thread(target=broken)
    asking.start()
    model.until(lambda _: True)
    pid = main_pid(engine.project, info.execution_id)
    os.kill(pid, signal.SIGKILL)
    assert await_death(pid)
    asking.join()
    assert failed
    assert engine.wait(info.execution_id, 20).state is State.FAILED
    with budgets.opened(engine.project) as ledger:
        assert ledger.spend(task).unsettled == 1
        assert ledger.spend(task).reserved_tokens > 0
        assert budgets.report(engine).unsettled == 1
        again = gateways.ensure(engine)
        assert again.execution_id != info.execution_id
        assert again.url == info.url
        assert ask(endpoint)[0] == 200, "a runtime goes on with the token that it has"
        assert ledger.spend(task).requests == 1
        assert ledger.spend(task).unsettled == 1


def test_another_key_has_another_gateway(engine, model):
    one = gateways.ensure(engine)
    other = gateways.ensure(engine, {**engine.environ, "ANTHROPIC_API_KEY": "sk-of-another"})
    assert one.execution_id != other.execution_id
    model.play("a", "b", by="request")
    task = living(engine)
    assert ask(gateways.endpoint(one, task, "s"))[0] == 200
    assert ask(gateways.endpoint(other, task, "s"))[0] == 200
    assert [seen.headers["x-api-key"] for seen in model.seen] == [KEY, "sk-of-another"]


def test_inside_a_runtime_it_is_the_gateway_around(engine):
    info = gateways.ensure(engine)
    endpoint = gateways.endpoint(info, new_id(), "one")
    inside = {k: v for k, v in engine.environ.items() if not k.startswith("TENUTO_UPSTREAM")}
    inside |= {
        "ANTHROPIC_BASE_URL": f"{endpoint.url}/anthropic",
        "ANTHROPIC_API_KEY": endpoint.token,
    }
    assert gateways.ensure(engine, inside) == info


def test_it_ends_when_nobody_needs_it(engine):
    info = gateways.ensure(engine, idle_s=0.2)
    assert engine.wait(info.execution_id, 30).state is State.SUCCEEDED


@pytest.mark.promise("X8")
def test_it_is_killed_like_any_other(engine):
    info = gateways.ensure(engine)
    pid = main_pid(engine.project, info.execution_id)
    assert engine.kill(info.execution_id).state is State.KILLED
    assert await_death(pid)


def test_one_that_cannot_start_says_why(engine, monkeypatch):
    monkeypatch.setattr(gateways, "_MODULE", "tenuto.no_such_module")
    with pytest.raises(EngineFault) as caught:
        gateways.ensure(engine)
    assert "No module named" in caught.value.message


def test_a_task_that_is_gone_cannot_be_told(engine):
    with pytest.raises(NotRunning):
        gateways.tell(engine.project, "ask", new_id(), "s", ())


@pytest.mark.promise("B2")
def test_limits_that_are_set_hold_at_the_next_request(engine, model):
    info = gateways.ensure(engine)
    endpoint = gateways.endpoint(info, living(engine), "one")
    model.play(*["yes"] * 9, by="request")
    assert ask(endpoint)[0] == 200
    budgets.set_limits(engine, daily=Decimal(0), hard=True)
    status, answer = ask(endpoint)
    assert status == 400
    assert answer["error"]["message"].startswith(
        "Tenuto budget: the daily limit of $0.00 is reached"
    )
    budgets.set_limits(engine, daily=None)
    assert ask(endpoint)[0] == 200


@pytest.mark.promise("B1", "X15", "D5")
def test_spend_outlives_cleaning_and_a_rebuilt_index(engine):
    execution_id, sock = engine.start(engine.command(["true"], Options(title="spender")))
    sock.close()
    engine.wait(execution_id, 20)
    with budgets.opened(engine.project) as ledger:
        ledger.record(execution_id, "s", "m", Tokens(1, 1), Decimal("0.50"))
    before = budgets.report(engine)
    assert before.executions[0].title == "spender"
    while is_kept(engine.project.folder(execution_id)):  # its keeper syncs, and lets go
        pass
    assert clean(engine, keep=0).removed == 1
    engine.index.rebuild()
    after = budgets.report(engine)
    assert (after.day, after.month, after.days) == (before.day, before.month, before.days)
    assert after.executions[0].spend == before.executions[0].spend
    assert after.day.cost == Decimal("0.50")


def test_limits_are_set_checked_and_kept(engine):
    assert budgets.limits_of(engine.project, engine.settings) == BudgetLimits()
    settings = Settings(budget_daily=Decimal(1), budget_task=Decimal(2))
    assert budgets.set_limits(engine, daily=Decimal("2.50"), hard=True) == BudgetLimits(
        daily=Decimal("2.50"), hard=True
    )
    assert budgets.limits_of(engine.project, settings) == BudgetLimits(
        daily=Decimal("2.50"), task=Decimal(2), hard=True
    )
    budgets.set_limits(engine, daily=None)
    assert budgets.limits_of(engine.project, settings).daily is None
    for bad in ({"daily": Decimal(-1)}, {"daily": True}, {"weekly": Decimal(1)}, {"hard": None},
                {"task": Decimal("NaN")}):  # fmt: skip
        with pytest.raises(InvalidInput):
            budgets.set_limits(engine, **bad)
    path = Path(engine.project.home, "budget.json")
    for text in ("{", '{"daily": "NaN"}', '{"task": "-1"}', '{"monthly": "1e999999999"}', "[]"):
        path.write_text(text)
        with pytest.raises(InvalidInput, match="cannot be read"):
            budgets.report(engine)


def test_windows_are_reset_by_name(engine):
    with budgets.opened(engine.project) as ledger:
        ledger.record(new_id(), "s", "m", Tokens(1), Decimal(1))
    budgets.reset(engine, "daily")
    report = budgets.report(engine)
    assert (report.day.cost, report.month.cost) == (0, 1)
    with pytest.raises(InvalidInput):
        budgets.reset(engine, "weekly")


@pytest.mark.promise("B2")
def test_a_step_is_decided_before_it_begins(tmp_path):
    ledger = Ledger(str(tmp_path))
    task, limits = new_id(), BudgetLimits()
    ledger.grant(Grant(task, max_cost=Decimal(1), mode="ask"))
    big = Estimate(Tokens(1), Decimal(2))
    assert budgets.decide(ledger, limits, task, "s").verdict == "go"
    assert budgets.decide(ledger, limits, task, "s", big).verdict == "ask", (
        "it would pass the bound"
    )
    budgets.approve(ledger, task, Decimal(5))
    assert budgets.decide(ledger, limits, task, "s", big).verdict == "go"
    ledger.grant(Grant(task, max_cost=Decimal(1), hard=True))
    assert budgets.decide(ledger, limits, task, "s", big).verdict == "warn", "not spent yet"
    ledger.record(task, "s", "m", Tokens(1), Decimal(1))
    assert budgets.decide(ledger, limits, task, "s", big).verdict == "stop"
    ledger.grant(Grant(task, max_cost=Decimal(1), mode="warn"))
    found = [budgets.decide(ledger, limits, task, "s") for _ in range(2)]
    assert [(one.verdict, one.news) for one in found] == [("warn", True), ("warn", False)]
    ledger.close()


def test_the_benchmark_is_right_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    from tenuto.bench import main as bench

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert bench.main(["metering", "--quick", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row for row in rows if row["exact"] and not row["met"]] == []
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("tenuto-bench")] == []
