import os
import signal

import pytest

from tenuto.cli import exits
from tenuto.core.execution import Snapshot
from tenuto.core.states import State

pytestmark = pytest.mark.promise("U1")


def test_wait_returns_the_childs_exit_code(cli):
    execution_id = cli.start("--", "sh", "-c", "exit 9")
    done = cli("wait", execution_id)
    assert done.returncode == 9
    assert "failed: exit" in done.stdout
    assert execution_id[:18] in done.stdout
    assert cli.json("wait", execution_id)["exit_code"] == 9


@pytest.mark.promise("X3")
def test_wait_gives_up_when_it_is_told_to(cli):
    execution_id = cli.start("--", "sleep", "100")
    done = cli("wait", "--up-to", "100ms")
    assert done.returncode == 75
    assert "running" in done.stdout
    assert cli.json("wait", execution_id, "--up-to", "0")["handed_over"] is True


@pytest.mark.promise("X6")
def test_wait_until_a_text_or_a_pattern_appears(cli):
    execution_id = cli.start("--", "sh", "-c", "echo ready on port 8080; exec sleep 100")
    done = cli("wait", execution_id, "--until", "ready")
    assert (done.returncode, "found 'ready'" in done.stdout) == (0, True)
    assert cli.json("wait", execution_id, "--until", r"/port \d+/")["matched"] == "port 8080"
    assert cli("wait", execution_id, "--until", "/(/").returncode == 2
    assert cli("wait", execution_id, "--until", "never", "--up-to", "100ms").returncode == 75
    short = cli.start("--", "echo", "something")
    done = cli("wait", short, "--until", "never")
    assert done.returncode == 1
    assert "without 'never'" in done.stdout


def test_wait_for_several_all_or_any(cli):
    long = cli.start("--", "sleep", "100")
    good = cli.start("--", "true")
    bad = cli.start("--", "sh", "-c", "exit 4")
    done = cli("wait", good, bad)
    assert done.returncode == 4
    assert len(done.stdout.splitlines()) == 2
    assert [one["id"] for one in cli.json("wait", good, bad)] == [good, bad]
    done = cli("wait", long, good, "--any")
    assert done.returncode == 0
    assert good[:18] in done.stdout
    assert long[:18] not in done.stdout


def test_ctrl_c_in_wait_leaves_the_execution_running(cli):
    execution_id = cli.start("--", "sleep", "100")
    process = cli.popen("wait", execution_id)
    asleep(process.pid)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert f"still running: {execution_id}" in err.decode()
    assert cli.state(execution_id) == "running"


def asleep(pid):
    """Wait until a process sleeps in poll: its command is set up and waits."""
    calls = {"x86_64": "7", "aarch64": "73"}
    wanted = calls[os.uname().machine]
    while True:
        with open(f"/proc/{pid}/syscall") as file:
            if file.read().split()[0] == wanted:
                return


@pytest.mark.promise("X8")
def test_kill_says_what_changed_and_spares_no_other_for_an_error(cli):
    live = cli.start("--", "sh", "-c", "setsid sleep 100 & sleep 100")
    over = cli.start("--", "true")
    cli("wait", over)
    done = cli("kill", over, live)
    assert done.returncode == 1
    assert f"{live[:18]}  killed" in done.stdout
    assert "verified dead" in done.stdout
    assert "has ended already: succeeded" in done.stderr
    documents = cli.json("kill", over, live)
    assert [one["id"] for one in documents] == [over, live]
    assert documents[0]["error"]["code"] == "not_running"
    assert cli("wait", live).returncode == 137


@pytest.mark.promise("X8")
def test_kill_with_a_signal_of_choice(cli):
    code = "trap 'echo caught; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    execution_id = cli.start("--lang", "bash", code)
    cli.wait_for(execution_id, "up")
    done = cli("kill", execution_id, "--signal", "term")
    assert (done.returncode, "SIGTERM sent" in done.stdout) == (0, True)
    assert cli("wait", execution_id).returncode == 3
    assert "caught" in cli("logs", execution_id).stdout
    assert cli("kill", execution_id, "--signal", "NONSENSE").returncode == 2


