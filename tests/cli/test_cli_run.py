import hashlib
import re
import signal
import sys

import pytest

pytestmark = pytest.mark.promise("U1")


def test_output_goes_through_and_the_exit_code_is_the_childs_own(cli):
    done = cli("run", "--", "sh", "-c", "printf 'out\\n'; printf 'err\\n' >&2; exit 7")
    assert done.returncode == 7
    assert done.stdout == "out\n"
    assert done.stderr.startswith("err\n")
    assert "failed: exit (exit code 7)" in done.stderr


def test_success_prints_nothing_of_its_own(cli):
    done = cli("run", "--", "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_bytes_that_are_no_text_pass_through_unchanged(cli):
    done = cli("run", "--", "printf", r"\377\000\033[2J")
    assert done.stdout.encode("utf-8", "surrogateescape") == b"\xff\x00\x1b[2J"


@pytest.mark.promise("X12")
def test_death_by_a_signal_is_128_plus_its_number(cli):
    done = cli("run", "--", "sh", "-c", "kill -TERM $$")
    assert done.returncode == 128 + signal.SIGTERM
    assert "SIGTERM" in done.stderr


@pytest.mark.promise("X13")
def test_the_value_of_the_last_expression_stands_on_its_own_line(cli):
    done = cli("run", "--lang", "python", "print('x', end='')\n{'a': [1, 2]}")
    assert done.stdout == 'x\n{"a":[1,2]}\n'
    done = cli("run", "--lang", "python", "print('only this')")
    assert done.stdout == "only this\n"
    done = cli("run", "--lang", "python", "object")
    assert done.stdout == "<class 'object'>\n"


@pytest.mark.promise("X13")
def test_code_comes_from_an_argument_a_file_or_stdin(cli):
    (cli.folder / "hello.py").write_text("print('from a file')")
    assert cli("run", "--lang", "bash", "echo $((6*7))").stdout == "42\n"
    assert cli("run", "--file", "hello.py").stdout == "from a file\n"
    assert cli("run", "--lang", "python", "-", input="print('piped')").stdout == "piped\n"
    assert cli("run", "--lang", "bash", "--", "echo 'after dashes'").stdout == "after dashes\n"
    (cli.folder / "odd").write_text("echo by flag")
    assert cli("run", "--lang", "bash", "--file", "odd").stdout == "by flag\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["print(1)"], "python, node, deno, bash"),
        ([], "nothing to run"),
        (["--lang", "cobol", "x"], "invalid choice"),
        (["--lang", "python", "--file", "a.py", "x"], "more than one"),
        (["--file", "missing.py"], "missing.py"),
        (["--file", "notes.txt"], "notes.txt"),
        (["x", "--", "true"], "code and a command"),
        (["--env", "NOVALUE", "--", "true"], "NAME=VALUE"),
        (["--wait", "soon", "--", "true"], "not a duration"),
        (["--mem", "much", "--", "true"], "not a size"),
        (["--cwd", "/nowhere/at/all", "--", "true"], "/nowhere/at/all"),
        (["--", "no-such-program-here"], "no-such-program-here"),
        (["--open-files", "0", "--", "true"], "above zero"),
    ],
)
def test_what_cannot_run_is_a_usage_error_with_a_way_on(cli, words, says):
    done = cli("run", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()[:2]
    assert first.startswith("tenuto: error: ")
    assert second.startswith("  ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.promise("X3")
def test_a_long_one_is_handed_over_with_its_id_and_the_next_commands(cli):
    done = cli("run", "--wait", "1s", "--", "sh", "-c", "echo early; sleep 100")
    assert done.returncode == 75
    assert done.stdout == "early\n"
    assert "Execution moved to async mode after 1 seconds." in done.stderr
    (execution_id,) = cli.ids()
    assert f"id: {execution_id}" in done.stderr
    commands = re.findall(r"^  tenuto (\w+)", done.stderr, re.M)
    assert commands == ["logs", "send", "wait", "kill"]
    shown = cli.json("show", execution_id)
    assert (shown["state"], shown["async"]) == ("running", True)


@pytest.mark.promise("X3")
def test_a_wait_of_zero_hands_over_at_once_and_the_setting_counts(cli):
    done = cli("run", "--wait", "0", "--", "sleep", "100")
    assert done.returncode == 75
    assert "after 0 seconds." in done.stderr
    done = cli("run", "--", "sleep", "100", env={"TENUTO_WAIT": "100ms"})
    assert "after 0.1 seconds." in done.stderr


@pytest.mark.promise("X3", "X7")
def test_a_program_that_asks_for_input_ends_the_wait_early(cli):
    done = cli("run", "--wait", "50s", "--lang", "python", "print(input('name? '))")
    assert done.returncode == 75
    assert "waits for input" in done.stderr
    (execution_id,) = cli.ids()
    assert cli("send", execution_id, "Ada").returncode == 0
    done = cli("wait", execution_id)
    assert done.returncode == 0
    assert cli("logs", execution_id).stdout == "name? Ada\n"


@pytest.mark.promise("X7")
def test_i_forwards_a_pipe_and_its_end(cli):
    done = cli("run", "-i", "--", "sort", input="b\na\n")
    assert (done.returncode, done.stdout) == (0, "a\nb\n")


@pytest.mark.promise("X7")
def test_i_forwards_megabytes_whole_and_in_order(cli):
    data = b"".join(b"%07d\n" % n for n in range(400_000))
    done = cli("run", "-i", "--", "md5sum", input=data)
    assert done.stdout.split()[0] == hashlib.md5(data).hexdigest()


def test_detached_prints_the_id_alone(cli):
    done = cli("run", "-d", "--", "sleep", "100")
    assert (done.returncode, done.stderr) == (0, "")
    assert {done.stdout.strip()} == cli.ids()
    assert cli.json("show", done.stdout.strip())["async"] is True


def test_json_is_one_document_with_the_output(cli):
    document = cli.json("run", "--lang", "python", "print('hi')\n[1]")
    assert document["schema"] == 1
    assert document["state"] == "succeeded"
    assert document["output"] == "hi\n"
    assert document["value"] == [1]
    assert document["exit_code"] == 0
    assert document["handed_over"] is False
    over = cli.json("run", "--wait", "0", "--", "sleep", "100")
    assert over["handed_over"] is True
    detached = cli.json("run", "-d", "--", "sleep", "100")
    assert detached["state"] in ("running", "queued")


def test_options_reach_the_execution(cli):
    (cli.folder / "inner").mkdir()
    code = "import os\nprint(os.getcwd(), os.environ['COLOUR'], os.isatty(1))"
    named = ["--title", "named", "--env", "COLOUR=a=b", "--cwd", "inner"]
    done = cli("run", *named, "--lang", "python", code)
    assert done.stdout == f"{cli.folder / 'inner'} a=b False\n"
    (execution_id,) = cli.ids()
    shown = cli.json("show", execution_id)
    assert shown["title"] == "named"
    assert shown["spec"]["env_names"] == ["COLOUR"]
    assert "a=b" not in str(shown)
    done = cli("run", "--pty", "--", "sh", "-c", "test -t 0 && test -t 1 && echo yes")
    assert done.stdout == "yes\n"


@pytest.mark.promise("X4")
def test_limits_and_deadlines_are_kept_only_if_asked_for(cli):
    done = cli("run", "--deadline", "300ms", "--", "sh", "-c", "echo part; sleep 100")
    assert done.returncode == 124, "as timeout has it"
    assert done.stdout == "part\n"
    assert "deadline" in done.stderr
    done = cli("run", "--idle", "300ms", "--", "sleep", "100")
    assert "idle" in done.stderr
    done = cli("run", "--max-output", "1000", "--output-policy", "fail", "--", "yes")
    assert done.returncode != 0
    assert "output limit" in done.stderr
    done = cli("run", "--max-file-size", "1k", "--", "sh", "-c", "yes > big; exit 0")
    assert (cli.folder / "big").stat().st_size <= 1024


@pytest.mark.promise("X12")
def test_a_failure_names_a_way_on(cli):
    done = cli("run", "--lang", "python", "import not_a_module_at_all")
    assert done.returncode == 1
    assert "a module is missing" in done.stderr


@pytest.mark.promise("X8")
def test_processes_left_behind_are_mentioned(cli):
    done = cli("run", "--", "sh", "-c", "sleep 100 >/dev/null 2>&1 </dev/null & echo $!")
    assert done.returncode == 0
    assert "left 1 process behind" in done.stderr
    (execution_id,) = cli.ids()
    assert f"pid {done.stdout.strip()}" in cli("tree", execution_id).stdout
    assert cli("kill", execution_id).returncode == 0


@pytest.mark.promise("X3", "X11")
def test_ctrl_c_leaves_the_execution_running(cli):
    process = cli.popen("run", "--wait", "50s", "--", "sh", "-c", "echo here; exec sleep 100")
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    assert process.returncode == 130
    (execution_id,) = cli.ids()
    assert f"still running: {execution_id}" in err.decode()
    assert "tenuto logs -f" in err.decode()
    assert cli.state(execution_id) == "running"


@pytest.mark.promise("X11")
def test_a_killed_command_line_loses_nothing(cli):
    code = "import sys\nprint('one', flush=True)\nsys.stdin.readline()\nprint('two')"
    process = cli.popen("run", "-i", "--lang", "python", code, stdin=-1)
    assert process.stdout.readline() == b"one\n"
    process.kill()
    process.communicate()
    (execution_id,) = cli.ids()
    assert cli("send", execution_id, "go").returncode == 0
    assert cli("wait", execution_id).returncode == 0
    assert cli("logs", execution_id).stdout == "one\ntwo\n"


@pytest.mark.promise("X10")
def test_reports_appear_on_stderr_while_it_waits(cli):
    done = cli("run", "--wait", "700ms", "--title", "slow one", "--", "sleep", "100",
               env={"TENUTO_REPORT_EVERY": "200ms"})  # fmt: skip
    assert done.stderr.count("Running: 1") >= 2
    assert "slow one" in done.stderr
    assert done.stdout == ""
    quiet = cli("run", "-q", "--wait", "500ms", "--", "sleep", "100",
                env={"TENUTO_REPORT_EVERY": "100ms"})  # fmt: skip
    assert "Running:" not in quiet.stderr


def test_a_closed_pipe_ends_the_command_and_the_work_goes_on_as_it_says(cli):
    code = "yes | head -c 3000000; sleep 100"
    process = cli.popen("run", "--wait", "50s", "--lang", "bash", code)
    process.stdout.read(10)
    process.stdout.close()
    process.wait(timeout=50)
    assert process.returncode == 141
    assert b"still running: " in process.stderr.read()
    (execution_id,) = cli.ids()
    assert cli.state(execution_id) == "running"


def test_nothing_heavy_is_loaded_for_the_everyday_verbs(cli):
    script = (
        "import sys\nfrom tenuto.cli.main import main\ncode = main(sys.argv[1:])\n"
        "print(','.join(sorted(sys.modules)))"
    )
    heavy = {
        "mcp", "starlette", "pydantic", "asyncio", "rich", "subprocess", "shutil", "pathlib",
        "inspect", "dataclasses", "logging", "tomllib", "typing_extensions", "shtab", "ast",
    }  # fmt: skip
    execution_id = cli.start("--", "cat")
    cli.argv = [sys.executable, "-c", script]
    for words in (
        ["run", "--", "true"],
        ["ps"],
        ["logs", execution_id],
        ["send", execution_id, "x"],
        ["wait", execution_id, "--up-to", "0"],
        ["kill", execution_id],
    ):
        loaded = set(cli(*words).stdout.splitlines()[-1].split(","))
        assert "tenuto.engine.blocking" in loaded
        assert not loaded & heavy, words
    cli.argv = [sys.executable, "-m", "tenuto.cli.main"]


def test_a_command_without_the_dashes_is_told_where_they_go(cli):
    done = cli("run", "ls", "-la")
    assert done.returncode == 2
    assert "tenuto run -- " in done.stderr


@pytest.mark.parametrize("given", ["hello\n", ""])
def test_input_that_is_not_passed_on_is_told(cli, given):
    done = cli("run", "--", "cat", input=given)
    assert done.returncode == 75
    assert ("is not passed on without -i" in done.stderr) == bool(given)


def test_a_full_quota_is_handed_over_with_the_way_on(cli):
    done = cli("run", "--max-output", "1k", "--", "seq", "100000")
    assert done.returncode == 75
    execution_id = cli.json("ps")[0]["id"]
    assert done.stderr.endswith(f"  tenuto clear {execution_id[:18]}\n")


def test_a_file_in_place_of_code_is_told_how_to_run(cli):
    (cli.folder / "my job.py").write_text("print(1)\n")
    done = cli("run", "my job.py")
    assert done.returncode == 2
    assert done.stderr.endswith("  or is it a file? tenuto run --file 'my job.py'\n")
