"""Life in a sandbox: input, signals, terminals, ends, neighbours, and what is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from box import Box

from tenuto.keeper import procfs

pytestmark = pytest.mark.promise("S2")


def events(box: Box, execution_id: str) -> list[dict]:
    return json.loads(box.call("show", "--json", "--events", execution_id).stdout)


def ended(box: Box, execution_id: str) -> dict:
    return box.json("wait", execution_id, "--up-to", "60s")


def start(box: Box, *words: str) -> str:
    done = box.call("run", "-d", "--sandbox", "require", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def of_execution(execution_id: str) -> list[int]:
    return [pid for pid in procfs.all_pids() if procfs.carries_mark(pid, execution_id)]


def until(condition, seconds: float = 30.0):
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.02)
    return found


def test_the_confinement_is_on_the_tape_before_the_output(box: Box) -> None:
    end = box.run("--", "echo", "hello")
    kinds = [event["type"] for event in events(box, end["id"])]
    assert kinds[:3] == ["created", "started", "confined"]
    shown = box.call("show", end["id"]).stdout
    assert "confined by" in shown
    assert end["output"] == "hello\n"


@pytest.mark.promise("X7")
def test_input_is_waited_for_and_taken(box: Box) -> None:
    execution_id = start(box, "--lang", "python", "--", "print('got', input())")
    until(lambda: box.json("show", execution_id)["waiting_for"] == "input")
    assert box.call("send", execution_id, "Ada").returncode == 0
    ended(box, execution_id)
    assert "got Ada" in box.call("logs", execution_id).stdout


@pytest.mark.promise("X7")
def test_input_of_a_command_is_waited_for(box: Box) -> None:
    execution_id = start(box, "--", "cat")
    until(lambda: box.json("show", execution_id)["waiting_for"] == "input")
    assert box.call("kill", execution_id).returncode == 0


def test_an_interrupt_reaches_the_program_and_not_what_holds_it(box: Box) -> None:
    code = """
import signal, time
print("ready", flush=True)
try:
    time.sleep(100)
except KeyboardInterrupt:
    print("cleaned up", flush=True)
"""
    execution_id = start(box, "--lang", "python", "--", code)
    until(lambda: "ready" in box.call("logs", execution_id).stdout)
    box.call("interrupt", execution_id)
    assert "cleaned up" in box.call("logs", execution_id).stdout
    assert box.json("show", execution_id)["state"] == "interrupted"


def test_a_signal_can_be_named(box: Box) -> None:
    code = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    execution_id = start(box, "--lang", "bash", "--", code)
    until(lambda: "ready" in box.call("logs", execution_id).stdout)
    box.call("kill", "--signal", "TERM", execution_id)
    ended(box, execution_id)
    assert "told" in box.call("logs", execution_id).stdout


def test_a_terminal(box: Box) -> None:
    code = """
import os, sys, time
print(os.isatty(0), os.get_terminal_size().columns, flush=True)
try:
    time.sleep(100)
except KeyboardInterrupt:
    print("typed", flush=True)
