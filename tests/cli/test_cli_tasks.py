"""tenuto task and the verbs around it, as a person or a script uses them."""

from __future__ import annotations

import os
import pty

import pytest
from cli_help import CommandLine

RUNNER = '[runners]\necho = "tenuto.testing.agents:EchoRunner"\n'


@pytest.fixture
def echo(cli: CommandLine) -> CommandLine:
    """Return a command line whose project knows an agent without a model."""
    (cli.folder / "tenuto.toml").write_text(RUNNER)
    return cli


def test_a_question_says_what_exactly_would_be_done(echo: CommandLine) -> None:
    asked = echo("task", "--runtime", "echo", "[[ask:Bash]]")
    assert asked.returncode == 75
    assert "asks #1: task wants to use Bash\n" in asked.stderr
    assert '{"tool":"Bash","input":' in asked.stderr
    assert "tenuto send" not in asked.stderr  # a task reads no stdin
    shown = echo("show").stdout
    assert '  asks #1: task wants to use Bash\n    {"tool":"Bash","input":' in shown
    assert echo("deny", "-q").stderr == ""


def test_the_only_running_one_is_the_task_not_what_serves_it(echo: CommandLine) -> None:
    echo.start("--title", "metering gateway", "--", "sleep", "600")
    refused = echo("wait", "--up-to", "5s")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "nothing is running" in refused.stderr
    task = echo("task", "-d", "--runtime", "echo", "[[hang]]").stdout.strip()
    assert echo.json("show")["id"] == task
    assert echo("interrupt", task).returncode == 0


def test_an_ended_task_asks_nothing_any_more(echo: CommandLine) -> None:
    task = echo("task", "-d", "--runtime", "echo", "[[ask:Bash]]").stdout.strip()
    assert echo("wait", task).returncode == 75
    assert echo.json("show", task)["task"]["asks"]
    assert echo("interrupt", task).returncode == 0
    assert echo.json("show", task)["task"]["asks"] == []
    assert "asks #" not in echo("show", task).stdout


def test_a_resumed_task_is_told_as_a_started_one(echo: CommandLine) -> None:
    task = echo("task", "-d", "--runtime", "echo", "[[ask:Bash]]").stdout.strip()
    assert echo("wait", task).returncode == 75
    assert echo("interrupt", task).returncode == 0
    resumed = echo("resume", task)
    assert resumed.returncode == 75
    assert "asks #" in resumed.stderr and f"tenuto approve {task[:18]}" in resumed.stderr
    assert echo("approve", task).returncode == 0
    assert echo("wait", task).returncode == 0
    assert '"status"' not in resumed.stdout


def test_why_it_failed_is_told_once(echo: CommandLine) -> None:
    failed = echo("task", "--runtime", "echo", "[[fail:auth]]")
    assert failed.returncode == 1
    assert failed.stderr.count("it was told to fail") == 1
    assert "tenuto: failed: auth  " in failed.stderr
    quiet = echo("task", "-q", "--runtime", "echo", "[[fail:auth]]")
    assert quiet.stderr.count("it was told to fail") == 1


@pytest.mark.parametrize("words", [["--file", "nosuch.py"], ["--skill", "nosuch.py"]])
def test_what_is_not_there_is_told_before_a_task_begins(
    echo: CommandLine, words: list[str]
) -> None:
    refused = echo("task", "--runtime", "echo", *words, "Say hello")
    assert refused.returncode == 2
    assert refused.stderr.count("nosuch.py") == 1
    assert not echo.ids()


@pytest.mark.parametrize("words", [["--runtime", "ecko"], ["--strategy", "wat"], ["--role", "wat"]])
def test_a_name_that_is_unknown_is_a_mistake_of_usage(echo: CommandLine, words: list[str]) -> None:
    refused = echo("task", *words, "Say hello")
    assert refused.returncode == 2
    assert "known" in refused.stderr


def test_a_plan_that_can_never_run_is_a_mistake_of_usage(echo: CommandLine) -> None:
    plan = '{"steps": [{"id": "a", "task": "x", "depend_on": ["b"]}]}'
    refused = echo("task", "--runtime", "echo", "--plan", "-", input=plan)
    assert refused.returncode == 2
    assert "depend_on" in refused.stderr and "depends_on" in refused.stderr


def test_a_terminal_is_told_who_begins_since_agents_are_silent_at_first(echo: CommandLine) -> None:
    master, slave = pty.openpty()
    process = echo.popen("task", "--no-color", "--runtime", "echo", "[[hang]]", stderr=slave)
    os.close(slave)
    with open(master, "rb", buffering=0) as terminal:
        assert terminal.read(4096) == b"task: begins (developer, echo)\r\n"
    assert process.poll() is None
