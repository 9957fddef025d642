"""What the gateway tells of a model's server that fails: runtimes try again, and many say nothing."""

import asyncio

import httpx2
import pytest
import pytest_asyncio
from metering_help import ANTHROPIC, WAYS, Served, environ_for

from tenuto.testing.models.gates import Gate
from tenuto.testing.models.steps import Cut, Fail, Slow

pytestmark = [pytest.mark.asyncio]
by_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)


@pytest_asyncio.fixture
async def served(tmp_path, model):
    async with Served(tmp_path, environ_for(model)) as served:
        yield served
    assert served.troubles.empty()  # it has told all when it is closed


@pytest.mark.promise("R2", "U1")
@by_way
async def test_a_server_that_fails_is_told_and_that_it_answers_again(served, model, way):
    model.play(Fail(529), Fail(429), Fail(503), "Better.", "And on.", by="request")
    for _ in range(5):
        await served.post(way)
    told = [await served.troubles.get() for _ in range(4)]
    assert told == [
        (served.execution, "one", "the model's server answered 529 (overloaded)"),
        (served.execution, "one", "the model's server answered 429 (too many requests)"),
        (served.execution, "one", "the model's server answered 503 (service unavailable)"),
        (served.execution, "one", ""),
    ]


@by_way
async def test_an_answer_that_breaks_off_is_told(served, model, way):
    model.play(Cut(1), by="request")
    with pytest.raises(httpx2.RemoteProtocolError):
        await served.post(way, stream=True)
    assert await served.troubles.get() == (
        served.execution, "one", "the model's answer broke off",
    )  # fmt: skip


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_what_no_runtime_tries_again_is_its_own_to_tell(served, model, status):
    model.play(Fail(status), "Better.", by="request")
    assert (await served.post(ANTHROPIC)).status_code == status
    assert (await served.post(ANTHROPIC)).status_code == 200


async def test_what_was_asked_before_a_failure_does_not_end_it(served, model):
    gate = Gate()
    model.play(Slow(gate), Fail(529), "Better.", by="request")
    first = asyncio.ensure_future(served.post(ANTHROPIC, stream=True))
    await model.shown_soon()
    await served.post(ANTHROPIC)
    gate.open()
    assert (await first).status_code == 200
    assert "529" in (await served.troubles.get())[2]
    assert served.troubles.empty()
    await served.post(ANTHROPIC)
    assert (await served.troubles.get())[2] == ""


async def test_a_server_that_is_not_there_is_told(tmp_path, model):
    environ = environ_for(model)
    model.close()
    async with Served(tmp_path, environ) as served:
        assert (await served.post(ANTHROPIC)).status_code == 502
        assert "gave no answer" in (await served.troubles.get())[2]
