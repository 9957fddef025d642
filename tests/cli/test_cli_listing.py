import json

import pytest

from tenuto.cli.table import cells, cut, table

pytestmark = pytest.mark.promise("U1", "X9")

FIELDS = {
    "schema", "id", "kind", "title", "state", "waiting_for", "reason", "detail", "exit_code",
    "signal", "value", "has_value", "handed_over", "async", "interactive", "created_at",
    "started_at", "ended_at", "duration_s", "output_bytes", "output_lines", "left_behind", "usage",
    "confinement", "engine", "parent", "session", "matched", "hint",
}  # fmt: skip


def test_ps_groups_what_needs_someone_what_runs_and_what_is_done(cli):
    done = cli("ps")
    assert (done.returncode, done.stdout) == (0, "")
    assert "Nothing is running" in done.stderr
    cli("run", "--title", "over", "--", "true")
    cli.start("--title", "busy", "--", "sleep", "100")
    asks = cli.start("--title", "asks", "--", "cat")
    assert cli("wait", asks).returncode == 75
    lines = cli("ps").stdout.splitlines()
    assert lines[0].split() == ["ID", "STATE", "TIME", "LINES", "TITLE"]
    assert lines[1] == "Needs you"
    assert "waiting: input" in lines[2]
    assert lines[2].endswith("asks")
    assert lines[3] == "Running"
    assert lines[4].endswith("busy")
    lines = cli("ps", "-a").stdout.splitlines()
    assert lines[5] == "Done"
    assert lines[6].endswith("over")
    assert len(lines) == 7


def test_ps_filters(cli):
    cli("run", "--title", "first alpha", "--", "true")
    cli("run", "--lang", "bash", "exit 1")
    live = cli.start("--title", "live beta", "--", "sleep", "100")
    assert cli("ps", "-q").stdout.strip() == live
    assert len(cli("ps", "-a", "-q").stdout.split()) == 3
    assert [one["state"] for one in cli.json("ps", "--state", "failed")] == ["failed"]
    assert [one["kind"] for one in cli.json("ps", "-a", "--kind", "code")] == ["code"]
    assert [one["title"] for one in cli.json("ps", "-a", "--text", "alpha")] == ["first alpha"]
    assert [one["id"] for one in cli.json("ps", "-a", "--async")] == [live]
    assert len(cli.json("ps", "-a", "-n", "1")) == 2
    assert cli("ps", "--state", "sleepy").returncode == 2
    assert set(cli.json("ps")[0]) == FIELDS


def test_the_gateway_is_listed_only_where_all_is_asked_for(cli):
    gateway = cli.start("--title", "metering gateway", "--", "sleep", "100")
    assert "Nothing is running" in cli("ps").stderr
    ours = cli.start("--", "sleep", "100")
    for words in (["-n", "1"], ["--state", "running"], ["--async"], ["--kind", "command"]):
        assert [one["id"] for one in cli.json("ps", *words)] == [ours], words
    assert gateway in cli("ps", "-a", "-q").stdout.split()
    assert [one["id"] for one in cli.json("tree")] == [ours]
    cli("kill", "--all")
    assert [one["id"] for one in cli.json("history", "-n", "1")["executions"]] == [ours]
    assert cli.json("history")["totals"]["count"] == 1


def test_ps_watch_prints_once_where_there_is_no_terminal(cli):
    execution_id = cli.start("--", "sleep", "100")
    assert execution_id[:18] in cli("ps", "--watch").stdout


def test_titles_cannot_steer_the_terminal(cli):
    cli("run", "--title", "a\x1b[2Jb\nc", "--", "true")
    assert "\x1b" not in cli("ps", "-a").stdout
    (execution_id,) = cli.ids()
    assert "\x1b" not in cli("show", execution_id).stdout


@pytest.mark.promise("X10")
def test_status_is_the_report_with_counts(cli):
    cli("run", "--", "true")
    cli.start("--title", "busy", "--", "sleep", "100")
    done = cli("status")
    assert "Running: 1" in done.stdout
    assert "busy" in done.stdout
    assert "All: 1 running, 1 succeeded" in done.stdout
    document = cli.json("status")
    assert document["schema"] == 1
    assert document["counts"] == {"running": 1, "succeeded": 1}
    assert document["running"][0]["title"] == "busy"


