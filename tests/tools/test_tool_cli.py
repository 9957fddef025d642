"""tenuto tools, as a person or a program uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_help import CommandLine

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CommandLine]:
    line = CommandLine(tmp_path)
    (tmp_path / "greet.js").write_text("`Hello, ${inputs.name}`\n")
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    yield line
    line.close()


def save(cli: Any, *more: str) -> Any:
    words = ("tools", "save", "greet", "--schema", "schema.json", "--file", "greet.js", *more)
    done = cli(*words)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.promise("C8", "U1")
def test_a_tool_is_saved_listed_shown_run_and_deleted(cli: Any) -> None:
    assert "saved greet, version 1 (project)" in save(cli, "--description", "Greets.").stderr
    assert cli("tools", "list").stdout == "greet  v1, 0 uses  Greets.\n"
    done = cli("tools", "run", "greet", '{"name":"Ada"}')
    assert (done.stdout, done.returncode) == ('"Hello, Ada"\n', 0)
    shown = cli("tools", "show", "greet").stdout
    assert "parameters  name: string" in shown
    assert "used        1, last 20" in shown
    assert shown.endswith("\n\n`Hello, ${inputs.name}`\n")
    assert "deleted greet (project)" in cli("tools", "delete", "greet").stderr
    assert cli("tools", "list").stdout == ""
    assert "`Hello" in cli("tools", "show", "greet", "--version", "1").stdout
    assert cli("tools", "run", "greet", "{}").returncode == 1


@pytest.mark.promise("C8")
def test_an_input_that_does_not_fit_shows_the_valid_parameters(cli: Any) -> None:
    save(cli)
    done = cli("tools", "run", "greet", '{"nam":"Ada"}')
    assert done.returncode == 2
    assert '"name" is a required property' in done.stderr
    assert "valid parameters: name: string" in done.stderr
    assert done.stdout == ""
    for wrong, why in (("[1]", "no JSON object"), ("{", "is not JSON")):
        done = cli("tools", "run", "greet", wrong)
        assert done.returncode == 2
        assert why in done.stderr


def test_an_input_may_come_from_stdin_and_code_too(cli: Any) -> None:
    assert cli("tools", "save", "twice", "--file", "-", input="inputs.n * 2").returncode == 0
    assert cli("tools", "run", "twice", "-", input='{"n": 21}').stdout == "42\n"


@pytest.mark.promise("C8", "U1")
def test_code_that_cannot_be_parsed_is_refused_with_its_place(cli: Any) -> None:
    (cli.folder / "greet.ts").write_text("const n: number = 1;\nconst m: = 2")
    done = cli("tools", "save", "greet", "--file", "greet.ts")
    assert done.returncode == 2
    assert "cannot be parsed from line 2, column 10 on: '= 2'" in done.stderr
    assert cli.json("tools", "list") == []


@pytest.mark.promise("C8")
def test_everything_is_there_as_json(cli: Any) -> None:
    saved = json.loads(save(cli, "--json").stdout)
    assert (saved["schema"], saved["name"], saved["version"]) == (1, "greet", 1)
    assert saved["input_schema"] == SCHEMA
    (cli.folder / "greet.js").write_text("2")
    save(cli)
    (listed,) = cli.json("tools", "list")
    assert (listed["version"], "code" in listed) == (2, False)
    shown = cli.json("tools", "show", "greet")
    assert (shown["code"], shown["versions"]) == ("2", [1])
    run = cli.json("tools", "run", "greet", '{"name":"Ada"}')
    assert (run["value"], run["title"], run["state"]) == (2, "tool greet", "succeeded")
    assert cli.json("show", run["id"])["title"] == "tool greet"
    error = cli.json("tools", "run", "greet", "{}")["error"]
    assert error["code"] == "bad_input"
    assert cli.json("tools", "show", "none")["error"]["code"] == "unknown_tool"
    assert cli.json("tools", "delete", "greet", "--purge")["purged"] is True
    assert cli.json("tools", "list") == []


def test_a_long_run_is_handed_over_as_any_other(cli: Any) -> None:
    code = "await new Promise((done) => setTimeout(done, 600_000))"
    assert cli("tools", "save", "slow", "--file", "-", input=code).returncode == 0
    done = cli("tools", "run", "slow", "--wait", "0.1s")
    assert done.returncode == 75
    assert "moved to async mode" in done.stderr
    started = cli("tools", "run", "slow", "-d")
    assert cli.json("show", started.stdout.strip())["state"] == "running"


@pytest.mark.promise("C8")
def test_global_tools_are_seen_from_every_project(cli: Any, tmp_path: Path) -> None:
    save(cli, "--global")
    assert (tmp_path / ".local/share/tenuto/composed-tools/greet.json").exists()
    other = {"TENUTO_HOME": str(tmp_path / "other")}
    assert cli("tools", "list", env=other).stdout == "greet  v1, 0 uses, global\n"
    assert cli("tools", "delete", "greet", "--global").returncode == 0


def test_a_broken_file_is_a_warning_on_stderr(cli: Any) -> None:
    save(cli)
    (cli.home / "composed-tools" / "bad.json").write_text("{")
    done = cli("tools", "list")
    assert done.stdout == "greet  v1, 0 uses\n"
    assert "warning: passed over" in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("save", "greet"), "there is no code to save"),
        (("save", "a-b", "--file", "greet.js"), "is not a tool's name"),
        (("save", "greet", "--file", "none.js"), "cannot read"),
        (("save", "greet", "--file", "greet.js", "--schema", "greet.js"), "is not JSON"),
        (("save",), "save needs a name"),
        (("show",), "show needs a name"),
        (("list", "greet"), "list takes no name"),
        (("delete", "a", "b"), "delete takes one name"),
        (("make", "greet"), "invalid choice"),
        ((), "ACTION"),
    ],
)
def test_wrong_words_are_told(cli: Any, words: tuple[str, ...], why: str) -> None:
    done = cli("tools", *words)
    assert done.returncode == 2
    assert why in done.stderr
    assert not (cli.home / "composed-tools").exists()


def test_code_on_the_command_line_may_call_tools(cli: Any) -> None:
    save(cli)
    done = cli("run", "--lang", "js", "await tools.greet({name: 'Ada'})")
    assert done.stdout == '"Hello, Ada"\n', done.stderr
    assert cli.json("tools", "show", "greet")["uses"] == 1
