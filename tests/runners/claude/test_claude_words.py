"""What is made of Claude Code's lines: recorded ones, and any others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_help import last, only, said, used
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.core.runs import (
    Finished,
    Retried,
    RunEvent,
    Said,
    SessionOpened,
    ToolBegan,
    ToolEnded,
    Used,
)
from tenuto.runners.claude_words import Words
from tenuto.runners.oneshot_lines import decoded

RECORDED = Path(__file__).parent / "recorded"


def lines(name: str) -> list[bytes]:
    return (RECORDED / f"claude_{name}.jsonl").read_bytes().splitlines()


def told(given: list[bytes]) -> list[RunEvent]:
    words = Words()
    events: list[RunEvent] = []
    for line in given:
        fields = decoded(line)
        events += words.feed(fields) if fields is not None else []
    return events


def result(**fields: Any) -> Finished:
    (event,) = Words().feed({"type": "result", **fields})
    assert isinstance(event, Finished)
    return event


@pytest.mark.promise("R2")
def test_text_comes_once_and_use_with_its_final_numbers():
    events = told(lines("text"))
    assert [type(one) for one in events] == [SessionOpened, Said, Used, Finished]
    assert events[0].version == "2.1.325"  # type: ignore[attr-defined]
    assert said(events) == "Hello." and used(events) == [(1000, 50)]
    assert last(events) == Finished(ok=True, text="Hello.")


@pytest.mark.promise("R2")
def test_tools_are_told_when_they_begin_and_when_they_come_back():
    events = told(lines("tools"))
    began, ended = only(events, ToolBegan), only(events, ToolEnded)
    assert [one.name for one in began] == ["Bash", "Bash"]
    assert began[1].input["command"] == "rm -rf nothing"
    assert [(one.id, one.ok) for one in ended] == [(began[0].id, True), (began[1].id, False)]
    assert ended[0].output == "hi" and "policy" in ended[1].output
    assert used(events) == [(1000, 50)] * 3 and last(events).text == "Done."


def test_a_text_that_did_not_come_in_pieces_is_told_too():
    whole = [line for line in lines("text") if b'"stream_event"' not in line]
    events = told(whole)
    assert said(events) == "Hello." and used(events) == [(1000, 50)] and last(events).ok


def test_the_text_of_an_agents_own_agents_is_not_its_own():
    message = {"id": "m", "model": "x", "usage": {"input_tokens": 3, "output_tokens": 2}}
    content = [{"type": "text", "text": "inner"}, {"type": "tool_use", "id": "t", "name": "Read"}]
    words = Words()
    events = words.feed({
        "type": "assistant",
        "parent_tool_use_id": "task",
        "message": {**message, "content": content},
    })  # fmt: skip
    assert events == [ToolBegan("t", "Read")]
    assert words.rest() == [Used(model="x", input=3, output=2)]


def test_a_request_that_was_interrupted_is_counted():
    events = told(lines("interrupted"))
    assert said(events) == "The beginning" and used(events) == [(700, 1)]
    assert last(events).interrupted and not last(events).ok and last(events).kind is None


def test_a_stream_that_was_cut_is_counted_and_tried_again():
    events = told(lines("cut"))
    assert used(events) == [(700, 1), (1000, 50)] and len(only(events, Retried)) == 1
    assert last(events) == Finished(ok=True, text="Hello.")


def test_errors_of_the_api_are_no_answer():
    events = told(lines("budget"))
    assert said(events) == "" and not used(events)
    assert (last(events).kind, last(events).status) == ("budget", 400)
    events = told(lines("overloaded"))
    assert only(events, Retried)[0].status == 529
    assert (last(events).kind, last(events).status) == ("overloaded", 529)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "bad_request"),
        (401, "auth"),
        (403, "auth"),
        (404, "bad_request"),
        (413, "context"),
        (429, "rate_limit"),
        (500, "server"),
        (503, "overloaded"),
        (529, "overloaded"),
        (None, "network"),
    ],
)
def test_the_status_says_what_kind_of_failure_it_was(status: int | None, kind: str):
    found = result(
        is_error=True,
        subtype="success",
        terminal_reason="api_error",
        api_error_status=status,
        result="No.",
    )
    assert (found.ok, found.kind, found.status) == (False, kind, status) and found.text == ""


def test_the_reason_says_what_kind_of_failure_it_was():
    assert result(is_error=True, terminal_reason="max_turns").kind == "turns"
    assert result(is_error=True, subtype="error_max_turns").kind == "turns"
    assert result(is_error=True, terminal_reason="prompt_too_long").kind == "context"
    assert result(is_error=True, terminal_reason="budget_exhausted").kind == "budget"
    assert result(is_error=True, errors=["Odd."]).message == "Odd."
    assert result(is_error=True, permission_denials=[{"tool_name": "Bash"}]).kind == "permission"


def test_only_a_whole_result_is_a_success():
    assert result(is_error=False, result="Yes").ok  # before there were reasons
    assert not result(is_error=False, terminal_reason="hook_stopped", result="x").ok
    assert result(subtype="success", result="x").kind == "protocol"
    assert result(is_error="no", result="x").kind == "protocol"


def test_a_login_that_is_missing_is_known_without_a_status():
    words = Words()
    words.feed({
        "type": "assistant",
        "error": "authentication_failed",
        "message": {"model": "<synthetic>", "content": [{"type": "text", "text": "Log in."}]},
    })  # fmt: skip
    (end,) = words.feed({"type": "result", "is_error": True, "result": "Log in."})
    assert isinstance(end, Finished) and end.kind == "auth"


def shuffled(value: Any, draw: Any) -> Any:
    if isinstance(value, dict):
        names = draw(st.permutations(list(value)))
        return {name: shuffled(value[name], draw) for name in names}
    if isinstance(value, list):
        return [shuffled(one, draw) for one in value]
    return value


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
NAMES = ["text", "tools", "interrupted", "budget", "overloaded", "cut"]


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(NAMES))
def test_keys_may_be_in_any_order(data: st.DataObject, name: str):
    mixed = [json.dumps(shuffled(json.loads(one), data.draw)).encode() for one in lines(name)]
    assert told(mixed) == told(lines(name))


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(NAMES))
def test_unknown_lines_and_garbage_change_nothing(data: st.DataObject, name: str):
    mixed: list[bytes] = []
    for line in lines(name):
        other = data.draw(st.one_of(st.just(b""), st.binary(max_size=20), _unknown()))
        mixed += [other, line]
    assert told(mixed) == told(lines(name))


def _unknown() -> st.SearchStrategy[bytes]:
    kinds = st.sampled_from(["x", "rate_limit_event", "keep_alive"])
    return st.builds(lambda kind, rest: json.dumps({**rest, "type": kind}).encode(),
                     kinds, st.dictionaries(st.text(max_size=5), anything, max_size=3))  # fmt: skip


@given(st.sampled_from(NAMES), st.integers(0, 2**16), st.integers(0, 2**16))
def test_output_cut_anywhere_is_no_exception_and_no_success(name: str, at: int, drop: int):
    whole = b"\n".join(lines(name))
    at %= len(whole)
    cut = whole[:at] + whole[at + drop % 400 :]
    ends = only(told(cut.split(b"\n")), Finished)
    assert len(ends) <= 1
    assert not any(one.ok for one in ends) or name in ("text", "tools", "cut")


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_values_of_any_type_are_no_exception(name: str, data: st.DataObject):
    words = Words()
    for line in lines(name):
        fields = json.loads(line)
        place = data.draw(st.sampled_from(list(fields)))
        if place != "type":
            fields[place] = data.draw(anything)
        words.feed(fields)
    words.rest()


def test_half_a_character_does_not_lose_a_line():
    line = b'{"type":"result","is_error":false,"result":"a \\ud83d b"}'
    (end,) = told([line])
    assert last([end]).ok and last([end]).text.startswith("a ")
    last([end]).text.encode()
