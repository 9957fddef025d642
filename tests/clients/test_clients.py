"""Claude Code (print mode), Codex and OpenCode with our server, offline, against a scripted model.

Each is installed from its pinned package, gets the server as docs/mcp.md says, and is run as its users
run it. What counts is what the model was shown.
"""

from __future__ import annotations

import json
import os
import re

import pytest
from client_help import DOCS, Client, Home, Shown
from npm_help import QUICK, SLOW

from tenuto.mcp import catalogue
from tenuto.testing.models import Call, Seen

TICK = "import time\nfor i in range({}):\n    print(f'row-{{i}}', flush=True)\n    time.sleep(0.5)"
ASK = "name = input('name? ')\nprint('Hello, ' + name + '!')"
pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]


def read_on(wait_s: float = 3):
    """Read from the cursor on until the execution has ended."""

    def step(seen: Seen):
        shown = Shown(seen.last)
        if shown.ended and not shown.cut:
            return "It has ended."
        return Call("output", execution_id=seen.id, cursor=seen.cursor, wait_s=wait_s)

    return step


def running(home: Home) -> list[str]:
    return [one["id"] for one in home.document("ps")]


@pytest.mark.promise("M3", "X3", "X6")
def test_a_job_longer_than_the_clients_timeout_is_handed_over_and_read_to_its_end(client: Client):
    client.timeout = 8
    job = TICK.format(24)
    shown = client.run(Call("execute", code=job, language="python", wait=2), *[read_on()] * 12)
    (execution_id,) = {one["id"] for one in client.home.document("ps", "-a")}
    assert shown[0].is_handover(execution_id)
    assert [row for one in shown for row in one.rows()] == list(range(24))
    assert shown[-1].ended and shown[-1].says("succeeded")
    # from its first turn on the model has the tools, with all that we say about them
    told = {tool["name"]: tool["description"] for tool in catalogue.tools("32.0 KB")}
    first = client.first()
    assert {"execute", "output", "send_input", "list", "kill"} <= first.keys()
    assert first == {name: told[name] for name in first}
    assert "Tenuto runs code and commands to their end." in json.dumps(client.model.seen[0].raw)


@pytest.mark.promise("M3", "X4", "X11")
def test_a_call_that_the_client_gives_up_goes_on_and_is_found_again(client: Client):
    # silent work is told of every 5 s: too late for OpenCode, and the others do not care
    client.timeout = 3 if client.name == "opencode" else 5
    job = "import time\ntime.sleep(10)\nfor i in range(5): print(f'row-{i}')"
    shown = client.run(
        Call("execute", code=job, language="python"),
        Call("list"),
        lambda seen: Call("output", execution_id=seen.id, wait_s=1),
        *[read_on(1)] * 15,
    )
    (one,) = client.home.document("ps", "-a")
    assert "timed out" in shown[0].raw and one["id"] not in shown[0].raw
    assert shown[1].says(one["id"], "running")
    assert [row for one in shown[2:] for row in one.rows()] == list(range(5))
    assert one["state"] == "succeeded" and one["async"]


@pytest.mark.promise("M3")
@pytest.mark.parametrize("client", ["claude", "opencode"], indirect=True)
def test_progress_keeps_a_client_from_giving_up_on_silent_work(client: Client):
    """Codex has one limit for a whole call; these two have one for silence."""
    if client.name == "claude":
        client.env["CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT"] = "8000"
    else:
        client.timeout = 8
    job = "import time\ntime.sleep(12)\nprint('row-0')"
    (shown,) = client.run(Call("execute", code=job, language="python"), "Good.")
    assert shown.ended and shown.rows() == [0]


@pytest.mark.promise("M3", "X7", "X8")
def test_a_program_that_asks_is_answered_and_another_one_killed(client: Client):
    shown = client.run(
        Call("execute", code=ASK, language="python"),
        lambda seen: Call("send_input", execution_id=seen.id, text="Ada", wait_s=20),
        Call("execute", command=["sleep", "600"], wait=0),
        lambda seen: Call("kill", execution_id=seen.id),
        Call("list"),
        "Done.",
    )
    asks, answered, started, killed, listed = shown
    assert asks.says("It waits for input on stdin.", "name?", "send_input(")
    assert answered.ended and answered.says("Hello, Ada!", "succeeded")
    assert killed.says("all its processes are gone") and not started.ended
    assert listed.data is None or listed.data["executions"] == []
    assert listed.data is not None or "(none)" in listed.raw
    states = {one["state"] for one in client.home.document("ps", "-a")}
    assert states == {"succeeded", "killed"} and not client.home.strays()


