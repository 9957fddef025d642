"""The gateway at a bound: refused at a hard cap, held where somebody is to be asked, warned once."""

import asyncio
from decimal import Decimal

import msgspec
import pytest
import pytest_asyncio
from metering_help import ANTHROPIC, DOLLAR, WAYS, Served, environ_for

from tenuto.core.budget import BudgetLimits, Grant, Tokens
from tenuto.core.errors import NotRunning
from tenuto.engine import budgets
from tenuto.metering.ledger import Ledger
from tenuto.metering.prices import Prices, tier_price
from tenuto.testing.models.gates import Gate
from tenuto.testing.models.steps import Say, Slow

pytestmark = [pytest.mark.asyncio]
by_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
TEN = Say("x", usage=Tokens(0, 10))  # ten dollars


@pytest_asyncio.fixture
async def served(tmp_path, model):
    async with Served(tmp_path, environ_for(model), prices=DOLLAR) as served:
        yield served


@pytest.mark.promise("B2", "B3")
@by_way
@pytest.mark.parametrize("scope", ["daily", "monthly", "task"])
async def test_at_a_hard_cap_nothing_more_is_admitted(served, model, way, scope):
    served.limits = BudgetLimits(**{scope: Decimal(20)}, hard=True)
    model.play(*[TEN] * 9, by="request")
    for _ in range(2):
        assert (await served.post(way, max_tokens=1)).status_code == 200
    refused = await served.post(way)
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert message.startswith("Tenuto budget: ")
    assert "$20" in message, "the limit, and what is spent"
    assert ("tenuto budget --set" in message) is (scope != "task"), "the next step"
    assert refused.headers["x-should-retry"] == "false"
    assert len(model.asked) == 2
    assert served.spend().cost == 20
    assert served.spend().unsettled == 0


@pytest.mark.promise("B3")
async def test_of_many_at_once_none_is_admitted_past_the_cap(served, model):
    """Each sets its estimate aside; the answers cost less, so that those held meanwhile may go on."""
    served.limits = BudgetLimits(daily=Decimal(100), hard=True)
    model.play(*[Say("x", usage=Tokens(0, 10))] * 99, by="request")
    answers = await asyncio.gather(*(served.post(ANTHROPIC, max_tokens=40) for _ in range(40)))
    codes = [one.status_code for one in answers]
    assert set(codes) == {200, 400}
    # by estimate three fit at once, and what was under way then is all that can go over
    assert served.spend().cost == 10 * codes.count(200)
    assert 100 <= served.spend().cost <= 100 + 2 * 10
    assert model.billed().output == served.spend().tokens.output
    assert served.spend().unsettled == 0


@pytest.mark.promise("B3")
async def test_what_is_under_way_when_the_cap_is_reached_is_all_that_goes_over(served, model):
    served.limits = BudgetLimits(daily=Decimal(3), hard=True)
    gate = Gate()
    model.play(*[Slow(gate, Say("x", usage=Tokens(0, 10)))] * 9, by="request")
    asking = [
        asyncio.ensure_future(served.post(ANTHROPIC, stream=True, max_tokens=1)) for _ in range(9)
    ]
    await asyncio.to_thread(model.until, lambda _: len(model.seen) == 3)
    gate.open()
    codes = [one.status_code for one in await asyncio.gather(*asking)]
    assert codes.count(200) == len(model.asked) == 3
    assert codes.count(400) == 6
    assert served.spend().cost == 30


@pytest.mark.promise("B2")
async def test_limits_in_tokens_hold_for_models_without_a_price(tmp_path, model):
    async with Served(tmp_path, environ_for(model)) as served:
        served.ledger.grant(Grant(served.execution, max_tokens=15, hard=True))
        model.play(*[TEN] * 9, by="request")
        codes = [(await served.post(ANTHROPIC)).status_code for _ in range(4)]
        assert codes == [200, 200, 400, 400]


