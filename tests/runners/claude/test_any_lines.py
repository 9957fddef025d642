"""Whatever a runtime's process says, a prompt ends once: by Finished, and without an exception."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from agent_help import heard, last
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.core.runs import ChildEnd, Finished, RunRequest
from tenuto.runners.claude import ClaudeSession
from tenuto.runners.oneshot import ClaudeTurns, CodexTurns, OneShotSession, OpenCodeTurns, Turns

RECORDED = {
    path.stem: path.read_bytes()
    for path in sorted((Path(__file__).parent / "recorded").glob("*.jsonl"))
}
TURNS: dict[str, type[ClaudeTurns] | type[CodexTurns] | type[OpenCodeTurns]] = {
    "claude": ClaudeTurns,
    "codex": CodexTurns,
    "opencode": OpenCodeTurns,
}


class Told:
    """A process that says what it is given once it is spoken to, and ends."""

    id = "told"

    def __init__(self, output: bytes) -> None:
        self._output = output
        self._spoken = asyncio.Event()

    async def send(self, data: bytes) -> None:
        self._spoken.set()

    async def close_input(self) -> None:
        self._spoken.set()

    async def lines(self) -> AsyncIterator[bytes]:
        await self._spoken.wait()
        for line in self._output.split(b"\n"):
            yield line

    async def last_words(self) -> str:
        return ""

    async def signal(self, name: str) -> None: ...

    async def kill(self) -> None: ...

    async def wait(self) -> ChildEnd:
        return ChildEnd("succeeded", 0)


class Nursery:
    def __init__(self, output: bytes) -> None:
        self._output = output

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str] = {},
        unset: Sequence[str] = (),
        title: str = "",
    ) -> Told:
        return Told(self._output)


async def one_shot(turns: Turns, output: bytes) -> Finished:
    session = OneShotSession(turns, RunRequest(cwd="/"), Nursery(output))
    events = await heard(session, "Go")
    await session.close()
    return last(events)


async def kept_open(output: bytes) -> Finished:
    session = ClaudeSession(Told(output), RunRequest(cwd="/"))
    events = await heard(session, "Go")
    await session.close()
    return last(events)


def end(name: str, output: bytes, *, control: bool) -> Finished:
    kind = name.partition("_")[0]
    if control and kind == "claude":
        # the prompt's id is our own; a result that names another one is not for us
        output = output.replace(b'"user_message_uuids"', b'"others"')
        return asyncio.run(kept_open(output))
    return asyncio.run(one_shot(TURNS[kind]("program"), output))


@pytest.mark.promise("R2")
@pytest.mark.parametrize("control", [True, False])
def test_what_was_recorded_ends_as_it_did(control: bool):
    ended = {name: end(name, output, control=control) for name, output in RECORDED.items()}
    good = {"claude_text", "claude_tools", "claude_cut", "codex_tool", "opencode_tool"}
    assert {name for name, one in ended.items() if one.ok} == good


@pytest.mark.promise("R2")
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(RECORDED)),
    st.integers(0, 2**15),
    st.integers(0, 500),
    st.binary(max_size=30),
    st.booleans(),
)
def test_output_that_is_cut_and_garbled_anywhere_ends_once(
    name: str, at: int, drop: int, garbage: bytes, control: bool
):
    whole = RECORDED[name]
    at %= len(whole)
    found = end(name, whole[:at] + garbage + whole[at + drop :], control=control)
    assert found.ok or found.interrupted or found.kind is not None


@pytest.mark.promise("R2")
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(RECORDED)), st.data(), st.booleans())
def test_a_process_that_ends_before_its_last_word_is_no_success(
    name: str, data: st.DataObject, control: bool
):
    whole = RECORDED[name].splitlines()
    ends = [i for i, line in enumerate(whole) if _is_end(json.loads(line))]
    kept = data.draw(st.integers(0, ends[-1])) if ends else len(whole)
    assert not end(name, b"\n".join(whole[:kept]), control=control).ok


def _is_end(fields: dict[str, object]) -> bool:
    return fields.get("type") in ("result", "turn.completed", "turn.failed", "step_finish")
