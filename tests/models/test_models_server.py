"""Which step is next, gates, silence, odd requests, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sdk_help import SDKS

from tenuto.core.budget import Tokens
from tenuto.engine.strategies import review_verdict
from tenuto.testing.models import (
    Call,
    Cut,
    Fail,
    Gate,
    Model,
    Say,
    Seen,
    Silence,
    Slow,
)

TOOL = {"name": "look", "input_schema": {"type": "object"}}


def post(model: Model, body: Any, path: str = "/v1/messages") -> tuple[int, bytes]:
    line = http.client.HTTPConnection(model.url.removeprefix("http://"))
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        line.request("POST", path, data, {"content-type": "application/json"})
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def ask(model: Model, *spoken: str, system: str = "", tools: bool = True) -> str:
    """Ask as in a conversation in which the model has said so much already."""
    messages: list[Any] = [{"role": "user", "content": "Begin."}]
    for text in spoken:
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "user", "content": "Go on."})
    body = {"model": "m", "system": system, "messages": messages}
    status, data = post(model, {**body, "tools": [TOOL]} if tools else body)
    told = json.loads(data)
    return told["content"][0]["text"] if status == 200 else f"{status}"


def opened(model: Model) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Begin a stream and leave it unread."""
    line = http.client.HTTPConnection(model.url.removeprefix("http://"))
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Begin."}]}
    line.request("POST", "/v1/messages", json.dumps({**body, "tools": [TOOL]}))
    return line, line.getresponse()


def until_delta(answer: http.client.HTTPResponse, wanted: int = 1) -> None:
    while wanted:
        wanted -= answer.readline() == b"event: content_block_delta\n"
    answer.readline()


def test_by_conversation_the_same_question_has_the_same_answer(model: Model):
    model.play("one", "two")
    assert [ask(model), ask(model), ask(model, "one"), ask(model)] == ["one", "one", "two", "one"]
    assert ask(model, "one", "two") == "That is all."


def test_failures_stand_before_the_next_answer_and_are_used_up(model: Model):
    model.play("one", Fail(529, times=2), Fail(500), "two", Fail(429), "three")
    assert ask(model) == "one"
    assert [ask(model, "one") for _ in range(4)] == ["529", "529", "500", "two"]
    assert ask(model) == "one"
    assert [ask(model, "one", "two") for _ in range(2)] == ["429", "three"]


def test_by_request_every_request_takes_the_next_step(model: Model):
    model.play("one", Fail(429, times=2), "two", by="request")
    told = [ask(model, tools=False) for _ in range(5)]
    assert told == ["one", "429", "429", "two", "That is all."]


def test_several_agents_share_a_server_by_what_they_are_told(model: Model):
    model.when(lambda seen: "architect" in seen.system, "a plan", "a better plan")
    model.when(lambda seen: "reviewer" in seen.text, Fail(503), "fine", by="request")
    model.play("code")
    assert ask(model, system="You are an architect.", tools=False) == "a plan"
    assert ask(model, system="You are a reviewer.") == "503"
    assert ask(model, "a plan", system="You are an architect.") == "a better plan"
    assert ask(model, system="You are a reviewer.") == "fine"
    assert ask(model, system="You are a developer.") == "code"
    assert ask(model, tools=False) == "A title"
    assert len(model.seen) == 5 and len(model.asked) == 6 and len(model.other) == 1


def test_items_of_one_answer_count_once_whatever_order_a_client_puts_them_in(model: Model):
    model.play(Say("Both.", Call("look", at=1), Call("look", at=2)), "done")
    tool = {"type": "function", "name": "look", "parameters": {}}
    question = {"role": "user", "content": "Begin."}
    body = {"model": "m", "input": [question], "tools": [tool]}
    status, data = post(model, body, "/v1/responses")
    said, first, second = json.loads(data)["output"]
    assert status == 200 and first["call_id"] != second["call_id"]

    def result(call: dict[str, Any]) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": call["call_id"], "output": "seen"}

    for items in (
        [said, first, second, result(first), result(second)],
        [said, first, result(first), second, result(second)],
    ):
        _, data = post(model, {**body, "input": [question, *items]}, "/v1/responses")
        assert json.loads(data)["output"][0]["content"][0]["text"] == "done"
        assert model.shown.spoken == 1 and model.results == ["seen", "seen"]


def test_a_call_of_a_tool_that_is_not_there_is_told_to_the_test(model: Model):
    model.play(Call("jump"))
    assert ask(model) == "The script failed."
    assert "no tool jump among ['look']" in model.errors[0]
    with pytest.raises(AssertionError, match="no tool jump"):
        _ = model.shown
    with pytest.raises(AssertionError, match="no tool jump"):
        model.until(lambda seen: False)


