"""Whatever a model's API does, the turn ends with a kind and a message, and the next one works."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from fake_api import CUT, DIALECTS, HANG, Anthropic, Api, Chat, Google, Reply, Responses, fail
from loop_help import Stand, ask, end_of, only

from tenuto.core.runs import Endpoint, Finished, Retried, Said, ToolEnded, Used

pytestmark = pytest.mark.asyncio

STATUSES = [
    (401, "bad key", "auth"),
    (403, "not yours", "auth"),
    (400, "messages: roles must alternate", "bad_request"),
    (404, "no such model", "bad_request"),
    (400, "Tenuto budget: 2.00 of 2.00 dollars are spent", "budget"),
    (429, "slow down", "rate_limit"),
    (500, "oops", "server"),
    (502, "bad gateway", "server"),
    (503, "not now", "overloaded"),
    (529, "overloaded", "overloaded"),
]


@pytest.mark.promise("R2")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_status_is_one_kind_of_error(dialect: Any, stand: Stand, api: Api) -> None:
    session = await stand.open(model=dialect.model)
    for status, message, kind in STATUSES:
        api.play(fail(status, message))
        end = end_of(await ask(session))
        assert (end.ok, end.kind, end.status) == (False, kind, status)
        assert end.message.startswith(message)
        assert len(api.requests) == 1
    api.play(dialect.text("And yet."))
    assert end_of(await ask(session)).text == "And yet."


@pytest.mark.parametrize(
    ("dialect", "message"),
    [
        (Anthropic, "prompt is too long: 250000 tokens > 200000 maximum"),
        (Chat, "This model's maximum context length is 128000 tokens."),
        (Responses, "Your input exceeds the context window of this model."),
        (Google, "The input token count (2000000) exceeds the maximum number of tokens allowed"),
    ],
)
async def test_too_much_for_the_window_is_told_apart(
    dialect: Any, message: str, stand: Stand, api: Api
) -> None:
    api.play(fail(400, message))
    end = end_of(await ask(await stand.open(model=dialect.model)))
    assert (end.kind, end.status) == ("context", 400)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_stream_that_is_cut_is_no_answer(dialect: Any, stand: Stand, api: Api) -> None:
    whole = dialect.text("Half of ", "an answer").pieces
    session = await stand.open(model=dialect.model)
    half = next(n for n, one in enumerate(whole) if b"Half of" in one) + 1
    for last in ([CUT], []):  # torn, or ended as if that were all
        api.play(Reply([*whole[:half], *last]))
        events = await ask(session)
        end = end_of(events)
        assert (end.ok, end.kind) == (False, "network"), end
        assert only(events, Said) == [Said("Half of ")]
    api.play(dialect.text("All of it."))
    assert end_of(await ask(session)).text == "All of it."
    assert "Half of " in str(api.requests[0].body), "the model sees what it said"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_nonsense_is_no_answer(dialect: Any, stand: Stand, api: Api) -> None:
    session = await stand.open(model=dialect.model)
    nonsense = [
        Reply([b"data: {not json\n\n"]),
        Reply([b"<html>hello</html>"], kind="text/html"),
        Reply([b"data: []\n\n", b"data: 3\n\n"]),
        Reply([]),
    ]
    for reply in nonsense:
        api.play(reply)
        end = end_of(await ask(session))
        assert not end.ok
        assert end.kind in ("protocol", "network", "failed"), end
        assert end.message


async def test_what_was_cut_is_counted(stand: Stand, api: Api) -> None:
    api.play(Reply([*Anthropic.text("Half").pieces[:3], CUT]))
    events = await ask(await stand.open())
    assert [(one.input, one.cache_read) for one in only(events, Used)] == [(700, 200)]


async def test_an_error_in_the_stream_has_its_kind(stand: Stand, api: Api) -> None:
    error = b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
    begin = Anthropic.text("Half").pieces[:3]
    api.play(Reply([*begin, b"event: error\ndata: " + error + b"\n\n"]))
    assert end_of(await ask(await stand.open())).kind == "overloaded"


async def test_nobody_listening_is_a_network_error(stand: Stand, api: Api) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = Endpoint(f"http://127.0.0.1:{taken.getsockname()[1]}", "t")
        for dialect in DIALECTS:
            session = await stand.open(model=dialect.model, endpoint=gone)
            end = end_of(await ask(session))
            assert (end.kind, end.status) == ("network", None), end


async def test_what_may_pass_is_tried_again_and_told(stand: Stand, api: Api) -> None:
    api.play(
        fail(529, "overloaded", retry_after="0"),
        fail(429, "slow down", retry_after="0"),
        Anthropic.text("At last."),
    )
    session = await stand.open(env={"TENUTO_LOOP_RETRIES": "2"})
    events = await ask(session)
    assert [one.status for one in only(events, Retried)] == [529, 429]
    assert end_of(events).text == "At last."
    api.play(*[fail(500, "oops", retry_after="0")] * 4)
    events = await ask(session)
    assert len(only(events, Retried)) == 2
    assert end_of(events).kind == "server"
    assert len(api.requests) == 3, "the library tried nothing by itself"


async def test_what_was_said_is_not_said_twice(stand: Stand, api: Api) -> None:
    api.play(Reply([*Anthropic.text("Half").pieces[:3], CUT]), Anthropic.text("Half and whole"))
    events = await ask(await stand.open(env={"TENUTO_LOOP_RETRIES": "2"}))
    assert not only(events, Retried)
    assert end_of(events).kind == "network"


async def test_turns_are_bounded_where_asked(stand: Stand, api: Api) -> None:
    api.play(*[Anthropic.call(("list_files", {})) for _ in range(3)])
    session = await stand.open(max_turns=2)
    events = await ask(session)
    assert end_of(events).kind == "turns"
    assert len(only(events, ToolEnded)) == len(api.requests) == 2
    api.play(Anthropic.text("Done."))
    assert end_of(await ask(session)).ok, "each prompt has its own"


async def test_an_answer_at_its_length_is_no_success(stand: Stand, api: Api) -> None:
    api.play(Anthropic.text("And then", stop="max_tokens"))
    end = end_of(await ask(await stand.open()))
    assert (end.ok, end.kind) == (False, "failed")
    assert "cut" in end.message


async def test_a_session_that_cannot_be_kept_fails_its_turn(
    stand: Stand, api: Api, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenuto.runners.loop.history import History

    def full(self: History) -> None:
        raise OSError(28, "No space left on device")

    session = await stand.open()
    monkeypatch.setattr(History, "save", full)
    end = end_of(await ask(session))
    assert end == Finished(
        ok=False,
        kind="failed",
        message="the session cannot be kept: [Errno 28] No space left on device",
    )


async def test_a_loop_that_ends_without_a_word_is_a_crash(stand: Stand, api: Api) -> None:
    api.play(Reply([HANG]))
    session = await stand.open()
    turn = session.prompt("go")
    await anext(turn)
    child = stand.nursery.children[0]
    child._write = lambda data: None  # pyright: ignore[reportAttributeAccessIssue]
    child._out.put_nowait(None)
    child.task.cancel()
    rest = [event async for event in turn]
    assert end_of(rest).kind == "crash"


async def test_a_line_that_makes_no_sense_is_a_protocol_error(stand: Stand, api: Api) -> None:
    api.play(Reply([HANG]))
    session = await stand.open()
    turn = session.prompt("go")
    await anext(turn)
    stand.nursery.children[0]._out.put_nowait(b'{"type": "of a newer loop"}')
    stand.nursery.children[0]._out.put_nowait(b"Segmentation fault")
    rest = [event async for event in turn]
    assert end_of(rest).kind == "protocol"
