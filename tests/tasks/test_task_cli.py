"""Tasks from the command line: what is refused, what is printed, exit codes, and other processes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from cli_help import CommandLine
from task_help import document

from tenuto.stores.layout import Project

CYCLE = document(
    {"id": "a", "task": "x", "depends_on": ["c"]},
    {"id": "b", "task": "x", "depends_on": ["a"]},
    {"id": "c", "task": "x", "depends_on": ["b"]},
)
UNKNOWN = document({"id": "a", "task": "x", "depends_on": ["nobody"]})
TWICE = document({"id": "a", "task": "x"}, {"id": "a", "task": "y"})


@pytest.mark.promise("G2", "U1")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CYCLE, "→"), (UNKNOWN, "'nobody'"), (TWICE, "two steps have the id 'a'"),
        ('{"steps": []}', "no steps"), ("{", "no JSON"), ('{"steps": [{"id": "a"}]}', "task"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_run_is_refused_and_leaves_nothing(
    cli: CommandLine, project: Project, text: str, said: str
) -> None:
    (cli.folder / "plan.json").write_text(text)
    done = cli("task", "--plan", "plan.json")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2, "what is wrong, and the next step"
    assert list(project.all_ids()) == []


@pytest.mark.promise("G2", "U1")
@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"id": "a", "task": 5}, "steps[0].task is 5: Expected `str`, got `int`"),
        ({"id": "a", "task": "x", "depends_on": "b"}, 'steps[0].depends_on is "b": Expected'),
        ({"id": "a", "task": "x", "max_cost": "lots"}, 'steps[0].max_cost is "lots": Invalid'),
        ({"id": "a", "task": "x", "retry": {"times": "9x"}}, 'steps[0].retry.times is "9x"'),
        ({"id": "a", "task": "x", "in_flight": None}, "steps[0].in_flight is null"),
        ({"id": "a", "why": "y" * 500}, f'steps[0] is {{"id":"a","why":"{"y" * 60}'),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_quoted(cli: CommandLine, step: Any, said: str) -> None:
    done = cli("task", "--plan", "-", input=document(step))
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert "y" * 100 not in done.stderr


@pytest.mark.promise("U1")
def test_show_tells_what_was_asked_for_and_not_how_it_is_driven(cli: CommandLine) -> None:
    words = ["--max-cost", "2.50", "--title", "a name", "--runtime", "echo", "--role", "developer"]
    done = cli("task", *words, "[[say:well]] do it")
    assert done.returncode == 0, done.stderr
    (one,) = cli.json("ps", "-a", "--kind", "task")
    shown = cli("show", one["id"]).stdout
    assert "tenuto.engine.driving" not in shown and "command " not in shown
    assert re.search(r"^task +\[\[say:well]] do it$", shown, re.MULTILINE), shown
    assert "max_cost 2.50" in shown and "runtime echo" in shown and "role developer" in shown
    done = cli(
        "task", "--plan", "-", input=document({"id": "a", "task": "x"}, {"id": "b", "task": "y"})
    )
    assert done.returncode == 0, done.stderr
    shown = cli("show", cli.json("ps", "-a", "--kind", "task")[0]["id"]).stdout
    assert re.search(r"^plan +2 steps: a, b$", shown, re.MULTILINE), shown


@pytest.mark.promise("R1", "U1")
def test_a_bound_on_turns_that_a_runtime_does_not_take_is_warned_of(cli: CommandLine) -> None:
    words = ["--runtime", "echo", "--max-turns", "3"]
    done = cli("task", *words, "[[say:well]] do it")
    assert done.returncode == 0 and "warning: echo takes no bound on its turns" in done.stdout
    (one,) = cli.json("ps", "-a", "--kind", "task")
    assert len(cli.json("show", one["id"])["task"]["warnings"]) == 1
    assert cli("task", "--max-turns", "0", "x").returncode == 2


@pytest.mark.promise("G2")
def test_a_cycle_is_named_step_by_step(cli: CommandLine) -> None:
    done = cli("task", "--plan", "-", input=CYCLE)
    assert any(way in done.stderr for way in ("a → b → c → a", "b → c → a → b", "c → a → b → c"))


@pytest.mark.promise("G2")
def test_a_plan_of_a_million_edges_is_refused_in_time(cli: CommandLine, project: Project) -> None:
    names = [f"s{n}" for n in range(1000)]
    steps = [{"id": name, "task": "x", "depends_on": names[:n]} for n, name in enumerate(names)]
    steps += [{"id": f"t{n}", "task": "x", "depends_on": names} for n in range(501)]
    (cli.folder / "plan.json").write_text(json.dumps(steps))
    done = cli("task", "--plan", "plan.json")
    assert (done.returncode, "1000500 dependencies" in done.stderr) == (2, True), done.stderr
    assert "split it" in done.stderr
    (cli.folder / "plan.json").write_text(document({"id": "a", "task": "x" * 9_000_000}))
    done = cli("task", "--plan", "plan.json")
    assert done.returncode == 2 and "task of step 'a' is larger than 5 MiB" in done.stderr
    large = [{"id": f"s{n}", "task": "x" * 4_000_000} for n in range(3)]
    (cli.folder / "plan.json").write_text(document(*large))
    done = cli("task", "--plan", "plan.json")
    assert done.returncode == 2 and "bytes" in done.stderr
    os.truncate(cli.folder / "plan.json", 1 << 36)  # nobody reads that to its end
    for words in (("plan.json",), ("-",)):
        with open(cli.folder / "plan.json", "rb") as stdin:
            asked = cli.popen("task", "--plan", *words, stdin=stdin)
            told = asked.communicate(timeout=60)[1]
        assert asked.returncode == 2 and b"larger than 64 MiB" in told, told
    assert list(project.all_ids()) == []


@pytest.mark.promise("R4", "U1")
@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("--runtime", "nobody"), "claude-code"), (("--strategy", "sideways"), "parallel"),
        (("--role", "wizard"), "developer"), (("--type", "magic"), "bugfix"),
        (("--max-cost", "much"), "dollars"), (("--strategy", "parallel"), "plan"),
        (("--strategy", "multi", "--role", "ops"), "chain"),
    ],
)  # fmt: skip
def test_unknown_names_exit_with_2_and_list_the_known_ones(
    cli: CommandLine, project: Project, words: tuple[str, ...], known: str
) -> None:
    done = cli("task", "x", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert known in done.stderr and "Traceback" not in done.stderr
    assert list(project.all_ids()) == []


@pytest.mark.promise("U1")
def test_a_task_prints_what_agents_say_and_tells_how_each_step_ended(cli: CommandLine) -> None:
    plan = document(
        {"id": "a", "task": "[[say:one]]"},
        {"id": "b", "task": "[[fail:auth]]", "depends_on": ["a"]},
        {"id": "c", "task": "never", "depends_on": ["b"]},
    )
    done = cli("task", "--plan", "-", "--strategy", "parallel", input=plan)
    assert done.returncode == 1
    assert done.stdout == "[a] one\n"
    for line in ("a: completed", "b: failed", "c: skipped_dependency_failed"):
        assert line in done.stderr
    assert "partial" in done.stderr
    (listed,) = cli.json("ps", "-a")
    assert (listed["kind"], listed["state"], listed["reason"]) == ("task", "failed", "partial")
    shown = cli("show", listed["id"])
    assert "b: failed" in shown.stdout and "skipped_dependency_failed" in shown.stdout
    whole = cli.json("show", listed["id"])
    assert [one["status"] for one in whole["task"]["steps"]] == [
        "completed", "failed", "skipped_dependency_failed",
    ]  # fmt: skip
    assert whole["task"]["status"] == "partial" and not whole["task"]["success"]
    assert cli("logs", listed["id"]).stdout == "[a] one\n"


@pytest.mark.promise("U1")
def test_json_is_one_document_with_the_result(cli: CommandLine) -> None:
    found = cli.json("task", "[[say:hello]]")
    assert (found["state"], found["exit_code"]) == ("succeeded", 0)
    assert found["value"]["steps"][0]["output"] == "hello"
    refused = cli("--json", "task", "x", "--role", "wizard")
    assert json.loads(refused.stdout or refused.stderr)["error"]["code"] == "unknown_name"


@pytest.mark.promise("U1", "X3", "X11")
def test_a_detached_task_is_followed_waited_for_and_ended_from_other_processes(
    cli: CommandLine,
) -> None:
    done = cli("task", "-d", "[[ask:Bash]] [[say:hello]]", "--permissions", "ask")
    assert done.returncode == 0, done.stderr
    one = done.stdout.strip()
    waited = cli("wait", one, "--up-to", "50s")
    assert waited.returncode == 75 and "approve" in waited.stderr + waited.stdout
    follower = cli.popen("logs", "-f", one)
    approved = cli("approve", one[:13], "--why", "fine")
    assert approved.returncode == 0 and "approved #1" in approved.stderr, approved.stderr
    output, _ = follower.communicate(timeout=50)
    assert output == b"hello\n"
    assert cli("wait", one).returncode == 0
    again = cli("approve", one)
    assert again.returncode == 1 and "asks nothing any more" in again.stderr
    assert cli("approve").returncode == 1, "nothing waits"


@pytest.mark.promise("U1", "D3")
def test_an_interrupted_task_says_how_to_go_on_and_does(cli: CommandLine) -> None:
    plan = document(
        {"id": "a", "task": "[[say:first]]"},
        {"id": "b", "task": "[[hang]]", "depends_on": ["a"]},
    )
    one = cli("task", "-d", "--plan", "-", "--strategy", "parallel", input=plan).stdout.strip()
    cli.wait_for(one, "[a] first")
    stopped = cli("interrupt", one)
    assert stopped.returncode == 0
    assert "tenuto resume" in stopped.stdout + stopped.stderr
    assert cli.state(one) == "interrupted"
    refused = cli("approve", one)
    assert refused.returncode == 1
    again = cli("resume", "-d", one)
    assert again.returncode == 0, again.stderr
    assert cli("resume", one).returncode == 1, "it runs"
    ended = cli.json("kill", one)
    assert ended["state"] == "killed"
    assert cli("resume", one).returncode == 1, "what was killed stays so"
    events = cli.json("show", "--events", one)
    begun: list[Any] = [event["step"] for event in events if event["type"] == "step_started"]
    assert begun.count("a") == 1


@pytest.mark.promise("X13", "R2")
def test_modules_of_the_project_have_no_say_in_the_drivers_imports(cli: CommandLine) -> None:
    (cli.folder / "asyncio.py").write_text("raise SystemExit('taken over')\n")
    (Path(cli.folder) / "msgspec.py").write_text("raise SystemExit('taken over')\n")
    found = cli.json("task", "[[say:hello]]", env={"PYTHONSAFEPATH": "1"})
    assert found["state"] == "succeeded"
    assert os.path.exists(cli.folder / "asyncio.py")
