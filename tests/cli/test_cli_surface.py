import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tenuto import __version__
from tenuto.cli.main import VERBS, main
from tenuto.core import errors

pytestmark = pytest.mark.promise("U1")

ROOT = Path(__file__).resolve().parents[2]


def test_help_names_every_verb_and_every_verb_has_help(cli):
    for words in ([], ["--help"], ["help"], ["-h"]):
        text = cli(*words).stdout
        assert all(re.search(rf"^  {verb} ", text, re.M) for verb in VERBS)
    for verb in VERBS:
        done = cli(verb, "--help")
        assert done.returncode == 0
        assert done.stdout.startswith(f"usage: tenuto {verb}")
        assert "--json" in done.stdout
    assert cli("help", "logs").stdout == cli("logs", "--help").stdout


def test_version(cli):
    assert cli("--version").stdout == cli("version").stdout == f"tenuto {__version__}\n"
    assert cli.json("version")["version"] == __version__


def test_a_wrong_verb_or_flag_is_a_usage_error(cli):
    done = cli("lgos")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "tenuto: error: there is no verb 'lgos'", "  did you mean: tenuto logs",
    ]  # fmt: skip
    assert cli("ps", "--nonsense").returncode == 2
    document = json.loads(cli("--json", "ps", "--nonsense").stdout)
    assert document["schema"] == 1
    assert document["error"]["code"] == "bad_input"
    assert set(document["error"]) == {"code", "message", "hint"}