@pytest.mark.promise("B2")
async def test_a_steps_own_cap_stops_only_that_step(served, model):
    served.ledger.grant(Grant(served.execution, "one", max_cost=Decimal(5), hard=True))
    model.play(*[TEN] * 9, by="request")
    assert (await served.post(ANTHROPIC, step="one")).status_code == 200
    assert (await served.post(ANTHROPIC, step="one")).status_code == 400
    assert (await served.post(ANTHROPIC, step="two")).status_code == 200


@pytest.mark.promise("B2")
async def test_a_soft_bound_warns_once_and_the_work_goes_on(served, model):
    served.limits = BudgetLimits(daily=Decimal(10))
    served.ledger.grant(Grant(served.execution, mode="warn"))
    model.play(*[TEN] * 9, by="request")
    for _ in range(4):
        assert (await served.post(ANTHROPIC)).status_code == 200
    execution, step, crossings = await served.warned.get()
    assert (execution, step) == (served.execution, "one")
    assert str(crossings[0]) == "the daily limit of $10.00 is reached ($10.00 spent or reserved)"
    assert served.warned.empty()


async def held_request(served, model, way=ANTHROPIC):
    """Bring a task to its bound, and return the request that waits there."""
    served.ledger.grant(Grant(served.execution, max_cost=Decimal(10), mode="ask"))
    model.play(*[TEN] * 9, by="request")
    assert (await served.post(way)).status_code == 200
    asking = asyncio.ensure_future(served.post(way))
    told = await served.asked.get()
    assert told[:2] == (served.execution, "one")
    assert told[2][0].scope == "execution"
    assert not asking.done()
    return asking


@pytest.mark.promise("B2")
@by_way
async def test_at_a_bound_that_asks_a_request_is_held_until_somebody_said_yes(served, model, way):
    asking = await held_request(served, model, way)
    assert await served.wake() == 1, "nothing is decided yet"
    budgets.approve(served.ledger, served.execution, Decimal(30))
    await served.wake()
    assert (await asking).status_code == 200
    assert (await served.post(way)).status_code == 200, "up to what was approved nobody is asked"
    again = asyncio.ensure_future(served.post(way))
    await served.asked.get()
    budgets.approve(served.ledger, served.execution)
    await served.wake()
    assert (await again).status_code == 200
    assert served.spend().cost == 40


@pytest.mark.promise("B2")
async def test_a_yes_holds_until_a_whole_limit_more_is_spent_and_then_it_asks_again(served, model):
    asking = await held_request(served, model)
    offer = budgets.offer(served.ledger, served.execution, _reached(served))
    assert offer.text == "until this task has used $20.00"
    budgets.accept(served.ledger, served.execution, offer)
    await served.wake()
    assert (await asking).status_code == 200
    again = asyncio.ensure_future(served.post(ANTHROPIC))
    await served.asked.get()
    assert not again.done() and served.spend().cost == 20
    budgets.deny(served.ledger, served.execution)
    await served.wake()
    assert (await again).status_code == 400


def _reached(served):
    return served.ledger.judge(served.execution, "one", served.limits).crossings


@pytest.mark.promise("B2")
async def test_a_denied_request_is_refused_and_so_are_the_next(served, model):
    asking = await held_request(served, model)
    budgets.deny(served.ledger, served.execution)
    await served.wake()
    refused = await asking
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("Tenuto budget: ")
    assert (await served.post(ANTHROPIC)).status_code == 400
    assert len(model.asked) == 1
    assert served.spend().unsettled == 0


async def test_many_held_requests_are_one_question(served, model):
    asking = await held_request(served, model)
    more = [asyncio.ensure_future(served.post(ANTHROPIC)) for _ in range(5)]
    while served.gateway.held < 6:
        await served.wake()
    assert served.asked.empty()
    budgets.approve(served.ledger, served.execution)
    await served.wake()
    answers = await asyncio.gather(asking, *more)
    assert {one.status_code for one in answers} == {200}


