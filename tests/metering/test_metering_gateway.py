"""The gateway in front of the scripted model: what it counts is what the model billed."""

import asyncio
import json

import httpx2
import pytest
from metering_help import ANTHROPIC, CHAT, GOOGLE, KEY, WAYS, Served, environ_for

from tenuto.core.budget import Grant, Tokens
from tenuto.metering import passes, serving
from tenuto.metering.upstreams import fingerprint, from_environ
from tenuto.testing.models.gates import Gate
from tenuto.testing.models.steps import LONG, Cut, Fail, Garbage, Say, Silence, Slow

pytestmark = [pytest.mark.asyncio]
by_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
by_stream = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def same(served, model, requests=1, estimated=0):
    """The ledger says what the model billed, for the execution, its step and the day."""
    spend = served.spend()
    assert spend.tokens == model.billed()
    assert (spend.requests, spend.estimated, spend.unsettled) == (requests, estimated, 0)
    assert served.ledger.spend(served.execution, "one") == spend
    assert served.ledger.window("daily") == spend == served.ledger.window("monthly")


@pytest.mark.promise("B1", "B3")
@by_way
@by_stream
async def test_an_answer_passes_and_is_counted_exactly(served, model, way, stream):
    model.play(Say("The answer.", usage=Tokens(100, 7, 20)), bare=True)
    answer = await served.post(way, stream)
    assert answer.status_code == 200, answer.text
    assert "The answer." in answer.text.replace('"', "").replace("\\", "") or stream
    same(served, model)
    assert served.spend().tokens == Tokens(100, 7, 20)
    assert served.spend().unpriced == 1, "nobody knows what the scripted model costs"


@by_way
@by_stream
async def test_the_answer_is_the_same_as_without_a_gateway(served, model, way, stream):
    """But for what the model makes anew each time."""
    model.play("What passes, passes whole: ümläut \u2028 and all.", by="request")
    asks = {"stream_options": {"include_usage": True}} if way is CHAT and stream else {}
    request = way.request(served.token(), stream, **asks)
    through = await served.client.post(**request)
    prefix = "/openai" if way.path.startswith("/openai") else f"/{way.name}"
    model.play("What passes, passes whole: ümläut \u2028 and all.", by="request")
    async with httpx2.AsyncClient(base_url=model.url, trust_env=False) as direct:
        straight = await direct.post(**{**request, "url": request["url"].removeprefix(prefix)})
    assert _skeleton(through.text) == _skeleton(straight.text)
    assert through.headers["content-type"] == straight.headers["content-type"]


def _skeleton(text):
    import re

    text = re.sub(r'"(id|item_id|responseId|response_id|created|created_at)": ?[^,}]+', "", text)
    return re.sub(r'"(input_tokens|prompt_tokens|promptTokenCount|total_tokens)": ?\d+', "", text)


async def test_the_usage_chunk_of_chat_is_seen_only_by_who_asked(served, model):
    model.play("An answer.", by="request")
    without = await served.post(CHAT, stream=True)
    same(served, model)
    assert '"prompt_tokens"' not in without.text
    assert "data: [DONE]" in without.text
    model.play("An answer.", by="request")
    given = await served.post(CHAT, stream=True, stream_options={"include_usage": True})
    assert '"prompt_tokens"' in given.text
    model.play("An answer.", by="request")
    refused = await served.post(CHAT, stream=True, stream_options={"include_usage": False})
    assert '"prompt_tokens"' not in refused.text
    same(served, model, requests=3)


@pytest.mark.promise("B1", "B2")
@by_way
@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_cut_stream_is_cut_for_the_client_too_and_counted(served, model, way, after):
    model.play(Cut(after), by="request")
    with pytest.raises(httpx2.RemoteProtocolError):
        await served.post(way, stream=True)
    await served.ledger.settled.acquire()
    same(served, model, estimated=1)
    assert served.spend().tokens.input > 0


