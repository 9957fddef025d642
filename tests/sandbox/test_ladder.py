"""The ladder: what is missing is said, `require` refuses, `auto` goes on with less."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from box import Box, need

pytestmark = pytest.mark.promise("S2")

RUNGS = ("bwrap", "landlock", "limits")


@pytest.fixture(params=RUNGS)
def each(request: pytest.FixtureRequest) -> Iterator[Box]:
    if request.param != "limits":
        need(request.param)
    box = Box(request.param)
    yield box
    box.close()


def test_auto_takes_the_highest_rung_and_says_what_it_passed(each: Box) -> None:
    end = each.run("--", "true")
    assert end["state"] == "succeeded"
    level, missing = end["confinement"]["level"], " ".join(end["confinement"]["missing"])
    expected = {"bwrap": "bwrap+seccomp", "landlock": "landlock+seccomp", "limits": "nothing"}
    assert level == expected[each.rung]
    for name in RUNGS[: RUNGS.index(each.rung)]:
        assert f"{name}: TENUTO_SANDBOX_WITHOUT" in missing
    if each.rung == "limits":
        assert "files: everything" in missing
        assert "net off: the whole network" in missing


def test_require_runs_confined_or_not_at_all(each: Box) -> None:
    document = each.run("--", "true", level="require")
    if each.rung != "limits":
        assert document["state"] == "succeeded"
        return
    error = document["error"]
    assert error["code"] == "sandbox_unavailable"
    assert "bwrap:" in error["message"]
    assert "landlock:" in error["message"]
    assert "bubblewrap" in error["hint"]
    assert each.json("ps", "-a") == []  # nothing was recorded, nothing ran


def test_doctor_tells_the_rung_and_why_no_higher_one(each: Box) -> None:
    checks = {check["name"]: check for check in each.json("doctor")["checks"]}
    if each.rung == "limits":
        assert checks["sandbox"]["detail"] == "nothing can hold executions"
    else:
        assert checks["sandbox"]["detail"].startswith(each.rung)
    for name in RUNGS[: RUNGS.index(each.rung)]:
        assert "TENUTO_SANDBOX_WITHOUT" in checks[f"sandbox {name}"]["detail"]
    assert checks["sandbox limits"]["ok"]


def test_a_setting_makes_it_the_default(each: Box) -> None:
    (each.work / "tenuto.toml").write_text('sandbox = "require"\nsandbox_net = "on"\n')
    document = each.json("run", "--", "true")
    if each.rung == "limits":
        assert document["error"]["code"] == "sandbox_unavailable"
        assert each.json("doctor")["ok"] is False
    else:
        assert document["confinement"]["net"] == "on"
    assert each.json("run", "--sandbox", "none", "--", "true")["confinement"] is None


def test_loopback_is_a_network_of_its_own_or_none(each: Box) -> None:
    code = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.send(b"x")
server.accept()[0].recv(1) == b"x"
"""
    if each.rung == "bwrap":
        end = each.python(code, "--net", "loopback", level="require")
        assert end["value"] is True
        assert end["confinement"]["net"] == "loopback"
        return
    refused = each.python(code, "--net", "loopback", level="require")
    assert refused["error"]["code"] == "sandbox_unavailable"
    end = each.python(code, "--net", "loopback")
    if each.rung == "landlock":
        assert end["confinement"]["net"] == "off"
        assert "loopback" in " ".join(end["confinement"]["missing"])
        assert "PermissionError" in end["output"]


def test_the_network_is_there_when_it_is_on(each: Box) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"""
import socket
socket.create_connection(("127.0.0.1", {server.getsockname()[1]})).close()
"""
        assert each.python(code, "--net", "on")["state"] == "succeeded"
        blocked = each.python(code, "--net", "off")
        assert (blocked["state"] == "succeeded") == (each.rung == "limits")


def test_no_landlock_and_no_cgroup_leave_plain_limits_which_are_told() -> None:
    box = Box("limits", without="cgroup")
    try:
        end = box.run("--mem", "1G", "--cpu", "60s", "--", "true")
        assert end["confinement"]["level"] == "rlimits"
        assert any("memory" in one for one in end["confinement"]["missing"])
    finally:
        box.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--net", "off"], "there is none"),
        (["--pids", "5"], "only a sandbox"),
        (["--sandbox", "auto", "--cwd", "/"], "too much"),
        (["--sandbox", "auto", "--readable", "/no/such/thing"], "does not exist"),
    ],
)
def test_what_cannot_work_is_refused(words: list[str], said: str) -> None:
    box = Box("limits")
    try:
        done = box.call("run", *words, "--", "true")
        assert done.returncode == 2
        assert said in done.stderr
    finally:
        box.close()