@pytest.mark.promise("X11", "M3")
@pytest.mark.parametrize("ends", ["exits", "killed"])
def test_work_goes_on_when_the_client_goes_and_the_next_one_finds_it(client: Client, ends: str):
    pipe = client.home.base / "pipe"
    os.mkfifo(pipe)
    job = (
        f"print('row-0', flush=True)\nopen({str(pipe)!r}, 'w').write('up')\ninput()\nprint('row-1')"
    )
    if ends == "exits":
        client.run(Call("execute", code=job, language="python", wait=0), "Until later.")
        pipe.read_text()
    else:
        first = client.start(Call("execute", code=job, language="python", wait=100), "Never said.")
        pipe.read_text()
        first.kill()
        first.communicate()
    (execution_id,) = running(client.home)
    shown = client.run(
        Call("list"),
        lambda seen: Call("send_input", execution_id=seen.id, text="go on", wait_s=20),
        lambda seen: Call("output", execution_id=seen.id),
        "There it is.",
    )
    assert shown[0].says(execution_id)
    assert shown[2].ended and shown[2].rows() == [0, 1]


@pytest.mark.promise("X3", "M3")
def test_with_nothing_set_on_either_side_the_handover_comes_in_time(client: Client):
    shown = client.run(
        Call("execute", command=["sleep", "600"]),
        lambda seen: Call("kill", execution_id=seen.id),
        "Done.",
    )
    (one,) = client.home.document("ps", "-a")
    assert shown[0].is_handover(one["id"]) and shown[0].says("after 30 seconds")
    assert shown[1].says("all its processes are gone")


@pytest.mark.promise("M3", "X6")
@pytest.mark.parametrize("wide", [True, False])
def test_long_output_reaches_the_model_whole_page_by_page(client: Client, wide: bool):
    """Each client cuts long results in its own way: by characters, by lines. Ours stay below that."""
    count, line = (1500, """f'row-{i} ' + '"' * 40""") if wide else (4000, "f'row-{i}'")
    job = f"for i in range({count}): print({line})"
    shown = client.run(Call("execute", code=job, language="python"), *[read_on()] * 30)
    assert [row for one in shown for row in one.rows()] == list(range(count))
    assert len(shown) > 2 and shown[-1].ended


@pytest.mark.promise("M3", "X6")
@pytest.mark.parametrize("client", ["codex"], indirect=True)
def test_a_model_that_codex_does_not_know_needs_shorter_pages(client: Client):
    """It cuts results at 10 KB then, in the middle; and shows the tools without a search."""
    client.searches = False
    folder = client.home.base / ".codex"
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('"gpt-5.5"', '"my-own-model"'))
    (setting,) = re.findall(r"`(mcp\.output = .+?)`", DOCS.read_text())
    (client.home.folder / "tenuto.toml").write_text(setting)
    job = "for i in range(400): print(f'row-{i} ' + 'x' * 40)"
    shown = client.run(Call("execute", code=job, language="python"), *[read_on()] * 30)
    assert [row for one in shown for row in one.rows()] == list(range(400))
    assert len(shown) > 2 and shown[-1].ended


@pytest.mark.promise("M4")
def test_the_documents_name_the_versions_that_were_seen():
    pinned: dict[str, str] = {}
    for folder in (QUICK, SLOW):
        pinned |= json.loads((folder / "package.json").read_text())["dependencies"]
    seen = dict(re.findall(r"^\| (Claude Code|Codex|OpenCode) ([\d.]+)\b", DOCS.read_text(), re.M))
    assert seen == {
        "Claude Code": pinned["@anthropic-ai/claude-code"],
        "Codex": pinned["@openai/codex"],
        "OpenCode": pinned["opencode-ai"],
    }
