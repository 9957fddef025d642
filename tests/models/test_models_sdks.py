"""Each dialect through its provider's own library: streams and documents, tools, errors, bills."""

from __future__ import annotations

import pytest
from sdk_help import PROMPT, SDKS

from tenuto.core.budget import Tokens
from tenuto.testing.models import Call, Cut, Fail, Garbage, Model, Overflow, Say

TEXT = "The quick brown fox jumps over the lazy dog. Jörg ißt Käse."


def up(number: int) -> int:
    return -(-number // 4)


@pytest.mark.parametrize("stream", [True, False])
def test_a_text_arrives_in_pieces_and_its_usage_is_what_was_billed(model: Model, sdk, stream: bool):
    model.play(Say(TEXT, pieces=5), bare=True)
    told = sdk.ask(model.url, stream)
    assert told.text == TEXT
    assert not stream or told.pieces == 5
    (bill,) = model.bill
    assert (bill.dialect, bill.model, bill.status, bill.complete) == (sdk.name, "m", 200, True)
    assert bill.tokens == told.tokens == model.billed()
    assert bill.tokens.output == up(len(TEXT)) and bill.tokens.input > len(PROMPT) / 4
    seen = model.shown
    assert seen.texts == [PROMPT] and seen.stream is stream and not seen.tools
    assert seen.system or sdk.name == "openai-chat"


@pytest.mark.parametrize("stream", [True, False])
def test_several_calls_in_one_answer_after_some_words(model: Model, sdk, stream: bool):
    first, second = {"path": "a" * 30 + "ü"}, {"path": "b"}
    model.play(Say("Let me see.", Call("read_file", **first), Call("list_files", **second)))
    told = sdk.ask(model.url, stream, tools=True)
    assert told.calls == [("read_file", first), ("list_files", second)]
    assert told.text == "Let me see."
    assert not stream or told.pieces >= (3 if sdk.name == "google" else 8)
    assert model.bill[0].tokens == told.tokens
    assert model.shown.tools["read_file"].schema["required"] == ["path"]
    assert model.shown.tools["list_files"].description == "List files"


@pytest.mark.parametrize("stream", [True, False])
def test_usage_can_be_set(model: Model, sdk, stream: bool):
    usage = Tokens(input=1234, output=567, cache_read=89, cache_write=12)
    model.play(Say(TEXT, usage=usage), bare=True)
    told = sdk.ask(model.url, stream)
    if sdk.name != "anthropic":  # the others do not tell of what is written to the cache
        usage = Tokens(input=1246, output=567, cache_read=89)
    assert told.tokens == usage == model.billed()


def test_what_came_from_a_cache_is_taken_out_of_the_counted_input(model: Model, sdk):
    model.play(TEXT, bare=True)
    plain = sdk.ask(model.url).tokens
    model.play(Say(TEXT, cache_read=7), bare=True)
    told = sdk.ask(model.url).tokens
    assert told == Tokens(plain.input - 7, plain.output, 7)


@pytest.mark.parametrize("name", ["anthropic", "google"])
@pytest.mark.parametrize("stream", [True, False])
def test_thoughts_come_apart_from_the_text_and_are_billed(model: Model, name: str, stream: bool):
    model.play(Say(TEXT, thinking="Hm, let me think."), bare=True)
    told = SDKS[name].ask(model.url, stream)
    assert (told.thought, told.text) == ("Hm, let me think.", TEXT)
    assert told.tokens == model.billed()
    assert told.tokens.output == up(len(TEXT) + len("Hm, let me think."))


FAILURES = {
    400: "BadRequest", 401: "Authentication", 403: "PermissionDenied", 404: "NotFound",
    429: "RateLimit", 500: "InternalServer", 503: "", 529: "",
}  # fmt: skip


@pytest.mark.parametrize("status", sorted(FAILURES))
def test_a_failure_has_the_providers_shape_and_is_used_up(model: Model, sdk, status: int):
    model.play(Fail(status, "broken on purpose", retry_after=7, times=2), TEXT, bare=True)
    for stream in (True, False):
        with pytest.raises(Exception, match="broken on purpose") as failed:
            sdk.ask(model.url, stream)
        error = failed.value
        if sdk.name == "google":
            assert getattr(error, "code", None) == status
            assert '"7s"' in str(error).replace("'", '"')
            if status == 429:
                assert getattr(error, "status", None) == "RESOURCE_EXHAUSTED"
        else:
            response = getattr(error, "response")  # noqa: B009
            assert getattr(error, "status_code", None) == status
            assert response.headers["retry-after"] == "7"
            assert status > 500 or type(error).__name__ == FAILURES[status] + "Error"
            assert response.json()["error"]["type"]
    assert model.bill == []
    assert sdk.ask(model.url).text == TEXT
    assert len(model.bill) == 1 and len(model.seen) == 3


OVERFLOWS = {
    "anthropic": "prompt is too long",
    "google": "exceeds the maximum number of tokens",
    "openai-chat": "maximum context length is",
    "openai-responses": "exceeds the context window",
}


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_is_too_long_is_told_so_in_the_providers_words(
    model: Model, sdk, stream: bool
):
    model.play(Overflow(), TEXT, bare=True)
    with pytest.raises(Exception, match=OVERFLOWS[sdk.name]) as failed:
        sdk.ask(model.url, stream)
    if sdk.name.startswith("openai"):
        assert getattr(failed.value, "code", None) == "context_length_exceeded"
    assert model.bill == []
    assert sdk.ask(model.url, stream).text == TEXT


@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_a_cut_drops_the_line_and_bills_what_was_sent(model: Model, sdk, after: int):
    model.play(Cut(after, Say("x" * 50, pieces=5)), TEXT, bare=True)
    with pytest.raises(Exception) as failed:
        sdk.ask(model.url)
    assert not isinstance(failed.value, AssertionError)
    (bill,) = model.bill
    least = 1 if sdk.name == "anthropic" else 0
    assert bill.tokens.output == max(least, up(10 * after)) and not bill.complete
    assert bill.tokens.input > 0
    assert sdk.ask(model.url).text == TEXT
    assert [one.complete for one in model.bill] == [False, True] and not model.errors


def test_a_document_that_is_cut_is_an_error_too(model: Model, sdk):
    model.play(Cut(1, TEXT), TEXT, bare=True)
    with pytest.raises(Exception):  # noqa: B017 - each library has its own
        sdk.ask(model.url, stream=False)
    assert not model.bill[0].complete
    assert sdk.ask(model.url, stream=False).text == TEXT


@pytest.mark.parametrize("stream", [True, False])
def test_garbage_is_no_answer_for_any_library(model: Model, sdk, stream: bool):
    model.play(Garbage(), bare=True)
    with pytest.raises(Exception) as failed:
        told = sdk.ask(model.url, stream)
        assert not told.text and not told.calls, "garbage was taken for an answer"
        raise ValueError("an empty answer")
    assert not isinstance(failed.value, AssertionError)
    assert model.bill[0].tokens.output == 0 and not model.bill[0].complete


def test_models_are_listed_and_tokens_counted_in_each_shape(sdk):
    with Model(names=("one", "two")) as model, sdk.client(model.url) as client:
        ids = [
            (one.name if sdk.name == "google" else one.id).removeprefix("models/")
            for one in client.models.list()
        ]
        assert ids == ["one", "two"]
        if sdk.name == "anthropic":
            messages = [{"role": "user", "content": PROMPT}]
            assert client.messages.count_tokens(model="m", messages=messages).input_tokens > 5
            assert client.models.retrieve("three").id == "three"
        elif sdk.name == "google":
            assert client.models.count_tokens(model="m", contents=PROMPT).total_tokens > 5
            assert client.models.get(model="three").name == "models/three"
        else:
            assert client.models.retrieve("three").id == "three"
        assert model.bill == [] and not model.errors


def test_any_prefix_may_stand_before_the_path(model: Model, sdk):
    model.play(TEXT, bare=True)
    assert sdk.ask(model.url + "/some/" + sdk.name).text == TEXT
    assert model.shown.path.startswith("/some/" + sdk.name)
    assert {"x-api-key", "authorization", "x-goog-api-key"} & model.shown.headers.keys()
