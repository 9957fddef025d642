"""Prices: data for exact models, defaults for bare names, nothing for what is not known."""

import subprocess
import sys
from decimal import Decimal

import pytest
from genai_prices import Usage, calc_price

from tenuto.core.budget import Tokens
from tenuto.metering.prices import Price, Prices

MILLION = Tokens(1_000_000, 1_000_000)


@pytest.mark.promise("B1")
@pytest.mark.parametrize(
    ("name", "given", "made"), [("opus", 15, 75), ("sonnet", 3, 15), ("haiku", "0.25", "1.25")]
)
def test_bare_names_have_their_defaults_and_can_be_set(name, given, made):
    prices = Prices()
    assert prices.cost(name, Tokens(1_000_000)) == Decimal(given)
    assert prices.cost(name.upper(), Tokens(0, 1_000_000)) == Decimal(made)
    own = Prices({name: Price(Decimal(1), Decimal(2))})
    assert own.cost(name, MILLION) == 3


@pytest.mark.promise("B1")
@pytest.mark.parametrize(
    ("name", "provider", "exact"),
    [
        ("claude-opus-4-5", "anthropic", "claude-opus-4-5"),
        ("anthropic/claude-opus-4-5", "", "claude-opus-4-5"),
        ("claude-sonnet-4-5-20250929", "anthropic", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5[1m]", "anthropic", "claude-sonnet-4-5"),
        ("openrouter/anthropic/claude-sonnet-4-5", "", "claude-sonnet-4-5"),
        ("openai/gpt-5", "", "gpt-5"),
        ("models/gemini-2.5-pro", "google", "gemini-2.5-pro"),
        ("google/gemini-2.5-pro", "", "gemini-2.5-pro"),
    ],
)
def test_exact_models_and_their_other_names_have_the_price_of_the_data(name, provider, exact):
    tokens = Tokens(1000, 200, 300, 0)
    usage = Usage(input_tokens=1300, output_tokens=200, cache_read_tokens=300)
    assert Prices().cost(name, tokens, provider) == calc_price(usage, exact).total_price


@pytest.mark.promise("B1")
@pytest.mark.parametrize(
    "name",
    ["fake-model", "", "claude-opus-99", "a/b/c", "gpt-5-of-mine", "/", "é" * 500, "scripted"],
)
def test_what_is_not_known_is_not_guessed(name):
    prices = Prices()
    assert prices.cost(name, MILLION, "anthropic") is None
    assert not prices.known(name)
    assert prices.context_window(name) is None


def test_the_cache_and_long_contexts_have_prices_of_their_own():
    prices = Prices()
    plain = prices.cost("claude-opus-4-5", Tokens(1_000_000))
    read = prices.cost("claude-opus-4-5", Tokens(cache_read=1_000_000))
    write = prices.cost("claude-opus-4-5", Tokens(cache_write=1_000_000))
    hour = prices.cost("claude-opus-4-5", Tokens(cache_write=1_000_000), hour_writes=1_000_000)
    assert plain and read and write and hour
    assert read < plain < write < hour
    short = prices.cost("gemini-2.5-pro", Tokens(100_000), "google")
    long = prices.cost("gemini-2.5-pro", Tokens(400_000), "google")
    assert short and long
    assert long > 4 * short, "a tier"


def test_aliases_are_followed():
    prices = Prices(aliases={"mine": "claude-opus-4-5"})
    assert prices.cost("Mine", MILLION) == prices.cost("claude-opus-4-5", MILLION)


def test_windows_of_models_are_known():
    prices = Prices()
    assert prices.context_window("claude-opus-4-5") == 200_000
    assert prices.context_window("claude-sonnet-4-5[1m]") == 1_000_000


def test_the_data_is_loaded_at_the_first_price_only():
    code = (
        "import sys; import tenuto.metering.prices as p; import tenuto.metering.ledger;"
        "p.Prices().cost('opus', p.Tokens(1));"
        "assert 'genai_prices' not in sys.modules and 'httpx2' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