"""
    execution_id = start(box, "--pty", "--lang", "python", "--", code)
    until(lambda: "True 80" in box.call("logs", execution_id).stdout)
    box.call("send", "--raw", execution_id, "\x03")
    until(lambda: "typed" in box.call("logs", execution_id).stdout)
    ended(box, execution_id)


@pytest.mark.promise("X8")
def test_kill_ends_daemons_too(box: Box) -> None:
    code = "setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; echo up; wait"
    execution_id = start(box, "--lang", "bash", "--", code)
    until(lambda: "up" in box.call("logs", execution_id).stdout)
    assert len(of_execution(execution_id)) >= 3
    assert box.call("kill", execution_id).returncode == 0
    assert of_execution(execution_id) == []
    assert box.json("show", execution_id)["state"] == "killed"


@pytest.mark.promise("X8")
def test_nothing_outlives_the_program(box: Box) -> None:
    code = "setsid sleep 1000 >/dev/null 2>&1 & (setsid sleep 1001 >/dev/null 2>&1 &); echo done"
    end = box.run("--lang", "bash", "--", code, level="require")
    assert (end["state"], end["output"], end["left_behind"]) == ("succeeded", "done\n", [])
    until(lambda: of_execution(end["id"]) == [])


@pytest.mark.promise("X11")
def test_when_the_keeper_is_killed_the_sandbox_ends_and_is_swept(box: Box) -> None:
    execution_id = start(box, "--lang", "bash", "--", "(setsid sleep 1000 &); echo up; sleep 1000")
    until(lambda: "up" in box.call("logs", execution_id).stdout)
    keeper = next(e for e in events(box, execution_id) if e["type"] == "started")["keeper_pid"]
    os.kill(keeper, signal.SIGKILL)
    until(lambda: box.json("show", execution_id)["state"] == "lost")
    assert of_execution(execution_id) == []
    assert not Path(f"/tmp/tenuto-{execution_id}").exists()


def test_two_sandboxes_do_not_see_each_other(box: Box) -> None:
    first = start(
        box, "--lang", "bash", "--",
        'echo secret > "$TMPDIR/mine"; echo x > /dev/shm/mine; echo "at $TMPDIR $$"; sleep 1000',
    )  # fmt: skip
    line = until(lambda: box.call("logs", first).stdout)
    folder, pid = line.split()[1:3]
    outside = next(e for e in events(box, first) if e["type"] == "started")["pid"]
    code = f"""
import os
def refused(function):
    try:
        function()
    except OSError:
        return True
    return False
answers = [
    refused(lambda: open({folder + "/mine"!r}).read()),
    refused(lambda: open("/dev/shm/mine").read()),
    refused(lambda: os.kill({outside}, 0)),
    refused(lambda: open("/proc/{outside}/cmdline").read()),
]
try:
    names = [open(f"/proc/{{n}}/cmdline").read() for n in os.listdir("/proc") if n.isdecimal()]
except OSError:
    names = []
answers + [not any("sleep" in name for name in names)]
"""
    end = box.python(code, level="require")
    assert end["value"] == [True] * 5, (end["value"], end["output"], pid)
    assert box.json("show", first)["state"] == "running"
    box.call("kill", first)


def test_tmp_is_private_and_gone_afterwards(box: Box) -> None:
    code = "import os, tempfile\nplace = tempfile.mkdtemp()\nos.mkdir(place + '/x', 0)\nplace"
    first = box.python(code, level="require")
    assert first["state"] == "succeeded", first["output"]
    until(lambda: not Path(first["value"]).exists())  # its keeper clears up after the end is told
    until(lambda: not Path(f"/tmp/tenuto-{first['id']}").exists())


@pytest.mark.promise("X16")
def test_a_state_folder_of_its_own_making_is_put_aside(box: Box) -> None:
    box.run("--", "true")
    state = box.state
    code = """
import os
os.unlink(".tenuto")
os.makedirs(".tenuto/composed-tools")
open(".tenuto/composed-tools/evil.js", "w").write("evil")
"""
    end = box.python(code, level="require")
    assert end["state"] == "succeeded", end["output"]
    until((box.work / ".tenuto").is_symlink)
    assert box.state == state
    assert any(e["type"] == "faulted" and ".tenuto" in e["text"] for e in events(box, end["id"]))
    sub = box.own(box.work / "sub")
    sub.mkdir()
    box.own(sub)
    end = box.python("import os; os.mkdir('.tenuto')", "--cwd", str(sub), level="require")
    assert end["state"] == "succeeded"
    until(lambda: not (sub / ".tenuto").exists())


@pytest.mark.promise("X16")
def test_state_inside_the_working_folder_is_hidden_or_the_rung_is_refused(box: Box) -> None:
    inside = box.work / "inner"
    end = box.json(
        "run", "--sandbox", "require", "--lang", "python", "--", "import os\nos.listdir('inner')",
        TENUTO_HOME=str(inside),
    )  # fmt: skip
    if box.rung == "bwrap":
        assert end["value"] == []
    else:
        assert end["error"]["code"] == "sandbox_unavailable"
        assert "lies inside" in end["error"]["message"]


def test_writable_and_readable_paths(box: Box) -> None:
    for name in ("read", "write"):
        (box.outside / name).mkdir()
        (box.outside / name / "f").write_text("x")
    code = f"""
