"""Claude Code in its terminal, where it takes Tasks, with our server and a scripted model.

Seen with the pinned version: only the terminal declares the extension, in every request; `claude -p`
does not. A task goes to the background at once, the model is told its id, which is the execution's,
and gets the result as a notification when it ends, also when it has nothing else to do. The model is
not shown a task's state or output meanwhile; it reads them with `output`. A task that asks for input
opens a form in the terminal, and its answer goes to the program's stdin. TaskStop is tasks/cancel.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from client_help import Claude, Home, Shown
from terminal_help import Terminal

from tenuto.testing.models import Call, Model, Seen, Step

ASK = "name = input('name? ')\nprint('Hello, ' + name + '!')"
TICK = "import time\nfor i in range(16):\n    print(f'row-{i}', flush=True)\n    time.sleep(0.5)"
pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]


class Screen:
    """Claude Code in a terminal."""

    def __init__(self, claude: Claude) -> None:
        self.claude = claude
        self.terminal: Terminal | None = None
        folder = Path(claude.env["CLAUDE_CONFIG_DIR"])
        known = json.loads((folder / ".claude.json").read_text())
        known |= {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [claude.env["ANTHROPIC_API_KEY"][-20:]]},
        }
        # one, that of its folder; or of a folder above, where somebody has left a .git there
        for project in known["projects"].values():
            project["hasTrustDialogAccepted"] = True
        (folder / ".claude.json").write_text(json.dumps(known))

    def ask(self, *steps: Step) -> Terminal:
        """Start it and send a prompt.

        Its user types at once here, before any server is there: the model looks for the tools, as
        it is told to then, and has them afterwards.
        """
        names = [f"mcp__tenuto__{name}" for name in ("execute", "output", "send_input", "kill")]
        search = Call("ToolSearch", query=f"select:{','.join(names)},TaskStop", max_results=5)
        self.claude.model.play(search, *steps)
        words = [
            self.claude.path, "--model", "claude-sonnet-4-5",
            "--allowedTools", "mcp__tenuto,TaskStop",
        ]  # fmt: skip
        folder = str(self.claude.home.folder)
        self.terminal = Terminal(words, folder, self.claude.env)
        self.terminal.wait_for("❯")
        self.terminal.type("Begin")
        self.terminal.enter()
        return self.terminal

    def close(self) -> None:
        if self.terminal is not None:
            self.terminal.close()
            self.terminal = None


@pytest.fixture
def screen(home: Home, model: Model):
    claude = Claude(home, model)
    claude.add()
    shown = Screen(claude)
    yield shown
    shown.close()


def notified(seen: Seen) -> bool:
    return "<task-notification>" in seen.texts[-1]


def result_of(seen: Seen) -> Shown:
    """Return the result that a notification carries."""
    found = re.search(r"<result>\n(.*?)\n</result>", seen.texts[-1], re.S)
    assert found is not None, seen.texts[-1]
    return Shown(found[1])


@pytest.mark.promise("M3", "X3", "X6")
def test_long_work_is_a_task_that_can_be_read_and_whose_end_wakes_the_model(screen: Screen):
    screen.ask(
        Call("execute", code=TICK, language="python", wait=2),
        lambda seen: Call("output", execution_id=seen.id, wait_s=1),
        "I wait for it.",
        "It is done.",
    )
    told = screen.claude.model.until(notified)
    (execution_id,) = {one["id"] for one in screen.claude.home.document("ps", "-a")}
    started, read = (Shown(one.text) for one in told.results[1:])
    assert started.says("started server-side task", execution_id)
    assert read.rows() == list(range(len(read.rows()))) and not read.ended
    result = result_of(told)
    assert "<status>completed</status>" in told.texts[-1]
    assert result.ended and result.rows() == list(range(16))


@pytest.mark.promise("M3", "X7")
@pytest.mark.parametrize("wait", [{}, {"wait": 0}], ids=["at once", "later"])
def test_a_task_that_asks_asks_in_the_terminal(screen: Screen, wait: dict[str, int]):
    terminal = screen.ask(
        Call("execute", code=ASK, language="python", **wait), "I wait for it.", "It is done."
    )
    terminal.wait_for("Accept")
    terminal.type("Ada")
    terminal.enter()
    terminal.wait_for("Accept")
    home = screen.claude.home
    terminal.enter(until=lambda: not home.document("ps"))
    told = screen.claude.model.until(notified)
    assert result_of(told).says("Hello, Ada!")


@pytest.mark.promise("M3", "X8")
def test_stopping_the_task_kills_the_execution(screen: Screen):
    def stop(seen: Seen) -> Call:
        found = re.search(r'task_id "(\w+)"', seen.last)
        assert found is not None, seen.last
        return Call("TaskStop", task_id=found[1])

    screen.ask(Call("execute", command=["sleep", "600"], wait=1), stop, "It is stopped.")
    told = screen.claude.model.until(lambda seen: len(seen.results) == 3)
    assert "top" in told.last, told.last
    done = screen.claude.home.cli("wait", "--up-to", "30s")
    (one,) = screen.claude.home.document("ps", "-a")
    assert one["state"] == "killed", done.stderr
    assert not screen.claude.home.strays()


@pytest.mark.promise("X11", "M3")
def test_a_task_goes_on_when_its_terminal_is_closed_and_print_mode_finds_it(screen: Screen):
    screen.ask(Call("execute", command=["sleep", "600"], wait=1), "I wait for it.")
    screen.claude.model.until(lambda seen: len(seen.results) == 2)
    screen.close()
    (one,) = screen.claude.home.document("ps")
    shown = screen.claude.run(
        Call("list"), lambda seen: Call("kill", execution_id=seen.id), "Found it."
    )
    assert shown[0].says(one["id"]) and shown[1].says("all its processes are gone")