def test_tree_shows_what_was_started_inside(cli):
    inner = f"{cli.argv[0]} -m tenuto.cli.main run -d --title inner -- sleep 100"
    outer = cli.start("--title", "outer", "--lang", "bash", f"{inner}; echo up; sleep 100")
    cli.wait_for(outer, "up")
    lines = cli("tree").stdout.splitlines()
    assert lines[0].startswith(outer[:18])
    assert lines[0].endswith("outer")
    assert lines[1].startswith("└─ ")
    assert lines[1].endswith("inner")
    assert cli("tree", outer).stdout.splitlines()[1].endswith("inner")
    document = cli.json("tree", outer)
    assert document["children"][0]["title"] == "inner"
    assert document["children"][0]["parent"] == outer
    assert cli.json("tree")[0]["id"] == outer
    assert cli("kill", outer).returncode == 0
    assert cli.json("ps") == []
    assert "Nothing is running" in cli("tree").stderr


@pytest.mark.promise("X1", "X2")
def test_show_tells_everything_but_secrets(cli):
    secret = "hunter2-hunter2"
    cli.env["MY_API_TOKEN"] = secret
    cli("run", "--lang", "python", "--mem", "1G", "--deadline", "1m", "--env", f"NAME={secret}",
        f"print('{secret}')\n[1, 2]")  # fmt: skip
    (execution_id,) = cli.ids()
    text = cli("show", execution_id).stdout
    for part in ("succeeded", "[1,2]", "code, python", "memory 1.0 GB", "NAME", "1m00s", "queued"):
        assert part in text
    assert secret not in text
    document = cli.json("show", execution_id)
    assert set(document) == FIELDS | {"spec", "transitions"}
    assert [one["state"] for one in document["transitions"]] == ["queued", "running", "succeeded"]
    assert secret not in json.dumps(document)
    events = cli("show", "--events", execution_id).stdout
    assert "started" in events
    assert secret not in events
    types = [one["type"] for one in cli.json("show", "--events", execution_id)]
    assert types[0] == "created"
    assert types[-1] == "ended"
    exported = cli("export", execution_id).stdout
    assert secret not in exported
    lines = [json.loads(line) for line in exported.splitlines()]
    assert set(lines[0]) == FIELDS
    assert [line["seq"] for line in lines[1:]] == sorted(line["seq"] for line in lines[1:])
    assert any(line.get("stream") == "out" for line in lines)


def test_any_unique_prefix_is_an_id_and_others_are_refused_by_name(cli):
    cli("run", "--", "true")
    (execution_id,) = cli.ids()
    assert cli("show", execution_id[:6]).returncode == 0
    assert cli("show", execution_id.upper()).returncode == 0
    done = cli("show", "ffffff")
    assert done.returncode == 1
    assert execution_id[:18] in done.stderr
    assert cli("show", "not-an-id").returncode == 2
    cli("run", "--", "true")
    done = cli("show", execution_id[:4])
    assert done.returncode == 1
    assert "fits several" in done.stderr


@pytest.mark.promise("X16")
def test_another_projects_id_is_refused(cli):
    del cli.env["TENUTO_HOME"]
    for name in ("one", "two"):
        (cli.folder / name).mkdir()
    ours = cli("--project", "one", "run", "-d", "--", "sleep", "100").stdout.strip()
    assert cli("ps", "--project", "one", "-q").stdout.strip() == ours
    done = cli("show", ours, "--project=two")
    assert done.returncode == 1
    assert "another project" in done.stderr
    assert cli("kill", ours, "--project", "two").returncode == 1
    assert cli("--project", "one", "kill", ours).returncode == 0
    done = cli("ps", "--project", "three")
    assert done.returncode == 2
    assert "three" in done.stderr


def test_history_sums_up(cli):
    assert "Nothing has ended" in cli("history").stderr
    cli("run", "--title", "good one", "--", "true")
    cli("run", "--", "false")
    lines = cli("history").stdout.splitlines()
    assert lines[0].split()[:3] == ["ID", "STATE", "ENDED"]
    assert "2 executions, 50% succeeded" in lines[-1]
    document = cli.json("history", "-n", "1")
    assert document["totals"]["count"] == 1
    assert document["totals"]["success_rate"] == 0.0
    assert cli.json("history", "--since", "1h")["totals"]["succeeded"] == 1
    assert cli.json("history", "--since", "2100-01-01")["executions"] == []
    good = cli.json("history")["executions"][1]["id"]
    assert [line.split()[1] for line in cli("history", good).stdout.splitlines()] == [
        "queued", "running", "succeeded",
    ]  # fmt: skip


def test_columns_are_aligned_and_cut_whatever_the_script():
    lines = table(("A", "B", "C"), [("wide 漢字", "7", "x" * 50), ("é", "123", "short")], 40, (1,))
    assert [cells(line) for line in lines] == [17, 40, 21]
    assert lines[1].endswith("…")
    assert cut("漢字漢字", 5) == "漢字…"
    assert cells("e\u0301") == 1
