"""A driver's line, read by the tape's writer and by the keeper's loop in turn, with nothing astray."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keeping import Keeping

from tenuto.core import events as ev
from tenuto.core.specs import Spec
from tenuto.stores.pen import Pen
from tenuto.stores.tape import TapeReader

CREATED = ev.Created(id="a", spec=Spec("task", ("driver",), "/"))
SAID = st.lists(
    st.sampled_from(
        ["tell", "safe", "waiting", "continuing", "refused", "junk", "long", "many", "recall"]
    ),
    max_size=30,
)


class Driving:
    """The driver's end of a line whose keeper is real but for its child."""

    def __init__(self, place: str) -> None:
        self.folder = os.path.join(place, "e")
        self._pen = Pen.create(self.folder, CREATED)
        self._near, far = socket.socketpair()
        self._near.setblocking(False)
        self.keeping = Keeping(self._pen, far, asyncio.get_running_loop())
        self.answers: list[dict[str, Any]] = []
        self._in = b""

    async def say(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._near, data)

    async def tell(self, text: str, number: int | None = None) -> None:
        message: dict[str, Any] = {"type": "tell", "events": [{"type": "warned", "text": text}]}
        if number is not None:
            message["n"] = number
        await self.say(json.dumps(message).encode() + b"\n")

    async def answered(self, number: int) -> dict[str, Any]:
        """Return the answer to a number; answers before it are kept."""
        while not any(one["n"] == number for one in self.answers):
            data = await asyncio.get_running_loop().sock_recv(self._near, 65536)
            assert data, "the keeper hung up"
            *lines, self._in = (self._in + data).split(b"\n")
            self.answers += [json.loads(line) for line in lines]
        return next(one for one in self.answers if one["n"] == number)

    def hang_up(self) -> None:
        self._near.close()

    async def end(self) -> list[Any]:
        """End as a driver does, and return what is on the tape."""
        self.hang_up()
        await self.keeping.end()
        self.keeping.writer.close()
        os.close(self._pen.dir_fd)
        return self.tape()

    def tape(self) -> list[Any]:
        with TapeReader(self.folder) as reader:
            found = [json.loads(frame.body) for frame in reader.frames()]
            assert reader.damaged == 0
        return found[1:]


async def begun(place: Path) -> Driving:
    """Return a driver whose first event is safe: the writer reads its line by now."""
    driving = Driving(str(place))
    await driving.tell("first", 1)
    await driving.answered(1)
    return driving


class Words:
    """What a driver says, and what is to stand on the tape then."""

    def __init__(self) -> None:
        self.expected: list[tuple[str, str]] = []
        self._waits = False

    def line(self, kind: str, number: int) -> bytes:
        text = f"{kind} {number}" + "x" * (200_000 if kind == "long" else 0)
        message: dict[str, Any] = {"type": "tell", "events": [{"type": "warned", "text": text}]}
        if kind == "junk":
            return b"{no line of ours}\n"
        if kind == "waiting":
            message = {"type": "waiting", "on": "budget", "detail": text}
            self.expected.append(("waited", text))
            self._waits = True
        elif kind == "continuing":
            message = {"type": "continuing"}
            self.expected += [("continued", "")] if self._waits else []
            self._waits = False
        elif kind == "refused":
            message = {"type": "tell", "events": [{"type": "ended"}], "n": number}
        else:
            times = 700 if kind == "many" else 1
            message["events"] *= times
            self.expected += [("warned", text)] * times
            message |= {"n": number} if kind == "safe" else {}
        return json.dumps(message).encode() + b"\n"


def shown(found: list[Any]) -> list[tuple[str, str]]:
    return [(one["type"], one.get("text") or one.get("detail", "")) for one in found]


async def _in_order(place: str, said: list[str], together: bool) -> None:
    driving, words = Driving(place), Words()
    lines = b""
    for number, kind in enumerate(said):
        if kind == "recall":
            driving.keeping.channel.recall()  # as a tape that is behind has it
            continue
        lines += words.line(kind, number)
        if not together:
            await driving.say(lines)
            lines = b""
            if kind == "safe":
                assert "error" not in await driving.answered(number)
                assert shown(driving.tape()) == words.expected, "safe, and in its place"
    await driving.say(lines)
    for number, kind in enumerate(said):
        if kind in ("safe", "refused"):
            refused = "tells no" in (await driving.answered(number)).get("error", "")
            assert refused == (kind == "refused")
    assert shown(await driving.end()) == words.expected