def test_pieces_wait_for_their_gate_and_only_what_was_sent_is_billed(model: Model):
    gate = Gate()
    model.play(Slow(gate, Say("x" * 80, pieces=8)))
    line, answer = opened(model)
    assert model.bill[0].tokens.output == 1  # a stream that has begun
    gate.let(3)
    until_delta(answer, 3)
    assert model.bill[0].tokens.output == 8 and not model.bill[0].complete
    gate.open()
    rest = answer.read()
    assert rest.count(b"event: content_block_delta") == 5 and b"message_stop" in rest
    assert model.bill[0].tokens.output == 20 and model.bill[0].complete
    line.close()


def test_a_client_that_goes_is_billed_for_what_it_was_sent(model: Model):
    gate = Gate()
    model.play(Slow(gate, Say("x" * 80, usage=Tokens(100, 40), pieces=8)))
    line, answer = opened(model)
    gate.let(2)
    until_delta(answer, 2)
    answer.close()
    line.close()
    model.close()  # waits for the thread that served it
    (bill,) = model.bill
    assert bill.tokens == Tokens(100, 10) and not bill.complete and not model.errors


def test_a_cut_of_a_slow_answer_comes_at_its_piece(model: Model):
    gate = Gate()
    model.play(Cut(2, Slow(gate, Say("x" * 80, pieces=8))))
    line, answer = opened(model)
    gate.let(2)
    with pytest.raises(http.client.IncompleteRead):
        answer.read()
    line.close()
    assert model.bill[0].tokens.output == 5


def test_a_cut_behind_the_end_is_a_mistake_of_the_script(model: Model):
    model.play(Cut(9, "short"), "next")
    line, answer = opened(model)
    answer.read()
    line.close()
    model.close()
    assert "a cut after 9 pieces, but there were" in model.errors[0]


def test_silence_lasts_until_it_is_released_and_then_the_script_goes_on(model: Model):
    silence = Silence()
    model.play(silence, "at last")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, model)
        model.until(lambda seen: True)
        assert model.bill == [] and not asked.done()
        silence.release()
        assert asked.result() == "at last"
    model.play(Silence(), "again")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, model)
        model.until(lambda seen: True)
        model.release()
        assert asked.result() == "again"


def test_closing_ends_silence_slow_answers_and_idle_lines():
    others = set(threading.enumerate())
    before = len(os.listdir("/proc/self/fd"))
    model = Model()
    model.play(Silence(), Slow(Gate()))
    silent = http.client.HTTPConnection(model.url.removeprefix("http://"))
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    silent.request("POST", "/v1/messages", json.dumps(body))
    model.until(lambda seen: True)
    slow, _answer = opened(model)
    idle = socket.create_connection(("127.0.0.1", int(model.url.rpartition(":")[2])))
    threads = {one for one in threading.enumerate() if "process_request" in one.name} - others
    assert len(threads) >= 2
    model.close()
    model.close()
    assert not any(one.is_alive() for one in threads)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(model.url.rpartition(":")[2])))
    with pytest.raises(http.client.RemoteDisconnected):
        silent.getresponse()
    for one in (silent, slow, idle, _answer):
        one.close()
    assert len(os.listdir("/proc/self/fd")) == before