@pytest.mark.promise("B1", "B2")
@by_way
async def test_a_client_that_leaves_ends_the_request_and_what_it_saw_counts(served, model, way):
    gate = Gate()
    model.play(Slow(gate), by="request")
    gate.let(2)
    request = way.request(served.token(), stream=True)
    half = len(LONG) // 2
    async with served.client.stream("POST", **request) as answer:
        seen = ""
        async for text in answer.aiter_text():
            seen += text
            if LONG[half - 20 : half - 1] in seen.replace("\\", ""):
                break
    await served.ledger.settled.acquire()
    same(served, model, estimated=1)
    assert 0 < served.spend().tokens.output < len(LONG) // 4


async def test_a_client_that_leaves_before_the_answer_began_has_spent_nothing(served, model):
    silence = Silence()
    model.play(silence, "late", by="request")
    asking = asyncio.ensure_future(served.post(ANTHROPIC, stream=True))
    await model.shown_soon()
    asking.cancel()
    await served.ledger.settled.acquire()
    same(served, model, estimated=1)
    assert served.spend().tokens == Tokens()


@by_way
@pytest.mark.parametrize("status", [401, 429, 529])
async def test_an_error_of_the_provider_passes_as_it_is_and_costs_nothing(
    served, model, way, status
):
    stream = status != 401
    model.play(Fail(status, "no luck", retry_after=7), by="request")
    answer = await served.post(way, stream)
    assert answer.status_code == status
    assert "no luck" in answer.text
    assert answer.headers["retry-after"] == "7"
    same(served, model)
    assert served.spend().tokens == Tokens()


@by_way
async def test_garbage_with_a_good_status_is_counted_by_what_was_asked(served, model, way):
    model.play(Garbage(), by="request")
    answer = await served.post(way, stream=True)
    assert answer.content == Garbage().data
    same(served, model, estimated=1)


@by_way
async def test_an_upstream_that_is_not_there_is_told_in_the_providers_shape(tmp_path, model, way):
    environ = environ_for(model)
    model.close()
    async with Served(tmp_path, environ) as served:
        answer = await served.post(way)
        assert answer.status_code == 502
        assert "Tenuto gateway" in answer.json()["error"]["message"]
        assert served.spend().tokens == Tokens()
        assert served.spend().unsettled == 0


@pytest.mark.promise("B3")
@by_way
async def test_the_model_sees_the_real_key_and_no_token(served, model, way):
    model.play("yes", by="request")
    assert (await served.post(way)).status_code == 200
    headers = model.seen[0].headers
    assert KEY in " ".join(headers.values())
    assert "tenuto-" not in json.dumps([headers, model.seen[0].path])


async def test_a_token_in_googles_query_is_taken_out(served, model):
    model.play("yes", by="request")
    request = GOOGLE.request("x", stream=True)
    request["headers"].pop("x-goog-api-key")
    request["url"] += f"&key={served.token()}"
    assert (await served.client.post(**request)).status_code == 200
    assert model.seen[0].headers["x-goog-api-key"] == KEY
    assert "key=" not in model.seen[0].path
    assert "alt=sse" in model.seen[0].path


async def test_what_costs_nothing_passes_uncounted(served, model):
    auth = {"x-api-key": served.token(), "anthropic-version": "2023-06-01"}
    listed = await served.client.get("/anthropic/v1/models", headers=auth)
    assert listed.json()["data"][0]["id"] == "scripted"
    body = json.dumps({"model": "scripted", "messages": []})
    path = "/anthropic/v1/messages/count_tokens"
    counted = await served.client.post(path, headers=auth, content=body)
    assert counted.json()["input_tokens"] > 0
    assert served.spend().requests == 0