def test_errors_are_documents_too(cli):
    done = cli("show", "ffff", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "unknown_id"
    assert done.stderr.startswith("tenuto: error: ")


def test_a_defect_is_told_without_a_traceback_unless_asked_for(cli):
    script = (
        "import sys, tenuto.cli.extras as extras\nfrom tenuto.cli.main import main\n"
        "def broken(args, console): raise ZeroDivisionError('oops')\n"
        "extras.version = broken\nsys.exit(main(['version']))"
    )
    cli.argv = [sys.executable, "-c", script]
    done = cli()
    assert done.returncode == 125
    assert "unexpected ZeroDivisionError: oops" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in cli(env={"TENUTO_DEBUG": "1"}).stderr


def test_a_broken_settings_file_is_named(cli):
    (cli.folder / "tenuto.toml").write_text("wait = 'soon'\n")
    done = cli("run", "--", "true")
    assert done.returncode == 2
    assert "tenuto.toml" in done.stderr
    assert not cli.ids()


def test_a_broken_settings_file_keeps_nobody_from_what_runs(cli):
    execution_id = cli.start("--", "sh", "-c", "echo ready; exec sleep 600")
    (cli.folder / "tenuto.toml").write_text("wait = \n")
    warning = f"tenuto: warning: {cli.folder / 'tenuto.toml'} is not valid TOML"
    for words in (["ps"], ["logs", execution_id], ["show"], ["kill", execution_id]):
        done = cli(*words)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith(warning)
    assert "verified dead" in done.stdout


@pytest.mark.promise("X17")
def test_doctor_tells_of_broken_settings_and_goes_on(cli):
    (cli.folder / "tenuto.toml").write_text("wait = 'soon'\n[roles]\ndeveloper = 3\n")
    done = cli("doctor")
    assert done.returncode == 1
    wrong = re.findall(r"^WRONG +settings +(\S+)", done.stdout, re.M)
    assert wrong == ["wait", "roles.developer"]
    assert re.search(r"^wait +default +30$", done.stdout, re.M)


@pytest.mark.promise("X17")
def test_doctor_checks_and_shows_where_settings_come_from(cli):
    (cli.folder / "tenuto.toml").write_text(
        "asyncHandoverTimeout = 5000\n[report]\nevery = '2m'\n"
        "[limits]\nmemory = '64M'\n[runtime]\nmax_turns = 3\n"
    )
    cli("run", "--", "true")
    done = cli("doctor", env={"TENUTO_INTERRUPT_GRACE": "1s"})
    assert done.returncode == 0, done.stdout
    assert re.search(r"^ok +index", done.stdout, re.M)
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert rows["interrupt.grace"] == ["TENUTO_INTERRUPT_GRACE", "1"]
    assert rows["report.every"] == ["tenuto.toml", "120"]
    assert rows["limits.memory"] == ["tenuto.toml", str(64 << 20)]
    assert rows["runtime.max_turns"] == ["tenuto.toml", "3"]
    assert rows["wait"] == ["tenuto.toml", "5"]
    assert rows["tenuto.toml:"] == [str(cli.folder / "tenuto.toml")]
    document = cli.json("doctor")
    assert document["ok"] is True
    assert {"name", "ok", "detail", "hint"} == set(document["checks"][0])


@pytest.mark.promise("X17")
def test_doctor_fits_into_eighty_columns_and_cuts_nothing(cli):
    (cli.folder / "tenuto.toml").write_text('runtime.order = ["cli", "claude-code"]\n')
    shown = coloured(cli, "doctor", "--no-color")  # a terminal that does not say how wide it is
    lines = shown.decode().replace("\r", "").splitlines()
    rows = [line for line in lines if not line.startswith(("ok  disk", "tenuto.toml:"))]
    assert max(map(len, rows)) <= 80
    assert re.search(r"^runtime.order +tenuto.toml +cli, claude-code$", "\n".join(lines), re.M)
    assert re.search(r"^ +anthropic:claude-opus-4-5$", "\n".join(lines), re.M)
    assert "…" not in "\n".join(lines)


@pytest.mark.promise("X17")
def test_doctor_rebuilds_the_index(cli):
    for _ in range(3):
        cli("run", "--", "true")
    for path in cli.home.glob("index.db*"):
        path.unlink()
    done = cli("doctor", "--rebuild")
    assert "The index was rebuilt: 3 executions." in done.stderr
    assert len(cli.json("ps", "-a")) == 3
    assert cli.json("doctor", "--rebuild")["rebuilt"] == 3


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_scripts_know_the_verbs(cli, shell):
    script = cli("completion", shell).stdout
    for word in ("logs", "attach", "--max-output" if shell != "tcsh" else "attach"):
        assert word in script
    if shell == "bash" and shutil.which("bash"):
        assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0


def coloured(cli, *words, **env):
    """Return what a command writes when its stdout is a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*cli.argv, *words], cwd=cli.folder, env={**cli.env, **env}, stdout=slave
    )
    os.close(slave)
    seen = b""
    try:
        while data := os.read(master, 65536):
            seen += data
    except OSError:  # the other side is closed
        pass
    os.close(master)
    process.wait(timeout=50)
    return seen


def test_colours_are_for_terminals_that_want_them(cli):
    cli("run", "--", "true")
    assert b"\x1b[" in coloured(cli, "ps", "-a")
    assert b"\x1b[" not in coloured(cli, "ps", "-a", "--no-color")
    assert b"\x1b[" not in coloured(cli, "ps", "-a", NO_COLOR="")
    assert b"\x1b[" not in coloured(cli, "ps", "-a", TERM="dumb")
    assert "\x1b[" not in cli("ps", "-a").stdout


def test_ps_watch_redraws_on_a_terminal_until_ctrl_c(cli):
    execution_id = cli.start("--", "sleep", "100")
    master, slave = pty.openpty()
    process = cli.popen("ps", "--watch", stdout=slave)
    os.close(slave)
    seen = b""
    while seen.count(execution_id[:18].encode()) < 2:
        seen += os.read(master, 65536)
    process.send_signal(2)
    assert process.wait(timeout=50) == 0
    os.close(master)


def test_the_reader_of_a_listing_may_leave_early(cli):
    cli("run", "--", "true")
    read, write = os.pipe()
    os.close(read)
    process = cli.popen("ps", "-a", stdout=write)
    os.close(write)
    assert process.wait(timeout=50) == 141
    assert process.stderr.read() == b""


@pytest.mark.parametrize("words", [("ps", "-a"), ("run", "--", "echo", "hi")])
def test_output_that_finds_no_room_is_told(cli, words):
    cli("run", "--", "true")
    with open("/dev/full", "wb") as full:
        process = cli.popen(*words, stdout=full)
    _, errors = process.communicate(timeout=50)
    assert process.returncode == 125
    assert errors.startswith(b"tenuto: error: cannot write: No space left on device\n")


def test_a_look_makes_no_project_of_a_folder(cli):
    del cli.env["TENUTO_HOME"]
    cli.home = cli.folder / ".tenuto"
    for words in (["ps"], ["history"], ["sessions"], ["tools", "list"], ["budget"], ["doctor"]):
        assert cli(*words).returncode == 0
        assert not os.path.lexists(cli.home)
    cli("run", "--", "true")
    assert os.path.islink(cli.home)


def test_a_state_folder_that_is_no_text_is_told(cli):
    cli.env["TENUTO_HOME"] = os.fsdecode(bytes(cli.folder) + b"/caf\xe9")
    done = cli("ps")
    assert done.returncode == 2
    assert "caf\\xe9 is no valid text here\n  use a UTF-8 locale" in done.stderr


def test_main_can_be_called_from_python(cli, monkeypatch, capfd):
    monkeypatch.setenv("TENUTO_HOME", str(cli.home))
    monkeypatch.chdir(cli.folder)
    assert main(["run", "--", "sh", "-c", "echo inside; exit 6"]) == 6
    assert capfd.readouterr().out == "inside\n"
    assert main(["ps", "--help"]) == 0


def test_the_documents_match_the_published_schema(cli):
    schema = json.loads((ROOT / "docs/schema/execution.schema.json").read_text())
    documents = [
        cli.json("run", "--lang", "python", "print(1)\n{'a': 1}"),
        cli.json("run", "--wait", "0", "--", "sleep", "100"),
        cli.json("run", "--", "sh", "-c", "kill -9 $$"),
        *cli.json("ps", "-a"),
        cli.json("run", "--", "sh", "-c", "sleep 100 >/dev/null 2>&1 </dev/null &"),
    ]
    for document in documents:
        assert problems(schema, document, schema) == []
    assert problems(schema, {**documents[0], "state": "sleepy"}, schema)
    assert problems(schema, {**documents[0], "exit_code": "0"}, schema)
    cli("kill", documents[-1]["id"])


KINDS = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None),
    "object": dict, "array": list,
}  # fmt: skip


def problems(schema, value, root, where="$"):
    """Return how a value breaks the parts of JSON Schema that ours uses."""
    if "$ref" in schema:
        return problems(root["$defs"][schema["$ref"].rpartition("/")[2]], value, root, where)
    wanted = schema.get("type", list(KINDS))
    wanted = [wanted] if isinstance(wanted, str) else wanted
    fits = any(isinstance(value, KINDS[kind]) for kind in wanted)
    if not fits or (isinstance(value, bool) and "boolean" not in wanted):
        return [f"{where} is no {wanted}"]
    if value not in schema.get("enum", [value]):
        return [f"{where} is none of {schema['enum']}"]
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return [f"{where} does not look like {schema['pattern']}"]
    found = []
    for number, item in enumerate(value if isinstance(value, list) else ()):
        found += problems(schema.get("items", {}), item, root, f"{where}[{number}]")
    if isinstance(value, dict) and "properties" in schema:
        found += [f"{where}.{name} is missing" for name in schema["required"] if name not in value]
        for name, item in value.items():
            inner = schema["properties"].get(name)
            inside = f"{where}.{name}"
            found += problems(inner, item, root, inside) if inner else [f"{inside} is unknown"]
    return found


def test_the_manual_has_an_example_for_every_verb():
    text = (ROOT / "docs/cli.md").read_text()
    for verb in VERBS:
        assert re.search(rf"^### `tenuto {verb}\b", text, re.M), verb
        assert re.search(rf"^(\$ .*)?(\$ |\| |=\$\()tenuto {verb}\b", text, re.M), verb


def test_the_manual_has_every_code_of_an_error():
    text = (ROOT / "docs" / "json.md").read_text()
    codes = {one.code for one in vars(errors).values() if isinstance(one, type)}
    unraised = {"error", "execution_failed"}  # the superclass; what only Python raises
    assert [one for one in sorted(codes - unraised) if f"`{one}`" not in text] == []


def test_bench_is_there_and_knows_its_names(cli):
    done = cli("bench", "no-such-benchmark", "--quick")
    assert done.returncode == 2
    assert "no-such-benchmark" in done.stderr
