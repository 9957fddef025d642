import ast
import json
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tenuto.keeper
from tenuto.core import events as ev
from tenuto.core.event import Event
from tenuto.core.specs import Spec
from tenuto.core.states import State, WaitingFor
from tenuto.keeper import verdict

KEEPER = Path(tenuto.keeper.__file__).parent
TYPES: dict[str, Any] = {str(one.__struct_config__.tag): one for one in get_args(ev.AnyEvent)}
SAMPLES = [
    ev.Created(id="a", spec=Spec(kind="code", argv=("x",), cwd="/"), version="1"),
    ev.Started(pid=1, pid_start=2, keeper_pid=3, keeper_start=4, boot="b", cgroup="/g"),
    ev.Enqueued(pid=1, pid_start=2, keeper_pid=3, keeper_start=4, boot="b", cgroup="/g"),
    ev.Waited(on=WaitingFor.APPROVAL, detail="d"),
    ev.Continued(),
    ev.BecameInteractive(),
    ev.InputSent(size=5, eof=True),
    ev.WaitGaveUp(after_s=1.5),
    ev.Signalled(signal="SIGTERM", processes=2),
    ev.ValueReturned(json={"a": [1, None, "é"]}),
    ev.ValueReturned(repr="<object>"),
    ev.Raised(name="ValueError", message="m", line=7),
    ev.HostAttached(pid=7, again=2),
    ev.HostCalled(n=1, name="a.b", args=[1, {"k": None}]),
    ev.HostAnswered(n=1, ok=True, value={"a": [1]}),
    ev.HostAnswered(n=2, ok=False, error={"name": "E", "message": "m"}),
    ev.ToolsUsed(tools={"greet": 2}),
    ev.Confined(level="bwrap", missing=("m",), net="off", scratch="/tmp/x"),
    ev.Cleared(upto=9, size=10),
    ev.Repaired(size=11),
    ev.Ended(
        state=State.FAILED, reason="exit", detail="d", exit_code=3, signal="SIGSEGV", size=1,
        lines=2, usage=ev.Usage(user_s=1.0, system_s=2.0, max_rss=3),
        left=(ev.LeftBehind(1, 2, "sleep"),),
    ),
    ev.LeftBehindEnded(killed=True),
    ev.Lost(reason="r", swept=3),
    ev.Resumed(argv=("a", "b")),
    ev.Faulted(text="t"),
    ev.Unknown(type_name="n"),
]  # fmt: skip


def test_there_is_a_sample_of_every_event():
    assert {type(one) for one in SAMPLES} == set(TYPES.values())
    every = {one for one in vars(ev).values() if isinstance(one, type) and issubclass(one, Event)}
    assert every - {Event} == set(TYPES.values())


@pytest.mark.promise("X1")
@pytest.mark.parametrize("event", SAMPLES, ids=lambda one: type(one).__name__)
def test_every_event_comes_back_as_it_was(event):
    assert ev.decode_event(ev.encode_event(event)) == event


@pytest.mark.parametrize("name", sorted(TYPES))
def test_an_event_carries_its_type_by_name(name):
    sample = next(one for one in SAMPLES if type(one) is TYPES[name])
    assert json.loads(ev.encode_event(sample))["type"] == name


@pytest.mark.parametrize("event", SAMPLES, ids=lambda one: type(one).__name__)
def test_fields_of_a_newer_release_are_passed_over(event):
    document = json.loads(ev.encode_event(event)) | {"from_the_future": {"a": [1]}}
    assert ev.decode_event(json.dumps(document).encode()) == event


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=9,
)
NAMES = st.sampled_from(sorted(TYPES)) | st.text(max_size=9)


