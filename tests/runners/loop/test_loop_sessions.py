"""A conversation is kept after every step, taken up again, and repaired where it was cut."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from fake_api import DIALECTS, HANG, Anthropic, Api, Reply
from loop_help import Stand, ask, end_of

from tenuto.core.errors import RunnerFailed
from tenuto.core.runs import ToolBegan
from tenuto.runners.loop.history import History

pytestmark = pytest.mark.asyncio


def _home(stand: Stand) -> Path:
    return Path(stand.nursery.environ["TENUTO_LOOP_HOME"])


@pytest.mark.promise("R1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_session_is_taken_up_with_all_that_was_said(
    dialect: Any, stand: Stand, api: Api
) -> None:
    api.play(dialect.call(("read_file", {"path": "a.txt"})), dialect.text("The first answer."))
    session = await stand.open(model=dialect.model)
    await ask(session, "The first question.")
    await session.close()
    api.play(dialect.text("The second answer."))
    again = await stand.open(model=dialect.model, session=session.session)
    assert again.session == session.session
    assert end_of(await ask(again, "The second question.")).ok
    sent = json.dumps(api.requests[0].body)
    wanted = ["The first question.", "1\\tone", "The first answer.", "The second question."]
    places = [sent.find(one) for one in wanted]
    assert -1 not in places
    assert places == sorted(places)


async def test_an_id_may_be_chosen_once(stand: Stand, api: Api) -> None:
    session = await stand.open(new_session="0199f0aa-mine")
    assert session.session == "0199f0aa-mine"
    await session.close()
    with pytest.raises(RunnerFailed, match="exists already"):
        await stand.open(new_session="0199f0aa-mine")


@pytest.mark.parametrize("session", ["../../etc/passwd", "a/b", "", ".hidden", "x" * 200, "a\0b"])
async def test_an_id_is_no_path(session: str, stand: Stand) -> None:
    with pytest.raises(RunnerFailed, match=r"is no session id|there is no session"):
        await stand.open(session=session)


async def test_what_is_not_there_cannot_be_taken_up(stand: Stand) -> None:
    with pytest.raises(RunnerFailed, match="there is no session never-seen"):
        await stand.open(session="never-seen")


async def test_a_session_is_open_once(stand: Stand) -> None:
    session = await stand.open()
    with pytest.raises(RunnerFailed, match="is open in another process"):
        await stand.open(session=session.session)


async def test_only_its_owner_may_read_it(stand: Stand, api: Api) -> None:
    api.play(Anthropic.text("Hello."))
    await ask(await stand.open())
    for path in _home(stand).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(_home(stand).stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", ["torn", "empty", "flipped", "nonsense"])
async def test_a_damaged_file_gives_way_to_the_one_before(
    damage: str, stand: Stand, api: Api
) -> None:
    api.play(Anthropic.text("The answer."))
    session = await stand.open()
    await ask(session, "The question.")
    await session.close()
    path = _home(stand) / f"{session.session}.json"
    data = path.read_bytes()
    changed = {
        "torn": data[: len(data) // 2],
        "empty": b"",
        "flipped": data.replace(b"The question.", b"Another thing"),
        "nonsense": b"\x00\xff{}\n[]",
    }[damage]
    assert changed != data
    path.write_bytes(changed)
    api.play(Anthropic.text("Again."))
    again = await stand.open(session=session.session)
    notes = stand.nursery.children[-1].told("note")
    assert "the one before it is used" in notes[0]["text"]
    assert end_of(await ask(again, "And now?")).ok
    assert "The question." in json.dumps(api.requests[0].body)
    await again.close()
    for one in (path, path.with_name(f"{path.name}.previous")):
        one.write_bytes(changed)
    with pytest.raises(RunnerFailed, match=r"cannot be taken up.*damaged"):
        await stand.open(session=session.session)


async def test_a_session_of_a_newer_loop_is_refused(stand: Stand) -> None:
    session = await stand.open()
    await session.close()
    path = _home(stand) / f"{session.session}.json"
    newer = path.read_bytes().replace(b'"v":1', b'"v":9')
    for one in (path, path.with_name(f"{path.name}.previous")):
        one.write_bytes(newer)
    with pytest.raises(RunnerFailed, match="version 9"):
        await stand.open(session=session.session)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_crash_between_tools_leaves_no_call_without_result(
    dialect: Any, stand: Stand, api: Api
) -> None:
    """What is on the disk at each moment is what a crash leaves; each of them can be gone on from."""
    read, write = ("read_file", {"path": "a.txt"}), ("write_file", {"path": "b", "content": "x"})
    api.play(dialect.call(read, write, read), dialect.text("Done."))
    session = await stand.open(model=dialect.model)
    path = _home(stand) / f"{session.session}.json"
    moments: list[bytes] = []
    async for event in session.prompt("go"):
        if isinstance(event, ToolBegan):
            moments.append(path.read_bytes())
        elif type(event).__name__ == "PermissionAsked":
            await session.answer(event.id, True)  # pyright: ignore[reportAttributeAccessIssue]
    await session.close()
    assert len(set(moments)) >= 2
    for moment in [*moments, path.read_bytes()]:
        path.write_bytes(moment)
        api.play(dialect.text("Going on."))
        again = await stand.open(model=dialect.model, session=session.session)
        assert end_of(await ask(again, "go on")).ok
        await again.close()
        body = {name: one for name, one in api.requests[0].body.items() if name != "tools"}
        sent = json.dumps(body)
        calls = sent.count("tool_use_id") + sent.count('"tool_call_id"')
        calls += sent.count("function_call_output") + sent.count('"functionResponse"')
        assert calls == 3, sent
        assert sent.index("go on") > sent.rindex("write_file")


async def test_a_crash_in_the_middle_of_an_answer_can_be_gone_on_from(
    stand: Stand, api: Api
) -> None:
    api.play(Reply([*Anthropic.text("Half").pieces[:3], HANG]))
    session = await stand.open()
    turn = session.prompt("The question.")
    await anext(turn)
    await api.hung.wait()
    child = stand.nursery.children[0]
    kept = (_home(stand) / f"{session.session}.json").read_bytes()
    await child.kill()
    await turn.aclose()
    (_home(stand) / f"{session.session}.json").write_bytes(kept)
    api.play(Anthropic.text("Whole."))
    again = await stand.open(session=session.session)
    assert end_of(await ask(again, "Are you there?")).text == "Whole."
    sent = json.dumps(api.requests[0].body)
    assert "The question." in sent
    assert "Are you there?" in sent


async def test_a_folder_that_cannot_be_written_says_so(stand: Stand, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunnerFailed, match="TENUTO_LOOP_HOME"):
        await stand.open(env={"TENUTO_LOOP_HOME": str(tmp_path / "file" / "loop")})


async def test_repairing_what_is_whole_changes_nothing(tmp_path: Path) -> None:
    from pydantic_ai import messages as m

    history = History.take(str(tmp_path), "s", False)
    history.asked("a")
    call = m.ToolCallPart("read_file", {"path": "x"}, "1")
    history.messages.append(m.ModelResponse([call]))
    history.returned(call, "content")
    history.messages.append(m.ModelResponse([m.TextPart("b")]))
    before = m.ModelMessagesTypeAdapter.dump_json(history.messages)
    history.repair()
    assert m.ModelMessagesTypeAdapter.dump_json(history.messages) == before
    history.save()
    history.close()
    again = History.take(str(tmp_path), "s", True)
    assert m.ModelMessagesTypeAdapter.dump_json(again.messages) == before
    again.close()
    assert sorted(os.listdir(tmp_path)) == ["s.json", "s.json.previous", "s.lock"]
