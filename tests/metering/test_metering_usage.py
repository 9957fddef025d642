"""What a request used, read out of its answer: whole and streamed, cut anywhere, and out of garbage."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.core.budget import Tokens
from tenuto.metering.dialects import kind_of_answer, sort
from tenuto.metering.dialects.anthropic import MESSAGES
from tenuto.metering.dialects.google import CONTENT
from tenuto.metering.dialects.openai import CHAT, RESPONSES
from tenuto.metering.usage import Events, Objects

DIALECTS = [MESSAGES, CHAT, RESPONSES, CONTENT]
by_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one.name)


def sse(*values, names=False, end="\n"):
    lines = []
    for value in values:
        if names:
            lines.append(f"event: {value['type']}{end}")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"data: {text}{end}{end}")
    return "".join(lines).encode()


STREAMS = {
    "anthropic": sse(
        {"type": "message_start", "message": {"model": "claude-x", "usage": {
            "input_tokens": 10, "cache_creation_input_tokens": 40, "cache_read_input_tokens": 30,
            "cache_creation": {"ephemeral_1h_input_tokens": 15}, "output_tokens": 1}}},
        {"type": "ping"},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "höm"}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hello"}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta",
                                                  "partial_json": "{\"a\": 1}"}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 3}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
         "usage": {"output_tokens": 25}},
        {"type": "message_stop"},
        names=True,
    ),
    "openai-chat": sse(
        {"model": "gpt-x", "choices": [{"delta": {"role": "assistant", "content": "höm hello"}}]},
        {"model": "gpt-x", "choices": [{"delta": {"tool_calls": [
            {"function": {"name": "f", "arguments": "{\"a\": 1}"}}]}}]},
        {"model": "gpt-x", "choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"model": "gpt-x", "choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 25,
         "prompt_tokens_details": {"cached_tokens": 30}}},
        "[DONE]",
    ),
    "openai-responses": sse(
        {"type": "response.created", "response": {"model": "gpt-x", "usage": None}},
        {"type": "response.output_text.delta", "delta": "höm hello"},
        {"type": "response.function_call_arguments.delta", "delta": "{\"a\": 1}"},
        {"type": "response.completed", "response": {"model": "gpt-x", "usage": {
            "input_tokens": 40, "output_tokens": 25,
            "input_tokens_details": {"cached_tokens": 30}}}},
        names=True, end="\r\n",
    ),
    "google": sse(
        {"modelVersion": "gemini-x", "candidates": [{"content": {"parts": [{"text": "höm hello"}]}}],
         "usageMetadata": {"promptTokenCount": 40, "cachedContentTokenCount": 30}},
        {"modelVersion": "gemini-x", "candidates": [{"content": {"parts": []},
         "finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 40,
         "cachedContentTokenCount": 30, "candidatesTokenCount": 20, "thoughtsTokenCount": 5}},
        end="\r",
    ),
}  # fmt: skip
MODELS = {"anthropic": "claude-x", "google": "gemini-x"}
EXPECTED = {"anthropic": Tokens(10, 25, 30, 40)}


def read(dialect, pieces, kind="events", asked=7):
    reader = dialect.reader(kind)
    for piece in pieces:
        reader.feed(piece)
    return reader.end(asked)


@pytest.mark.promise("B1")
@by_dialect
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_stream_is_read_however_it_is_split(dialect, data):
    whole = STREAMS[dialect.name]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    usage = read(dialect, pieces)
    assert usage.tokens == EXPECTED.get(dialect.name, Tokens(10, 25, 30))
    assert usage.model == MODELS.get(dialect.name, "gpt-x")
    assert not usage.estimated
    assert usage.hour_writes == (15 if dialect is MESSAGES else 0)


@pytest.mark.promise("B1", "B2")
@by_dialect
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_stream_that_is_cut_anywhere_gives_what_was_told_and_an_estimate(dialect, data):
    whole = STREAMS[dialect.name]
    at = data.draw(st.integers(0, len(whole)))
    usage = read(dialect, [whole[:at]])
    told = EXPECTED.get(dialect.name, Tokens(10, 25, 30))
    assert usage.tokens.input in (7, told.input)
    assert usage.tokens.output <= told.output
    if not usage.estimated:
        assert usage.tokens == told
    if at < len(whole) // 2:
        assert usage.estimated


def test_the_estimate_is_of_the_text_that_was_seen():
    whole = STREAMS["anthropic"]
    usage = read(MESSAGES, [whole[: whole.index(b"event: message_delta")]])
    assert usage.tokens == Tokens(10, 4, 30, 40), "sixteen characters"
    assert usage.estimated
    whole = STREAMS["openai-chat"]
    usage = read(CHAT, [whole[: whole.index(b'data: {"model": "gpt-x", "choices": []')]])
    assert usage.tokens == Tokens(7, 5), "seventeen, and the input as it was asked"


@by_dialect
@given(junk=st.lists(st.binary(max_size=80), max_size=10))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("kind", ["events", "whole", "array"])
def test_no_garbage_makes_a_reader_fail(dialect, kind, junk):
    usage = read(dialect, junk, kind)
    assert usage.estimated
    assert usage.tokens.input == 7


_odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "usage", "message", "delta", "response", "choices", "model",
                         "candidates", "usageMetadata", "input_tokens", "output_tokens", "content",
                         "prompt_tokens", "completion_tokens", "promptTokenCount", "parts",
                         "candidatesTokenCount", "error", "tool_calls", "function", "output",
                         "prompt_tokens_details", "input_tokens_details"]),
        inner | st.sampled_from(["message_start", "message_delta", "response.completed", "error"]),
        max_size=5,
    ),
    max_leaves=8,
)  # fmt: skip


@by_dialect
@given(values=st.lists(_odd, max_size=5))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("kind", ["events", "whole", "array"])
def test_no_odd_json_makes_a_reader_fail_or_count_below_zero(dialect, kind, values):
    text = [json.dumps(value, allow_nan=True) for value in values]
    data = "".join(f"data: {one}\n\n" for one in text) if kind == "events" else "".join(text)
    usage = read(dialect, [data.encode()], kind)
    for count in (usage.tokens.input, usage.tokens.output, usage.tokens.cache_read):
        assert count >= 0
    assert isinstance(usage.model, str)
    assert isinstance(usage.error, str)


@given(st.lists(_odd.filter(lambda one: isinstance(one, dict)), max_size=4), st.data())
@settings(max_examples=30, deadline=None)
def test_an_array_in_pieces_is_split_into_its_objects(values, data):
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=True).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    objects = Objects()
    found = []
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += objects.feed(text[a:b])
    assert [json.dumps(json.loads(one)) for one in found] == [json.dumps(one) for one in values]


@given(st.lists(st.text("ab:\n\r ", max_size=8), max_size=5), st.data())
@settings(max_examples=30, deadline=None)
def test_events_pass_with_every_byte(lines, data):
    text = "".join(f"data: {line}\n\n" for line in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    events, raw = Events(), b""
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        raw += b"".join(one for one, _ in events.feed(text[a:b]))
    assert raw + events.remainder() == text


def test_whole_answers_are_read():
    message = {"model": "m", "type": "message", "usage": {"input_tokens": 4, "output_tokens": 5}}
    assert read(MESSAGES, [json.dumps(message).encode()], "whole").tokens == Tokens(4, 5)
    chat = {"model": "m", "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 5}}
    assert read(CHAT, [json.dumps(chat).encode()], "whole").tokens == Tokens(4, 5)
    embedded = {"model": "m", "data": [], "usage": {"prompt_tokens": 4, "total_tokens": 4}}
    usage = read(CHAT, [json.dumps(embedded).encode()], "whole")
    assert (usage.tokens, usage.estimated) == (Tokens(4), False)
    response = {"model": "m", "usage": {"input_tokens": 4, "output_tokens": 5}}
    assert read(RESPONSES, [json.dumps(response).encode()], "whole").tokens == Tokens(4, 5)
    content = {"usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 5}}
    usage = read(CONTENT, [json.dumps(content).encode()], "whole")
    assert (usage.tokens, usage.estimated) == (Tokens(4, 5), False)
    usage = read(CHAT, [b'{"choices": [{"message": {"content": "12345'], "whole")
    assert usage.estimated
    assert usage.tokens.input == 7


def test_an_array_from_google_is_read_as_it_comes():
    pieces = [{"usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 1}, "candidates": []},
              {"usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 5},
               "candidates": [{"finishReason": "STOP"}]}]  # fmt: skip
    usage = read(CONTENT, [json.dumps(pieces).encode()], "array")
    assert (usage.tokens, usage.estimated) == (Tokens(4, 5), False)


def test_errors_after_a_good_status_are_told():
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "too much"}}
    assert read(MESSAGES, [sse(error)]).error == "too much"
    failed = {"type": "response.failed", "response": {"error": {"message": "no"}, "usage": None}}
    assert read(RESPONSES, [sse(failed)]).error == "no"
    assert read(CHAT, [sse({"error": {"message": "no"}})]).error == "no"
    assert read(CONTENT, [sse({"error": {"message": "no", "code": 503}})]).error == "no"


@pytest.mark.parametrize(
    ("provider", "method", "path", "found"),
    [
        ("anthropic", "POST", "/v1/messages", MESSAGES),
        ("anthropic", "POST", "/v1/messages/", MESSAGES),
        ("anthropic", "POST", "/v1/messages/count_tokens", "free"),
        ("anthropic", "POST", "/v1/messages/batches", "unknown"),
        ("anthropic", "GET", "/v1/models", "free"),
        ("anthropic", "DELETE", "/v1/files/1", "unknown"),
        ("openai", "POST", "/chat/completions", CHAT),
        ("openai", "POST", "/responses", RESPONSES),
        ("openai", "POST", "/responses/compact", RESPONSES),
        ("openai", "POST", "/responses/resp_1/cancel", "free"),
        ("openai", "POST", "/embeddings", CHAT),
        ("openai", "POST", "/audio/speech", "unknown"),
        ("openai", "POST", "/v1/messages", "unknown"),
        ("google", "POST", "/v1beta/models/g:generateContent", CONTENT),
        ("google", "POST", "/v1beta/models/g:streamGenerateContent", CONTENT),
        ("google", "POST", "/v1beta/tunedModels/g:generateContent", CONTENT),
        ("google", "POST", "/v1beta/models/g:countTokens", "free"),
        ("google", "POST", "/v1beta/models/g:embedContent", "unknown"),
    ],
)
def test_requests_are_sorted_into_counted_free_and_unknown(provider, method, path, found):
    assert sort(provider, method, path) == found


def test_how_an_answer_comes_is_told_by_its_type():
    assert kind_of_answer(MESSAGES, "text/event-stream; charset=utf-8", True) == "events"
    assert kind_of_answer(MESSAGES, "application/json", True) == "whole"
    assert kind_of_answer(CONTENT, "application/json", True) == "array"
    assert kind_of_answer(CONTENT, "application/json", False) == "whole"


def test_a_chat_stream_is_made_to_tell_its_usage_and_nothing_else_is_changed():
    body = b'\n {"model": "m", "stream": true, "n": 1.10, "x": "\\u00e9"}'
    ask = CHAT.ask(body, "/chat/completions", "")
    assert ask is not None
    assert ask.hides_usage
    assert ask.body.replace(b'"stream_options":{"include_usage":true},', b"") == body
    assert json.loads(ask.body)["stream_options"] == {"include_usage": True}
    plain = b'{"model": "m"}'
    ask = CHAT.ask(plain, "/chat/completions", "")
    assert ask is not None
    assert (ask.body, ask.hides_usage) == (plain, False)