ODD = [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages": 5}', b'{"messages": [5, null]}',
    b'{"messages": [{"role": 5, "content": {"a": 1}}], "tools": {"a": 1}, "system": 7}',
    b'{"input": [{"type": 5}, [], 7], "tools": [5, {"type": "namespace"}], "model": {}}',
    b'{"contents": [{"parts": [{"functionResponse": 5}]}], "tools": [{"functionDeclarations": 5}]}',
    b'{"tools": [{"function": 5}, {"name": null}], "messages": [{"content": [[[1]]]}]}',
    b"[" * 100_000,
]  # fmt: skip
PATHS = [
    "/v1/messages", "/v1/responses", "/v1/chat/completions", "/v1beta/models/m:generateContent",
    "/v1beta/models/m:streamGenerateContent?alt=sse", "/v1/messages/count_tokens", "/nowhere",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_odd_requests_are_answered_and_kept(model: Model, path: str):
    model.play("Well.")
    for body in ODD:
        status, data = post(model, body, path)
        assert status in (200, 400, 404) and data
    assert (len(model.errors) >= 6) == (path != "/nowhere")
    assert not any("serving" in one for one in model.errors)
    model.play("Well.")
    assert ask(model) == "Well."


def test_odd_lines_are_borne(model: Model):
    for words in (b"hello\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"\x16\x03"):
        with socket.create_connection(("127.0.0.1", int(model.url.rpartition(":")[2]))) as line:
            line.sendall(words)
            line.shutdown(socket.SHUT_WR)
            while line.recv(65536):
                pass
    model.play("Well.")
    assert ask(model) == "Well."


def test_a_body_in_chunks_is_read_whole(model: Model):
    model.play("Well.")
    body = json.dumps({"model": "m", "messages": [], "tools": [TOOL]}).encode()
    line = http.client.HTTPConnection(model.url.removeprefix("http://"))
    line.request("POST", "/v1/messages", iter([body[:9], body[9:]]), encode_chunked=True)
    assert b"Well." in line.getresponse().read()
    line.close()


def test_only_who_asks_for_it_is_told_the_usage_of_a_chat(model: Model):
    model.play("Well.", bare=True)
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    _, plain = post(model, body, "/v1/chat/completions")
    told = {**body, "stream_options": {"include_usage": True}}
    _, counted = post(model, told, "/v1/chat/completions")
    assert b"usage" not in plain and b'"completion_tokens": 2' in counted
    assert [one.tokens.output for one in model.bill] == [2, 2]


def test_many_at_once_are_all_seen_and_billed(model: Model):
    model.play(Fail(500, times=10), "one")
    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(lambda _: ask(model), range(100)))
    assert sorted(set(told)) == ["500", "one"] and told.count("500") == 10
    assert len(model.seen) == 100 and len(model.bill) == 90 and not model.errors


@pytest.mark.asyncio
async def test_a_request_is_awaited_without_polling():
    async with Model() as model:
        model.play("one", Call("jump"))
        soon = asyncio.create_task(model.shown_soon(lambda seen: "Begin." in seen.texts))
        never = asyncio.create_task(model.shown_soon(lambda seen: False))
        assert await asyncio.to_thread(ask, model) == "one"
        seen = await soon
        assert isinstance(seen, Seen) and seen is await model.shown_soon()
        assert not never.done()
        await asyncio.to_thread(ask, model, "one")
        with pytest.raises(AssertionError, match="no tool jump"):
            await never


def started(*words: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tenuto.testing.models", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return errors


def test_as_a_program_it_serves_a_script_from_a_file(tmp_path: Path):
    script = {
        "scripts": [
            {"when": "You are a reviewer", "steps": [{"fail": 429, "retry_after": 1}, "fine"]},
            {"steps": [{"say": "Look.", "call": "read_file", "arguments": {"path": "a"}}, "done"]},
        ]
    }
    (tmp_path / "script.json").write_text(json.dumps(script))
    process, url = started("--script", str(tmp_path / "script.json"))
    try:
        told = SDKS["anthropic"].ask(url, tools=True)
        assert told.calls == [("read_file", {"path": "a"})]
    finally:
        errors = ended(process)
    assert "scripted model, no real model behind it" in errors and "1 answers" in errors


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"steps": [{"sing": 1}]}', '{"steps": [{"fail": "x"}]}']
)
def test_a_file_that_is_no_script_is_refused(tmp_path: Path, text: str):
    (tmp_path / "script.json").write_text(text)
    process, url = started("--script", str(tmp_path / "script.json"))
    _, errors = process.communicate()
    assert process.returncode == 1 and not url and "is no script" in errors


def test_the_demo_plays_three_roles_that_use_tools(tmp_path: Path):
    """A small agent loop of our own: the shell is real, and so is what is reviewed."""
    process, url = started("--demo", "--port", "0")
    tool = {"name": "bash", "input_schema": {"type": "object", "properties": {"command": {}}}}

    def agent(role: str) -> str:
        messages: list[Any] = [{"role": "user", "content": "Do your part."}]
        while True:
            line = http.client.HTTPConnection(url.removeprefix("http://"))
            body = {"model": "m", "system": role, "messages": messages, "tools": [tool]}
            line.request("POST", "/v1/messages", json.dumps(body))
            content = json.loads(line.getresponse().read())["content"]
            line.close()
            assert "[scripted model, no real model behind it]" in content[0]["text"]
            if len(content) == 1:
                return content[0]["text"]
            done = subprocess.run(
                ["sh", "-c", content[1]["input"]["command"]],
                cwd=tmp_path, capture_output=True, text=True, check=False,
            )  # fmt: skip
            messages.append({"role": "assistant", "content": content})
            result = {
                "type": "tool_result",
                "tool_use_id": content[1]["id"],
                "content": done.stdout,
            }
            messages.append({"role": "user", "content": [result]})

    try:
        assert "The design" in agent("You are an architect agent.")
        assert "is written" in agent("You are a developer agent.")
        said = agent("You are a reviewer agent.")
        assert review_verdict(said) == "send_back"
        assert "14 Fizz\n" in said and "14 FizzBuzz" in said  # what it printed, what it must
        agent("You are a developer agent.\n" + said)
        assert review_verdict(agent("You are a reviewer agent.")) == "approve"
    finally:
        ended(process)
    assert (tmp_path / "fizzbuzz.py").exists()