@pytest.mark.parametrize(
    "path",
    ["/anthropic/v1/messages/batches", "/openai/v1/images/generations", "/openai/v1/batches",
     "/google/v1beta/models/scripted:batchGenerateContent", "/openai/chat/completions",
     "/anthropic/v1/messages/%2e%2e/messages", "/"],
)  # fmt: skip
async def test_what_nobody_could_price_is_not_passed_on(served, model, path):
    answer = await served.client.post(path, headers={"x-api-key": served.token()}, content="{}")
    assert answer.status_code == 404
    assert model.asked == []
    assert model.other == []


# Hostile


@pytest.mark.promise("B3")
@by_way
async def test_only_a_token_of_this_project_is_served(served, model, way, tmp_path):
    good = served.token()
    other = passes.token(b"another project's secret", served.execution, "one")
    swapped = good.replace("-one-", "-two-")
    stranger = good[:7] + "0" * 36 + good[43:]
    for bad in (
        "",
        "x",
        KEY,
        good[:-1],
        good + "0",
        swapped,
        stranger,
        other,
        "tenuto-" + "é" * 40,
    ):
        request = way.request(bad, stream=False)
        if not bad:
            del request["headers"][way.header]
        request["headers"] = {k: v.encode() for k, v in request["headers"].items()}
        answer = await served.client.post(**request)
        assert answer.status_code == 401, bad
        assert "Tenuto gateway" in answer.json()["error"]["message"]
    assert model.asked == []
    assert not (tmp_path / "ledger").exists(), "nothing was even looked up"


async def test_a_token_counts_for_its_own_execution_and_no_other(served, model):
    from tenuto.core.ids import new_id

    model.play(Say("a", usage=Tokens(5, 5)), by="request")
    other = new_id()
    token = passes.token(served.secret, other, "theirs")
    await served.client.post(**ANTHROPIC.request(token, stream=False))
    assert served.spend().requests == 0
    assert served.ledger.spend(other, "theirs").tokens == Tokens(5, 5)


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"origin": "http://127.0.0.1"}, {"sec-fetch-site": "same-origin"},
     {"host": "127.0.0.1.evil.example:80"}],
)  # fmt: skip
async def test_a_browsers_page_is_refused(served, model, headers):
    request = ANTHROPIC.request(served.token(), stream=False)
    request["headers"] |= headers
    assert (await served.client.post(**request)).status_code == 403
    wake = {"x-tenuto-proof": passes.proof(served.secret, "wake"), **headers}
    assert (await served.client.post("/_tenuto/wake", headers=wake)).status_code == 403
    assert model.asked == []


async def test_another_method_cannot_be_smuggled_in(served, model):
    headers = {"x-goog-api-key": served.token(), "x-http-method-override": "POST"}
    path = "/google/v1beta/models/scripted:generateContent"
    await served.client.get(path, headers=headers)
    assert model.asked == []
    assert all(one.startswith("GET") for one in model.other)


async def test_huge_headers_and_bodies_are_refused_and_the_next_request_is_served(served, model):
    request = ANTHROPIC.request(served.token(), stream=False)
    huge = {**request, "headers": {**request["headers"], "x-huge": "x" * 200_000}}
    try:
        assert (await served.client.post(**huge)).status_code in (400, 431)
    except httpx2.TransportError:
        pass  # it may close the line while we still talk
    for body in (b"", b"[]", b"{", b'{"model": 7}', b"\xff" * 100, b"[" * 10_000):
        answer = await served.client.post(**{**request, "content": body})
        assert answer.status_code == 400
    model.play("fine", by="request")
    assert (await served.client.post(**request)).status_code == 200
    assert len(model.asked) == 1


async def test_a_client_that_reads_slowly_holds_up_nobody_else(served, model):
    large = "x" * 8_000_000
    model.play(large, "small", by="request")
    async with served.client.stream("POST", **CHAT.request(served.token(), True)) as slow:
        await model.shown_soon()
        assert (await served.post(ANTHROPIC)).status_code == 200
        text = "".join([part async for part in slow.aiter_text()])
    assert text.count("x") >= len(large)
    same(served, model, requests=2)


