"""Numbers at their edges: whatever an upstream, a runtime or a setting tells, nothing breaks by it."""

import json
import tempfile
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenuto.core.budget import COUNT_MOST, BudgetLimits, Estimate, Spend, Tokens
from tenuto.core.errors import InvalidInput
from tenuto.core.quantities import money
from tenuto.engine.settings import parse_dollars
from tenuto.metering.dialects import anthropic, google, openai
from tenuto.metering.ledger import Ledger
from tenuto.metering.prices import Prices, tier_price
from tenuto.runners.acp_events import Listener, Update

pytestmark = pytest.mark.promise("B1")

COUNTS = st.integers(0, COUNT_MOST - 1)
TOKENS = st.builds(Tokens, COUNTS, COUNTS, COUNTS, COUNTS)
DOLLARS = st.decimals(0, Decimal(10) ** 14, allow_nan=False, allow_infinity=False)
EDGES = [
    0, 1, -1, 2**31, 2**53 - 1, 2**53, 2**63, 2**64, 10**30, -(2**63), 0.5, 1e308, -0.0, True, False,
    None, "7", "", "NaN", [], [7], {}, {"tokens": 7},
]  # fmt: skip
ANYTHING = st.one_of(
    st.sampled_from(EDGES), st.integers(), st.floats(), st.text(max_size=5), st.none()
)
READERS = {
    "anthropic": (anthropic.MESSAGES.reader, ("input_tokens", "output_tokens",
                  "cache_read_input_tokens", "cache_creation_input_tokens")),
    "chat": (openai.CHAT.reader, ("prompt_tokens", "completion_tokens", "total_tokens")),
    "responses": (openai.RESPONSES.reader, ("input_tokens", "output_tokens", "total_tokens")),
    "google": (google.CONTENT.reader, ("promptTokenCount", "candidatesTokenCount",
               "thoughtsTokenCount", "cachedContentTokenCount", "toolUsePromptTokenCount")),
}  # fmt: skip


@given(DOLLARS, DOLLARS, TOKENS)
@example(Decimal(10) ** 14, Decimal(10) ** 14, Tokens(*[2**53 - 1] * 4))
@example(Decimal("1e-400000"), Decimal("1e-20"), Tokens(1, 1))
def test_every_price_times_every_count_is_a_cost(coming, going, tokens):
    cost = Prices({"own": tier_price(coming, going)}).cost("own", tokens)
    assert cost is not None and cost.is_finite() and cost >= 0
    about = (tokens.input * coming + tokens.output * going) / 1_000_000
    assert cost >= about * Decimal("0.999999") - Decimal("1e-9")
    assert money(cost).startswith("$")


@settings(deadline=None)  # the first one loads the data
@given(TOKENS, st.integers(0, 2**53))
@example(Tokens(*[2**53 - 1] * 4), 2**53)
def test_every_count_has_a_cost_by_the_price_data(tokens, hour_writes):
    for model in ("claude-opus-4-5", "gpt-5", "gemini-2.5-pro"):
        cost = Prices().cost(model, tokens, hour_writes=hour_writes)
        assert cost is not None and cost.is_finite() and cost >= 0


@given(st.one_of(st.text(max_size=12), ANYTHING, st.decimals()))
@example("1e999999999")
@example("sNaN")
@example("-0.01")
@example("1_0")
def test_no_amount_of_dollars_is_taken_that_is_none(value):
    try:
        amount = parse_dollars(value)
    except InvalidInput:
        return
    assert amount.is_finite() and 0 <= amount <= 10**9
    assert tier_price(amount, amount).of(Tokens(*[2**53 - 1] * 4)) >= 0


def _whole(name, usage):
    key = "usageMetadata" if name == "google" else "usage"
    return {"model": "m", "type": "message", key: usage}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["whole", "events"])
@given(data=st.data())
@settings(max_examples=60)
def test_no_usage_that_an_upstream_tells_breaks_the_reader(name, kind, data):
    make, fields = READERS[name]
    usage = data.draw(
        st.one_of(ANYTHING, st.dictionaries(st.sampled_from([*fields, "x"]), ANYTHING))
    )
    answer = _whole(name, usage)
    if kind == "events" and name == "anthropic":
        answer = {"type": "message_delta", "usage": usage}
    elif kind == "events" and name == "responses":
        answer = {"type": "response.completed", "response": {"usage": usage}}
    body = json.dumps(answer).encode()
    reader = make(kind)
    reader.feed(b"data: " + body + b"\n\n" if kind == "events" else body)
    found = reader.end(asked=11)
    counts = (found.tokens.input, found.tokens.output, found.tokens.cache_read)
    assert all(type(one) is int and 0 <= one < 4 * COUNT_MOST for one in counts)
    if found.tokens.input == 11 and not found.estimated:
        assert 11 in usage.values(), "what was not told is said to be estimated"
    cost = Prices().cost("opus", found.tokens, hour_writes=found.hour_writes)
    assert cost is not None and cost >= 0


@given(st.lists(st.tuples(TOKENS, st.one_of(st.none(), DOLLARS)), max_size=5), DOLLARS)
@settings(max_examples=30, deadline=None)
@example([(Tokens(*[2**53 - 1] * 4), Decimal(10) ** 14)] * 3, Decimal("1e-12"))
def test_the_ledger_adds_the_largest_numbers_and_judges_by_them(requests, limit):
    with tempfile.TemporaryDirectory() as home:
        ledger = Ledger(home)
        task = "01a1e3cb-569f-79ec-87fb-ae24393c9def"
        for tokens, cost in requests:
            held = ledger.admit(task, "s", "m", Estimate(tokens, cost)).reservation
            assert ledger.settle(held, tokens, cost)
        known = [cost for _, cost in requests if cost is not None]
        spend = ledger.spend(task)
        assert spend.tokens.total == sum(tokens.total for tokens, _ in requests)
        assert abs(spend.cost - sum(known, Decimal(0))) <= spend.cost * Decimal("1e-20")
        reached = ledger.judge(task, "s", BudgetLimits(daily=limit, hard=True)).verdict == "stop"
        assert reached == (spend.cost >= limit or spend.unpriced > 0)
        ledger.close()
        again = Ledger(home)  # what was written can be read
        assert again.spend(task) == spend and again.health().unknown == 0
        again.close()
    assert Spend() + spend == spend


@given(st.integers(), st.integers(), st.integers(), st.integers())
@example(-5, 2**60, -(10**30), 2**53)
def test_counts_that_a_runtime_tells_are_bounded(coming, going, read, written):
    tokens = Tokens.told(coming, going, read, written)
    pairs = zip((coming, going, read, written), (tokens.input, tokens.output, tokens.cache_read,
                tokens.cache_write), strict=True)  # fmt: skip
    assert all(kept == (told if 0 <= told < COUNT_MOST else 0) for told, kept in pairs)


@given(st.lists(ANYTHING, max_size=4))
@example(["NaN", 1, "sNaN", "Infinity"])
def test_no_cost_that_an_agent_tells_breaks_its_run(amounts):
    events = Listener(new=True)
    for amount in amounts:
        list(events.hear(Update("usage_update", cost={"amount": amount, "currency": "USD"})))
        used = events.usage({"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}}, "m")
        assert used is None or used.cost is None or used.cost.is_finite()