@pytest.mark.promise("D2")
@settings(max_examples=80)
@given(SAID, st.booleans())
def test_whatever_a_driver_says_stands_on_the_tape_in_that_order(said, together):
    with tempfile.TemporaryDirectory(prefix="tenuto-test-") as place:
        asyncio.run(asyncio.wait_for(_in_order(place, said, together), 15))


@pytest.mark.promise("D2")
@pytest.mark.asyncio
async def test_the_writer_reads_the_line_itself_once_a_driver_tells_and_gives_it_back(tmp_path):
    driving = await begun(tmp_path)
    keeping = driving.keeping
    assert keeping.channel.lent, "it is the writer's"
    await driving.say(b'{"type": "waiting", "on": "approval"}\n')
    await keeping.until(lambda: bool(keeping.waiting))
    assert not keeping.channel.lent, "of everything else the loop takes care"
    await driving.tell("second", 2)
    await driving.answered(2)
    assert keeping.channel.lent
    assert [one["type"] for one in await driving.end()] == ["warned", "waited", "warned"]


@pytest.mark.promise("D2")
@pytest.mark.asyncio
async def test_a_line_that_is_closed_goes_back_once_and_is_let_go(tmp_path):
    driving = await begun(tmp_path)
    keeping = driving.keeping
    before = keeping.lent
    driving.hang_up()
    await keeping.closed.wait()
    assert keeping.lent == before, "nobody listens any more where nobody speaks"
    assert shown(await driving.end()) == [("warned", "first")]


@pytest.mark.promise("D2", "X2")
@pytest.mark.asyncio
async def test_a_defect_in_the_thread_is_told_by_the_loop_and_the_tape_goes_on(
    tmp_path, monkeypatch
):
    driving = await begun(tmp_path)
    faults: list[BaseException] = []
    keeping = driving.keeping
    asyncio.get_running_loop().set_exception_handler(
        lambda _, what: faults.append(what["exception"])
    )
    with monkeypatch.context() as patched:
        patched.setattr(keeping.driven, "told", _defective)
        await driving.tell("lost")
        await keeping.until(lambda: not keeping.channel.lent)
    assert [str(one) for one in faults] == ["a defect"]
    await driving.tell("second", 2)
    await driving.answered(2)
    assert [one["text"] for one in await driving.end()] == ["first", "second"]


def _defective(*_: object, **__: object) -> None:
    raise RuntimeError("a defect")


@pytest.mark.promise("D2", "X6")
@pytest.mark.asyncio
async def test_on_a_full_disk_nothing_is_called_safe_and_no_more_is_read(tmp_path, monkeypatch):
    driving = await begun(tmp_path)
    full = [True]
    real = os.pwritev

    def pwritev(fd: int, buffers: Any, offset: int) -> int:
        if full[0] and any(b"warned" in bytes(one) for one in buffers):
            raise OSError(28, "No space left on device")
        return real(fd, buffers, offset)

    driving.keeping.awake.clear()
    monkeypatch.setattr(os, "pwritev", pwritev)

    async def go_on() -> None:
        for number in range(2, 40):
            await driving.tell(f"{number}" + "x" * 50_000, number)

    telling = asyncio.create_task(go_on())
    await driving.keeping.awake.wait()
    assert driving.keeping.writer.disk_full
    assert driving.answers == [{"type": "told", "n": 1}]
    assert driving.keeping.writer.backlog < 1 << 20
    assert not telling.done(), "the rest waits with the driver"
    full[0] = False
    for number in range(2, 40):
        assert "error" not in await driving.answered(number)
    await telling
    told = [one["text"].rstrip("x") for one in await driving.end() if one["type"] == "warned"]
    assert told == ["first", *(f"{number}" for number in range(2, 40))]
    assert Path(driving.folder, "tape").stat().st_size > 38 * 50_000