def tried(path, mode):
    try:
        open(path, mode).close()
        return True
    except OSError:
        return False
place = {str(box.outside)!r}
[tried(place + "/" + name + "/f", mode) for name in ("read", "write") for mode in ("r", "a")]
"""
    words = ["--readable", str(box.outside / "read"), "--writable", str(box.outside / "write")]
    assert box.python(code, *words, level="require")["value"] == [True, False, True, True]


def test_the_environment_is_small_and_what_is_given_is_there(box: Box) -> None:
    code = "import os\n{k: v for k, v in os.environ.items() if not k.startswith('PYENV')}"
    end = box.python(code, "--env", "NAME=Ada", level="require")
    assert end["value"]["NAME"] == "Ada"
    assert "TENUTO_TEST_SECRET" not in end["value"]
    assert end["value"]["HOME"] == end["value"]["TMPDIR"]


def test_resumed_it_is_confined_again(box: Box) -> None:
    execution_id = start(box, "--lang", "bash", "--", "echo $HOME; sleep 1000")
    until(lambda: box.call("logs", execution_id).stdout)
    box.call("interrupt", execution_id)
    box.call("resume", "--force", "-d", execution_id)
    until(lambda: box.json("show", execution_id)["state"] == "running")
    assert box.json("show", execution_id)["confinement"]["level"].startswith(box.rung)
    box.call("kill", execution_id)


@pytest.mark.promise("X14")
def test_a_session_in_a_sandbox(box: Box) -> None:
    words = ["--session", "s", "--lang", "python"]
    assert box.run(*words, "--", "x = 20", level="require")["state"] == "succeeded"
    assert box.run(*words, "--", "x + 1", level="require")["value"] == 21
    secret = box.home / "secret"
    secret.write_text("x")
    end = box.run(*words, "--", f"open({str(secret)!r})", level="require")
    assert end["state"] == "failed"
    assert "Error" in end["output"]
    other = box.run(*words, "--net", "on", "--", "x")
    assert "another sandbox" in other["error"]["message"]
    box.call("sessions", "clear", "s")


@pytest.mark.parametrize("forks", ["", "1"])
def test_spawned_or_forked_it_is_the_same(box: Box, forks: str) -> None:
    code = "import os\n[sorted(map(int, os.listdir('/proc/self/fd')))[:5], os.getcwd()]"
    end = box.python(code, level="require", TENUTO_KEEPER_FORKS=forks)
    assert end["value"] == [[0, 1, 2, 3, 4], str(box.work)]
    end = box.run("--", "ls", "/proc/self/fd", level="require", TENUTO_KEEPER_FORKS=forks)
    assert end["output"].split() == ["0", "1", "2", "3"]
    assert end["confinement"]["level"].startswith(box.rung)


@pytest.mark.parametrize("forks", ["", "1"])
def test_a_program_that_cannot_be_started_says_so(box: Box, forks: str) -> None:
    (box.work / "text").write_text("no program")
    (box.work / "text").chmod(0o755)
    end = box.run("--", "./text", level="require", TENUTO_KEEPER_FORKS=forks)
    assert end["state"] == "failed"
    told = end["detail"] + end["output"]
    assert "xec format" in told or "not found" in told  # bubblewrap tries a shell first


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works in the folders of others")
def test_root_in_the_folder_of_a_user_is_that_user(box: Box) -> None:
    os.chown(box.work, 65534, 65534)
    os.chmod(box.root, 0o755)
    end = box.run("--", "sh", "-c", "touch made && stat -c %u made; id -u", level="require")
    if end["state"] != "succeeded" and box.rung == "bwrap":
        pytest.skip(f"no user namespaces for ordinary users here: {end['output']}")
    assert end["state"] == "succeeded", end["output"]
    assert (box.work / "made").stat().st_uid == 65534