@pytest.mark.promise("X8")
def test_kill_all_ends_everything_of_the_project(cli):
    assert "Nothing is running" in cli("kill", "--all").stderr
    started = {cli.start("--", "sleep", "100") for _ in range(3)}
    documents = cli.json("kill", "--all")
    assert {one["id"] for one in documents} == started
    assert {one["state"] for one in documents} == {"killed"}
    assert cli.json("ps") == []
    assert cli("kill").returncode == 2
    assert cli("kill", "--all", "abc").returncode == 2


@pytest.mark.promise("X2")
def test_interrupt_then_resume_by_force(cli):
    code = "import time\nprint('begun', flush=True)\ntime.sleep(100)"
    execution_id = cli.start("--lang", "python", code)
    cli.wait_for(execution_id, "begun")
    done = cli("interrupt", execution_id)
    assert done.returncode == 0
    assert "interrupted" in done.stdout
    assert f"resume --force {execution_id[:18]}" in done.stdout
    assert cli("interrupt", execution_id).returncode == 1
    done = cli("resume", execution_id)
    assert done.returncode == 2
    assert "--force" in done.stderr
    done = cli("resume", execution_id, "--force", "--wait", "1s")
    assert done.returncode == 75
    assert done.stdout == "begun\n"
    assert cli("logs", execution_id).stdout == "begun\n" * 2
    states = [one["state"] for one in cli.json("history", execution_id)["transitions"]]
    assert states[:3] == ["queued", "running", "interrupted"]
    assert states[3:5] == ["queued", "running"]
    cli("interrupt", execution_id)
    done = cli("resume", execution_id, "--force", "-d")
    assert (done.returncode, done.stdout.strip()) == (0, execution_id)


@pytest.mark.promise("X6")
def test_clear_drops_the_output_only(cli):
    execution_id = cli.start("--", "echo", "gone")
    cli("wait", execution_id)
    done = cli("clear", execution_id)
    assert (done.returncode, "dropped" in done.stdout) == (0, True)
    assert cli("logs", execution_id).stdout == ""
    assert cli.json("clear", execution_id)["state"] == "succeeded"
    assert "cleared" in cli("show", "--events", execution_id).stdout


@pytest.mark.promise("X15")
def test_clean_removes_what_ended_and_never_a_live_one(cli):
    done = cli("clean")
    assert done.returncode == 2
    assert "--older" in done.stderr
    live = cli.start("--", "sleep", "100")
    for _ in range(3):
        cli("run", "--", "true")
    assert "removed 0 executions" in cli("clean", "--older", "1h").stdout
    assert cli.json("clean", "--keep", "1")["removed"] == 2
    assert cli.json("clean", "--max-size", "0")["removed"] == 1
    assert cli.ids() == {live}
    cli("run", "--", "true")
    assert cli.json("clean", env={"TENUTO_RETENTION_COUNT": "0"})["removed"] == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"state": State.SUCCEEDED, "exit_code": 0}, 0),
        ({"state": State.FAILED, "exit_code": 3}, 3),
        ({"state": State.FAILED, "signal": "SIGSEGV"}, 139),
        ({"state": State.FAILED, "signal": "signal 40"}, 168),
        ({"state": State.FAILED, "exit_code": 0, "reason": "limit"}, 1),
        ({"state": State.FAILED, "reason": "keeper"}, 125),
        ({"state": State.KILLED, "exit_code": 0}, 137),
        ({"state": State.INTERRUPTED, "exit_code": 0}, 130),
        ({"state": State.LOST}, 125),
        ({"state": State.RUNNING}, 75),
        ({"state": State.WAITING}, 75),
    ],
)
def test_every_way_to_stand_has_its_exit_code(fields, code):
    snapshot = Snapshot(id="0", kind="command", title="", **fields)
    assert exits.of_snapshot(snapshot) == code