async def test_a_held_request_whose_client_leaves_is_gone(served, model):
    asking = await held_request(served, model)
    asking.cancel()
    while await served.wake():
        await asyncio.sleep(0)
    assert len(model.asked) == 1
    assert served.spend().unsettled == 0


async def test_where_nobody_can_be_asked_it_is_refused(tmp_path, model):
    def ended(*told):
        raise NotRunning("the task has ended", "start it again")

    async with Served(tmp_path, environ_for(model), prices=DOLLAR, on_ask=ended) as served:
        served.ledger.grant(Grant(served.execution, max_cost=Decimal(0), mode="ask"))
        answer = await served.post(ANTHROPIC)
        assert answer.status_code == 400
        assert "Nobody could be asked: the task has ended" in answer.json()["error"]["message"]


async def test_a_wake_takes_the_secret(served):
    for proof in ({}, {"x-tenuto-proof": "0" * 32}, {"x-tenuto-proof": served.token()}):
        assert (await served.client.post("/_tenuto/wake", headers=proof)).status_code == 401
    told = (await served.client.get("/_tenuto/health?abc")).json()
    assert msgspec.json.encode(served.secret.hex()) not in msgspec.json.encode(told)


@pytest.mark.promise("B3")
async def test_a_gateway_that_ends_settles_what_was_under_way(tmp_path, model):
    gate = Gate()
    async with Served(tmp_path, environ_for(model), prices=DOLLAR) as served:
        model.play(Slow(gate), by="request")
        gate.let(1)
        asking = asyncio.ensure_future(served.post(ANTHROPIC, stream=True))
        await model.shown_soon()
        execution = served.execution
        ledger = Ledger(str(tmp_path))
    assert isinstance((await asyncio.gather(asking, return_exceptions=True))[0], Exception)
    spend = ledger.spend(execution)
    assert (spend.requests, spend.estimated, spend.unsettled) == (1, 1, 0)
    ledger.close()


# Models without a known price


@pytest.mark.promise("B1", "B2")
@by_way
@pytest.mark.parametrize("scope", ["daily", "monthly", "task", "own", "step"])
async def test_a_hard_cap_in_dollars_ends_what_has_no_known_price(tmp_path, model, way, scope):
    async with Served(tmp_path, environ_for(model), prices=Prices()) as served:
        if scope == "own":
            served.ledger.grant(Grant(served.execution, max_cost=Decimal(5), hard=True))
        elif scope == "step":
            served.ledger.grant(Grant(served.execution, "one", max_cost=Decimal(5), hard=True))
        else:
            served.limits = BudgetLimits(**{scope: Decimal(5)}, hard=True)
        model.play(*[TEN] * 9, by="request")
        assert (await served.post(way)).status_code == 200
        refused = await served.post(way)
        assert refused.status_code == 400
        message = refused.json()["error"]["message"]
        assert message.startswith("Tenuto budget: ")
        assert "$5" in message and "price is not known" in message
        assert "[prices]" in message and "--max-tokens" in message
        assert len(model.asked) == 1


@pytest.mark.promise("B1", "B2")
async def test_what_has_a_price_of_nothing_or_a_soft_cap_goes_on(tmp_path, model):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    free = Prices({"scripted": tier_price("0", "0")})
    async with Served(tmp_path / "a", environ_for(model), prices=free) as served:
        served.limits = BudgetLimits(daily=Decimal(5), hard=True)
        model.play(*[TEN] * 9, by="request")
        for _ in range(3):
            assert (await served.post(ANTHROPIC)).status_code == 200
        assert (served.spend().cost, served.spend().unpriced) == (0, 0)
    async with Served(tmp_path / "b", environ_for(model), prices=Prices()) as served:
        served.limits = BudgetLimits(daily=Decimal(5))
        for _ in range(3):
            assert (await served.post(ANTHROPIC)).status_code == 200
        assert served.spend().unpriced == 3