@given(st.binary(max_size=99))
@example(b"")
@example(b"\xff")
@example(b"[" * 100_000)
@example(b'{"type":' + b"[" * 100_000)
@example(b'{"type":"value_returned","json":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
@example(b'{"type":"ended","state":"nonsense"}')
@example(b'{"type":5}')
@example(b'{"type":"created"}')
@example(b'{"type":"value_returned","json":1' + b"0" * 5000 + b"}")
@example(b'{"type":"raised","name":"\\ud800"}')
@example(b"null")
def test_garbage_is_an_unknown_event_and_never_raises(body):
    assert isinstance(ev.decode_event(body), Event)


@given(
    st.fixed_dictionaries(
        {"type": NAMES | JSON}, optional={"state": JSON, "spec": JSON, "on": JSON}
    )
)
def test_no_document_raises(document):
    event = ev.decode_event(json.dumps(document).encode())
    assert isinstance(event, Event)
    if isinstance(document["type"], str) and document["type"] not in TYPES:
        assert isinstance(event, ev.Unknown)


@given(st.sampled_from(SAMPLES), st.data())
def test_a_cut_or_changed_event_never_raises(event, data):
    body = bytearray(ev.encode_event(event))
    at = data.draw(st.integers(0, len(body) - 1))
    assert isinstance(ev.decode_event(bytes(body[:at])), ev.Unknown)
    body[at] ^= 1 << data.draw(st.integers(0, 7))
    assert isinstance(ev.decode_event(bytes(body)), Event)


def test_the_name_of_a_newer_event_is_kept():
    assert ev.decode_event(b'{"type":"teleported","to":5}') == ev.Unknown(type_name="teleported")


# What the keeper writes, found in its source: it writes plain dictionaries, these are the contract.


def written_events() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted(KEEPER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("event", "_note"):
                yield f"{path.name}:{node.lineno}", node


def kind_of(call: ast.Call) -> str:
    first = call.args[0]
    assert isinstance(first, ast.Constant), ast.unparse(call)
    return str(first.value)


def test_the_search_finds_what_the_keeper_writes():
    found = {kind_of(call) for _, call in written_events()}
    assert found >= {"started", "ended", "waited", "continued", "input_sent", "value_returned"}


@pytest.mark.parametrize(
    ("where", "call"), [pytest.param(*one, id=one[0]) for one in written_events()]
)
def test_every_event_the_keeper_writes_is_known_with_all_its_fields(where, call):
    kind = kind_of(call)
    assert kind in TYPES, f"{where} writes {kind!r}, which core.events does not know"
    fields = {keyword.arg for keyword in call.keywords if keyword.arg not in (None, "in_turn")}
    assert fields <= set(TYPES[kind].__struct_fields__)
    if not any(keyword.arg is None for keyword in call.keywords):
        required = {field.name for field in msgspec.structs.fields(TYPES[kind]) if field.required}
        assert required <= fields


def test_every_literal_event_the_keeper_writes_is_known():
    sources = [path.read_text(encoding="utf-8") for path in sorted(KEEPER.glob("*.py"))]
    texts = [source for source in sources if "frames.pack(" in source or "note_call(" in source]
    found = {name for text in texts for name in re.findall(r'"type": ?"(\w+)"', text)}
    assert {"cleared", "host_called", "host_answered"} <= found
    assert found - {"answer"} <= set(TYPES)  # that one goes to the child


def keeper_with(outcome: verdict.Outcome | None) -> Any:
    channel = SimpleNamespace(driven=None, exec_error=None, raised="", limit=None)
    return SimpleNamespace(driven=None,
        outcome=outcome, limits={}, signal_asked=0, channel=channel, cell=None, held=None,
        size=0, lines=0,
    )  # fmt: skip


STATUSES = {
    0: (State.SUCCEEDED, 0, None),
    3 << 8: (State.FAILED, 3, None),
    9: (State.FAILED, None, "SIGKILL"),
    11: (State.FAILED, None, "SIGSEGV"),
    40: (State.FAILED, None, "signal 40"),
}


@pytest.mark.parametrize("status", STATUSES)
def test_the_exit_record_decodes_to_an_end(status):
    usage = resource.getrusage(resource.RUSAGE_SELF)
    record = verdict.record(keeper_with(None), status, usage)
    left = [{"pid": 1, "start": 2, "command": "sleep"}]
    body = json.dumps({"type": "ended", **record, "size": 5, "lines": 1, "left": left}).encode()
    ended = ev.decode_event(body)
    assert isinstance(ended, ev.Ended)
    assert (ended.state, ended.exit_code, ended.signal) == STATUSES[status]
    assert ended.left == (ev.LeftBehind(1, 2, "sleep"),)
    assert ended.usage.max_rss == usage.ru_maxrss * 1024


@pytest.mark.parametrize(
    "outcome",
    [verdict.killed(9), verdict.interrupted("r"), verdict.deadline(2), verdict.idle(3),
     verdict.limit("memory", "5 bytes")],
    ids=lambda one: one.reason,
)  # fmt: skip
def test_every_outcome_is_an_end_that_core_knows(outcome):
    body = json.dumps({"type": "ended", **verdict.record(keeper_with(outcome), 9, None)}).encode()
    ended = ev.decode_event(body)
    assert isinstance(ended, ev.Ended)
    assert (str(ended.state), ended.reason) == (outcome.state, outcome.reason)