async def test_a_packed_answer_is_unpacked_and_counted(tmp_path):
    """Some upstreams pack what they were asked not to."""
    import gzip
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    told = {
        "type": "message",
        "model": "scripted",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }

    class Packs(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            body = gzip.compress(json.dumps(told).encode())
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-encoding", "gzip")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Packs)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        async with Served(
            tmp_path, {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url}
        ) as served:
            answer = await served.post(ANTHROPIC)
            assert answer.json() == told
            assert served.spend().tokens == Tokens(3, 4)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_without_a_key_a_provider_of_the_world_is_not_asked(tmp_path):
    async with Served(tmp_path, {}) as served:
        answer = await served.post(ANTHROPIC)
        assert answer.status_code == 401
        assert "no key for anthropic" in answer.json()["error"]["message"]
        assert served.spend().unsettled == 0


async def test_what_is_on_this_machine_is_not_asked_through_a_proxy(tmp_path, model, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with Served(tmp_path, environ_for(model)) as served:
        model.play("yes", by="request")
        assert (await served.post(ANTHROPIC)).status_code == 200


async def test_it_serves_for_as_long_as_somebody_needs_it(tmp_path, model, capsys):
    needed = iter([True, True, False])
    asked = []

    def need():
        asked.append(next(needed))
        return asked[-1]

    await serving.serve(str(tmp_path), environ_for(model), "an execution", idle_s=0.05, needed=need)
    assert asked == [True, True, False]
    record = serving.read_record(str(tmp_path), fingerprint(from_environ(environ_for(model))))
    assert record is not None
    assert capsys.readouterr().out == f"{serving.READY} on {record.url}\n"
    again = serving.listen(str(tmp_path), record.fingerprint)
    taken = serving.listen(str(tmp_path), record.fingerprint)
    assert again.getsockname()[1] == record.port
    assert taken.getsockname()[1] not in (0, record.port), "another one, if it is taken"
    again.close()
    taken.close()


@pytest.mark.promise("B1", "B3")
async def test_a_token_counts_for_the_step_it_is_bound_to_and_what_is_under_way_stays(
    served, model
):
    gate = Gate()
    model.play(Slow(gate, Say(LONG, usage=Tokens(100, 1))), by="request")
    asking = asyncio.ensure_future(served.post(ANTHROPIC, stream=True))
    await model.shown_soon()
    served.ledger.bind(served.execution, "one", "two")
    model.play(Say("second", usage=Tokens(20, 2)), Say("third", usage=Tokens(3, 3)), by="request")
    assert (await served.post(ANTHROPIC)).status_code == 200
    gate.open()
    assert (await asking).status_code == 200
    served.ledger.bind(served.execution, "one", "three")
    assert (await served.post(ANTHROPIC)).status_code == 200

    def spent(step):
        return served.ledger.spend(served.execution, step).tokens

    assert [spent(one) for one in ("one", "two", "three")] == [
        Tokens(100, 1), Tokens(20, 2), Tokens(3, 3),
    ]  # fmt: skip
    assert served.spend().tokens == model.billed() == served.ledger.window("daily").tokens


@pytest.mark.promise("B2", "B3")
async def test_a_bound_of_the_step_that_a_token_stands_for_is_the_one_that_holds(served, model):
    served.ledger.grant(Grant(served.execution, "two", max_tokens=5, hard=True))
    model.play(*[Say("so much", usage=Tokens(20, 2))] * 3, by="request")
    assert (await served.post(ANTHROPIC)).status_code == 200
    served.ledger.bind(served.execution, "one", "two")
    assert (await served.post(ANTHROPIC)).status_code == 200
    refused = await served.post(ANTHROPIC)
    assert refused.status_code == 400 and "step limit of 5 tokens" in refused.text
    assert len(model.seen) == 2
